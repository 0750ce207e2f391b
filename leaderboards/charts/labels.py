"""Text in a drawing: its width, labels that can be told apart, and where there is free space for them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dare_bench.runs.text import shorten

HEIGHT = 14.0
"""Height of a line of label text, in the drawing's units."""
_SIZE = 12.0
_ON_PHONES = 23 / _SIZE
"""How many times as large labels are on a phone (charts.css), in the drawing's units."""
_NARROW, _WIDE = frozenset("iljtfrI1.,:;'|!()[]- "), frozenset("mwMW@%&…→←")

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def width(text: str) -> float:
    """Upper estimate of the width of ``text`` at the labels' size, in the drawing's units: the font is unknown."""
    return _SIZE * sum(map(_em, text))


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.4
    if letter in _WIDE or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return 0.72 if letter.isupper() else 0.62


def distinct(names: Sequence[str], details: Sequence[str], limit: int = 26) -> list[str]:
    """The shortened names, of which no two are equal: those that would be are followed by what varies between them in
    their ``details`` (parts separated by ", "), or are cut at the start alone, or have a number."""
    labels = [shorten(name, limit) for name in names]
    for label in [label for label, count in Counter(labels).items() if count > 1]:
        alike = [at for at, own in enumerate(labels) if own == label]
        ends = [f"…{names[at][1 - limit :].lstrip()}" for at in alike]
        for at, own, end in zip(alike, varying([details[at] for at in alike]), ends, strict=True):
            room = max(limit - len(own) - 2, limit // 2)
            if own:
                labels[at] = f"{shorten(names[at], room)}, {shorten(own, limit - limit // 2)}"
            elif ends.count(end) == 1:
                labels[at] = end
    taken: Counter[str] = Counter()
    for at, label in enumerate(labels):
        taken[label] += 1
        labels[at] = label if taken[label] == 1 else f"{label} ({taken[label]})"
    return labels


def fitting(names: Sequence[str], details: Sequence[str], room: float, limit: int) -> list[str]:
    """:func:`distinct` labels of at most ``limit`` characters, of which none is wider than ``room``, in the drawing's
    units on a phone, where text is larger than elsewhere."""
    for most in range(limit, 8, -1):
        labels = distinct(names, details, most)
        if _ON_PHONES * max(map(width, labels)) <= room:
            break
    return labels


def varying(details: Sequence[str]) -> list[str]:
    """Of each text the parts, separated by ", ", that not all of them have."""
    parts = [own.split(", ") for own in details]
    shared = set.intersection(*map(set, parts))
    return [", ".join(part for part in own if part not in shared) for own in parts]


@dataclass(slots=True)
class LabelPlacer:
    """Places labels in the free space of a plot: no label may overlap the boxes in ``taken``."""

    bounds: Box
    taken: list[Box] = field(default_factory=list)

    def place(self, text: str, x: float, y: float, ways: Sequence[tuple[int, int]], gap: float) -> Box | None:
        """Take the first free box for ``text`` beside (x, y); None if there is none.

        ``ways`` are the directions to try: (1, 0) is right, (0, -1) is above.
        """
        wide = width(text)
        for across, down in ways:
            reach = gap * 0.75 if across and down else gap
            left = x + across * reach - (0 if across > 0 else wide if across else wide / 2)
            top = y + down * (reach + HEIGHT / 2) - HEIGHT / 2
            box = (left, top, left + wide, top + HEIGHT)
            if self._free(box):
                self.taken.append(box)
                return box
        return None

    def _free(self, box: Box) -> bool:
        left, top, right, bottom = box
        if left < self.bounds[0] or top < self.bounds[1] or right > self.bounds[2] or bottom > self.bounds[3]:
            return False
        return not any(left < c and right > a and top < d and bottom > b for a, b, c, d in self.taken)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float | None]:
    """Heights for labels at ``places``, moved as little as possible so that they are at least one ``gap`` apart. None
    for labels that would move by more than 1.5 gaps, or lie outside ``low`` to ``high``."""

    def top(group: Sequence[int]) -> float:
        """The height of a group's first label: the group is centered on its places, inside the bounds."""
        wanted = sum(places[at] for at in group) / len(group) - gap * (len(group) - 1) / 2
        return max(min(wanted, high - gap * (len(group) - 1)), low)

    groups: list[list[int]] = []
    for at in sorted(range(len(places)), key=lambda index: places[index]):
        groups.append([at])
        # Neighbors that would overlap form a group around their common center.
        while len(groups) > 1 and top(groups[-1]) < top(groups[-2]) + gap * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    heights: list[float | None] = [None] * len(places)
    for group in groups:
        for number, at in enumerate(group):
            height = top(group) + number * gap
            if abs(height - places[at]) <= 1.5 * gap and height <= high:
                heights[at] = height
    return heights
