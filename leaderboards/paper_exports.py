"""A board to take away: its table as Markdown and LaTeX, and citations of it and of its rows as BibTeX."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dare_bench.analysis.task_changes import DatedScore
from dare_bench.leaderboards.board import column_names
from dare_bench.leaderboards.board_page import board_json, data_stem
from dare_bench.leaderboards.board_ranking import dated, questions_of
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.entries import RunScore
from dare_bench.leaderboards.site import Site
from dare_bench.reports.export_formats import latex_text, render
from dare_bench.reports.score_table import (
    ExportCell,
    ExportColumn,
    ExportRow,
    Mark,
    ScoreTable,
    export_column,
    mark_best,
    marks,
    table_notes,
)
from dare_bench.runs.scores import Score
from dare_bench.runs.text import counted, one_line
from dare_bench.version import __version__

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
"""BibTeX's abbreviations."""


def write(site: Site, view: BoardView) -> None:
    """Write ``.md``, ``.tex`` and ``.bib`` beside the board's JSON file."""
    data = data_stem(view)
    digest = hashlib.sha256(board_json(view)).hexdigest()
    table = paper_table(view)
    title = one_line(view.board.title, 200)
    texts = {
        "md": render(table, "markdown", caption=title),
        "tex": render(table, "latex", caption=title),
        "bib": citations(view, digest),
    }

    def write_texts() -> None:
        for suffix, text in texts.items():
            site.text(f"{data}.{suffix}", text)

    site.part(f"take away {view.place}", (data, texts), write_texts)


def paper_table(view: BoardView) -> ScoreTable:
    """The board's rows in their order, with the same marks and bold scores as ``dare-bench export table``.

    The mean stands first where it ranks. Settings that all rows have in common are in the notes.
    """
    questions = questions_of(view.rows, view.columns)
    parts = [row.settings.split(", ") for row in view.rows]
    common = [part for part in parts[0] if all(part in other for other in parts)] if len(parts) > 1 else []
    rows = [
        ExportRow(
            one_line(row.name.text, 120),
            ", ".join(part for part in own if part not in common),
            [
                ExportCell(cell.score, _marks(cell, question)) if cell is not None else None
                for cell, question in zip(row.cells, questions, strict=True)
            ],
            row.band,
        )
        for row, own in zip(view.rows, parts, strict=True)
    ]
    names = column_names(view.columns)
    columns = [
        _column(one_line(name, 60), [row.cells[at] for row in rows if row.cells[at]]) for at, name in enumerate(names)
    ]
    for at in range(len(columns)):
        mark_best([cell for row in rows if (cell := row.cells[at]) is not None])
    notes = [*table_notes(ScoreTable(columns, rows))]
    if view.of_mean:
        columns.insert(0, _add_mean(view, rows))
    if any(row.rank for row in rows):
        notes.insert(0, "Rank: the ranks that a row may have, by paired tests and intervals.")
    if common:
        notes.append(f"All rows: {', '.join(common)}.")
    notes.append(f"Leaderboard built by dare-bench {__version__}; newest run of {newest(view)[:10]}.")
    return ScoreTable(columns, rows, notes)


def _add_mean(view: BoardView, rows: Sequence[ExportRow]) -> ExportColumn:
    """Insert the mean before the other cells of each row; returns its column."""
    name = f"mean of {len(view.of_mean)} tasks"
    for row, exported in zip(view.rows, rows, strict=True):
        exported.cells.insert(0, _mean_cell(row, exported, name))
    cells = [row.cells[0] for row in rows if row.cells[0]]
    mark_best(cells)
    return _column(name, cells)


def _mean_cell(row: BoardRow, exported: ExportRow, name: str) -> ExportCell | None:
    known = [cell for cell in exported.cells if cell is not None]
    interval = row.mean_interval
    if row.mean is None or interval is None:
        return None
    score = replace(
        known[0].score, task=name, metric="mean", value=row.mean, lo=interval.lo, hi=interval.hi,
        method=interval.method, level=interval.level, n=interval.n,
    )  # fmt: skip
    return ExportCell(score, tuple(dict.fromkeys(mark for cell in known for mark in cell.marks)))


def _column(name: str, cells: Sequence[ExportCell | None]) -> ExportColumn:
    scores = [cell.score for cell in cells if cell is not None]
    keys = {score.key for score in scores}
    key = keys.pop() if len(keys) == 1 else "several metrics" if keys else "no score"
    return export_column(name, key, name, scores)


def _marks(cell: RunScore, question: DatedScore | None) -> tuple[Mark, ...]:
    """The marks of a score; of several seeds, all that any of them has."""
    return tuple(dict.fromkeys(mark for each in cell.seeds or (cell,) for mark in _marks_of_one(each, question)))


def _marks_of_one(cell: RunScore, question: DatedScore | None) -> Iterator[Mark]:
    entry = cell.entry
    is_doubtful = bool(entry.results_edited or entry.programs or entry.edited)
    return marks(dated(cell), question, is_external=entry.is_external, is_doubtful=is_doubtful)


def newest(view: BoardView) -> str:
    """The time of the board's newest run."""
    return max((row.created for row in view.rows), default="")


def citations(view: BoardView, digest: str) -> str:
    """BibTeX: an entry for the board, by the SHA-256 of its JSON file, and one for each row."""
    runs = counted(sum(len(row.entries) for row in view.rows), "run")
    note = f"Leaderboard built by dare-bench {__version__} from {runs}; SHA-256 of its JSON file: {digest}"
    entries = [misc_entry(f"board:{view.name}", one_line(view.board.title, 200), newest(view), note)]
    for row in view.rows:
        names = column_names(view.columns)
        scores = [f"{name} {_score(cell.score)}" for name, cell in zip(names, row.cells, strict=True) if cell]
        facts = [
            f"Evaluated by dare-bench: {row.settings}",
            *([f"scores: {', '.join(scores)}"] if scores else []),
            *([f"shown with: {', '.join(badge.text for badge in row.badges)}"] if row.badges else []),
            f"{'run' if len(row.entries) == 1 else 'runs'} {', '.join(entry.run_id for entry in row.entries)}",
        ]
        entries.append(misc_entry(f"run:{row.main.slug}", row.name.text, row.created, "; ".join(facts)))
    return "\n".join(entries)


def _score(score: Score) -> str:
    bounds = "" if score.lo is None else f" ({score.interval})"
    return f"{score.text}{bounds}, n {score.n_text}"


def misc_entry(key: str, title: str, created: str, note: str) -> str:
    """An entry of BibTeX for something that was evaluated on the day ``created``."""
    year, month = created[:4], created[5:7]
    fields = {"title": f"{{{bibtex_text(title)}}}"}
    if year.isdecimal():
        fields["year"] = year
    if month.isdecimal() and 1 <= int(month) <= 12:
        fields["month"] = _MONTHS[int(month) - 1]
    fields["note"] = bibtex_text(note)
    lines = [f"  {name} = {text if name == 'month' else f'{{{text}}}'}," for name, text in fields.items()]
    return "\n".join([f"@misc{{{key},", *lines, "}", ""])


def bibtex_text(text: str) -> str:
    """``text`` for a field of BibTeX, which counts braces even after a backslash: as LaTeX whose braces pair."""
    return latex_text(text).replace(r"\{", r"\textbraceleft{}").replace(r"\}", r"\textbraceright{}")
