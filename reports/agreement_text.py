"""An agreement between two runs, told: counts, settings that differ, and the documents whose scores differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from dare_bench.analysis.names import run_names
from dare_bench.analysis.settings import shown
from dare_bench.reports.agreement import Agreement, Pair, Side
from dare_bench.reports.text import Bullets, Heading, Line, Piece, Table, Verbatim, percent
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.text import counted

PROMPT_TAIL = 600
"""Characters of a prompt's end that are shown: the question stands there, after the examples."""
_IDS = 20
_BEFORE = 60
_PARTING = 200


def pieces(found: Agreement, most: int | None = None) -> Iterator[Piece]:
    """The report's section on two runs; of the documents whose scores differ ``most`` are shown (None: all)."""
    runs = run_names([found.first, found.second])
    names = [_named(found.first, found.score_first), _named(found.second, found.score_second)]
    yield Heading("Agreement")
    yield Table(("", "first", "second"), [
        ("run", *runs),
        ("harness and task", *names),
        ("score", found.score_first.key, found.score_second.key),
        ("value %", percent(found.score_first.value), percent(found.score_second.value)),
    ])  # fmt: skip
    yield Table(("documents", ""), list(_counts(found)))
    remarks = list(_remarks(found))
    if remarks:
        yield Bullets(remarks)
    if found.settings:
        yield Heading("Settings that differ", 3)
        yield Table(
            ("setting", "first", "second"), [(name, shown(a), shown(b)) for name, (a, b) in found.settings.items()]
        )
    differing = found.differing
    first_ones = differing if most is None else differing[:most]
    for pair in first_ones:
        yield from _document(pair)
    other = next((pair for pair in found.pairs if not pair.same_prompt), None)
    if other is not None and all(pair.same_prompt for pair in first_ones):
        yield Heading(f"Document {_both_ids(other)}, the first with other prompts", 3)
        yield from _prompts(other)
    if len(first_ones) < len(differing):
        yield Line(
            f"{len(differing) - len(first_ones)} more documents have other scores; --markdown FILE or --json has all."
        )


def _named(run: Run, score: Score) -> str:
    assert run.block is not None
    return f"{run.block.harness.name} {run.block.harness.version}: {score.task}"


def _counts(found: Agreement) -> Iterator[tuple[str, str]]:
    pairs = found.pairs
    yield "compared", str(len(pairs))
    if found.only_first or found.only_second:
        yield "without a partner", f"{found.only_first} in the first, {found.only_second} in the second"
    how = Counter(pair.how for pair in pairs)
    yield "matched by", ", ".join(f"{name} {count}" for name, count in how.items()) or "—"
    yield "same prompt", f"{sum(pair.same_prompt for pair in pairs)} of {len(pairs)}"
    known = [pair for pair in pairs if pair.same_tokens is not None]
    basis = ", ".join(dict.fromkeys(pair.basis for pair in known))
    yield "same tokens", f"{found.same_tokens} of {len(known)}" + (f" (seen by {basis})" if basis else "")
    yield "same score", f"{found.same_scores} of {len(pairs)}"


def _remarks(found: Agreement) -> Iterator[str]:
    if "checkpoint" in found.settings:
        yield "not the same checkpoint: these are two models, and nothing below tells harnesses apart"
    by_number = [pair for pair in found.pairs if pair.how == "document id"]
    if by_number:
        yield (
            f"Matched by number alone: {counted(len(by_number), 'document')}, since neither prompt nor question is"
            " equal: they may be different questions"
        )
    if any(pair.basis == "text" for pair in found.pairs):
        yield "a run has no traces: responses are compared as text, which stop strings may have cut differently"
    other = [pair for pair in found.pairs if pair.same_tokens is False]
    if other:
        yield "other tokens in documents " + _ids(other)
        unexplained = [pair for pair in other if pair.same_prompt]
        if unexplained and not found.settings.keys() - {"harness"}:
            yield "same prompts and settings but other tokens in documents " + _ids(unexplained)


def _ids(pairs: list[Pair]) -> str:
    shown = ", ".join(str(pair.first.doc_id) for pair in pairs[:_IDS])
    return shown + (f" and {len(pairs) - _IDS} more" if len(pairs) > _IDS else "")


def _document(pair: Pair) -> Iterator[Piece]:
    a, b = pair.first, pair.second
    yield Heading(f"Document {_both_ids(pair)}: {_value(a)} and {_value(b)}", 3)
    same = {True: "the same tokens", False: "other tokens", None: "no tokens to compare"}[pair.same_tokens]
    yield Line(f"{same}, {'the same prompt' if pair.same_prompt else 'other prompts'}")
    yield from _prompts(pair)
    yield from _both("answer", a.answer, b.answer)
    yield Verbatim("read out of the answer by the first", a.read)
    yield Verbatim("read out of the answer by the second", b.read)
    yield from _both("target", a.target, b.target)


def _both_ids(pair: Pair) -> str:
    a, b = str(pair.first.doc_id), str(pair.second.doc_id)
    return a if a == b else f"{a} and {b}"


def _prompts(pair: Pair) -> Iterator[Piece]:
    """The ends of both prompts, or where they part if that is further up."""
    a, b = pair.first.prompt, pair.second.prompt
    yield from _both("prompt, its end", tail(a), tail(b))
    if a != b and tail(a) == tail(b):
        at = max(0, _common(a, b) - _BEFORE)
        yield from _both("prompt, from where they part", _from(a, at), _from(b, at))


def _common(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _from(text: str, at: int) -> str:
    end = at + _BEFORE + _PARTING
    return ("… " if at else "") + text[at:end] + (" …" if end < len(text) else "")


def _both(label: str, a: str, b: str) -> Iterator[Piece]:
    """Two texts, or one where they are equal."""
    if a == b:
        yield Verbatim(label, a)
    else:
        yield Verbatim(f"{label} (first)", a)
        yield Verbatim(f"{label} (second)", b)


def tail(text: str) -> str:
    """The end of a prompt."""
    return text if len(text) <= PROMPT_TAIL else "… " + text[-PROMPT_TAIL:]


def _value(side: Side) -> str:
    return "no score" if side.value is None else f"{side.value:g}"


def record(found: Agreement) -> dict[str, Any]:
    """The whole agreement as plain JSON, every pair of documents in it."""
    from dataclasses import asdict

    return {
        "first": {"run_id": found.first.run_id, "task": found.score_first.task, "score": asdict(found.score_first)},
        "second": {"run_id": found.second.run_id, "task": found.score_second.task, "score": asdict(found.score_second)},
        "documents": len(found.pairs),
        "only_first": found.only_first,
        "only_second": found.only_second,
        "same_tokens": found.same_tokens,
        "same_scores": found.same_scores,
        "settings": {name: {"first": a, "second": b} for name, (a, b) in found.settings.items()},
        "pairs": [{**asdict(pair), "same_score": pair.same_score} for pair in found.pairs],
    }
