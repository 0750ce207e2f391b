"""A :class:`~dare_bench.reports.score_table.ScoreTable` as Markdown, LaTeX (booktabs) or CSV. Any text is escaped
for LaTeX so that pdflatex compiles it and prints it unchanged."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from dare_bench.formatting import NONE, decimals_of, figure
from dare_bench.reports.elements import escaped
from dare_bench.reports.score_table import MARK_NOTES, ExportCell, ExportColumn, Mark, ScoreTable
from dare_bench.runs.text import no_formula, visible

Format = Literal["markdown", "latex", "csv"]
Intervals = Literal["none", "pm", "range"]
SIGNS: dict[Mark, str] = {
    "limited": "†", "incomplete": "‡", "definition": "§", "prompts": "¶", "approximate": "∗", "doubtful": "‖",
    "external": "#",
}  # fmt: skip
_REPLACED = str.maketrans({"&": "&amp;", "$": "&#36;", "@": "&#64;"})
"""GitHub's markup beside Markdown: entities, formulas, mentions."""


def render(
    table: ScoreTable,
    style: Format = "markdown",
    *,
    intervals: Intervals = "range",
    fingerprints: bool = False,
    passes: bool = False,
    caption: str | None = None,
) -> str:
    """The table as text. ``intervals``: after each value nothing, ± half the interval's width, or both ends: in
    Markdown as they are, in LaTeX as distances in a sub- and a superscript. ``passes``: a column of forward passes per
    request after each task that generates. CSV always has ends, passes and fingerprints in separate columns, and
    unrounded values."""
    if style == "csv":
        return _csv(table)
    columns = _text_columns(table, intervals, fingerprints, passes)
    notes = [*_notes(table, style, intervals)]
    if passes:
        notes.append("NFE: forward passes per request.")
    return (_markdown if style == "markdown" else _latex)(columns, notes, caption)


@dataclass(frozen=True, slots=True)
class _TextCell:
    """``ends``: lower and upper end of the interval; ``distances``: the value's distances to them."""

    text: str
    bold: bool = False
    ends: tuple[str, str] | None = None
    distances: tuple[str, str] = ("", "")
    after: str = ""


@dataclass(frozen=True, slots=True)
class _TextColumn:
    """Numbers are aligned right."""

    head: str
    cells: list[_TextCell]
    numeric: bool = False


def _text_columns(table: ScoreTable, intervals: Intervals, fingerprints: bool, passes: bool) -> list[_TextColumn]:
    columns = [_TextColumn("checkpoint", [_TextCell(row.name) for row in table.rows])]
    if any(row.rank for row in table.rows):
        columns.insert(0, _TextColumn("rank", [_TextCell(row.rank or NONE) for row in table.rows]))
    if any(row.settings for row in table.rows):
        columns.append(_TextColumn("settings", [_TextCell(row.settings) for row in table.rows]))
    for at, column in enumerate(table.columns):
        head = column.name if column.n is None else f"{column.name} (n={column.n})"
        cells = [_cell(cell, column, intervals) if (cell := row.cells[at]) else _TextCell(NONE) for row in table.rows]
        columns.append(_TextColumn(head, cells, numeric=True))
        known = [cell.passes if (cell := row.cells[at]) else None for row in table.rows]
        if passes and any(known):
            texts = [_TextCell(NONE if each is None else figure(each)) for each in known]
            columns.append(_TextColumn(f"{column.name} NFE", texts, numeric=True))
    if fingerprints:  # in the order of the columns
        prints = [" ".join(cell.score.fingerprint[:8] if cell else NONE for cell in row.cells) for row in table.rows]
        columns.append(_TextColumn("settings fingerprint", [_TextCell(text) for text in prints]))
    return columns


def _cell(cell: ExportCell, column: ExportColumn, intervals: Intervals) -> _TextCell:
    score, number = cell.score, _number(cell, column)
    text = number(score.value) + "".join(SIGNS[mark] for mark in cell.marks)
    after = "" if column.n is not None else f" (n={score.n})"
    if score.lo is None or score.hi is None or intervals == "none":
        return _TextCell(text, cell.best, after=after)
    if intervals == "pm":
        return _TextCell(f"{text} ± {number((score.hi - score.lo) / 2)}", cell.best, after=after)
    ends = number(score.lo), number(score.hi)
    distances = number(abs(score.value - score.lo)), number(abs(score.hi - score.value))
    return _TextCell(text, cell.best, ends, distances, after)


def _number(cell: ExportCell, column: ExportColumn) -> Callable[[float], str]:
    """The format of this cell's numbers: shares in percent with one decimal; others to two digits of the interval's
    half-width, or with four significant digits without an interval."""
    if column.share:
        return lambda value: f"{100 * value:.1f}"
    decimals = decimals_of(cell.score.lo, cell.score.hi)
    return lambda value: f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def _notes(table: ScoreTable, style: Format, intervals: Intervals) -> Iterator[str]:
    yield from table.notes
    scores = [cell.score for cell in table.cells() if cell.score.level is not None]
    if scores and intervals != "none":
        levels = "/".join(f"{100 * level:g}" for level in sorted({score.level for score in scores if score.level}))
        methods = ", ".join(dict.fromkeys(score.method for score in scores))
        ends = "In brackets: the" if style == "markdown" else "Sub- and superscripts: distances to the ends of the"
        label = "±: half the width of the" if intervals == "pm" else ends
        yield f"{label} {levels} % interval over documents ({methods})."
    yield from (f"{SIGNS[mark]} {MARK_NOTES[mark]}." for mark in table.marks())


