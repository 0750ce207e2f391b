"""The pages of the documentation: links resolve, the index is complete, and the README names every command."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from dare_bench.cli import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "leaderboards", "model_adapters", "tasks", "trainers", "reports", "scripts")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or (bool(anchor) and anchor not in _anchors(target))


def test_every_relative_link_resolves() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(_prose(page)) if not re.match(r"[a-z]+:", link)]
    assert len(links) > 100
    assert [(str(page.relative_to(ROOT)), link) for page, link in links if _is_broken(page, link)] == []


def test_the_index_links_every_page_of_the_documentation() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in LINK.findall(_prose(index))}
    assert {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {index.resolve()} <= linked


def test_the_table_of_commands_is_the_commands() -> None:
    table = _prose(ROOT / "README.md").partition("## Commands")[2].partition("\n## ")[0]
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(commands)
