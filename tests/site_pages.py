"""Looking at a built site without a browser: its pages taken apart, its rows as text, runs dressed up before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dare_bench.leaderboards.board import load_board
from dare_bench.leaderboards.board_ranking import make_rows, settled
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.entries import read_entries
from dare_bench.leaderboards.site import Site

VOID = {"meta", "link", "br", "wbr", "hr", "img", "input", "rect", "path", "col", "circle", "line"}
TASKS = {"dare_sudoku": 0.95, "dare_countdown3": 0.4, "choice_x": 0.3}
EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b]0;x\x07{{ 7*7 }}"
"""Text that tries to break out of a page, a terminal and a template."""


class Page(HTMLParser):
    """A page taken apart: balanced tags, links, ids, text, and every attribute."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.open, self.links, self.ids = path, [], [], set()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(path.read_text())
        self.close()
        assert self.open == [], f"{path}: {self.open} not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._attributes(tag, attrs)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name in ("href", "src"):
                self.links.append(value or "")
            if name == "id":
                self.ids.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"{self.path}: unexpected </{tag}>, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return re.sub(r"\s+", " ", self.text)


def pages(site: Path) -> list[Page]:
    return [Page(path) for path in sorted(site.rglob("*.html"))]


def plain(html: str) -> str:
    """Markup as one line of text."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


def rows(site: Path, place: str = "table.html") -> dict[str, str]:
    """The board's rows as text, by the page each leads to."""
    html = (site / place).read_text().split("<tbody>")[1].split("</tbody>")[0]
    result = {}
    for row in html.split("<tr")[1:]:
        page = re.search(r'href="(?:\.\./)*runs/([^/]+)/', re.split('<th scope="row"[^>]*>', row)[1])
        assert page is not None
        result[page[1]] = plain(row.partition(">")[2])
    return result


def board_data(site: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((site / "data" / "board.json").read_text())
    return result


def ranks_of(root: Path, out: Path, board: str = "default") -> dict[str, tuple[int | None, list[str]]]:
    build(root, out, board=board)
    return {row["run_id"]: (row["rank"], row["badges"]) for row in board_data(out)["rows"]}


def change(folder: Path, alter: Callable[[dict[str, Any]], Any]) -> None:
    """Change the results file of a run."""
    (path,) = folder.glob("results_*.json")
    results = json.loads(path.read_text())
    alter(results)
    path.write_text(json.dumps(results))


def rows_of(runs: Path, site: Path | None = None, **changes: Any) -> list[BoardRow]:
    """The rows of the default board, without its pages; by the paired test where there is a folder for its values."""
    board = load_board("default").model_copy(update=changes)
    entries = read_entries([runs], lambda text: None)
    columns = board.columns(entries)
    return make_rows(settled(board, columns, entries), columns, entries, Site(site) if site else None)