def _markdown(columns: list[_TextColumn], notes: list[str], caption: str | None) -> str:
    lines = [[_safe(column.head) for column in columns], ["---:" if column.numeric else "---" for column in columns]]
    for row in zip(*(column.cells for column in columns), strict=True):
        lines.append([_markdown_cell(cell) for cell in row])
    parts = [_safe(caption)] if caption else []
    parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts += ["\n".join(f"- {_safe(note)}" for note in notes)] if notes else []
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: _TextCell) -> str:
    ends = f" ({' to '.join(cell.ends)})" if cell.ends else ""
    text = _safe(cell.text + ends + cell.after)
    return f"**{text}**" if cell.bold else text


def _safe(text: str) -> str:
    return escaped(text).translate(_REPLACED)


def _latex(columns: list[_TextColumn], notes: list[str], caption: str | None) -> str:
    alignment = "".join("r" if column.numeric else "l" for column in columns)
    body = [[latex_text(column.head) for column in columns]]
    for row in zip(*(column.cells for column in columns), strict=True):
        body.append([_latex_cell(cell) for cell in row])
    lines = [" & ".join(line) + r" \\" for line in body]
    table = [r"\begin{table}[t]", r"\centering"]
    table += [rf"\caption{{{latex_text(caption)}}}"] if caption else []
    table += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    table += [r"\bottomrule", r"\end{tabular}"]
    if notes:
        table += [r"\par\smallskip", r"\begin{minipage}{\linewidth}", r"\footnotesize"]
        table += [rf"{latex_text(note)}\par" for note in notes]
        table += [r"\end{minipage}"]
    text = "\n".join([*table, r"\end{table}"]) + "\n"
    packages = [r"\usepackage{booktabs}", *([] if text.isascii() else [r"\usepackage[T1]{fontenc}"])]
    return f"% needs {' and '.join(packages)}\n{text}"


def _latex_cell(cell: _TextCell) -> str:
    distances = "$_{{-{}}}^{{+{}}}$".format(*cell.distances) if cell.ends else ""
    text = latex_text(cell.text) + distances + (f" {latex_text(cell.after)}" if cell.after else "")
    return rf"\textbf{{{text}}}" if cell.bold else text


def _csv(table: ScoreTable) -> str:
    """One line for each row, with unrounded values for programs."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    fields = ("", " lo", " hi", " n", " nfe_per_request", " tier", " marks", " fingerprint")
    names = [_plain(column.name) for column in table.columns]
    out.writerow(["checkpoint", "settings", *(f"{name}{part}" for name in names for part in fields)])
    for row in table.rows:
        line: list[object] = [_plain(row.name), _plain(row.settings)]
        for cell in row.cells:
            if cell is None:
                line += [""] * len(fields)
                continue
            score = cell.score
            line += [score.value, *("" if bound is None else bound for bound in (score.lo, score.hi)), score.n]
            line.append("" if cell.passes is None else cell.passes)
            line += [score.exactness, " ".join(cell.marks), score.fingerprint]
        out.writerow(line)
    return file.getvalue()


def _plain(text: str) -> str:
    """On one line, and not a formula for spreadsheets."""
    return no_formula(" ".join(visible(text).split()))


_JOINING = re.compile(r"(?<=([-',]))(?=\1)")
"""Between two characters that TeX joins (a dash, quotation marks)."""
_APART = "\x00"
"""Placeholder until everything is latex_text; no text has it, since control characters were replaced."""
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # In the default font encoding these print as other characters, or join into them ("--", "``").
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedblright{}",
    "`": r"\textasciigrave{}",
    # After a row's end ("\\\\") these would be read as its arguments.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
_MAPPED = {
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "∗": r"$^{\ast}$",
    "†": r"\textsuperscript{\dag}",
    "‡": r"\textsuperscript{\ddag}",
    "§": r"\textsuperscript{\S}",
    "¶": r"\textsuperscript{\P}",
    "‖": r"$^{\parallel}$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "…": r"\ldots{}",
    "⟨": r"$\langle$",
    "⟩": r"$\rangle$",
    "·": r"$\cdot$",
    "°": r"$^{\circ}$",
    "µ": r"$\mu$",
    "\xa0": "~",
    _APART: "{}",
}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
_UPPER = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
for _name in (*_GREEK.split(), *_UPPER.split()):
    _case = "CAPITAL" if _name[0].isupper() else "SMALL"
    _spelled = "LAMDA" if _name.lower() == "lambda" else _name.upper()
    _MAPPED[unicodedata.lookup(f"GREEK {_case} LETTER {_spelled}")] = rf"$\{_name}$"
_LAST_LATIN = 0x17F
"""The end of Latin Extended-A: pdflatex prints these letters as they are under ``\\usepackage[T1]{fontenc}``."""

_NOT_IN_T1 = "ªºĦħĸĿŀŉŦŧſ"


def latex_text(text: str) -> str:
    """``text`` for a LaTeX paragraph or table cell, on one line. European letters are unchanged, known signs
    become commands; all other characters, which pdflatex cannot print, are written as ``U+4E2D``."""
    line = " ".join(visible(unicodedata.normalize("NFC", text)).split())
    return "".join(map(_character, _JOINING.sub(_APART, line)))


def _character(char: str) -> str:
    if command := _LATEX_SPECIAL.get(char) or _MAPPED.get(char):
        return command
    if char.isascii() or (char.isalpha() and ord(char) <= _LAST_LATIN and char not in _NOT_IN_T1):
        return char
    return rf"\texttt{{U+{ord(char):04X}}}"
