"""Rendering: jinja2 with autoescape, so that text of models and data sets is text on the page and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dare_bench.runs.scores import Score, is_share
from dare_bench.runs.text import one_line, visible
from dare_bench.types import TIER_MEANING

HERE = Path(__file__).parent
TEXT_LIMIT = 20_000
"""Characters of one text on a page; the rest is in the run's own files."""


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "text": lambda value: visible(str(value), TEXT_LIMIT),
        "line": _line,
        "figure": figure,
        "when": lambda value: str(value)[:16].replace("T", " "),
        "day": lambda value: str(value)[:10],
        "percent": percent,
        "plain_value": plain_value,
    }
    made.tests["share"] = is_share
    made.globals |= {"TIERS": TIER_MEANING, "bar": bar}
    return made


def _seen(value: Any) -> Any:
    """What a page puts out, whatever filters it passed or did not: every character of a text can be seen."""
    if not isinstance(value, str) or isinstance(value, Markup) or (value.isascii() and value.isprintable()):
        return value
    return visible(value)


def render(template: str, root: str, **values: Any) -> str:
    """A page. ``root`` leads from the page's folder to the site's ("" or "../../")."""
    return environment().get_template(template).render(root=root, **values)


def slug(name: str) -> str:
    """A name as a safe folder or file name. A name that had to be changed gets a hash, so two never fall together."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80]
    if safe and safe == name:
        return safe
    return f"{safe or 'unnamed'}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def _line(value: Any, limit: int = 80) -> str:
    return one_line(str(value), limit)


def figure(value: float | int | None, digits: int = 1) -> str:
    """A number for reading: thousands apart, "–" where there is none."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        digits = 0
    return f"{value:,.{digits}f}"


def percent(value: float | None, score: Score | None = None) -> str:
    """A share in percent with one decimal; what is not a share with three figures."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}" if score is None or is_share(score) else f"{value:.4g}"


def plain_value(value: Any) -> str:
    """A setting's value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        # Quoted: stop strings may hold commas and spaces of their own.
        parts = (json.dumps(v, ensure_ascii=False) if isinstance(v, str) else plain_value(v) for v in value)
        return ", ".join(parts) or "none"
    return str(value)


def bar(value: float, lo: float | None, hi: float | None) -> Markup:
    """A share and its interval on a line from 0 to 100 %. The numbers stand beside it, so it is hidden from readers."""
    span = "" if lo is None or hi is None else f"M{100 * lo:.1f} 4h{max(100 * (hi - lo), 0.5):.1f}"
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><path d="M0 4h100"/>'
        f'<path d="{span}"/><path d="M{min(max(100 * value, 0.7), 99.3):.1f} 0v8"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the site's navigation: its place from the site's folder, and its name."""

    place: str
    text: str


def settings_table(tasks: dict[str, dict[str, Any]]) -> tuple[list[str], list[tuple[str, list[str], bool]]]:
    """Settings side by side: (heads, rows of (name, values, differ)). Tasks with equal settings share a column."""
    groups: list[tuple[list[str], dict[str, Any]]] = []
    for task, settings in tasks.items():
        for names, known in groups:
            if known == settings:
                names.append(task)
                break
        else:
            groups.append(([task], settings))
    names = list(dict.fromkeys(name for _, settings in groups for name in settings))
    rows = []
    for name in names:
        values = [plain_value(settings[name]) if name in settings else "–" for _, settings in groups]
        rows.append((name, values, len(set(values)) > 1))
    return [_heads(names) for names, _ in groups], rows


def _heads(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
