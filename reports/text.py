"""What a report is made of, and how it is written: to a terminal by rich, or as markdown.

Text that a model or a data set wrote goes into :class:`Verbatim` and nowhere else: there it is neither markup nor
control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.runs.text import visible

if TYPE_CHECKING:
    from rich.console import Console

_BESIDE = 10_000  # characters of a text that a terminal shows beside another; a file has all
# What markdown or the HTML inside it would obey.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Line:
    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """``short``: what a terminal shows of the items, where that is less."""

    items: Sequence[str]
    short: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text as it is, under a few words that say what it is."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Beside:
    """Texts as they are, of two sides: in columns on a terminal, one below the other in a file. ``rows``: a few words
    that say what it is, the first side's text, the second's."""

    names: tuple[str, str]
    rows: Sequence[tuple[str, str, str]]


Piece = Heading | Line | Bullets | Table | Verbatim | Beside


def percent(value: float | None, sign: str = "") -> str:
    """A share as percent: 0.7968 is "79.68"; a dash where there is none."""
    return "—" if value is None else f"{100 * value:{sign}.2f}"


def points(share: float) -> str:
    """A difference of shares in points of a hundred, as people write it: "1 point", "2.35 points"."""
    text = f"{100 * share:.4g}"
    return f"{text} point" if text == "1" else f"{text} points"


def bounds(lo: float | None, hi: float | None, sign: str = "") -> str:
    """An interval of shares in percent; a dash where there is none. ``sign``: "+" writes both signs."""
    return "—" if lo is None or hi is None else f"{100 * lo:{sign}.2f} to {100 * hi:{sign}.2f}"


def markdown(pieces: Iterable[Piece]) -> str:
    """The report as GitHub's markdown, one blank line between pieces."""
    return "\n\n".join(map(_markdown, pieces)) + "\n"


def _markdown(piece: Piece) -> str:
    match piece:
        case Heading(text, level):
            return f"{'#' * level} {escaped(text)}"
        case Line(text):
            return escaped(text)
        case Bullets(items, _):
            return "\n".join(f"- {escaped(item)}" for item in items)
        case Table(columns, rows):
            lines = [columns, ["---"] * len(columns), *rows]
            return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)
        case Verbatim(label, text):
            fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
            return f"{escaped(label)}\n\n{fence}text\n{visible(text)}\n{fence}"
        case Beside(names, rows):
            both = [
                (f"{label} ({name})", text) for label, *texts in rows for name, text in zip(names, texts, strict=True)
            ]
            return "\n\n".join(_markdown(Verbatim(label, text)) for label, text in both)


def escaped(text: str) -> str:
    """Text on one line of markdown, none of it markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def _cell(text: str) -> str:
    return text if text == "---" else escaped(text)


def show(pieces: Iterable[Piece], console: Console) -> None:
    """Print the report. The console's markup is not read: make it with ``markup=False, highlight=False``."""
    for piece in pieces:
        _show(piece, console)


def _show(piece: Piece, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    match piece:
        case Heading(text, level):
            console.print()
            console.print(Text(visible(text), "bold reverse" if level < 2 else "bold cyan"), soft_wrap=True)
        case Line(text):
            console.print(Text(visible(text)), soft_wrap=not console.is_terminal)
        case Bullets(items, short):
            for item in items if short is None else short:
                console.print(Padding(Text(f"- {visible(item)}"), (0, 0, 0, 2), expand=False))
        case Table(columns, rows):
            from dare_bench.reports.tables import show_table

            show_table([[*map(visible, line)] for line in (columns, *rows)], console)
        case Verbatim(label, text):
            console.print(Text(f"{visible(label)}:", "dim"), soft_wrap=True)
            console.print(Padding(Text(visible(text)), (0, 0, 0, 4), expand=False))
        case Beside(names, rows):
            _show_beside(names, rows, console)


def _show_beside(names: tuple[str, str], rows: Sequence[tuple[str, str, str]], console: Console) -> None:
    from rich.table import Table as Columns
    from rich.text import Text

    table = Columns(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    for name in ("", *names):
        table.add_column(Text(visible(name)), overflow="fold", ratio=1 if name else None)
    for label, first, second in rows:
        table.add_row(Text(visible(label), "dim"), Text(visible(first, _BESIDE)), Text(visible(second, _BESIDE)))
    console.print(table)
