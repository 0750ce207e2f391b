"""What OpenCompass's dumped configuration (``configs/<date>.py``) says of models and data sets, and its averages over
data sets (``summary/summary_<date>.csv``).

The configuration is Python; it is parsed for literals and never executed. The summary has an average with two decimals
and does not say of what; the configuration has its data sets (``summarizer.summary_groups``). An average is read where
both agree: where it is the plain mean of one metric of data sets (or of averages before it) that all have a score here.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.errors import RunError
from dare_bench.opencompass_numbers import mean
from dare_bench.reading import MAX_DEPTH, read_source
from dare_bench.runs.run_files import own_file

_COLUMNS = ["dataset", "version", "metric", "mode"]
_PLAIN = "naive_average"
_ROUNDING = 0.005 + 1e-6
"""Numbers are written with two decimals."""


@dataclass(frozen=True, slots=True)
class OpenCompassConfig:
    """Models and data sets by their ``abbr``, groups of data sets whose averages the summary has by ``name``; empty
    where the file is missing or is not a plain list of settings."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)

    def model_path(self, model: str) -> str | None:
        path = self.models.get(model, {}).get("path")
        return path if isinstance(path, str) else None

    def repeats(self, task: str) -> int | None:
        """The number of answers to each prompt; None: not recorded."""
        n = self.datasets[task].get("n", 1) if task in self.datasets else None
        return n if type(n) is int and 0 < n <= 10**6 else None

    def is_limited(self, task: str) -> bool:
        """Was only a part of the data set evaluated?"""
        reader = self.datasets.get(task, {}).get("reader_cfg")
        return isinstance(reader, Mapping) and reader.get("test_range") not in (None, "", "[:]")


def read_config(folder: Path) -> OpenCompassConfig:
    """The newest configuration in ``configs/``.

    Raises:
        RunError: it cannot be read, or it is a link out of the folder.
    """
    names = sorted(path.name for path in folder.glob("*.py"))
    file = own_file(folder, names[-1]) if names else None
    if file is None:
        return OpenCompassConfig()
    assigned = _assigned(read_source(file, RunError), ("models", "datasets", "summarizer"))
    summarizer = assigned.get("summarizer")
    groups = summarizer.get("summary_groups") if isinstance(summarizer, dict) else None
    return OpenCompassConfig(
        _by(assigned.get("models"), "abbr"), _by(assigned.get("datasets"), "abbr"), _by(groups, "name")
    )


def _by(value: Any, key: str) -> dict[str, dict[str, Any]]:
    entries = value if isinstance(value, list) else []
    return {entry[key]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get(key), str)}


def _assigned(source: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The literals assigned to these names at the top of a source; none if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the texts
            statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {
        target.id: _literal(statement.value)
        for statement in statements
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in names
    }


def _literal(node: ast.expr, depth: int = 0) -> Any:
    """The value of a literal, or of ``dict(name=literal, ...)``; None for anything else."""
    if depth > MAX_DEPTH:
        return None
    match node:
        case ast.Constant(value):
            return value
        case ast.List(parts) | ast.Tuple(parts):
            return [_literal(part, depth + 1) for part in parts]
        case ast.Call(ast.Name("dict"), [], keywords):
            return {word.arg: _literal(word.value, depth + 1) for word in keywords if word.arg is not None}
    return None


class _Row(NamedTuple):
    name: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Averages:
    """``totals`` and ``members`` (data sets, or other averages) by name; ``left_out``: names, each with the reason."""

    totals: dict[str, dict[str, float]]
    members: dict[str, list[str]]
    left_out: dict[str, str]


def read_averages(
    folder: Path, model: str, groups: Mapping[str, Mapping[str, Any]], totals: Mapping[str, Mapping[str, float]],
    datasets: Collection[str],
) -> Averages:  # fmt: skip
    """The averages of a model in the newest summary of ``folder``.

    Args:
        groups: the configuration's summary groups by name, in its order.
        totals: the scores of data sets by metric, shares where that is known.
        datasets: all data sets, also those without a score.

    Raises:
        RunError: the summary cannot be read, or it is a link out of the folder.
    """
    averages = Averages({}, {}, {})
    own = {name.replace(",", " ") for name in datasets}  # as the summary writes them
    rows = [row for row in _rows(folder, model) if row.name not in own]
    places = {name: at for at, name in enumerate(groups)}
    for row in sorted(rows, key=lambda row: places.get(row.name, len(places))):
        known = {**totals, **averages.totals}
        try:
            metric, members = _plain_mean(row, groups.get(row.name), known)
        except ValueError as reason:
            averages.left_out.setdefault(row.name, str(reason))
            continue
        averages.totals.setdefault(row.name, {})[metric] = mean([known[name][metric] for name in members])
        averages.members[row.name] = members
    for name in averages.totals:
        averages.left_out.pop(name, None)  # another row of it was read
    return averages


def _rows(folder: Path, model: str) -> Iterator[_Row]:
    """The rows with a number of the model."""
    names = sorted(path.name for path in folder.glob("summary_*.csv"))
    file = own_file(folder, names[-1]) if names else None
    lines = read_source(file, RunError).splitlines() if file is not None else []
    header, *table = [line.split(",") for line in lines] or [[]]
    if header[: len(_COLUMNS)] != _COLUMNS or header.count(model) != 1:
        return
    for cells in table:
        if len(cells) != len(header):
            continue
        try:
            value = float(cells[header.index(model)])
        except ValueError:  # "-": it has none
            continue
        if math.isfinite(value):
            yield _Row(cells[0], cells[2], value)


def _plain_mean(
    row: _Row, group: Mapping[str, Any] | None, totals: Mapping[str, Mapping[str, float]]
) -> tuple[str, list[str]]:
    """The metric and the members of which a row is the mean; raises ValueError with the reason if that is not known."""
    subsets = group.get("subsets") if group is not None else None
    if not isinstance(subsets, list) or not subsets:
        raise ValueError("the configuration does not name its data sets")
    if more := sorted({*(group or ())} - {"name", "subsets"}):
        raise ValueError(f"it is not a plain mean ({', '.join(more)})")
    pairs = [part if isinstance(part, list) and len(part) == 2 else [part, None] for part in subsets]
    members, wanted = [str(name) for name, _ in pairs], {metric for _, metric in pairs} - {None}
    if missing := [name for name in members if name not in totals]:
        raise ValueError(f"{missing[0]} has no score")
    shared = set.intersection(*({*totals[name]} for name in members))
    metrics = shared & wanted if wanted else shared
    named = metrics & {row.metric} or (metrics if row.metric == _PLAIN else set())
    if len(named) != 1 or len(wanted) > 1:
        raise ValueError(f"{row.metric[:60]} is not one metric of its data sets")
    (metric,) = named
    value = mean([totals[name][metric] for name in members])
    if not any(math.isclose(unit * value, row.value, rel_tol=0, abs_tol=_ROUNDING) for unit in (1.0, 100.0)):
        raise ValueError(f"{row.value:g} is not the mean of its data sets' {metric}")
    return metric, members
