"""The script of each run with what the page of comparisons needs: its scores, and the value of each document (one
character where values are 0 or 1). The answers are in scripts beside the sample pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dare_bench.leaderboards.board_ranking import Stratum, document_values
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry, settings_line
from dare_bench.leaderboards.rendering import data_script
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import Score


def write(site: Site, context: Context) -> None:
    """Write the script of every run that has scores."""
    for entry in context.entries:
        answers = context.answers.get(entry.slug, {})
        scores = [_record(entry, score, strata) for score, strata in _compared(site, entry)]
        if scores:
            inputs = entry.name, entry.settings, entry.checkpoint_page, list(_notes(entry)), scores, answers
            site.part(f"verdicts {entry.slug}", inputs, partial(_write, site, entry, scores, answers))


def place_of(entry: BoardEntry) -> str:
    return f"data/verdicts/{entry.slug}.js"


def _write(site: Site, entry: BoardEntry, scores: list[dict[str, Any]], answers: Mapping[str, Any]) -> None:
    record = {
        "title": entry.name.title,
        "detail": entry.name.detail,
        "settings": entry.settings,
        "created": entry.created[:10],
        "page": entry.page,
        "checkpoint": entry.checkpoint_page,
        "harness": entry.harness,
        "notes": list(_notes(entry)),
        "scores": scores,
        "answers": answers,
    }
    site.text(place_of(entry), data_script(place_of(entry), record))


def _notes(entry: BoardEntry) -> Iterator[str]:
    """What weakens every comparison with the run."""
    if entry.is_external:
        yield f"external, not recorded: {', '.join(entry.unknown)}"
    elif not entry.complete:
        yield f"{entry.status}: documents without an answer are left out"
    if entry.results_edited:
        yield "the results file was changed after the run"
    if entry.edited:
        yield f"samples were changed after the run: {', '.join(entry.edited)}"
    if entry.programs:
        yield f"it was {entry.programs}"


def _compared(site: Site, entry: BoardEntry) -> Iterator[tuple[Score, list[Stratum]]]:
    """The scores that are compared: headlines, and in place of a group whose score is not the mean over its documents
    those of its tasks."""
    for name in entry.top_level:
        score = entry.score(name)
        strata = document_values(site, entry, score) if score is not None and entry.files else []
        if score is None:
            continue
        if score.is_group and strata and not _is_pooled(score, strata):
            for task in dict.fromkeys(stratum.task for stratum in strata):
                if (own := entry.score(task)) is not None:
                    yield own, document_values(site, entry, own)
        else:
            yield score, strata


def _is_pooled(score: Score, strata: list[Stratum]) -> bool:
    values = [value for stratum in strata for value in stratum.values]
    return math.isclose(math.fsum(values) / len(values), score.value, rel_tol=1e-6, abs_tol=1e-9)


def _record(entry: BoardEntry, score: Score, strata: list[Stratum]) -> dict[str, Any]:
    context = entry.contexts[score.task]
    definition, _, prompts = score.task_fingerprint.partition(":")
    return {
        "task": score.task,
        "settings": settings_line([entry], [score.task, *(stratum.task for stratum in strata)]),
        "key": score.key,
        "value": score.value,
        "lo": score.lo,
        "hi": score.hi,
        "n": [score.n, score.n_total],
        "share": score.is_share,
        "higher": score.higher_is_better is not False,
        "limited": score.limited,
        "definition": definition,
        "prompts": prompts,
        "template": context.template,
        "context": repr((context.shots, context.instruction, context.examples)),
        "strata": [
            {"task": stratum.task, "documents": stratum.documents, "ids": stratum.ids, "values": _values(stratum)}
            for stratum in strata
        ],
    }


def _values(stratum: Stratum) -> str | list[float]:
    """Values that are all 0 or 1 are a string of digits."""
    if all(value in (0.0, 1.0) for value in stratum.values):
        return "".join("1" if value else "0" for value in stratum.values)
    return stratum.values
