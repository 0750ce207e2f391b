"""The page of a checkpoint, by content hash and adapter: what it is, its best scores and the forward passes that they
take, all its settings, what it was trained from, its published scores, and how to reproduce and cite it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from dare_bench.analysis.names import method_of, training_settings, trainings
from dare_bench.formatting import compact, short_number
from dare_bench.leaderboards import score_badge
from dare_bench.leaderboards.aup_table import method_key
from dare_bench.leaderboards.charts import CurvePoint, Series, training_curves
from dare_bench.leaderboards.charts.labels import varying
from dare_bench.leaderboards.checkpoint_trees import CheckpointNode
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry, RunScore
from dare_bench.leaderboards.paper_exports import misc_entry
from dare_bench.leaderboards.site import Site

ENOUGH = 0.95
"""The share of the best score whose forward passes a page has."""
NFE = "forward passes per request"


@dataclass(frozen=True, slots=True)
class BestScore:
    """The best score of a task over all settings, with its forward passes (None: not recorded for the task alone).
    ``enough``: the run with the fewest passes that reaches :data:`ENOUGH` of it, and these passes."""

    best: RunScore
    passes: float | None
    enough: tuple[RunScore, float] | None


@dataclass(frozen=True, slots=True)
class CheckpointRun:
    """A run in the list: the settings that differ from those of other runs, and its scores as text."""

    entry: BoardEntry
    settings: str
    scores: list[tuple[str, str]]
    passes: float | None
    badges: list[str]


def write(site: Site, context: Context) -> None:
    """Write the page of every checkpoint."""
    pages: dict[str, list[BoardEntry]] = defaultdict(list)
    for entry in context.entries:
        pages[entry.checkpoint_page].append(entry)
    rows = [each for row in context.views[0].rows for each in row.each]
    nodes = {node.key: node for root in context.lineage for node in (root, *root.below())}
    badges = score_badge.badges(context)
    for place, entries in pages.items():
        own = [row for row in rows if row.main.checkpoint_page == place]
        newest = entries[-1]
        main, history = own[0].main if own else newest, _lineage(newest, nodes)
        reasons = {entry.slug: [badge.text for badge in row.unranked_by] for row in own for entry in row.entries}
        badge = badges.get(main.slug)
        inputs = ([(entry.state, entry.slug, entry.name) for entry in entries], main.slug, reasons, history, badge)
        values = {"main": main, "newest": newest, "badge": badge and score_badge.drawing(badge), **history}
        site.part(f"checkpoint {place}", inputs, partial(_write, site, place, entries, reasons, values))


def _write(
    site: Site,
    place: str,
    entries: Sequence[BoardEntry],
    reasons: Mapping[str, list[str]],
    values: Mapping[str, Any],
) -> None:
    best = best_scores(entries)
    site.page(
        place,
        "checkpoint.html.j2",
        best=best,
        charts=[chart for at, item in enumerate(best) if (chart := _chart(f"passes-{at}", item, entries))],
        citation=citation(entries, best),
        runs=_runs(entries, reasons),
        badge_line=score_badge.line(site, values["main"]),
        dtypes=list(dict.fromkeys(entry.dtype for entry in entries if entry.dtype)),
        published=[(entry, line) for entry in entries for line in entry.published],
        **values,
    )


def best_scores(entries: Sequence[BoardEntry]) -> list[BestScore]:
    """The best score of each task, of whole tasks where there is one; of equal scores that with the fewest passes."""
    result = []
    for task in dict.fromkeys(task for entry in entries for task in entry.top_level):
        scores = [RunScore(score, entry) for entry in entries if (score := entry.score(task)) is not None]
        if not scores:
            continue
        best = max(scores, key=_preferred)
        result.append(BestScore(best, passes_of(best), _enough(best, scores)))
    return result


def _preferred(own: RunScore) -> tuple[bool, bool, float, float]:
    passes = passes_of(own)
    return not own.score.limited, own.entry.complete, own.score.goodness, -math.inf if passes is None else -passes


def passes_of(own: RunScore) -> float | None:
    """The forward passes per request of the task; None where a run recorded only those of all its tasks, or none."""
    passes, is_of_task = own.entry.nfe_per_request(own.score.task)
    return passes if is_of_task and passes else None


def comparable(best: RunScore, scores: Iterable[RunScore]) -> list[RunScore]:
    """The scores of the same documents and metric as ``best``."""
    asked = best.score.key, best.score.task_fingerprint, best.score.n
    return [own for own in scores if (own.score.key, own.score.task_fingerprint, own.score.n) == asked]


def _enough(best: RunScore, scores: Iterable[RunScore]) -> tuple[RunScore, float] | None:
    """Of the measured runs; None where a part of the best score has no meaning (lower is better), or without passes."""
    if best.score.higher_is_better is False or best.score.value <= 0 or passes_of(best) is None:
        return None
    reached = [own for own in comparable(best, scores) if own.score.value >= ENOUGH * best.score.value]
    known = [(own, passes) for own in reached if (passes := passes_of(own)) is not None]
    return min(known, key=lambda pair: (pair[1], -pair[0].score.value))


def _chart(ident: str, item: BestScore, entries: Sequence[BoardEntry]) -> Markup | None:
    """Score against forward passes, a line for each decoding that has several budgets; None for a single number of
    passes."""
    task = item.best.score.task
    every = [RunScore(score, entry) for entry in entries if (score := entry.score(task)) is not None]
    methods: dict[str, list[tuple[RunScore, float]]] = defaultdict(list)
    for own in comparable(item.best, every):
        if (passes := passes_of(own)) is not None:
            methods[method_key(own)].append((own, passes))
    points = [point for group in methods.values() for point in group]
    if len({passes for _, passes in points}) < 2:
        return None
    names = _method_names(list(methods.values()))
    return training_curves(
        [
            Series(name, [_point(own, passes) for own, passes in group])
            for name, group in zip(names, methods.values(), strict=True)
        ],
        ident=ident,
        title=f"{task} against {NFE}",
        y_title=item.best.score.metric,
        x_title=NFE,
        higher_is_better=item.best.score.higher_is_better is not False,
        percent=all(own.score.is_share for own, _ in points),
    )


def _method_names(groups: Sequence[Sequence[tuple[RunScore, float]]]) -> list[str]:
    """What the runs of a method have in common and those of other methods lack."""
    common = []
    for group in groups:
        settings = [own.entry.settings.split(", ") for own, _ in group]
        common.append(", ".join(part for part in settings[0] if all(part in other for other in settings)))
    return [name or "default" for name in varying(common)] if len(common) > 1 else common


def _point(own: RunScore, passes: float) -> CurvePoint:
    score, place = own.score, f"{compact(passes)} {NFE}"
    return CurvePoint(passes, score.value, f"../{own.entry.page}", score.lo, score.hi, own.entry.settings, place)


def _runs(entries: Sequence[BoardEntry], reasons: Mapping[str, list[str]]) -> list[CheckpointRun]:
    """All runs, newest first; ``reasons`` why the board does not rank them are by slug."""
    newest = list(reversed(entries))
    differing = varying([entry.settings for entry in newest])
    return [
        CheckpointRun(
            entry,
            settings or entry.settings,
            [
                (task, short_number(score.value, score.is_share))
                for task in entry.top_level
                if (score := entry.score(task)) is not None
            ],
            entry.cost.nfe / entry.cost.requests if entry.cost.nfe and entry.cost.requests else None,
            reasons.get(entry.slug, []),
        )
        for entry, settings in zip(newest, differing, strict=True)
    ]


def _lineage(entry: BoardEntry, nodes: Mapping[tuple[str, str], CheckpointNode]) -> dict[str, Any]:
    """The trainings behind a checkpoint, and the checkpoints that were trained from it."""
    node = nodes.get((entry.checkpoint.content, entry.checkpoint.adapter))
    steps = []
    for training in trainings(entry.lineage):
        base = nodes.get((str(training.get("base_content")), str(training.get("base_adapter") or "")))
        facts = {name: training.get(name) for name in ("base", "data", "seed", "step", "steps", "data_hash")}
        page = base.entries[-1].checkpoint_page if base and base.entries else None
        steps.append({"method": method_of(training), "page": page, **facts, "settings": training_settings(training)})
    below = [
        (each.entries[-1].name.text, each.entries[-1].checkpoint_page)
        for recipe in (node.recipes if node else ())
        for training in recipe.trainings
        for each in training.nodes
        if each.entries
    ]
    return {"trainings": steps, "below": below}


def citation(entries: Sequence[BoardEntry], best: Sequence[BestScore]) -> str:
    """BibTeX of the checkpoint's evaluation."""
    newest = entries[-1]
    _, content, adapter, _ = newest.checkpoint
    scores = [f"{item.best.score.task} {item.best.score.text} (n {item.best.score.n_text})" for item in best]
    facts = [
        f"Content {content or 'unknown'}",
        *([f"adapter {adapter}"] if adapter else []),
        *([f"best scores by dare-bench: {', '.join(scores)}"] if scores else []),
        f"runs {', '.join(entry.run_id for entry in entries)}",
    ]
    key = newest.checkpoint_page.removeprefix("checkpoints/").removesuffix(".html")
    return misc_entry(f"checkpoint:{key}", newest.name.text, newest.created, "; ".join(facts))
