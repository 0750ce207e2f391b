"""Two runs of the site compared: their page, and the numbers that other pages tell. Made once, and again only when one
of the two, or one of their sample files, is another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.comparison import ScoreComparison, compare
from dare_bench.analysis.settings import MODEL
from dare_bench.errors import IncompleteError, RunError, UsageError
from dare_bench.leaderboards import comparing
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.pages import slug
from dare_bench.leaderboards.site import Site, state
from dare_bench.runs.files import samples_name


@dataclass(frozen=True, slots=True)
class Delta:
    """A paired difference as other pages tell it: second minus first, p not adjusted. ``settings`` names what differs
    beside the checkpoint."""

    value: float
    lo: float | None
    hi: float | None
    p: float | None
    level: float
    method: str
    n: int
    share: bool
    higher_is_better: bool
    page: str
    settings: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Positive is better."""
        return self.value if self.higher_is_better else -self.value


def place(first: BoardEntry, second: BoardEntry) -> str:
    """The page of a pair."""
    return f"compare/{slug(f'{first.slug} {second.slug}')}.html"


def facts(site: Site, first: BoardEntry, second: BoardEntry) -> dict[str, Any]:
    """Compare two runs, the second against the first, and write their page.

    Returns ``items`` (by task, what :func:`_record` tells) and ``place`` (their page); or ``refused``, why the two
    cannot be compared at all.
    """
    name = f"pair {first.slug} {second.slug}"
    if name in site.parts:
        return site.parts[name].facts
    made_from = [(entry.state, entry.page, _samples(entry)) for entry in (first, second)]
    return site.part(name, made_from, lambda: _write(site, first, second))


def difference(site: Site, first: BoardEntry, second: BoardEntry, task: str, key: str) -> Delta | str:
    """The paired difference of one score of two runs; where they do not compare, why not."""
    pair = facts(site, first, second)
    if "refused" in pair:
        return str(pair["refused"])
    item = pair["items"].get(task)
    if item is None or item["key"] != key:  # not a headline, or a task inside a group that both have
        made_from = [(entry.state, _samples(entry)) for entry in (first, second)]
        name = f"pair {first.slug} {second.slug} {task} {key}"
        item = site.part(name, made_from, lambda: _one(first, second, task, key))
    if "refused" in item or item["breaks"]:
        return str(item.get("refused") or "; ".join(item["breaks"]))
    known = {
        name: item[name] for name in ("value", "lo", "hi", "p", "level", "method", "n", "share", "higher_is_better")
    }
    return Delta(**known, page=pair["place"], settings=tuple(item["settings"]))


def _one(first: BoardEntry, second: BoardEntry, task: str, key: str) -> dict[str, Any]:
    try:
        (item,) = compare([first.open(), second.open()], [task], key, force=True).items
    except (IncompleteError, RunError, UsageError) as error:
        return {"refused": _said(error, first, second)}
    return _record(item)


def _said(told: object, *entries: BoardEntry) -> str:
    """A text without the paths of the machine that built the site."""
    text = str(told)
    for entry in entries:
        text = text.replace(str(entry.path), entry.run_id)
    return text


def _samples(entry: BoardEntry) -> list[Any]:
    """The states of a run's sample files, found by the date in the name of its results."""
    results = entry.state[0]
    if results is None:
        return []
    date = results[0].removeprefix("results_").removesuffix(".json")
    return [state(entry.path / samples_name(task, date)) for task in entry.tasks]


def _write(site: Site, first: BoardEntry, second: BoardEntry) -> Mapping[str, Any]:
    try:
        comparison = compare([first.open(), second.open()], force=True)
    except (IncompleteError, RunError, UsageError) as error:  # the same every time, until a file changes
        return {"refused": _said(error, first, second)}
    where = place(first, second)
    root = "../" * where.count("/")
    # Two copies of one run go by the same id: the site's own names are told apart.
    comparison.names = [first.slug, second.slug] if first.run_id == second.run_id else [first.run_id, second.run_id]
    comparison.left_out = [_said(text, first, second) for text in comparison.left_out]
    shown = comparing.values(comparison, [root + first.page, root + second.page])
    site.page(where, "compare.html.j2", alone=False, **shown)
    return {"items": {item.task: _record(item) for item in comparison.items}, "place": where}


def _record(item: ScoreComparison) -> dict[str, Any]:
    """What other pages show of a comparison."""
    names = ("value", "lo", "hi", "p", "level", "method", "n")
    return {
        "key": item.key,
        **{name: getattr(item.difference, name) for name in names},
        "share": item.is_share,
        "higher_is_better": item.higher_is_better is not False,
        "breaks": list(item.breaks),
        "settings": [name for name in item.settings if name not in MODEL],
    }
