"""Which steps of a training can be shown again, from its folder and its recorded settings. No torch: the command line
refuses the others before a checkpoint is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.errors import UsageError
from dare_bench.registry import registry

FOLDER = "completions"


def table_name(step: int) -> str:
    """The file of the rollout that ``step`` (from 0) is the first of."""
    return f"{FOLDER}/step-{step + 1:06d}.jsonl"


def kept_weights(out: Path, options: Mapping[str, Any]) -> set[int]:
    """The steps after which the weights are there, from which a rollout can be made again; 0: the starting checkpoint.
    ``options``: the settings of the method."""
    if _why_never(options):
        return set()
    names = (file.parent.name.rpartition("-")[2] for file in out.glob("checkpoint-*/lineage.json"))
    return {0, *(int(name) for name in names if name.isdecimal())}


def refuse_not_kept(out: Path, step: int, steps: int, options: Mapping[str, Any]) -> None:
    """Refuse a step (counted from 1) of the training of ``steps`` steps in ``out`` that cannot be shown again.
    ``options``: the settings of the method; of a record, with what it has beside them (``reward_weights``). Raises
    UsageError: neither the weights that sampled its rollout nor its completions were kept."""
    iterations = options["num_iterations"]
    first = (step - 1) // iterations * iterations
    weights = kept_weights(out, options)
    if first in weights or (out / table_name(first)).exists():
        return
    reason = _why_never(options) or (
        f"its rollout was sampled with the weights after step {first}, and {out} has no checkpoint-{first}"
    )
    raise UsageError(
        f"step {step}: {reason}, and no table has its completions; steps that can be replayed: "
        f"{replayable(steps, iterations, weights | _tables(out))}; a training keeps all with --save-steps "
        f"{iterations}, or completions without weights with --log-completions {iterations}"
    )


def replayable(steps: int, iterations: int, kept: set[int]) -> str:
    """The steps whose rollout can be shown again, in words: the weights before the first step of a rollout, or a table
    of its completions, were kept."""
    ranges: list[tuple[int, int]] = []
    for first in sorted(kept):
        if first % iterations == 0 and first < steps:
            last = min(first + iterations, steps)
            begin = ranges.pop()[0] if ranges and ranges[-1][1] == first else first + 1
            ranges.append((begin, last))
    return ", ".join(f"{begin} to {last}" if begin < last else str(begin) for begin, last in ranges) or "none"


def _why_never(options: Mapping[str, Any]) -> str:
    """Why no rollout of a training can be made again; empty if it can."""
    if (engine := options.get("rollout_engine")) is not None:
        return f"engine {engine} sampled, whose random numbers cannot be drawn again"
    if functions := set(options.get("reward_weights") or ()) - set(registry().names("reward")):
        return f"its reward {min(functions)!r} is a function of your own"
    return ""


def _tables(out: Path) -> set[int]:
    """The steps, from 0, whose completions were kept."""
    names = (file.stem.rpartition("-")[2] for file in (out / FOLDER).glob("step-*.jsonl"))
    return {int(name) - 1 for name in names if name.isdecimal()}
