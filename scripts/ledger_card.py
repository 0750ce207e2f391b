"""Write the rollout-scorer ledger of docs/algorithms.md.

    python scripts/ledger_card.py

Each row samples 16 answers to dare_sudoku (4 prompts, 20 tokens, fixed seeds) with a bundled checkpoint. For every
drawn token, it compares log p in the distribution that the sampler drew from with the learner's log p on the recorded
canvas, at the same temperature (``dare_bench/trainers/rl/surrogate.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from gradient_card import PAGE, replaced, table
from torch import Tensor

import dare_bench
from dare_bench.trainers.forwards import divide
from dare_bench.trainers.rl.cj_grpo import CJGRPO
from dare_bench.trainers.rl.surrogate import sampler_logprobs
from dare_bench.trainers.steps import StepShape
from dare_bench.training.data import read_data
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenize

LEDGER = ("<!-- ledger: made by scripts/ledger_card.py -->", "<!-- end of ledger -->")
TASK, CANVAS, GROUP, COPIES = "dare_sudoku", 20, 4, 128


@dataclass(frozen=True)
class Case:
    """A sampler of a bundled checkpoint. ``cut``: does it change the distribution by design?"""

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    cut: bool = False


BLOCKS = {"block_length": 5}
CASES = (
    Case("tiny-llada-base"),
    Case("tiny-llada-base", {}, 0.7),
    Case("tiny-llada-base", {"remasking": "random"}),
    Case("tiny-llada-base", {**BLOCKS, "threshold": 0.9}),
    Case("tiny-llada-base", {**BLOCKS, "cache": "prefix"}),
    Case("tiny-llada-base", {**BLOCKS, "cache": "dual"}),
    Case("tiny-llada-base", {"logits_eos_inf": True}, cut=True),
    Case("tiny-dream-base"),
    Case("tiny-dream-base", {}, 0.7),
    Case("tiny-dream-base", {"alg": "confidence_threshold"}),
    Case("tiny-dream-base", {**BLOCKS, "cache": "prefix"}),
    Case("tiny-dream-base", {**BLOCKS, "cache": "dual"}),
    Case("tiny-dream-base", {"top_p": 0.9}, cut=True),
    Case("tiny-sdar-base", {"cache": "exact"}),
    Case("tiny-sdar-base", {"cache": "exact"}, 0.7),
    Case("tiny-sdar-base", {"cache": "none"}),
    Case("tiny-sdar-base", {"cache": "exact", "top_k": 2}, cut=True),
    Case("tiny-llada2-base", {"cache": "exact"}),
    Case("tiny-llada2-base", {"cache": "none"}),
    Case("tiny-llada2-base", {"cache": "exact", "top_p": 0.9}, cut=True),
)


@dataclass(frozen=True)
class Measured:
    """The gaps of a case, |learner - sampler| in nats for each of its scored tokens, and its tier."""

    family: str
    gap_A: Tensor
    tier: str


def prompts(model: Any, count: int) -> Tokens:
    """The first prompts of the task's training split."""
    spec = TrainSpec(method="cj_grpo", model="", output_path="", task=TASK, rows=count)
    return tokenize(read_data(spec, CJGRPO, None), model, spec)


@torch.no_grad()
def measured(case: Case, count: int = 4) -> Measured:
    """Sample answers to ``count`` prompts, and score them again."""
    model = dare_bench.load(case.model, device="cpu", dtype="float32").loaded
    given = {"num_generations": GROUP, "temperature": case.temperature, "rollout": dict(case.fields), "beta": 0.0}
    method = CJGRPO(CJGRPO.settle(given, model.spec), model.spec, CANVAS)
    requests = [request for _, request in method.source(prompts(model, count), StepShape(count * GROUP), 0).requests(0)]
    answers = {sample.request.key: sample.answer for sample in model.generate(requests)}
    completions = [method.completion(r.prompt, answers[r.key], 0, r.key) for r in requests]
    actions = method.actions(completions, 0, 0)
    nll_N = torch.empty(len(actions.copies.at_N))
    for copies, index_N in divide(actions.copies, -(-len(actions.copies) // COPIES)):
        nll_N[index_N] = model.network(**method.inputs(copies).arguments()).nll
    sampler_A = sampler_logprobs(actions, completions, actions.sample_A)
    assert sampler_A is not None
    return Measured(model.spec.family, (actions.logprobs(nll_N) - sampler_A).abs(), answers[requests[0].key].tier)


def cells(case: Case, result: Measured) -> list[str]:
    """The row of a case."""
    others = " ".join(f"{k}={v}" for k, v in case.fields.items() if k != "cache") or "default"
    gap_A = result.gap_A
    numbers = (gap_A.mean(), gap_A.quantile(0.99), gap_A.max())
    exact = float(gap_A.max()) < 1e-4
    verdict = "exact" if exact else "by design" if case.cut else "approximate"
    cache = str(case.fields.get("cache", "none"))
    return [
        result.family, others, cache, f"{case.temperature:g}", result.tier, f"{len(gap_A)}",
        *("< 1e-4" if exact else f"{float(value):.3f}" for value in numbers), verdict,
    ]  # fmt: skip


HEAD = ("family", "sampler", "cache", "temperature", "tier", "tokens", "mean gap", "99 %", "largest", "")


def main() -> None:
    content = table([list(HEAD), *(cells(case, measured(case)) for case in CASES)])
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), LEDGER, content), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
