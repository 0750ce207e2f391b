"""Generation by transformers' ``generate``: greedy, with the token of a row drawn by the row's own random numbers.

A draw depends on the row's key and on how many tokens the row has; on the other rows only through floating-point ties.
``generate`` itself always takes the token with the highest score, so that it draws nothing.

Shape letters: B rows, L tokens of the longest prompt so far, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.answer_text import first_stop, response_text, stop_is_final, through_eos
from dare_bench.model_adapters.causal.fields import CausalFields
from dare_bench.model_adapters.sampling.draws import inverse_cdf
from dare_bench.model_adapters.sampling.logits import against_others
from dare_bench.types import TIE, Generation, LoopStats, Request

FinishReason = Literal["length", "eos", "stop"]


@dataclass(eq=False)
class CausalRow:
    """A request on its way: its prompt, and the tokens written so far."""

    request: Request
    prompt: list[int]
    decoding: CausalFields
    weights_version: int = 0
    tokens: list[int] = field(default_factory=list)
    near_tie: bool = False
    finish: FinishReason | None = None
    stopping: bool = False
    """Has the text a stop string?"""
    seconds: float = 0.0

    @property
    def kind(self) -> tuple[float, ...]:
        """Rows with an equal value can share a call of ``generate``."""
        d = self.decoding
        return (d.repetition_penalty, *((0.0,) if d.deterministic else (d.temperature, d.top_k, d.top_p)))

    def add(self, token: int, tokenizer: Any | None) -> None:
        """Append a token; the row may be finished by it."""
        self.tokens.append(token)
        if self.decoding.early_stop and token in (self.decoding.eos_id or ()):
            self.finish = "eos"
        elif self.decoding.early_stop and self._has_stop(tokenizer):
            self.finish = "stop"
        elif len(self.tokens) == self.decoding.gen_length:
            self.finish = "length"

    def _has_stop(self, tokenizer: Any | None) -> bool:
        """May the row end at a stop string? Only its last tokens are read until they have one."""
        stop = self.decoding.stop
        if not stop or tokenizer is None:
            return False
        if not self.stopping:
            most = 2 * max(len(text.encode()) for text in stop) + 8
            self.stopping = first_stop(_raw_text(tokenizer, self.tokens[-most:]), stop) is not None
        return self.stopping and stop_is_final(_raw_text(tokenizer, self.tokens), stop)

    def start_again(self) -> None:
        """Forget what was written."""
        self.tokens, self.near_tie, self.finish, self.stopping = [], False, None, False

    def answer(self, tokenizer: Any | None) -> Generation:
        """The answer of a finished row."""
        d, eos_ids = self.decoding, self.decoding.eos_id or ()
        text, cut = None, False
        if tokenizer is not None:
            text, cut = response_text(tokenizer, self.tokens, eos_ids, d.stop, d.text_after_eos == "keep")
        end = through_eos(self.tokens, eos_ids)
        return Generation(
            tokens=self.tokens,
            text=text,
            nfe=len(self.tokens),
            finish_reason="stop" if cut else "eos" if end is not None else "length",
            reference_nfe=len(self.tokens),
            prompt_tokens=len(self.prompt),
            tokens_to_eos=len(self.tokens) if end is None else end,
            tier="E1" if d.deterministic else "E2",
            seconds=self.seconds,
            near_tie=self.near_tie if d.near_tie else None,
            weights_version=self.weights_version,
        )


def _raw_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def generate_batch(
    network: Any, rows: Sequence[CausalRow], tokenizer: Any | None, pad_id: int, stats: LoopStats, *, masked: bool
) -> None:
    """Fill the tokens of rows of one kind, which are padded on the left.

    Args:
        masked: tell the network which tokens are padding; otherwise all prompts must be of one length.
    """
    begin = time.perf_counter()
    for row in rows:
        row.start_again()
    left = partial(pad_sequence, batch_first=True, padding_side="left")
    tokens_BL = left([torch.tensor(row.prompt) for row in rows], padding_value=pad_id)
    real_BL = left([torch.ones(len(row.prompt), dtype=torch.long) for row in rows])
    device, first = network.device, rows[0].decoding
    config = GenerationConfig(
        max_new_tokens=max(row.decoding.gen_length for row in rows),
        do_sample=False,
        num_beams=1,
        use_cache=True,
        pad_token_id=pad_id,
        repetition_penalty=first.repetition_penalty,
    )
    processors: list[LogitsProcessor] = []
    if not first.deterministic:
        processors += [TemperatureLogitsWarper(first.temperature)] if first.temperature != 1 else []
        processors += [TopKLogitsWarper(first.top_k)] if first.top_k else []
        processors += [TopPLogitsWarper(first.top_p)] if first.top_p < 1 else []
    network.generate(
        tokens_BL.to(device),
        generation_config=config,
        logits_processor=LogitsProcessorList([*processors, _TokenChoice(rows, device)]),
        stopping_criteria=StoppingCriteriaList([_Following(rows, tokenizer, stats, begin)]),
        **({"attention_mask": real_BL.to(device)} if masked else {}),
    )


def hides_padding(network: Any, tokens: Sequence[int], pad_id: int) -> bool:
    """Does the network leave out what its attention mask hides? Some take a mask and ignore it (RWKV).

    Tried with some tokens in front of ``tokens``: hidden, they must move the logits far less than unhidden.
    """
    config = GenerationConfig(
        max_new_tokens=1, do_sample=False, pad_token_id=pad_id, output_logits=True, return_dict_in_generate=True
    )

    def logits_V(front: int, hidden: bool) -> Tensor:
        mask = [int(not hidden)] * front + [1] * len(tokens)
        tokens_BL, mask_BL = torch.tensor([[pad_id] * front + list(tokens)]), torch.tensor([mask])
        output = network.generate(
            tokens_BL.to(network.device), attention_mask=mask_BL.to(network.device), generation_config=config
        )
        last: Tensor = output.logits[0][0].float()
        return last

    alone_V = logits_V(0, False)
    moved, shown = (float((logits_V(4, hidden) - alone_V).abs().max()) for hidden in (True, False))
    return moved <= shown / 4 + 1e-5 * float(alone_V.abs().max())


class _TokenChoice(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """The last processor: of a row that draws, all scores but that of the drawn token become -inf."""

    def __init__(self, rows: Sequence[CausalRow], device: torch.device) -> None:
        self.rows, self.decoding = rows, rows[0].decoding
        self.near_ties = any(row.decoding.near_tie for row in rows)
        self.key_B = torch.tensor([row.request.seed for row in rows], dtype=torch.long, device=device)
        self.count = 0
        """Tokens that every unfinished row has."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        check_finite(scores.amax(-1))
        greedy, uniform_B = self.decoding.deterministic, uniform(self.key_B, Draw.TOKEN, self.count, self.count)

        def chosen(scores: Tensor) -> Tensor:
            return scores.argmax(-1) if greedy else inverse_cdf(scores, uniform_B)[0]

        token_B = chosen(scores)
        if self.near_ties:
            size = TIE if greedy else TIE / self.decoding.temperature
            moved = (nudge.of(scores, size=size) for nudge in against_others(token_B, greedy))
            near_B = torch.stack([chosen(scores_BV) != token_B for scores_BV in moved]).any(0)
            for row, near in zip(self.rows, near_B.tolist(), strict=True):
                row.near_tie |= near and row.finish is None
        if not greedy:
            scores = torch.full_like(scores, float("-inf")).scatter(1, token_B[:, None], 0.0)
        self.count += 1
        return scores


