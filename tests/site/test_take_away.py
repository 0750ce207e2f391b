"""What one takes away from a site: its table in other formats, citations, badges, descriptions of pages."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from run_factory import make_run
from site_pages import EVIL, TASKS, Page, change, pages
from typesetting import tabular, typeset

from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.paper_exports import bibtex_text

SUFFIXES = (".md", ".tex", ".bib")


def entries(text: str) -> dict[str, dict[str, str]]:
    """BibTeX as BibTeX reads it: braces are counted whatever stands before them."""
    result: dict[str, dict[str, str]] = {}
    for part in re.split(r"^@misc\{", text, flags=re.MULTILINE)[1:]:
        key, _, rest = part.partition(",\n")
        assert rest.rstrip().endswith("}"), part
        fields = rest.rstrip()[:-1]
        depth, start, found = 0, 0, []
        for at, char in enumerate(fields):
            depth += {"{": 1, "}": -1}.get(char, 0)
            assert depth >= 0, f"a brace too many: {fields}"
            if char == "," and depth == 0:
                found.append(fields[start:at])
                start = at + 1
        assert depth == 0, f"a brace is open: {fields}"
        assert key not in result
        result[key] = {name.strip(): value.strip() for name, _, value in (field.partition("=") for field in found)}
    return result


def markdown_rows(text: str) -> list[list[str]]:
    html = MarkdownIt("commonmark").enable("table").render(text)
    return [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    ]


def test_the_board_page_leads_to_its_files(site: Path) -> None:
    links = Page(site / "table.html").links
    assert {f"data/board{suffix}" for suffix in (".csv", ".json", *SUFFIXES)} <= set(links)


def test_markdown_has_the_rows_of_the_board_with_rank_mean_and_marks(site: Path) -> None:
    text = (site / "data/board.md").read_text()
    head, *rows = markdown_rows(text)
    board = json.loads((site / "data/board.json").read_text())["rows"]
    assert [row[1] for row in rows] == [row["name"] for row in board] and len(rows) == 8
    assert head[:2] == ["rank", "checkpoint"] and any(name.startswith("mean of 3 tasks") for name in head)
    bands = [row["rank_band"] and "–".join(dict.fromkeys(map(str, row["rank_band"]))) for row in board]
    assert [row[0] for row in rows] == [band or "—" for band in bands]
    at = head.index("dare_sudoku")
    of_run = dict(zip((row["run_id"] for row in board), rows, strict=True))
    assert of_run["best"][at].startswith("95.0 (") and "n=60" in of_run["best"][at]
    assert "†" in of_run["limited"][at] and "‡" in of_run["failed"][at] and "§" in of_run["old-prompts"][at]
    assert "**95.0" in text and "† only a part of" in text and "‡ not complete" in text


def test_settings_that_all_rows_have_are_said_once(site: Path) -> None:
    text = (site / "data/board.md").read_text()
    head, *rows = markdown_rows(text)
    settings = [row[head.index("settings")] for row in rows]
    assert {"steps 8", "steps 16"} <= set(settings) and "float32" not in "".join(settings)
    assert re.search(r"All rows: llada, float32, lm-eval[^|]*\.", text)


def test_latex_has_the_same_table(site: Path) -> None:
    source = (site / "data/board.tex").read_text()
    assert source.startswith("% needs") and len(tabular(source)) == 9


def test_bibtex_cites_the_board_by_its_digest_and_each_row(site: Path) -> None:
    found = entries((site / "data/board.bib").read_text())
    digest = hashlib.sha256((site / "data/board.json").read_bytes()).hexdigest()
    board = found["board:default"]
    assert digest in board["note"] and board["year"] == "{2026}" and board["month"] == "nov"
    assert len(found) == 9 and board["title"] == "{{dare-bench}}"
    assert "95.00" in found["run:best"]["note"] and "run best" in found["run:best"]["note"]
    assert "limit 50" in found["run:limited"]["note"]


@pytest.mark.parametrize("text", ["}", "{", "a}b{", "\\{", "\\}", "%}{", "é 中 \x00"])
def test_braces_of_a_text_never_end_a_field(text: str) -> None:
    escaped = bibtex_text(text)
    depths = [0]
    for char in escaped:
        depths.append(depths[-1] + {"{": 1, "}": -1}.get(char, 0))
    assert min(depths) == 0 and depths[-1] == 0


def test_a_badge_shows_the_score_with_its_interval_and_loads_nothing(site: Path) -> None:
    texts = {}
    for path in sorted((site / "badge").iterdir()):
        source = path.read_text()
        root = ElementTree.fromstring(source)
        assert not re.search(r"<script|href|url\(|@import|style=|\bon\w+=", source), path
        assert re.findall(r"https?://[^\"]+", source) == ["http://www.w3.org/2000/svg"]
        texts[path.stem] = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert set(texts) == {"best", "few-steps", "base", "limited", "failed", "unfinished", "old-prompts", "one-task"}
    label, value = texts["best"]
    assert label == "mean of 3 tasks" and re.fullmatch(r"55\.0% \(\d+\.\d–\d+\.\d\)", value)
    assert texts["limited"][1].endswith("limit 50") and texts["failed"][1].endswith("incomplete: 6 failed")
    assert texts["one-task"][0] == "dare_sudoku" and texts["one-task"][1].endswith("n 60")


def test_a_run_leads_to_its_badge_and_one_without_a_score_has_none(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "sound")
    change(make_run(tmp_path / "runs", "empty"), lambda results: results["results"].clear())
    build(tmp_path / "runs", tmp_path / "site")
    assert [path.name for path in (tmp_path / "site/badge").iterdir()] == ["sound.svg"]
    assert "../../badge/sound.svg" in Page(tmp_path / "site/runs/sound/index.html").links
    assert not [link for link in Page(tmp_path / "site/runs/empty/index.html").links if "badge" in link]


def test_each_page_describes_itself(site: Path) -> None:
    seen = pages(site)
    for page in seen:
        html = page.path.read_text()
        said = dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)">', html))
        title = re.search(r"<title>(.*?)</title>", html)
        assert title is not None and said["og:title"] == title[1] and said["description"] == said["og:description"]
        assert 10 < len(said["description"]) < 700 and said["og:type"] == "website", page.path
        icons = [value for tag, _, value in page.attributes if tag == "link" and value.startswith("data:image/svg")]
        assert len(icons) == 1
    (run,) = (page for page in seen if page.path.parent.name == "best")
    assert re.search(r'"description" content="dare_sudoku: 95\.0% \(', run.path.read_text())


def test_hostile_names_stay_text_in_every_format(tmp_path: Path) -> None:
    text = EVIL + '}{"&|\\\uffff\ufffe'

    def alter(results: dict[str, Any]) -> None:
        for part in ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples", "group_subtasks"):
            results[part][text] = results[part].pop("dare_sudoku")
        block = results["dare_bench"]
        block["tasks"][text] = block["tasks"].pop("dare_sudoku")
        for name in ("family", "dtype", "name"):
            block["model"][name] += text
        block["run_id"] += text

    for number in range(2):
        change(make_run(tmp_path / "runs", f"r{number}", model=f"m{number}", content=f"{number}" * 64), alter)
    build(tmp_path / "runs", tmp_path / "site")
    data = tmp_path / "site" / "data"
    assert len(markdown_rows((data / "board.md").read_text())) == 3
    assert "<script" not in MarkdownIt("commonmark").render((data / "board.md").read_text())
    assert len(tabular((data / "board.tex").read_text())) == 3
    found = entries((data / "board.bib").read_text())
    assert len(found) == 3 and all(typeset(fields["note"]) for fields in found.values())
    badges = list((tmp_path / "site/badge").iterdir())
    assert len(badges) == 2
    for path in [*badges, tmp_path / "site/feed.xml"]:
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(path.read_text()).iter()}
        assert not tags & {"script", "img", "pre"}, path


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "one", tasks=TASKS)
    make_run(tmp_path / "runs", "two", model="other", tasks=TASKS)
    outs = [tmp_path / "first", tmp_path / "second"]
    for out in outs:
        build(tmp_path / "runs", out)
    names = sorted(
        path.relative_to(outs[0]) for path in outs[0].rglob("*") if path.suffix in (*SUFFIXES, ".svg", ".xml")
    )
    assert len(names) == 6
    for name in [*names, Path("data/changes.json"), Path("changes.html")]:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes(), name
