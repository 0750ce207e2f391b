"""What is scored of a completion, and how its token losses add up to log-probabilities.

A masked diffusion model has no tractable log p(completion). Each estimator chooses masked copies of a completion, and
*actions* (tokens, or the sequence) whose log-probability is v_a = sum of c_n log p_n over the scored tokens n of the
action. Draws depend on the completion's key and the number of the inner iteration alone.

Shape letters: S completions, R copies, T packed tokens, N scored tokens, A actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.masked_copies import Batch, MaskedCopies, concatenated, masked_copies, pack
from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.diffusion.schedules import CleanCopies, NoiseSchedule, draw, ranks, weights
from dare_bench.seeds import key
from dare_bench.trainers.rl.completions import Completion


@dataclass(frozen=True, kw_only=True)
class Actions:
    """Masked copies of completions, and the actions that their scored tokens make up.

    ``sample_R`` is the completion of each copy, ``coefficient_N`` c_n and ``action_N`` a of each scored token (see the
    module's docstring), ``sample_A`` the completion of each action. ``transition_A`` is the step of denoising of each
    action, numbered over all completions; None: the estimator does not look at steps of denoising. ``advantage_A`` is
    the advantage of each action; None: that of its completion.
    """

    copies: MaskedCopies
    sample_R: Tensor
    coefficient_N: Tensor
    action_N: Tensor
    sample_A: Tensor
    transition_A: Tensor | None = None
    advantage_A: Tensor | None = None

    @classmethod
    def of_tokens(cls, copies: MaskedCopies, sample_R: Tensor, sample_A: Tensor | None = None, **more: Any) -> Actions:
        """Each scored token is an action with its log-probability; its completion is that of its copy by default."""
        return cls(
            copies=copies,
            sample_R=sample_R,
            coefficient_N=torch.ones(len(copies.at_N), dtype=torch.float64),
            action_N=torch.arange(len(copies.at_N)),
            sample_A=sample_R[copies.copy_N] if sample_A is None else sample_A,
            **more,
        )

    def logprobs(self, nll_N: Tensor) -> Tensor:
        """v_a from -log p of the scored tokens, float64 [A], with a graph where ``nll_N`` has one."""
        lp_N = -nll_N.double() * self.coefficient_N
        return lp_N.new_zeros(len(self.sample_A)).index_add(0, self.action_N, lp_N)

    @property
    def within_copies(self) -> bool:
        """Does each action have all its tokens in one copy?"""
        copy_N = self.copies.copy_N
        copy_A = torch.zeros(len(self.sample_A), dtype=copy_N.dtype).index_copy_(0, self.action_N, copy_N)
        return torch.equal(copy_A[self.action_N], copy_N)


def fully_masked(
    completions: Sequence[Completion], mask_id: int, iteration: int, prompt_probability: float = 0.0
) -> Actions:
    """One copy of each completion, all of it masked; an action is a token (diffu-GRPO, arXiv 2504.12216, section 3.2).
    ``prompt_probability``: each prompt token is hidden with it, and never scored."""
    batch = _rows(completions)
    hidden_T = batch.response_T
    if prompt_probability:
        u_T = uniform(_keys(completions)[batch.row_T], Draw.MASK, iteration, batch.column_T)
        hidden_T = hidden_T | (u_T < prompt_probability)
    return _tokens(completions, [_scoring(completions, batch, hidden_T, batch.response_T, mask_id)], [1.0])


def coupled(
    completions: Sequence[Completion],
    mask_id: int,
    iteration: int,
    level_key: int,
    band: tuple[float, float] = (0.2, 0.8),
    normalized: bool = False,
) -> Actions:
    """Three copies: all masked, a random set M at level t, and its complement; an action is a token with

        v_i = 1/2 [log p_i(all) + (log p_i(M) / t if i in M else log p_i(not M) / (1 - t))]

    (coupled-GRPO, arXiv 2506.20639, equation 6). t ~ U(band) is one for the step. If the context does not matter, the
    expectation is 1.5 log p; ``normalized`` divides by 1.5.
    """
    batch = _rows(completions)
    low, high = band
    level = low + (high - low) * float(uniform(torch.tensor(level_key), Draw.NOISE_LEVEL, iteration, 0))
    u_T = uniform(_keys(completions)[batch.row_T], Draw.MASK, iteration, batch.column_T)
    inside_T = batch.response_T & (u_T < level)
    factor = 0.5 / (1.5 if normalized else 1.0)
    masks = (batch.response_T, inside_T, batch.response_T & ~inside_T)
    copies = [_scoring(completions, batch, mask_T, mask_T, mask_id) for mask_T in masks]
    return _tokens(completions, copies, [factor, factor / level, factor / (1 - level)])


def trajectory(completions: Sequence[Completion], mask_id: int, block_length: int | None = None) -> Actions:
    """A masked copy of the canvas before each forward of the sampler, with the tokens that this forward wrote; an
    action is a token, a transition a forward (CJ-GRPO, arXiv 2509.23924, equation 11).

    With ``block_length`` (block-causal models) copy j shows forward j *of every block* at once, since a block attends
    to itself and to the clean blocks before it. So there are as many copies as the slowest block has forwards, and
    every (block, forward) is a separate transition.
    """
    parts: list[MaskedCopies] = []
    samples: list[int] = []
    transitions: list[Tensor] = []
    count = 0  # of transitions
    for number, completion in enumerate(completions):
        offset = len(completion.prompt)
        local_L, index_L = torch.tensor(_local_forwards(completion, block_length)), torch.arange(len(completion.tokens))
        block_L = torch.zeros_like(index_L) if block_length is None else (index_L + offset) // block_length
        batch = pack([(completion.prompt, completion.tokens)])
        for forward in range(int(local_L.max()) + 1):
            scored_L = (local_L == forward) & (index_L < completion.scored)
            if not bool(scored_L.any()):
                continue
            hidden_L = (local_L >= forward) | (local_L < 0)
            seen_T = batch.tokens_T.clone()
            seen_T[offset:][hidden_L] = mask_id
            at_N = scored_L.nonzero()[:, 0] + offset
            parts.append(MaskedCopies(batch, seen_T, at_N, batch.tokens_T[at_N]))
            samples.append(number)
            transitions.append(count + block_L[scored_L])
            count += int(block_L[-1]) + 1
    if not parts:
        return empty(completions)
    transition_A = torch.cat(transitions).unique(return_inverse=True)[1]
    return Actions.of_tokens(concatenated(parts), torch.tensor(samples), transition_A=transition_A)


def predicted(completions: Sequence[Completion], mask_id: int) -> Actions:
    """A masked copy of the canvas before each forward that is trained on, with the tokens that the forward proposed at
    its masks, written or not; an action is a token, a transition a forward, and its advantage that of its forward times
    canvas length / number of masks (MDPO, arXiv 2508.13148)."""
    chosen = [(number, c, forward) for number, c in enumerate(completions) for forward in c.predictions]
    if not chosen:
        return empty(completions)
    batch = pack([(c.prompt, forward.tokens) for _, c, forward in chosen])
    prompt_R = torch.tensor([len(c.prompt) for _, c, _ in chosen])
    place_T = batch.column_T - prompt_R[batch.row_T]
    begin_R = torch.tensor([0, *batch.lengths[:-1]]).cumsum(0) + prompt_R
    hidden_T = torch.zeros_like(batch.response_T)
    for begin, (_, _, forward) in zip(begin_R.tolist(), chosen, strict=True):
        hidden_T[begin + torch.tensor(forward.masked, dtype=torch.long)] = True
    scored_R = torch.tensor([forward.scored for _, _, forward in chosen])
    at_N = (hidden_T & (place_T < scored_R[batch.row_T])).nonzero()[:, 0]
    copies = MaskedCopies(batch, torch.where(hidden_T, mask_id, batch.tokens_T), at_N, batch.tokens_T[at_N])
    sample_R = torch.tensor([number for number, _, _ in chosen])
    worth = [f.advantage * len(f.tokens) / max(len(f.masked), 1) for _, _, f in chosen]
    advantage_A = torch.tensor(worth, dtype=torch.float64)[copies.copy_N]
    return Actions.of_tokens(copies, sample_R, transition_A=copies.copy_N, advantage_A=advantage_A)


def from_parents(completions: Sequence[Completion], mask_id: int) -> Actions:
    """A masked copy of each canvas from which completions went on, with all the tokens that each of them wrote since;
    an action is a token (d-TreeRPO, arXiv 2512.09675). Siblings share a copy, in which a position has the token of each
    sibling that wrote there as a target."""
    families: dict[str, list[int]] = {}
    for number, completion in enumerate(completions):
        families.setdefault(completion.parent, []).append(number)
    parts, samples, firsts = [], [], []
    for members in families.values():
        eldest = completions[members[0]]
        canvas = [mask_id if at >= 0 else token for token, at in zip(eldest.tokens, eldest.set_at, strict=True)]
        batch, offset = pack([(eldest.prompt, canvas)]), len(eldest.prompt)
        written = sorted(
            (offset + i, number, completions[number].tokens[i])
            for number in members
            for i in completions[number].written
        )
        if not written:
            continue
        at_N, sample_N, target_N = (torch.tensor(column) for column in zip(*written, strict=True))
        parts.append(MaskedCopies(batch, batch.tokens_T, at_N, target_N))
        samples.append(sample_N)
        firsts.append(members[0])
    if not parts:
        return empty(completions)
    return Actions.of_tokens(concatenated(parts), torch.tensor(firsts), torch.cat(samples))


def elbo(
    completions: Sequence[Completion],
    mask_id: int,
    iteration: int,
    schedule: NoiseSchedule,
    *,
    per_draw: bool = False,
    normalized: bool = True,
) -> Actions:
    """Noised copies by ``schedule``; an action is the whole canvas of a completion, and v its estimated ELBO, divided
    by the canvas's length if ``normalized`` (ESPO, arXiv 2512.03759). ``per_draw``: each draw is an action, and v the
    estimate of that draw alone (BGPO, arXiv 2510.11683)."""
    draws, every = schedule.draws, torch.arange(len(completions))
    batch = pack([(c.prompt, c.tokens) for c in completions for _ in range(draws)])
    key_S = torch.tensor([key(c.key, iteration) if iteration else c.key for c in completions])
    sample_R = every.repeat_interleave(draws)
    clean = CleanCopies(batch, key_S.repeat_interleave(draws), torch.arange(draws).repeat(len(completions)), iteration)
    noise = draw(schedule, clean)
    copies = masked_copies(batch, noise.masked_T, mask_id)
    coefficient_N = weights(noise, "elbo")[noise.masked_T]
    if normalized:
        coefficient_N = coefficient_N / batch.response_lengths_B.double()[copies.copy_N]
    return Actions(
        copies=copies,
        sample_R=sample_R,
        coefficient_N=coefficient_N * draws if per_draw else coefficient_N,
        action_N=copies.copy_N if per_draw else sample_R[copies.copy_N],
        sample_A=sample_R if per_draw else every,
    )


@dataclass(frozen=True, kw_only=True)
class BoundedActions(Actions):
    """Actions of completions with two bounds: ``logprobs`` is the lower one. ``place_N`` is the token of each scored
    token, numbered over all completions, ``share_N`` the masked share of its completion in that copy. ``draws`` are the
    masked copies of each completion, and ``sample_P`` the completion of each token that some copy has scored."""

    place_N: Tensor
    share_N: Tensor
    sample_P: Tensor
    draws: int

    def upper(self, nll_N: Tensor, power: float) -> Tensor:
        """The evidence upper bound of each completion per token, up to a constant (SPG, arXiv 2510.09541, equation 8),
        float64 [A]: the mean over its scored tokens i of

            1 / power log mean over draws of (p_i^power 1[i masked] / share)
        """
        term_N = -nll_N.double() * power - self.share_N.log()
        count = len(self.sample_P)
        top_P = term_N.new_full((count,), -torch.inf).scatter_reduce(0, self.place_N, term_N.detach(), "amax")
        sum_P = term_N.new_zeros(count).index_add(0, self.place_N, (term_N - top_P[self.place_N]).exp())
        log_P = (sum_P.log() + top_P - math.log(self.draws)) / power
        tokens_A = torch.bincount(self.sample_P, minlength=len(self.sample_A)).clamp(min=1)
        return log_P.new_zeros(len(self.sample_A)).index_add(0, self.sample_P, log_P) / tokens_A


def block_masked(
    completions: Sequence[Completion],
    mask_id: int,
    iteration: int,
    draws: int,
    block_length: int,
    probability: float = 0.0,
) -> BoundedActions:
    """``draws`` masked copies of each completion (SPG, arXiv 2510.09541, section 3.3): a block is chosen, each draw
    another one as far as there are some. In it a random number of tokens is masked, all of them behind it, and each
    token before it, prompt included, with ``probability``. Masked tokens of the completion that count are scored; a
    action is a completion, and v the mean over draws of the mean of their log p.
    """
    batch = pack([(c.prompt, c.tokens) for c in completions for _ in range(draws)])
    sample_R = torch.arange(len(completions)).repeat_interleave(draws)
    draw_R = torch.arange(draws).repeat(len(completions)) + iteration * draws
    key_R = _keys(completions)[sample_R]
    prompt_R = torch.tensor([len(c.prompt) for c in completions])[sample_R]
    scored_R = torch.tensor([c.scored for c in completions])[sample_R]
    block_R = torch.tensor(
        [block for c in completions for block in _blocks_in_random_order(c, iteration, draws, block_length)]
    )
    size_R = torch.minimum(scored_R - block_R * block_length, torch.tensor(block_length))
    count_R = 1 + (uniform(key_R, Draw.NOISE_LEVEL, draw_R, 0) * size_R).floor().long()
    place_T = batch.column_T - prompt_R[batch.row_T]  # negative in the prompt
    local_T = place_T - (block_R * block_length)[batch.row_T]
    counts_T = batch.response_T & (place_T < scored_R[batch.row_T])
    inside_T = counts_T & (local_T >= 0) & (local_T < block_length)
    rank_T = ranks(batch, inside_T, key_R, draw_R[batch.row_T], batch.row_T)
    chosen_T = inside_T & (rank_T < count_R[batch.row_T])
    before_T = local_T < 0
    random_T = uniform(key_R[batch.row_T], Draw.MASK, draw_R[batch.row_T], batch.column_T) < probability
    behind_T = batch.response_T & ~before_T & ~inside_T
    masked_T = chosen_T | behind_T | (before_T & random_T)
    at_N = (masked_T & counts_T).nonzero()[:, 0]
    copies = MaskedCopies(batch, torch.where(masked_T, mask_id, batch.tokens_T), at_N, batch.tokens_T[at_N])
    return _bounded(copies, sample_R, scored_R, place_T[at_N], draws)


def _blocks_in_random_order(completion: Completion, iteration: int, draws: int, block_length: int) -> list[int]:
    """The block of each draw: a random order of those with tokens that count, begun again when it ends."""
    count = -(-completion.scored // block_length)
    u_B = uniform(torch.tensor([completion.key]).expand(count), Draw.ORDER, -1 - iteration, torch.arange(count))
    order: list[int] = u_B.argsort().tolist()
    return [order[draw % count] for draw in range(draws)]


def _bounded(copies: MaskedCopies, sample_R: Tensor, scored_R: Tensor, column_N: Tensor, draws: int) -> BoundedActions:
    """Both bounds of completions from copies; ``scored_R``: the tokens that count in the completion of each copy."""
    masked_R = torch.bincount(copies.copy_N, minlength=len(copies))
    sample_N = sample_R[copies.copy_N]
    token_P, place_N = (sample_N * int(scored_R.max()) + column_N).unique(return_inverse=True)
    return BoundedActions(
        copies=copies,
        sample_R=sample_R,
        coefficient_N=1.0 / (masked_R[copies.copy_N].double() * draws),
        action_N=sample_N,
        sample_A=torch.arange(int(sample_R.max()) + 1),
        place_N=place_N,
        share_N=(masked_R.double() / scored_R)[copies.copy_N],
        sample_P=token_P // int(scored_R.max()),
        draws=draws,
    )


def empty(completions: Sequence[Completion]) -> Actions:
    """No action at all."""
    none = torch.zeros(0, dtype=torch.long)
    batch = _rows(completions[:1])
    return Actions.of_tokens(MaskedCopies(batch, batch.tokens_T, none, none), torch.zeros(1, dtype=torch.long))


def _rows(completions: Sequence[Completion]) -> Batch:
    return pack([(c.prompt, c.tokens) for c in completions])


def _keys(completions: Sequence[Completion]) -> Tensor:
    return torch.tensor([c.key for c in completions])


def _scoring(
    completions: Sequence[Completion], batch: Batch, hidden_T: Tensor, scored_T: Tensor, mask_id: int
) -> MaskedCopies:
    """Masked copies with hidden tokens, of which those of ``scored_T`` that count are scored."""
    end_S = torch.tensor([len(c.prompt) + c.scored for c in completions])
    at_N = (scored_T & (batch.column_T < end_S[batch.row_T])).nonzero()[:, 0]
    return MaskedCopies(batch, torch.where(hidden_T, mask_id, batch.tokens_T), at_N, batch.tokens_T[at_N])


def _tokens(completions: Sequence[Completion], parts: Sequence[MaskedCopies], factors: Sequence[float]) -> Actions:
    """Actions of tokens from packs of masked copies of the same rows, each pack with a factor."""
    copies = concatenated(parts)
    sample_R = torch.arange(len(completions)).repeat(len(parts))
    width = max(len(c.prompt) + len(c.tokens) for c in completions)
    sample_N = sample_R[copies.copy_N]
    place_N = sample_N * width + copies.batch.column_T[copies.at_N]
    place_A, action_N = place_N.unique(return_inverse=True)
    counts = torch.tensor([len(part.at_N) for part in parts])
    factor_N = torch.tensor(factors, dtype=torch.float64).repeat_interleave(counts)
    return Actions(
        copies=copies, sample_R=sample_R, coefficient_N=factor_N, action_N=action_N, sample_A=place_A // width
    )


def _local_forwards(completion: Completion, block_length: int | None) -> list[int]:
    """The number of each token's forward among those that wrote in its block (among all, without blocks)."""
    count, offset = len(completion.tokens), len(completion.prompt)
    block = [0 if block_length is None else (offset + i) // block_length for i in range(count)]
    steps: dict[int, list[int]] = {}
    for b, step in sorted({(b, s) for b, s in zip(block, completion.set_at, strict=True) if s >= 0}):
        steps.setdefault(b, []).append(step)
    number = {(b, step): i for b, of_block in steps.items() for i, step in enumerate(of_block)}
    return [number.get((b, s), -1) for b, s in zip(block, completion.set_at, strict=True)]