class _Following(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Follows the rows: called after each forward, it appends the new tokens and says which rows are finished."""

    def __init__(self, rows: Sequence[CausalRow], tokenizer: Any | None, stats: LoopStats, begin: float) -> None:
        self.rows, self.tokenizer, self.stats, self.begin = rows, tokenizer, stats, begin
        self.read = 0
        """Length of the tokens that were read before."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        active = [i for i, row in enumerate(self.rows) if row.finish is None]
        if active:
            new = input_ids.shape[1] - self.read if self.read else input_ids.shape[1] - 1
            self.read = input_ids.shape[1]
            self.stats.count(len(active), len(self.rows) * new, len(self.rows))
            tokens = input_ids[:, -1].tolist()
            for i in active:
                self.rows[i].add(tokens[i], self.tokenizer)
                self.rows[i].seconds = time.perf_counter() - self.begin
        return torch.tensor([row.finish is not None for row in self.rows], device=input_ids.device)


def check_finite(best_N: Tensor) -> None:
    """Raise ModelOutputError unless the largest logits are finite; a NaN in a row makes its maximum NaN."""
    if not bool(torch.isfinite(best_N).all()):
        bad = best_N[~torch.isfinite(best_N)][0].item()
        raise ModelOutputError(
            f"the network gave {bad} as its largest logit at {int((~torch.isfinite(best_N)).sum())} position(s); "
            "logits must be finite: check the weights (dare-bench validate) and the dtype"
        )
