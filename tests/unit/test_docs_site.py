"""The documentation site: every page is in its navigation, links stay inside, and it builds without a warning."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from require import lacks

from dare_bench.recipe_table import markdown

SCRIPT = ROOT / "scripts" / "docs_site.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def pages(script: dict[str, Any]) -> list[str]:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    return list(script["pages_of"](config["nav"]))


def test_every_page_of_the_documentation_is_in_the_navigation(pages: list[str]) -> None:
    assert {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")} <= set(pages)
    assert len(set(pages)) == len(pages)


def test_every_tutorial_has_a_small_picture() -> None:
    tutorials = list((ROOT / "docs").glob("tutorial-*.md"))
    assert len(tutorials) == 4
    for page in tutorials:
        pictures = re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", page.read_text())
        assert pictures and all(0 < (page.parent / picture).stat().st_size < 60_000 for picture in pictures), page


def test_all_that_pages_link_to_is_copied(script: dict[str, Any], pages: list[str], tmp_path: Path) -> None:
    script["stage"](pages, tmp_path)
    for page in tmp_path.rglob("*.md"):
        for place in script["linked"](page, page.read_text()):
            assert place.exists() or not place.is_relative_to(tmp_path), (page, place)
        dead = [
            match[2]
            for match in script["LINK"].finditer(script["outside_code"](page, ""))
            if not (page.parent / match[2].partition("#")[0]).exists()
        ]
        assert dead == []
    assert (tmp_path / "docs/published-scores.md").read_text() == markdown()
    assert (tmp_path / "docs/board.png").is_file() and (tmp_path / "tests/toy_source.py.md").is_file()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[boards](../leaderboards/boards) here", "boards here"),
        ("[source](../scripts/baselines.py)", "[source](../scripts/baselines.py.md)"),
        ("[page](compare.md#seeds)", "[page](compare.md#seeds)"),
        ("[part](#part), [web](https://example.org)", "[part](#part), [web](https://example.org)"),
        ("```\n[boards](../leaderboards/boards)\n```", "```\n[boards](../leaderboards/boards)\n```"),
    ],
)
def test_links_to_folders_and_sources_are_rewritten(script: dict[str, Any], line: str, expected: str) -> None:
    assert script["outside_code"](ROOT / "docs" / "page.md", line) == expected


def test_a_page_that_loads_from_elsewhere_is_refused(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "a.html"
    page.write_text('<script src="https://unpkg.com/iframe-worker/shim"></script>')
    script["make_local"](tmp_path)
    assert page.read_text() == '<script src="../assets/iframe-worker.js"></script>'
    assert (tmp_path / "assets/iframe-worker.js").is_file()
    page.write_text('<script src="https://example.org/x.js"></script>')
    with pytest.raises(SystemExit, match=r"loads https://example\.org/x\.js"):
        script["make_local"](tmp_path)


@pytest.mark.slow
def test_it_builds_without_a_warning() -> None:
    if shutil.which("zensical", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        lacks("zensical")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    index = (ROOT / "build/docs/index.html").read_text()
    for name in ("Install", "First run", "Read the board", "Compare two", "Your model", "Train", "Reference"):
        assert name in index
