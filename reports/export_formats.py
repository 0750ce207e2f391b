"""A :class:`~dare_bench.reports.export_table.ScoreTable` as markdown, LaTeX (booktabs) or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from dare_bench.formatting import NONE, decimals_of
from dare_bench.reports import latex
from dare_bench.reports.elements import escaped
from dare_bench.reports.export_table import WHY, ExportCell, ExportColumn, ExportRow, Mark, ScoreTable
from dare_bench.runs.text import no_formula, visible

Format = Literal["markdown", "latex", "csv"]
Intervals = Literal["none", "pm", "range"]
SIGNS: dict[Mark, str] = {
    "limited": "†", "incomplete": "‡", "definition": "§", "prompts": "¶", "approximate": "∗", "doubtful": "‖",
}  # fmt: skip
_REPLACED = str.maketrans({"&": "&amp;", "$": "&#36;", "@": "&#64;"})
"""What GitHub reads in text beside markdown's own signs: entities, formulas, names of people."""


def written(
    table: ScoreTable,
    style: Format = "markdown",
    *,
    intervals: Intervals = "pm",
    fingerprints: bool = False,
    caption: str | None = None,
) -> str:
    """The table as text. ``intervals``: after each value nothing, ± half the interval's width, or its ends. CSV always
    has the ends and the fingerprints, each in a column of its own, and values as the runs have them."""
    if style == "csv":
        return _csv(table)
    header, rows = _grid(table, intervals, fingerprints)
    notes = [*_notes(table, intervals)]
    return (_markdown if style == "markdown" else _latex)(header, rows, notes, caption, _left(rows, fingerprints))


Text = tuple[str, bool]
"""A cell's text, and whether it is bold."""


def _grid(table: ScoreTable, intervals: Intervals, fingerprints: bool) -> tuple[list[str], list[list[Text]]]:
    settings = any(row.settings for row in table.rows)
    header = ["checkpoint", *(["settings"] if settings else []), *(_head(column) for column in table.columns)]
    header += ["settings fingerprint"] if fingerprints else []
    rows = []
    for row in table.rows:
        texts: list[Text] = [(row.name, False), *([(row.settings, False)] if settings else [])]
        for column, cell in zip(table.columns, row.cells, strict=True):
            texts.append((_cell(cell, column, intervals), cell.best) if cell else (NONE, False))
        rows.append([*texts, *([(_fingerprints(row), False)] if fingerprints else [])])
    return header, rows


def _head(column: ExportColumn) -> str:
    return column.name if column.n is None else f"{column.name} (n={column.n})"


def _fingerprints(row: ExportRow) -> str:
    """Those of the row's scores, in the order of the columns."""
    return " ".join(cell.score.fingerprint[:8] if cell else NONE for cell in row.cells)


def _cell(cell: ExportCell, column: ExportColumn, intervals: Intervals) -> str:
    score = cell.score
    marks = "".join(SIGNS[mark] for mark in cell.marks)
    number = _number(cell, column)
    text = number(score.value) + marks
    if score.lo is not None and score.hi is not None:
        if intervals == "pm":
            text += f" ± {number((score.hi - score.lo) / 2)}"
        elif intervals == "range":
            text += f" [{number(score.lo)}, {number(score.hi)}]"
    return text if column.n is not None else f"{text} (n={score.n})"


def _number(cell: ExportCell, column: ExportColumn) -> Callable[[float], str]:
    """How this cell's numbers are written: shares in percent with one decimal; others to two digits of the interval's
    half-width, or with four digits where there is none."""
    if column.share:
        return lambda value: f"{100 * value:.1f}"
    decimals = decimals_of(cell.score.lo, cell.score.hi)
    return lambda value: f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def _notes(table: ScoreTable, intervals: Intervals) -> Iterator[str]:
    yield from table.notes
    known = [cell.score for cell in table.cells() if cell.score.level is not None]
    if known and intervals != "none":
        levels = "/".join(f"{100 * level:g}" for level in sorted({score.level for score in known if score.level}))
        methods = ", ".join(dict.fromkeys(score.method for score in known))
        what = "±: half the width of the" if intervals == "pm" else "In brackets: the"
        yield f"{what} {levels} % interval over documents ({methods})."
    yield from (f"{SIGNS[mark]} {WHY[mark]}." for mark in table.marks())


def _left(rows: Sequence[Sequence[Text]], fingerprints: bool) -> Callable[[int, str], bool]:
    """Which columns stand on the left: names and settings, not numbers."""
    last = len(rows[0]) - 1
    return lambda at, head: at == 0 or head == "settings" or (fingerprints and at == last)


def _markdown(
    header: list[str],
    rows: list[list[Text]],
    notes: list[str],
    caption: str | None,
    left: Callable[[int, str], bool],
) -> str:
    rule = ["---" if left(at, head) else "---:" for at, head in enumerate(header)]
    lines = [[_safe(head) for head in header], rule]
    lines += [[f"**{_safe(text)}**" if bold else _safe(text) for text, bold in row] for row in rows]
    parts = [_safe(caption)] if caption else []
    parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts += ["\n".join(f"- {_safe(note)}" for note in notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def _safe(text: str) -> str:
    return escaped(text).translate(_REPLACED)


def _latex(
    header: list[str],
    rows: list[list[Text]],
    notes: list[str],
    caption: str | None,
    left: Callable[[int, str], bool],
) -> str:
    columns = "".join("l" if left(at, head) else "r" for at, head in enumerate(header))
    body = [[latex.escaped(head) for head in header]]
    body += [
        [rf"\textbf{{{latex.escaped(text)}}}" if bold else latex.escaped(text) for text, bold in row] for row in rows
    ]
    lines = [" & ".join(line) + r" \\" for line in body]
    table = [r"\begin{table}[t]", r"\centering"]
    table += [rf"\caption{{{latex.escaped(caption)}}}"] if caption else []
    table += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    table += [r"\bottomrule", r"\end{tabular}"]
    if notes:
        table += [r"\par\smallskip", r"\begin{minipage}{\linewidth}", r"\footnotesize"]
        table += [rf"{latex.escaped(note)}\par" for note in notes]
        table += [r"\end{minipage}"]
    text = "\n".join([*table, r"\end{table}"]) + "\n"
    packages = [r"\usepackage{booktabs}", *([] if text.isascii() else [r"\usepackage[T1]{fontenc}"])]
    return f"% needs {' and '.join(packages)}\n{text}"


def _csv(table: ScoreTable) -> str:
    """One line a row; values, bounds and counts unrounded, for programs."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    own = ("", " lo", " hi", " n", " tier", " marks", " fingerprint")
    names = [_plain(column.name) for column in table.columns]
    out.writerow(["checkpoint", "settings", *(f"{name}{part}" for name in names for part in own)])
    for row in table.rows:
        line: list[object] = [_plain(row.name), _plain(row.settings)]
        for cell in row.cells:
            if cell is None:
                line += [""] * len(own)
                continue
            score = cell.score
            line += [score.value, *("" if bound is None else bound for bound in (score.lo, score.hi)), score.n]
            line += [score.tier or "", " ".join(cell.marks), score.fingerprint]
        out.writerow(line)
    return file.getvalue()


def _plain(text: str) -> str:
    """On one line, and no formula where a spreadsheet opens it."""
    return no_formula(" ".join(visible(text).split()))
