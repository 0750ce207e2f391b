"""Rendering with jinja2 and autoescape, so that text of models and data sets is never markup."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dare_bench import formatting
from dare_bench.analysis.comparison import ComparisonVerdict
from dare_bench.analysis.names import letter
from dare_bench.formatting import figure, plain_value, short_number
from dare_bench.leaderboards.sample_canvas import canvas, order_chart
from dare_bench.runs.scores import Score
from dare_bench.runs.text import listed, one_line, visible
from dare_bench.runs.writer import atomic_write_bytes, atomic_write_text
from dare_bench.types import TIER_MEANING

HERE = Path(__file__).parent
TEXT_LIMIT = 20_000
"""Maximum number of characters of one text on a page; the run's files have all of it."""
Tone = Literal["better", "worse", "none"]
"""How a difference is colored; also its CSS class."""
_ASSETS = ("theme.js", "site.css", "site.js")


@cache
def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "text": lambda value: visible(str(value), TEXT_LIMIT),
        "line": _line,
        "figure": figure,
        "number": number,
        "when": lambda value: str(value)[:16].replace("T", " "),
        "day": lambda value: str(value)[:10],
        "percent": _percent,
        "plain_value": plain_value,
        "tone": tone,
    }
    env.filters |= filters
    numbers = ("p_text", "p_value", "short_bounds", "short_difference", "short_number", "short_range", "short_score")
    env.globals |= {"TIERS": TIER_MEANING, "bar": bar, "letter": letter, "canvas": canvas, "order_chart": order_chart}
    env.globals |= {name: getattr(formatting, name) for name in numbers}
    return env


def _visible(value: Any) -> Any:
    """The final form of every value on a page: each character of a text is visible, whatever filters it passed."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def tone(verdict: ComparisonVerdict) -> Tone:
    """The tone of a verdict on the second run: only a difference that is shown has a color."""
    return verdict if verdict in ("better", "worse") else "none"


def _percent(value: float | None, score: Score | None = None) -> str:
    """A share in percent; with a ``score`` that is not a share, the value in its unit."""
    return short_number(value, score is None or score.is_share)


def number(value: Any, digits: int | None = None) -> str:
    """A number from a run's files in readable form; any other value unchanged on one line."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (int, float)) or abs(value) >= 1e15 or not math.isfinite(value):
        return one_line(str(value)[:240], 60)
    if isinstance(value, int) or (value == int(value) and digits is None):
        return figure(int(value))
    return f"{value:.3g}" if digits is None or abs(value) < 10**-digits else figure(value, digits)


def seconds(value: Any) -> str:
    """A time from a run's files; empty if it is not a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return ""
    return f"{value:.2g} s" if value < 10 else f"{figure(round(value))} s"


def _line(value: Any, limit: int = 80) -> str:
    """``value`` on one line; of a long text only the beginning is read."""
    return one_line(str(value)[: 4 * limit], limit)


def render(template: str, root: str, **values: Any) -> str:
    """A page as HTML. ``root`` leads from the page's folder to the site's folder ("" or "../../")."""
    return environment().get_template(template).render(root=root, **values)


def script_json(value: Any) -> str:
    """JSON that may stand in a script: characters that could end its element or open another are escaped."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def data_script(place: str, value: Any) -> str:
    """A script with the data of ``place``: a page opened from a disk may load scripts, but no other files."""
    return f"dareData({script_json(place)},{script_json(value)});\n"


def write_page(path: str | Path, template: str, assets: Sequence[str], **values: Any) -> Path:
    """Write a page outside a site, with the files that it needs in the folder ``<name>_files`` beside it: those that
    every page needs and ``assets``, names in ``static/``.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    path = Path(path)
    folder = path.with_name(f"{path.stem}_files")
    for name in (*_ASSETS, *assets):
        atomic_write_bytes(folder / "static" / name, (HERE / "static" / name).read_bytes(), durable=False)
    page = render(template, f"{folder.name}/", place=path.name, navigation=(), url="", **values)
    atomic_write_text(path, page, durable=False)
    return path


def slug(name: str) -> str:
    """A name as a safe folder or file name. A name that had to be changed gets a hash, so that it stays unique."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80]
    if safe and safe == name:
        return safe
    return f"{safe or 'unnamed'}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def unique_slugs(names: Iterable[str]) -> Iterator[str]:
    """The slug of each name. Equal names, and names that differ only in case (some file systems do not distinguish
    these), get a number."""
    counts: Counter[str] = Counter()
    for safe in map(slug, names):
        counts[safe.lower()] += 1
        number = counts[safe.lower()]
        yield safe if number == 1 else f"{safe}--{number}"


def bar(value: float, lo: float | None, hi: float | None) -> Markup:
    """A share and its interval as a bar from 0 to 100 %. It is hidden from screen readers: the numbers stand beside
    it."""
    span = "" if lo is None or hi is None else f"M{100 * lo:.1f} 4h{max(100 * (hi - lo), 0.5):.1f}"
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><path d="M0 4h100"/>'
        f'<path d="{span}"/><path d="M{min(max(100 * value, 0.7), 99.3):.1f} 0v8"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the site's navigation: its place in the site's folder or an address, and its text."""

    place: str
    text: str


def settings_table(tasks: dict[str, dict[str, Any]]) -> tuple[list[str], list[tuple[str, list[str], bool]]]:
    """Settings side by side: (heads, rows of (name, values, whether they differ)). Tasks with equal settings share a
    column."""
    groups: list[tuple[list[str], dict[str, Any]]] = []
    for task, settings in tasks.items():
        names = next((names for names, values in groups if values == settings), None)
        if names is None:
            groups.append(([task], settings))
        else:
            names.append(task)
    rows = []
    for name in dict.fromkeys(name for _, settings in groups for name in settings):
        values = [plain_value(settings[name]) if name in settings else "–" for _, settings in groups]
        rows.append((name, values, len(set(values)) > 1))
    return [listed(names, 4 if len(names) <= 4 else 3) for names, _ in groups], rows
