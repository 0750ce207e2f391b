"""The report of the agreement of two runs: counts, differing settings, and the documents whose scores differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dare_bench.analysis.agreement import Agreement, DocumentPair, DocumentSide
from dare_bench.analysis.names import run_names
from dare_bench.analysis.settings import setting_text
from dare_bench.formatting import NONE, percent
from dare_bench.reports.elements import Bullets, Element, Heading, Paragraph, ReportTable, Verbatim
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.text import counted, listed

PROMPT_TAIL = 600
"""Number of characters shown of a prompt's end, where the question is, after the examples."""
_IDS = 20
_BEFORE = 60
_AFTER = 200


def elements(agreement: Agreement, most: int | None = None) -> Iterator[Element]:
    """The report's section on two runs, with at most ``most`` documents whose scores differ (None: all)."""
    runs = run_names([agreement.first, agreement.second])
    names = [_task_name(agreement.first, agreement.score_first), _task_name(agreement.second, agreement.score_second)]
    yield Heading("Agreement")
    yield ReportTable(("", "first", "second"), [
        ("run", *runs),
        ("harness and task", *names),
        ("score", agreement.score_first.key, agreement.score_second.key),
        ("value %", percent(agreement.score_first.value), percent(agreement.score_second.value)),
    ])  # fmt: skip
    yield ReportTable(("documents", ""), list(_counts(agreement)))
    if notes := list(_notes(agreement)):
        yield Bullets(notes)
    if agreement.settings:
        yield Heading("Settings that differ", 3)
        yield ReportTable(
            ("setting", "first", "second"),
            [(name, setting_text(a), setting_text(b)) for name, (a, b) in agreement.settings.items()],
        )
    differing = agreement.differing
    differing_shown = differing if most is None else differing[:most]
    for pair in differing_shown:
        yield from _document(pair)
    other = next((pair for pair in agreement.pairs if not pair.same_prompt), None)
    if other is not None and all(pair.same_prompt for pair in differing_shown):
        yield Heading(f"Document {_both_ids(other)}, the first with different prompts", 3)
        yield from _prompts(other)
    if more := len(differing) - len(differing_shown):
        yield Paragraph(f"The scores of {more} more documents differ; --markdown FILE or --json has all.")


def _task_name(run: Run, score: Score) -> str:
    harness = run.require_block().harness
    return f"{harness.name} {harness.version}: {score.task}"


def _counts(agreement: Agreement) -> Iterator[tuple[str, str]]:
    pairs = agreement.pairs
    yield "compared", str(len(pairs))
    if agreement.only_first or agreement.only_second:
        yield "unmatched", f"{agreement.only_first} in the first, {agreement.only_second} in the second"
    how = Counter(pair.how for pair in pairs)
    yield "matched by", ", ".join(f"{name} {count}" for name, count in how.items()) or NONE
    yield "same prompt", f"{sum(pair.same_prompt for pair in pairs)} of {len(pairs)}"
    comparable = [pair for pair in pairs if pair.same_tokens is not None]
    basis = ", ".join(dict.fromkeys(pair.basis for pair in comparable))
    yield "same tokens", f"{agreement.same_tokens} of {len(comparable)}" + (f" (compared by {basis})" if basis else "")
    yield "same score", f"{agreement.same_scores} of {len(pairs)}"


def _notes(agreement: Agreement) -> Iterator[str]:
    if "checkpoint" in agreement.settings:
        yield "not the same checkpoint: the differences below may be due to the models"
    by_number = [pair for pair in agreement.pairs if pair.how == "document id"]
    if by_number:
        yield (
            f"matched by number alone: {counted(len(by_number), 'document')} with neither an equal prompt nor an equal"
            " question: they may be different questions"
        )
    if any(pair.basis == "text" for pair in agreement.pairs):
        yield "a run has no traces: responses are compared as text, which stop strings may have truncated differently"
    if different := [pair for pair in agreement.pairs if pair.same_tokens is False]:
        yield "different tokens in documents " + _ids(different)
        unexplained = [pair for pair in different if pair.same_prompt]
        if unexplained and not agreement.settings.keys() - {"harness"}:
            yield "same prompts and settings but different tokens in documents " + _ids(unexplained)


def _ids(pairs: list[DocumentPair]) -> str:
    return listed([pair.first.doc_id for pair in pairs], _IDS)


def _document(pair: DocumentPair) -> Iterator[Element]:
    a, b = pair.first, pair.second
    yield Heading(f"Document {_both_ids(pair)}: {_value(a)} and {_value(b)}", 3)
    same = {True: "the same tokens", False: "different tokens", None: "no tokens to compare"}[pair.same_tokens]
    yield Paragraph(f"{same}, {'the same prompt' if pair.same_prompt else 'different prompts'}")
    yield from _prompts(pair)
    yield from _both("answer", a.answer, b.answer)
    yield Verbatim("extracted from the answer by the first", a.read)
    yield Verbatim("extracted from the answer by the second", b.read)
    yield from _both("target", a.target, b.target)


def _both_ids(pair: DocumentPair) -> str:
    a, b = str(pair.first.doc_id), str(pair.second.doc_id)
    return a if a == b else f"{a} and {b}"


def _prompts(pair: DocumentPair) -> Iterator[Element]:
    """The ends of both prompts, or where they start to differ if that is earlier."""
    a, b = pair.first.prompt, pair.second.prompt
    yield from _both("end of the prompt", tail(a), tail(b))
    if a != b and tail(a) == tail(b):
        common = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        start = max(0, common - _BEFORE)
        yield from _both("prompt from the first difference on", _excerpt(a, start), _excerpt(b, start))


def _excerpt(text: str, start: int) -> str:
    end = start + _BEFORE + _AFTER
    return ("… " if start else "") + text[start:end] + (" …" if end < len(text) else "")


def _both(label: str, a: str, b: str) -> Iterator[Element]:
    """Two texts, or one where they are equal."""
    if a == b:
        yield Verbatim(label, a)
    else:
        yield Verbatim(f"{label} (first)", a)
        yield Verbatim(f"{label} (second)", b)


def tail(text: str) -> str:
    """The end of a prompt."""
    return text if len(text) <= PROMPT_TAIL else "… " + text[-PROMPT_TAIL:]


def _value(side: DocumentSide) -> str:
    return "no score" if side.value is None else f"{side.value:g}"


def record(agreement: Agreement) -> dict[str, Any]:
    """The agreement as JSON values, with every pair of documents."""
    return {
        "first": _side(agreement.first, agreement.score_first),
        "second": _side(agreement.second, agreement.score_second),
        "documents": len(agreement.pairs),
        "only_first": agreement.only_first,
        "only_second": agreement.only_second,
        "same_tokens": agreement.same_tokens,
        "same_scores": agreement.same_scores,
        "settings": {name: {"first": a, "second": b} for name, (a, b) in agreement.settings.items()},
        "pairs": [{**asdict(pair), "same_score": pair.same_score} for pair in agreement.pairs],
    }


def _side(run: Run, score: Score) -> dict[str, Any]:
    return {"run_id": run.run_id, "task": score.task, "score": asdict(score)}
