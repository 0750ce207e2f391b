"""One coupled-GRPO update, packed with the losses of scored tokens alone, against sequential forwards with all logits.

    python scripts/bench/rl.py [--runs 5] [--threads 2] [--quick]

The update is one inside a rollout: clipped ratios to old values that differ, three masked copies of each completion
(all masked, a random mask, its complement), loss, backward and an AdamW step with learning rate 0. Both sides have the
same copies; the script fails if loss or gradients differ by more than 1e-6 with float64 weights. Float32 is timed;
there the two sides add the same numbers in different orders, and the script prints by how much their results differ.
Losses of positive and negative advantages cancel, so they are compared relative to the mean size of an advantage.

- sequential: a forward for each of the three masks, of rows padded to the longest, with the logits of every position,
  from which the log-probabilities of the scored tokens are gathered; autograd through the loss.
- packed: the copies of all three in one forward, the last layer and the head for scored tokens alone; the loss settled
  as one weight for each scored token, as ``dare_bench.trainers.loop`` does.

Prompts have log-normal lengths of 60 to 900 tokens, completions a canvas of 128 tokens, of which 16 to 128 count (up to
the first EOS). Tokens and rewards are random. The bundled networks have a vocabulary of 300, so one case has a random
head of 32,768, where logits dominate as in real models.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from timing import options
from torch import Tensor
from update import TIME, UpdateCase, alternated, build, check, differences, length, padded_losses, updates, verdict

from dare_bench.seeds import key
from dare_bench.trainers.forwards import divide
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.coupled_grpo import CoupledGRPO
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.rollout_step import RolloutStep, Update
from dare_bench.trainers.rl.surrogate import advantages
from dare_bench.types import ModelSpec

CANVAS, GROUP, MASKS = 128, 4, 3
CASES = (UpdateCase("tiny-llada", 16), UpdateCase("tiny-dream", 16), UpdateCase("tiny-llada", 8, 32768))
QUICK = tuple(replace(case, rows=4, vocab=case.vocab and 2048) for case in CASES)


@dataclass(frozen=True)
class CoupledUpdate:
    """A step inside a rollout, and its method."""

    method: CoupledGRPO
    step: RolloutStep

    @property
    def scale(self) -> float:
        """The mean size of an advantage."""
        return float(self.step.surrogate.advantage_A.abs().mean())


def losses(network: Any, data: CoupledUpdate) -> Tensor:
    """-log p of the scored tokens of all copies in one packed forward, [N]."""
    ((copies, index_N),) = divide(data.step.copies, 1)
    nll_N = network(**data.method.inputs(copies).arguments()).nll
    return torch.zeros_like(nll_N).index_copy(0, index_N, nll_N)


def packed(network: Any, spec: ModelSpec, data: CoupledUpdate) -> Tensor:
    """The loss, with the gradient of its settled weights."""
    nll_N = losses(network, data)
    settled_N = nll_N.detach().double().requires_grad_()
    loss, _ = data.method.loss(data.step, settled_N, None)
    (weight_N,) = torch.autograd.grad(loss, settled_N)
    weighted = torch.dot(nll_N, weight_N.to(nll_N.dtype)).double()
    return weighted + (loss - weighted).detach()


def sequential(network: Any, spec: ModelSpec, data: CoupledUpdate) -> Tensor:
    """The loss, one padded forward for each mask."""
    copies = data.step.copies
    nll_N = torch.zeros(len(copies.at_N), dtype=network.get_output_embeddings().weight.dtype)
    rows = len(copies) // MASKS
    for mask in range(MASKS):
        part, index_N = copies.take(range(mask * rows, (mask + 1) * rows))
        nll_N = nll_N.index_copy(0, index_N, padded_losses(network, spec, part))
    loss, _ = data.method.loss(data.step, nll_N, None)
    return loss


def rollout(case: UpdateCase, seed: int, shorter: int) -> Rollout:
    """Random completions with random rewards."""
    rng = random.Random(seed)
    canvas = CANVAS // shorter
    completions = []
    for row in range(case.rows):
        prompt = [rng.randrange(256) for _ in range(-(-length(rng, 230, 60, 900) // shorter))]
        tokens = tuple(rng.randrange(256) for _ in range(canvas))
        scored = rng.randint(max(1, canvas // 8), canvas)
        completions.append(Completion(tuple(prompt), tokens, scored, key("bench", seed, row), (0,) * canvas))
    rewards = [rng.random() for _ in completions]
    advantage = advantages(torch.tensor(rewards), GROUP, "leave_one_out").tolist()
    return Rollout(
        number=0,
        completions=completions,
        texts=[""] * case.rows,
        rewards=rewards,
        advantage=advantage,
        scored_total=sum(c.scored for c in completions),
        weights_version=0,
    )


def data_of(case: UpdateCase, network: Any, spec: ModelSpec, seed: int, shorter: int) -> CoupledUpdate:
    """The second step on a rollout: its old values are the network's, changed by 0.1 nats or so."""
    method = CoupledGRPO(CoupledGRPO.settle({"beta": 0.0}, spec), spec, CANVAS)
    played = rollout(case, seed, shorter)
    update = Update(number=1, iteration=1, completions=case.rows, seed=seed, steps=2)
    data = CoupledUpdate(method, method.step(played, update))
    with torch.no_grad():
        values = method.action_logprobs(played, data.step, losses(network, data))
    generator = torch.Generator().manual_seed(seed)
    noise = [(0.1 * torch.randn(len(v), generator=generator)).tolist() for v in values]
    played.old = [[[a + b for a, b in zip(v, n, strict=True)] for v, n in zip(values, noise, strict=True)]]
    return CoupledUpdate(method, method.step(played, update))


def compare(case: UpdateCase, runs: int, shorter: int) -> Iterator[str]:
    """The lines of a case; SystemExit if the results of both sides differ."""
    network, spec = build(case)
    double = copy.deepcopy(network).double()
    short = data_of(case, double, spec, 0, 4 * shorter)
    exact = check(case, *(updates(double, spec, loss_of)(short) for loss_of in (packed, sequential)), short.scale)
    slow, fast = updates(network, spec, sequential), updates(network, spec, packed)
    first, *steps = (data_of(case, network, spec, seed, shorter) for seed in range(runs + 1))
    _, apart_first = alternated(slow, fast, [(first, first.scale)])  # warms up
    timing, apart = alternated(slow, fast, ((data, data.scale) for data in steps))
    apart = max(apart, apart_first)
    read, scored = (sum(len(getattr(data.step.copies, name)) for data in steps) // runs for name in ("seen_T", "at_N"))
    yield (
        f"{case.model}, {spec.vocab_size} words, {case.rows} completions: {read} tokens read, {scored} scored an update"
    )
    yield f"    time    {timing.spread()}  >= {TIME:g}x {verdict(timing.ratio >= TIME)}"
    yield differences(exact, apart)


def main() -> None:
    args = options(__doc__)
    print(f"sequential, all logits -> packed, scored only; float32, {args.threads} threads, {args.runs} runs")
    for case in QUICK if args.quick else CASES:
        for line in compare(case, args.runs, 8 if args.quick else 1):
            print(line, flush=True)


if __name__ == "__main__":
    main()
