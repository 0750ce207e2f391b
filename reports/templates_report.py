"""The report of decoders under several prompt templates: scores, rankings, and pairs of decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dare_bench.analysis.intervals import Interval
from dare_bench.analysis.names import letter
from dare_bench.analysis.template_statistics import DecoderPair
from dare_bench.analysis.templates import TemplateComparison
from dare_bench.formatting import p_text, p_value, short_difference, short_number
from dare_bench.reports.elements import Bullets, Element, Heading, ReportTable, narrowing
from dare_bench.runs.text import counted


def elements(comparisons: Sequence[TemplateComparison]) -> Iterator[Element]:
    """Each comparison, then how to read the tables."""
    for comparison in comparisons:
        yield Heading(f"Prompt templates: {comparison.title}")
        yield ReportTable(("", "decoder"), [(letter(at), name) for at, name in enumerate(comparison.decoders)])
        named = [(str(at), each.name, each.fingerprint) for at, each in enumerate(comparison.templates, 1)]
        yield narrowing(("", "template", "task fingerprint"), named, ["task fingerprint"])
        yield _by_template(comparison)
        yield _over_templates(comparison)
        if comparison.pairs:
            yield _pairs(comparison)
        yield Bullets([*_findings(comparison), *comparison.warnings])
        if comparison.left_out:
            yield Heading("Not compared", 3)
            yield Bullets(comparison.left_out)
    yield Heading("How to read this", 3)
    yield Bullets(list(_method(comparisons)))


def _by_template(comparison: TemplateComparison) -> ReportTable:
    """The scores under each template, a column for each decoder."""
    rows = [
        [str(at + 1), *(short_number(decoder.scores[at], comparison.is_share) for decoder in comparison.scores)]
        for at in range(len(comparison.templates))
    ]
    return ReportTable(("template", *map(letter, range(len(comparison.decoders)))), rows)


def _over_templates(comparison: TemplateComparison) -> ReportTable:
    share = comparison.is_share
    rows = [
        [
            letter(at),
            f"{short_number(decoder.mean, share)} {_ends(decoder.documents, share)}",
            _ends(decoder.templates_too, share),
            f"{short_number(decoder.scores[decoder.worst], share)} {_ends(decoder.worst_interval, share)}",
            str(decoder.worst + 1),
        ]
        for at, decoder in enumerate(comparison.scores)
    ]
    return narrowing(("", "mean", "such templates", "worst case", "under"), rows, ["such templates"])


def _pairs(comparison: TemplateComparison) -> ReportTable:
    rows = [
        [
            f"{letter(pair.first)}, {letter(pair.second)}",
            *(_signed(gain, comparison.is_share) for gain in pair.gains),
            f"{100 * pair.ahead:.0f}%",
            f"{100 * pair.behind:.0f}%",
            str(len(pair.better)),
            str(len(pair.worse)),
            p_value(min(pair.adjusted)),
            "REVERSAL" if pair.is_reversed else "no reversal shown",
        ]
        for pair in comparison.pairs
    ]
    columns = ("ahead", "behind", "shown better", "shown worse", "least p", "finding")
    gains = [f"gain {at}" for at in range(1, len(comparison.templates) + 1)]
    brief = narrowing(("pair", *columns), [[row[0], *row[-len(columns) :]] for row in rows], ("least p", "behind"))
    return ReportTable(("pair", *gains, *columns), rows, (brief, *brief.narrower))


def _findings(comparison: TemplateComparison) -> Iterator[str]:
    count = len(comparison.templates)
    score = comparison.key.removesuffix(",none") + (", lower is better" if comparison.higher_is_better is False else "")
    left = f"; {counted(comparison.unpaired, 'document')} not in all runs left out" if comparison.unpaired else ""
    yield f"{score} of {counted(comparison.n, 'document')}, the same under {count} templates{left}"
    if (agreement := comparison.agreement) is not None:
        (first, second), least = min(agreement.by_templates.items(), key=lambda item: item[1])
        lowest = f"; lowest {least:.2f}, of {first + 1} and {second + 1}" if count > 2 else ""
        yield (
            f"Kendall's tau of the rankings under two templates: {agreement.mean:.2f}"
            f" [{agreement.lo:.2f}, {agreement.hi:.2f}]{lowest}"
        )
    reversed_pairs = [pair for pair in comparison.pairs if pair.is_reversed]
    for pair in reversed_pairs:
        best, worst = (
            min(templates, key=lambda at, pair=pair: (pair.adjusted[at], -abs(pair.gains[at])))  # type: ignore[misc]
            for templates in (pair.better, pair.worse)
        )
        yield (
            f"REVERSAL: {letter(pair.first)} is better than {letter(pair.second)} under"
            f" {_shown(comparison, pair, best)} and worse under {_shown(comparison, pair, worst)}"
        )
    if comparison.pairs and not reversed_pairs:
        yield "no reversal shown: no pair is significantly better under one template and worse under another"


def _shown(comparison: TemplateComparison, pair: DecoderPair, at: int) -> str:
    return f"{at + 1} ({_signed(pair.gains[at], comparison.is_share)}, Holm {p_text(pair.adjusted[at])})"


def _method(comparisons: Sequence[TemplateComparison]) -> Iterator[str]:
    level = f"{100 * comparisons[0].level:g}%"
    unit = "in percent, " if any(each.is_share for each in comparisons) else ""
    yield f"scores: {unit}in brackets {level} intervals; documents are paired by number and content"
    yield "mean: over the templates; its interval is for other documents under these templates"
    yield "such templates: the interval of the mean for other documents and other templates like these"
    yield "worst case: the score under the worst of these templates, which the last column names"
    tests = sum(len(pair.p) for each in comparisons for pair in each.pairs)
    if tests:
        yield "ahead, behind: the share of templates under which the first of a pair scores better, worse"
        yield (
            f"shown better, shown worse: under how many templates the paired test shows it at {level}; p adjusted by"
            f" Holm's method over all {counted(tests, 'test')}"
        )
        yield "tau: 1 is one ranking, -1 the reverse; its interval holds all values that no paired test contradicts"


def _signed(value: float, share: bool) -> str:
    return short_difference(value, share).replace("−", "-")


def _ends(interval: Interval, share: bool) -> str:
    if interval.lo is None or interval.hi is None:
        return "[no interval]"
    return f"[{short_number(interval.lo, share)}, {short_number(interval.hi, share)}]"


def record(comparisons: Sequence[TemplateComparison]) -> dict[str, Any]:
    """The comparisons as JSON values; decoders and templates are named by their positions from 0."""
    return {"templates": [_record(comparison) for comparison in comparisons]}


def _record(comparison: TemplateComparison) -> dict[str, Any]:
    agreement = comparison.agreement
    return {
        "score": comparison.key,
        "higher_is_better": comparison.higher_is_better,
        "level": comparison.level,
        "documents": comparison.n,
        "unpaired": comparison.unpaired,
        "templates": [asdict(template) for template in comparison.templates],
        "decoders": [
            {"name": name, "runs": [str(run.path) for run in runs], **asdict(scores)}
            for name, runs, scores in zip(comparison.decoders, comparison.runs, comparison.scores, strict=True)
        ],
        "pairs": [
            {**asdict(pair), "ahead": pair.ahead, "behind": pair.behind, "better_under": pair.better,
             "worse_under": pair.worse, "reversal": pair.is_reversed}
            for pair in comparison.pairs
        ],
        "kendall_tau": None if agreement is None else {
            "mean": agreement.mean, "lo": agreement.lo, "hi": agreement.hi,
            "by_templates": [{"templates": list(at), "tau": tau} for at, tau in agreement.by_templates.items()],
        },
        "not_compared": list(comparison.left_out),
        "warnings": list(comparison.warnings),
    }  # fmt: skip
