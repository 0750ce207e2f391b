"""A page outside a site, with the files that it needs in the folder ``<name>_files`` beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dare_bench.leaderboards.rendering import HERE, render
from dare_bench.runs.writer import atomic_write_bytes, atomic_write_text

_ASSETS = ("theme.js", "site.css", "site.js")
"""What every page needs."""


def write_page(path: str | Path, template: str, assets: Sequence[str], **values: Any) -> Path:
    """Write a page; ``assets`` are names of files in ``static/``.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    path = Path(path)
    folder = path.with_name(f"{path.stem}_files")
    for name in (*_ASSETS, *assets):
        atomic_write_bytes(folder / "static" / name, (HERE / "static" / name).read_bytes(), durable=False)
    page = render(template, f"{folder.name}/", place=path.name, navigation=(), **values)
    atomic_write_text(path, page, durable=False)
    return path
