"""The noise of likelihood estimators against their forward passes, on multiple-choice documents.

    python scripts/bench/likelihoods.py [--model tiny-llada-base] [--data-dir DIR] [--documents 2] [--seeds 8]
        [--choices 4] [--estimators reference:16,reference:32,fast:16] [--picture docs/likelihoods.svg]
        [--truth pairs:4096] [--training-rows rows.jsonl]

Every choice is scored with several seeds. Printed for each estimator and number of draws: forward passes per choice,
the standard deviation of a likelihood over seeds and of the difference of two choices of a document, the reported
standard error as a share of the first, and how many times fewer passes it needs than the first estimator for equal
errors of differences. With ``--truth``, also how often ``adaptive`` (``--estimators adaptive:128``) decides, and then
has the same choices, by sum and per character, as that estimator has. ``--choices 1`` scores the first choice of each
document only, which is enough for standard errors. ``--training-rows`` writes the documents with their right choices,
for ``dare-bench train sft``, and ends. DIR contains HellaSwag and ARC with a manifest (docs/data.md).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dare_bench
from dare_bench.config import run_spec
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.protocols import LoadedModel
from dare_bench.types import Likelihood, Request

ROOT = Path(__file__).parents[2]
ESTIMATORS = "reference:16,reference:32,reference:64,pairs:8,pairs:16,pairs:32,fast:8,fast:16,fast:32"
COLORS = {"reference": "#b3541e", "pairs": "#7a7a7a", "fast": "#1f6f8b"}


@dataclass(frozen=True)
class EstimatorNoise:
    """An estimator's passes per choice, and standard deviations in nats."""

    estimator: str
    draws: int
    passes: float
    spread: float
    reported: float
    difference: float

    @property
    def cost(self) -> float:
        """Passes for a standard deviation of 1 nat of a difference."""
        return self.passes * self.difference**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-llada-base")
    parser.add_argument("--data-dir", default=str(ROOT / "tests/data/bench"))
    parser.add_argument("--tasks", default="hellaswag,arc_challenge")
    parser.add_argument("--documents", type=int, default=2, help="of each task")
    parser.add_argument("--choices", type=int, help="of each document (default: all)")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--estimators", default=ESTIMATORS)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--truth")
    parser.add_argument("--training-rows", type=Path)
    args = parser.parse_args()
    model = dare_bench.load(args.model).loaded
    spec = run_spec(model=args.model, tasks=args.tasks, limit=args.documents, num_fewshot=0, data_dir=args.data_dir)
    source = LmEvalSource(spec, model)
    documents: dict[tuple[str, str, int], list[Request]] = {}
    for request in source.requests():
        documents.setdefault(request.document, []).append(request)
    if args.training_rows is not None:
        rows = (json.dumps(right_choice(source, choices)) + "\n" for choices in documents.values())
        args.training_rows.write_text("".join(rows), encoding="utf-8")
        return
    requests = [request for choices in documents.values() for request in choices[: args.choices]]
    measured: list[EstimatorNoise] = []
    for item in args.estimators.split(","):
        name, _, draws = item.partition(":")
        noise = measure(model, requests, name, int(draws), args.seeds)
        measured.append(noise)
        print(
            f"{name:12} {noise.draws:4} draws  {noise.passes:6.1f} passes  sd {noise.spread:6.3f}  of differences "
            f"{noise.difference:6.3f}  reported / sd {noise.reported / noise.spread:.2f}  "
            f"{measured[0].cost / noise.cost:5.1f}x fewer passes than {measured[0].estimator}",
            flush=True,
        )
        if args.truth is not None and name == "adaptive":
            print(" " * 12, decided(model, requests, int(draws), args.seeds, args.truth), flush=True)
    if args.picture is not None:
        args.picture.write_text(picture(measured), encoding="utf-8")


def right_choice(source: LmEvalSource, choices: Sequence[Request]) -> dict[str, Any]:
    """A document's prompt with its right choice, a row of ``dare-bench train sft``."""
    task = source._documents[choices[0].task].task
    document = task.eval_docs[int(choices[0].doc_id)]
    right = task.doc_to_target(document)
    place = right if isinstance(right, int) else task.doc_to_choice(document).index(right)
    return {"prompt": choices[place].prompt, "completion": choices[place].target}


