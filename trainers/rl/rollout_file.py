"""The rollout in use, and the prompts that a method has chosen, as files of a checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import FailFast, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from dare_bench.config import one_line
from dare_bench.errors import TrainingError
from dare_bench.reading import parse_json, read_bytes
from dare_bench.trainers.rl.completions import Completion

FILE = "rollout.json"
PROMPTS = "prompts.json"
_LISTS = ("completions", "texts", "rewards", "advantage", "draws")
"""Fields of a rollout that have a value for each completion."""
Values = Annotated[list[FiniteFloat], FailFast()]
"""Validated up to the first value that is none, as are the other lists: a file may hold millions."""
MAX_FILE = 1 << 32
"""Maximum size of the file in bytes."""


@dataclass(kw_only=True)
class Rollout:
    """The completions of one process in one rollout. ``old``: for each inner iteration but the first, the values of the
    actions of each completion under the policy that sampled. ``metrics`` are reported once."""

    number: NonNegativeInt
    completions: Annotated[list[Completion], FailFast()]
    texts: Annotated[list[str], FailFast()]
    rewards: Annotated[list[FiniteFloat | None], FailFast()]
    """None: it could not be scored."""
    advantage: Values
    draws: Annotated[list[NonNegativeInt], FailFast()] = field(default_factory=list)
    """The draw of each completion's group; empty: the first."""
    scored_total: NonNegativeInt
    """Scored tokens of all processes."""
    weights_version: int
    """The number of optimizer steps before the weights that sampled it (``LoadedModel.weights_version``)."""
    distilled_total: NonNegativeInt = 0
    """Positions of all processes that a self-distillation term learns (``dtreerpo``)."""
    old: Annotated[list[Annotated[list[Values], FailFast()]], FailFast()] = field(default_factory=list)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draws = self.draws or [0] * len(self.completions)

    def saved(self) -> dict[str, Any]:
        """This process's part of the file."""
        return asdict(replace(self, metrics={}))

    def part(self, take: Callable[[Sequence[Any]], Any]) -> Rollout:
        """The rollout with some of its completions: ``take`` of each list."""
        old = [take(values) for values in self.old]
        return replace(self, old=old, **{name: take(getattr(self, name)) for name in _LISTS})


_FIELDS = TypeAdapter(Annotated[list[dict[str, Any]], FailFast()])
_PARTS = TypeAdapter(Annotated[list[Rollout], FailFast()])
_INDICES = TypeAdapter(Annotated[list[int], FailFast()])


def write_rollout(parts: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the parts of all processes (:meth:`Rollout.saved`)."""
    (folder / FILE).write_text(json.dumps(parts))


def read_rollout(
    folder: Path, *, count: int, iterations: int, later: int, check: Callable[[Rollout], None]
) -> Rollout | None:
    """The rollout of all processes, which may have been other ones; None if there is none in use. ``count``: its
    completions; ``later``: the inner iterations that read the values of the policy that sampled; ``check`` raises
    ValueError for a rollout of another training. Raises TrainingError: the file is damaged, or of another training."""
    if not (folder / FILE).exists():
        return None
    with _reading(folder / FILE):
        raw = parse_json(read_bytes(folder / FILE, TrainingError, limit=MAX_FILE))
        parts = _PARTS.validate_python([{**part, "metrics": {}} for part in _FIELDS.validate_python(raw)])
        if not parts or any(len(part.old) != later for part in parts):
            raise ValueError(f"it has no old values of {iterations} inner iterations")
        for number, version in ((part.number, part.weights_version) for part in parts):
            if version != (first := number * iterations):
                raise ValueError(f"weights_version is {version}, and rollout {number} is sampled after step {first}")
        columns: dict[str, Any] = {name: [value for part in parts for value in getattr(part, name)] for name in _LISTS}
        old = [[value for part in parts for value in part.old[i]] for i in range(later)]
        for values in (*columns.values(), *old):
            if len(values) != count:
                raise ValueError(f"{len(values)} values for {count} completions")
        whole = replace(parts[0], old=old, **columns)
        check(whole)
        return whole


def write_prompts(prompts: Sequence[int], folder: Path) -> None:
    """Write the indices of the chosen prompts."""
    (folder / PROMPTS).write_text(json.dumps(prompts))


def read_prompts(folder: Path, count: int) -> list[int]:
    """The indices of the chosen prompts, of ``count``; raises TrainingError if the file is damaged."""
    with _reading(folder / PROMPTS):
        prompts = _INDICES.validate_python(parse_json(read_bytes(folder / PROMPTS, TrainingError)))
        if not prompts or not 0 <= min(prompts) <= max(prompts) < count:
            raise ValueError(f"it is not a list of numbers of the {count} prompts")
        return prompts


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn a malformed file of a checkpoint into a TrainingError that names it."""
    try:
        yield
    except ValueError as error:
        reason = one_line(error, path.name) if isinstance(error, ValidationError) else str(error)
        raise TrainingError(
            f"{path} is damaged ({reason[:150]}); remove {path.parent} to resume from the previous checkpoint"
        ) from error
