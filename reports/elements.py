"""The elements of a report, and how they are written: to a terminal by rich, or as Markdown.

Text of models and data sets goes only into :class:`Verbatim`, where markup and control characters have no effect. In a
terminal that is too narrow for a table, words are cut only as the last resort. The layouts of a table, in this order:
columns side by side; with cells folded at their joints to at most two lines; each row on several lines; a list of name
and value for each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_bench.runs.text import visible

if TYPE_CHECKING:
    from rich.console import Console

_JOINTS = re.compile(r"(?<= )|(?<=[_/,-])(?=[^\W\d])")
"""Where a cell may be folded: after spaces, and after characters that join words; not inside numbers."""
_GAP = 2
_INDENT = 2
_MAX_LINES = 2

Lines = Sequence[Sequence[str]]


def show_table(lines: Lines, console: Console) -> None:
    """Print a table whose first line are the columns' names. Cells must not have control characters."""
    from rich.text import Text

    natural = _natural(lines)
    widths = _folded_widths(lines, natural, console.width)
    cuts = _cuts(natural, console.width)
    if widths is not None and (cuts is None or _max_lines(lines, widths) <= _MAX_LINES):
        _columns(lines, widths, console)
    elif cuts is not None:
        for number, line in enumerate(lines):
            text = f"\n{' ' * _INDENT}".join(_joined(line[cut], natural[cut]) for cut in cuts)
            console.print(Text(text, "bold" if number == 0 else ""), no_wrap=True)
    else:
        for line in lines[1:]:
            console.print()
            for name, cell in zip(lines[0], line, strict=True):
                console.print(Text(folded(f"{name}: {cell}" if name else cell, console.width)), overflow="fold")


def width_of(lines: Lines) -> int:
    """The width of a table with its columns side by side and nothing folded."""
    return _total(_natural(lines))


def _natural(lines: Lines) -> list[int]:
    return [max(_width(part) for cell in column for part in cell.split("\n")) for column in zip(*lines, strict=True)]


def _columns(lines: Lines, widths: list[int], console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for name, width in zip(lines[0], widths, strict=True):
        table.add_column(Text(folded(name, width)), overflow="fold", min_width=width)
    for line in lines[1:]:
        table.add_row(*(Text(folded(cell, width)) for cell, width in zip(line, widths, strict=True)))
    console.print(table)


def _folded_widths(lines: Lines, natural: list[int], available: int) -> list[int] | None:
    """A width for each column so that all fit, the widest folded first; None if a word would have to be cut."""
    columns = zip(*lines, strict=True)
    minimum = [max(_width(part.rstrip()) for cell in column for part in _JOINTS.split(cell)) for column in columns]
    widths = list(natural)
    while _total(widths) > available:
        foldable = [at for at, width in enumerate(widths) if width > minimum[at]]
        if not foldable:
            return None
        widths[max(foldable, key=lambda at: widths[at])] -= 1
    return widths


def _cuts(natural: list[int], available: int) -> list[slice] | None:
    """The columns on each line of a row, with as few lines as possible; None if a column alone does not fit."""

    def longer_line(at: int) -> int:
        return max(_total(natural[:at]), _INDENT + _total(natural[at:]))

    best = min(range(1, len(natural)), key=longer_line, default=None)
    if best is not None and longer_line(best) <= available:
        return [slice(0, best), slice(best, None)]
    starts = [0]
    for at in range(len(natural)):
        if _INDENT + natural[at] > available:
            return None
        if _INDENT + _total(natural[starts[-1] : at + 1]) > available:
            starts.append(at)
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], None], strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _max_lines(lines: Lines, widths: list[int]) -> int:
    return max(folded(cell, width).count("\n") + 1 for line in lines for cell, width in zip(line, widths, strict=True))


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    flat = [" ".join(cell.split("\n")) for cell in cells]
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(flat, widths, strict=True)]
    return (" " * _GAP).join(padded).rstrip()


def folded(cell: str, width: int) -> str:
    """The text in lines of at most ``width`` columns where its joints permit."""
    lines = [""]
    for part in _JOINTS.split(cell):
        if lines[-1] and _width((lines[-1] + part).rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += part
    return "\n".join(lines).rstrip()


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


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