def measure(model: LoadedModel, requests: Sequence[Request], name: str, draws: int, seeds: int) -> EstimatorNoise:
    """The noise of one estimator over seeds."""
    rows = answered(model, requests, name, draws, range(seeds))
    values_CS = torch.tensor([[answer.value for answer in row] for row in rows], dtype=torch.float64)
    errors_CS = torch.tensor([[answer.stderr for answer in row] for row in rows], dtype=torch.float64)
    documents: dict[tuple[str, str], list[Tensor]] = {}
    for request, values_S in zip(requests, values_CS, strict=True):
        documents.setdefault((request.task, str(request.doc_id)), []).append(values_S)
    variances = [
        float((one - other).var())
        for choices in documents.values()
        for place, one in enumerate(choices)
        for other in choices[:place]
    ]
    passes = sum(answer.nfe for row in rows for answer in row) / (len(requests) * seeds)
    spread = math.sqrt(float(values_CS.var(1).mean()))
    difference = math.sqrt(sum(variances) / len(variances)) if variances else math.nan
    return EstimatorNoise(name, draws, passes, spread, math.sqrt(float(errors_CS.square().mean())), difference)


def answered(
    model: LoadedModel, requests: Sequence[Request], name: str, draws: int, seeds: range
) -> list[list[Likelihood]]:
    """The answers to each request, by seed."""
    fields = {"estimator": name, "mc_num": draws}
    copies = [
        replace(
            request, key=f"{place}/{seed}", seed=request.seed + seed, repeat=seed, decoding=fields, want_greedy=False
        )
        for seed in seeds
        for place, request in enumerate(requests)
    ]
    answers: dict[str, Likelihood] = {}
    for sample in model.score(copies):
        if not isinstance(sample.answer, Likelihood):
            raise SystemExit(f"{name}:{draws}: {sample.error}")
        answers[sample.request.key] = sample.answer
    return [[answers[f"{place}/{seed}"] for seed in seeds] for place in range(len(requests))]


def decided(model: LoadedModel, requests: Sequence[Request], limit: int, seeds: int, truth: str) -> str:
    """How often adaptive draws decide, and have then the choices of the estimator ``truth``, in words."""
    name, _, draws = truth.partition(":")
    rows = answered(model, requests, "adaptive", limit, range(seeds))
    true = answered(model, requests, name, int(draws), range(seeds, seeds + 1))
    places: dict[tuple[str, str, int], list[int]] = {}
    for place, request in enumerate(requests):
        places.setdefault(request.document, []).append(place)
    ends = same = 0
    for choices in places.values():
        lengths = [len(str(requests[place].target).strip()) for place in choices]
        best = _best([true[place][0] for place in choices], lengths)
        stopped = [
            [rows[place][seed] for place in choices] for seed in range(seeds) if rows[choices[0]][seed].separated
        ]
        ends += len(stopped)
        same += sum(_best(each, lengths) == best for each in stopped)
    return f"decided {ends} of {len(places) * seeds}, of these the same choices as {truth}: {same}"


def _best(answers: Sequence[Likelihood], lengths: Sequence[int]) -> tuple[int, int]:
    values = [answer.value for answer in answers]
    shares = [value / length for value, length in zip(values, lengths, strict=True)]
    return values.index(max(values)), shares.index(max(shares))


def picture(measured: Sequence[EstimatorNoise]) -> str:
    """Error of differences against passes, both logarithmic, as SVG."""
    width, height, left, top, right, bottom = 640, 360, 64, 20, 600, 310
    passes = [math.log2(noise.passes) for noise in measured]
    errors = [math.log2(noise.difference) for noise in measured]
    low_x, high_x, low_y, high_y = min(passes) - 0.3, max(passes) + 0.3, min(errors) - 0.2, max(errors) + 0.2

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (x - low_x) / (high_x - low_x) * (right - left),
            bottom - (y - low_y) / (high_y - low_y) * (bottom - top),
        )

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#333"/>',
        f'<text x="{(left + right) / 2}" y="{height - 12}" text-anchor="middle">forward passes per choice</text>',
        f'<text transform="translate(18 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        "sd of the difference of two choices, nats</text>",
    ]
    for exponent in range(math.ceil(low_x), math.floor(high_x) + 1):
        x, _ = place(exponent, low_y)
        lines.append(f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{2**exponent}</text>')
    for exponent in range(math.ceil(low_y), math.floor(high_y) + 1):
        _, y = place(low_x, exponent)
        lines.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{2.0**exponent:g}</text>')
        lines.append(f'<path d="M{left} {y:.0f}H{right}" stroke="#ddd"/>')
    for name in dict.fromkeys(noise.estimator for noise in measured):
        color = COLORS.get(name, "#333")
        dots = [place(x, y) for x, y, noise in zip(passes, errors, measured, strict=True) if noise.estimator == name]
        lines.append(
            f'<polyline fill="none" stroke="{color}" points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in dots)}"/>'
        )
        lines += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{color}"/>' for x, y in dots]
        x, y = dots[0]
        lines.append(f'<text x="{x + 8:.0f}" y="{y - 8:.0f}" fill="{color}">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
