"""Safe display of text from models and data sets: control and invisible characters are shown, not obeyed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from dare_bench.runs.writer import plain

if TYPE_CHECKING:
    from dare_bench.runs.schema import Block

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, which a terminal may obey, and marks that reorder or hide text."""
_PICTURES = {code: 0x2400 + code for code in range(0x20) if code not in (9, 10)} | {0x7F: "␡"}
_ABSOLUTE = re.compile(r"""(?<![\w.:/<~])~?(?:/[^\s/'"=,;:]+){2,}/?""")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def visible(text: str, limit: int | None = None) -> str:
    """``text`` with control characters as pictures (␛) and invisible marks as ⟨U+202E⟩; newlines and tabs stay.

    Text longer than ``limit`` is cut and ends with the number of characters left out.
    """
    left_out = 0 if limit is None else max(0, len(text) - limit)
    if left_out or not (text.isascii() and text.isprintable()):
        text = text[:limit].replace("\r\n", "\n").translate(_PICTURES)
        text = _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)
    return f"{text}… ({left_out:,} more characters)" if left_out else text


def one_line(text: str, limit: int = 80) -> str:
    """``text`` on one line of at most ``limit`` characters."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shorten(text: str, limit: int = 26) -> str:
    """``text`` on one line of at most ``limit`` characters. A long one keeps both ends, since names of one model differ
    in the last words."""
    line = one_line(text, 400)
    if len(line) <= limit:
        return line
    head = (limit - 1) * 3 // 5
    return f"{line[:head].rstrip()}…{line[len(line) - (limit - 1 - head) :].lstrip()}"


def visible_json(value: Any) -> str:
    """``value`` as indented strict JSON (see :func:`~dare_bench.runs.writer.plain`); characters that :func:`visible`
    replaces are escaped."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def without_folders(text: str) -> str:
    """The last part of a path; a hub id (owner/name) is kept."""
    is_path = text.startswith(("/", ".", "~")) or text.count("/") > 1
    return PurePath(text).name or text if is_path else text


def without_paths(value: Any) -> Any:
    """``value`` with only the last part of each absolute path in its texts, so that no folder names are published."""
    if isinstance(value, str):
        return _ABSOLUTE.sub(lambda match: match[0].rstrip("/").rpartition("/")[2], value)
    if isinstance(value, dict):
        return {name: without_paths(inner) for name, inner in value.items()}
    return [without_paths(inner) for inner in value] if isinstance(value, list) else value


def no_formula(text: str) -> str:
    """``text`` as a CSV cell that no spreadsheet reads as a formula: prefixed with ' if necessary (OWASP, CSV
    Injection)."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def counted(n: int, noun: str) -> str:
    """A number with its noun: "1 document", "12 documents"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def undecided(block: Block) -> Iterator[str]:
    """What adaptive draws left undecided, of each task that has them."""
    for name, task in block.tasks.items():
        if task.undecided is not None:
            decided, level, limit = task.n_docs - task.undecided, *map(task.likelihood.get, ("level", "mc_num"))
            yield (
                f"{name}: adaptive draws decided {decided} of {counted(task.n_docs, 'document')}, each at a level of"
                f" {level}; {task.undecided} reached the limit of {limit} draws undecided"
            )


def stopping(block: Block) -> Iterator[str]:
    """How an evaluation that could stop has ended, of each task."""
    wanted = block.until_halfwidth
    for name, task in block.tasks.items() if wanted is not None else ():
        bounds = [(ci.lo, ci.hi) for ci in block.ci.get(name, {}).values()]
        halves = [50 * (hi - lo) for lo, hi in bounds if lo is not None and hi is not None]
        width = max(halves, default=50.0)
        yield (
            f"{name}: ±{width:.1f} points after {task.n_docs} of {task.n_total or task.n_docs} documents in a random"
            f" order; --until-halfwidth {wanted:g} was {'' if width <= (wanted or 0) else 'not '}reached"
        )


def listed(names: Sequence[object], most: int) -> str:
    """The first ``most`` names, separated by commas, and the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def no_answer(n: int) -> str:
    """``3 documents have no answer and are``: the beginning of a sentence."""
    return f"{counted(n, 'document')} {'has no answer and is' if n == 1 else 'have no answer and are'}"
