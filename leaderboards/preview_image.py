"""The picture that messengers show beside a link to the site: the intervals of the best checkpoints, as a PNG file.

It has no text: the title and the description stand beside it, and the image needs no font and no further library.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.context import BoardView
from dare_bench.leaderboards.overview_page import BEST, best_rows
from dare_bench.leaderboards.site import Site

PLACE = "preview.png"
WIDTH, HEIGHT, MARGIN = 1200, 630, 60
"""Pixels; the size that Open Graph readers ask for."""
PAPER, LINE, SPAN, ACCENT = (252, 251, 249), (229, 227, 221), (170, 179, 234), (63, 79, 181)
"""Colors of site.css."""


def write(site: Site, view: BoardView) -> None:
    """Write the image."""
    bars = _bars(best_rows(view)[:BEST])
    site.part("preview", bars, lambda: site.bytes(PLACE, picture(bars)))


def _bars(rows: list[BoardRow]) -> list[tuple[float, float, float]]:
    """Value, lower and upper bound of each row, from 0 to 1: of shares themselves, of others within their range."""
    ends = []
    for row in rows:
        value, interval = row.mean or 0.0, row.mean_interval
        bounds = (None, None) if interval is None else (interval.lo, interval.hi)
        ends.append((value, *(value if bound is None else bound for bound in bounds)))
    low = min((0.0, *(bound for bar in ends for bound in bar)))
    high = max((1.0, *(bound for bar in ends for bound in bar)))
    return [tuple((bound - low) / (high - low) for bound in bar) for bar in ends]  # type: ignore[misc]


def picture(bars: list[tuple[float, float, float]]) -> bytes:
    """A PNG file with a line for each bar: its interval, and a mark at its value."""
    import numpy as np

    pixels_HWC = np.full((HEIGHT, WIDTH, 3), PAPER, dtype=np.uint8)
    step = (HEIGHT - 2 * MARGIN) / max(len(bars), 1)
    for at, (value, lo, hi) in enumerate(bars):
        middle = round(MARGIN + (at + 0.5) * step)
        _fill(pixels_HWC, middle, 2, 0.0, 1.0, LINE)
        _fill(pixels_HWC, middle, 12, lo, hi, SPAN)
        _fill(pixels_HWC, middle, 20, value - 0.004, value + 0.004, ACCENT)
    return png(pixels_HWC)


def _fill(pixels_HWC: Any, middle: int, half: int, start: float, end: float, color: tuple[int, int, int]) -> None:
    left, right = (round(MARGIN + share * (WIDTH - 2 * MARGIN)) for share in (max(start, 0.0), min(end, 1.0)))
    pixels_HWC[middle - half : middle + half, left : max(right, left + 1)] = color


def png(pixels_HWC: Any) -> bytes:
    """Pixels (height, width, 3 bytes of color) as a PNG file (ISO/IEC 15948)."""
    height, width, _ = pixels_HWC.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels_HWC)  # no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
