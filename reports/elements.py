"""The elements of a report, and how they are written: to a terminal by rich, or as Markdown.

Text of models and data sets goes only into :class:`Verbatim`, where markup and control characters have no effect. No
table is folded: in a terminal that is too narrow for it, one with fewer columns is in its place, or each row is a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.runs.text import visible

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2

Lines = Sequence[Sequence[str]]


def show_table(lines: Lines, console: Console) -> None:
    """Print a table whose first line are the columns' names: side by side, or as a list of name and value for each row
    where the terminal is too narrow. Cells must not have control characters."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if width_of(lines) > console.width:
        for line in lines[1:]:
            console.print()
            for name, cell in zip(lines[0], line, strict=True):
                console.print(Text(f"{name}: {cell}" if name else cell), overflow="fold")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for name in lines[0]:
        table.add_column(Text(name))
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    console.print(table)


def width_of(lines: Lines) -> int:
    """The width of a table with its columns side by side."""
    from rich.cells import cell_len

    columns = list(zip(*lines, strict=True))
    widths = [max(cell_len(part) for cell in column for part in cell.split("\n")) for column in columns]
    return sum(widths) + _GAP * (len(columns) - 1)


_SIDE_LIMIT = 10_000  # characters of a text that a terminal shows side by side; a file has all
# Markup of Markdown or HTML.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """``short``: what a terminal shows in place of the items."""

    items: Sequence[str]
    short: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class ReportTable:
    """``narrower``: tables that a terminal shows in its place where it is too narrow for it, the widest first."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    narrower: Sequence[ReportTable] = ()


def narrowing(columns: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[str]) -> ReportTable:
    """A table whose narrower forms lack the first, the first two ... of the columns ``dropped``."""
    narrower = []
    for count in range(1, len(dropped) + 1):
        kept = [at for at, name in enumerate(columns) if name not in dropped[:count]]
        narrower.append(ReportTable([columns[at] for at in kept], [[row[at] for at in kept] for row in rows]))
    return ReportTable(columns, rows, narrower)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text that is not markup, with a label."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Texts of two sides that are not markup: in columns on a terminal, one below the other in a file. ``rows``: label,
    first side's text, second side's text."""

    names: tuple[str, str]
    rows: Sequence[tuple[str, str, str]]


Element = Heading | Paragraph | Bullets | ReportTable | Verbatim | SideBySide


def markdown(elements: Iterable[Element]) -> str:
    """The report as GitHub-flavored Markdown."""
    return "\n\n".join(map(_markdown, elements)) + "\n"


def _markdown(element: Element) -> str:
    match element:
        case Heading(text, level):
            return f"{'#' * level} {escaped(text)}"
        case Paragraph(text):
            return escaped(text)
        case Bullets(items, _):
            return "\n".join(f"- {escaped(item)}" for item in items)
        case ReportTable(columns, rows, _):
            head, *body = ([escaped(cell) for cell in line] for line in (columns, *rows))
            return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])
        case Verbatim(label, text):
            fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
            return f"{escaped(label)}\n\n{fence}text\n{visible(text)}\n{fence}"
        case SideBySide(names, rows):
            return "\n\n".join(
                _markdown(Verbatim(f"{label} ({name})", text))
                for label, *texts in rows
                for name, text in zip(names, texts, strict=True)
            )


def escaped(text: str) -> str:
    """Text on one line of Markdown, without markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def show(elements: Iterable[Element], console: Console) -> None:
    """Print the report to a console made with ``markup=False, highlight=False``."""
    from rich.padding import Padding
    from rich.text import Text

    for element in elements:
        match element:
            case Heading(text, level):
                console.print()
                style = "bold reverse" if level < 2 else "bold cyan"
                console.print(Text(visible(text), style), soft_wrap=not console.is_terminal)
            case Paragraph(text):
                console.print(Text(visible(text)), soft_wrap=not console.is_terminal)
            case Bullets(items, short):
                for item in items if short is None else short:
                    console.print(Padding(Text(f"- {visible(item)}"), (0, 0, 0, 2), expand=False))
            case ReportTable(_, _, narrower):
                tables = [[[*map(visible, line)] for line in (own.columns, *own.rows)] for own in (element, *narrower)]
                show_table(next((lines for lines in tables if width_of(lines) <= console.width), tables[-1]), console)
            case Verbatim(label, text):
                console.print(Text(f"{visible(label)}:", "dim"), soft_wrap=True)
                console.print(Padding(Text(visible(text)), (0, 0, 0, 4), expand=False))
            case SideBySide(names, rows):
                _show_side_by_side(names, rows, console)


def _show_side_by_side(names: tuple[str, str], rows: Sequence[tuple[str, str, str]], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    for name in ("", *names):
        table.add_column(Text(visible(name)), overflow="fold", ratio=1 if name else None)
    for label, first, second in rows:
        table.add_row(
            Text(visible(label), "dim"), Text(visible(first, _SIDE_LIMIT)), Text(visible(second, _SIDE_LIMIT))
        )
    console.print(table)
