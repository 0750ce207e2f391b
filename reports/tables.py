"""A table in a terminal that may be too narrow for it: no word is ever cut while there is another way.

Side by side; with names folded at their joints, if two lines do; with each row on several lines; or as a list of
name and value for each row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_JOINTS = re.compile(r"(?<= )|(?<=[_/,-])(?=[^\W\d])")
"""Where a cell may be broken: after spaces, and after the signs that join words; not inside numbers."""
_GAP = 2
_INDENT = 2
_FEW_LINES = 2

Lines = Sequence[Sequence[str]]


def show_table(lines: Lines, console: Console) -> None:
    """Print a table, its first line the columns' names. Control characters must be out of the cells."""
    from rich.text import Text

    natural = _natural(lines)
    widths = _folding(lines, natural, console.width)
    cuts = _cuts(natural, console.width)
    if widths is not None and (cuts is None or _most_lines(lines, widths) <= _FEW_LINES):
        _columns(lines, widths, console)
    elif cuts is not None:
        for at, line in enumerate(lines):
            text = f"\n{' ' * _INDENT}".join(_joined(line[cut], natural[cut]) for cut in cuts)
            console.print(Text(text, "bold" if at == 0 else ""), no_wrap=True)
    else:
        for line in lines[1:]:
            console.print()
            for name, cell in zip(lines[0], line, strict=True):
                console.print(Text(folded(f"{name}: {cell}" if name else cell, console.width)), overflow="fold")


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


def _natural(lines: Lines) -> list[int]:
    return [max(_width(part) for cell in column for part in cell.split("\n")) for column in zip(*lines, strict=True)]


def _folding(lines: Lines, natural: list[int], room: int) -> list[int] | None:
    """A width for each column so that they fit, the widest folded first; None if some word would have to be cut."""
    least = [max(_width(part.rstrip()) for cell in col for part in _parts(cell)) for col in zip(*lines, strict=True)]
    widths = list(natural)
    while _together(widths) > room:
        foldable = [at for at, width in enumerate(widths) if width > least[at]]
        if not foldable:
            return None
        widths[max(foldable, key=lambda at: widths[at])] -= 1
    return widths


def _cuts(natural: list[int], room: int) -> list[slice] | None:
    """Which columns to put on each line of a row, as few lines as will do; None if one column alone does not fit."""

    def longer(at: int) -> int:
        return max(_together(natural[:at]), _INDENT + _together(natural[at:]))

    best = min(range(1, len(natural)), key=longer, default=None)
    if best is not None and longer(best) <= room:
        return [slice(0, best), slice(best, None)]
    starts = [0]
    for at in range(len(natural)):
        if _INDENT + natural[at] > room:
            return None
        if _INDENT + _together(natural[starts[-1] : at + 1]) > room:
            starts.append(at)
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], None], strict=True)]


def _together(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _most_lines(lines: Lines, widths: list[int]) -> int:
    return max(folded(cell, width).count("\n") + 1 for line in lines for cell, width in zip(line, widths, strict=True))


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    flat = [" ".join(cell.split("\n")) for cell in cells]
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(flat, widths, strict=True)]
    return (" " * _GAP).join(padded).rstrip()


def folded(cell: str, width: int) -> str:
    """The text in lines of at most ``width`` columns as far as its joints allow."""
    lines = [""]
    for part in _parts(cell):
        if lines[-1] and _width((lines[-1] + part).rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += part
    return "\n".join(lines).rstrip()


def _parts(cell: str) -> list[str]:
    return _JOINTS.split(cell)


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
