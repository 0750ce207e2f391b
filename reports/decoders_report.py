"""The report of decoders of one checkpoint: their budgets, and what each saves and loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dare_bench.analysis.decoders import DecoderComparison, DecoderCurve, Estimate
from dare_bench.reports.elements import Bullets, Element, Heading, narrowing


def elements(comparisons: Sequence[DecoderComparison]) -> Iterator[Element]:
    """Each task, then how to read the tables."""
    for comparison in comparisons:
        base = comparison.curves[comparison.baseline]
        yield Heading(f"Decoders of {comparison.model}: {comparison.task}")
        rows = [
            (
                curve.name,
                budget.settings or "-",
                f"{budget.accuracy:.1f}",
                f"{budget.forwards:.1f}",
                f"{budget.tpf:.2f}",
                "-" if curve is base else _text(budget.saved, "%"),
                "-" if curve is base else _text(budget.lost),
            )
            for curve in comparison.curves
            for budget in curve.budgets
        ]
        columns = ("decoder", "budget", "score", "forwards", "TPF", "saved", "lost")
        yield narrowing(columns, rows, ["TPF", "lost"])
        areas = [(curve.name, _text(curve.aup)) for curve in comparison.curves]
        yield narrowing(("decoder", "AUP"), areas, [])
        yield Bullets([_sentence(curve, base) for curve in comparison.curves if curve is not base])
    yield Heading("How to read this", 3)
    yield Bullets(list(_method(comparisons)))


def _sentence(curve: DecoderCurve, base: DecoderCurve) -> str:
    best = curve.budgets[curve.best]
    if best.saved.value is None:
        saved = f"{base.name} does not reach its score of {best.accuracy:.1f}"
    elif best.saved.value >= 0:
        saved = f"at equal accuracy this saves {_text(best.saved, '%')} of the forwards of {base.name}"
    else:
        saved = f"at equal accuracy this needs {_text(_negative(best.saved), '%')} more forwards than {base.name}"
    if best.lost.value is None:
        lost = f"{base.name} has no budget with as few forwards"
    elif best.lost.value >= 0:
        lost = f"at equal forwards this loses {_text(best.lost)} points"
    else:
        lost = f"at equal forwards this gains {_text(_negative(best.lost))} points"
    return f"{curve.name}: {saved}; {lost}"


def _negative(estimate: Estimate) -> Estimate:
    value, lo, hi = (None if end is None else -end for end in (estimate.value, estimate.hi, estimate.lo))
    return Estimate(value, lo, hi)


def _text(estimate: Estimate, unit: str = "") -> str:
    """A number with its interval; "not reached" where the baseline's line does not have it."""
    if estimate.value is None:
        return "not reached"
    ends = "no interval" if estimate.lo is None else f"{estimate.lo:.1f}, {estimate.hi:.1f}"
    return f"{estimate.value:.1f}{unit} [{ends}]"


def _method(comparisons: Sequence[DecoderComparison]) -> Iterator[str]:
    for comparison in comparisons:
        left = f"; {comparison.unpaired} not in all runs are left out" if comparison.unpaired else ""
        yield f"{comparison.task}: {comparison.key.removesuffix(',none')} in percent of {comparison.n} documents{left}"
    yield "forwards: of a document's answer, the mean; TPF: tokens up to EOS for each of them"
    yield "saved: forwards less than the baseline needs for this score, on straight lines between its budgets"
    yield "lost: points less than the baseline has with as many forwards; negative: the decoder gains"
    yield "not reached: the baseline's budgets do not include this score, or so few or many forwards"
    yield f"in brackets {100 * comparisons[0].level:g}% intervals, by bootstrap over the documents that all runs share"
    yield "no interval: in many bootstrap samples the baseline does not reach the score or the forwards"
    yield "AUP (accuracy under parallelism) grows with the range of budgets that were tried"
