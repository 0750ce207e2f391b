"""The page of a replayed step: every number of the record, the order of writing, hostile texts."""

from __future__ import annotations

import re
from pathlib import Path

from lineages import WEIGHTED, completion, record
from site_pages import EVIL, Page

from dare_bench.leaderboards.answer_pages import write_rollout


def canvases(html: str) -> list[list[dict[str, str]]]:
    """The attributes of the tokens of each canvas, folds left out."""
    found = re.findall(r'<div class="canvas".*?</div>', html, re.DOTALL)
    return [
        [dict(re.findall(r"data-([scvu])=(\S+?)(?=[ >])", tag)) for tag in re.findall(r"<b [^>]*>", canvas)]
        for canvas in found
    ]


def test_each_token_has_its_forward_its_confidence_and_its_weight(tmp_path: Path) -> None:
    html = write_rollout(record(WEIGHTED), tmp_path / "r.html").read_text()
    first, second = canvases(html)
    assert first[:3] == [
        {"s": "2", "c": ".50", "v": "+.02", "u": "5"},
        {"s": "1", "c": ".25", "v": "−.0012", "u": "-1"},
        {"s": "3", "c": "1"},
    ]
    assert len(first) == 3 and 'class="fold"' in html, "equal end tokens without a weight are folded"
    assert [token.get("v") for token in second] == [None, "+.004", None, None, None, "−.01", None], "those with one not"
    assert [token.get("u") for token in second if "u" in token] == ["2", "-3"], "one scale for the whole page"
    assert re.search(r"less likely −0.02.*\+0.02 likelier", html)


def test_the_table_has_every_number_as_text(tmp_path: Path) -> None:
    html = write_rollout(record(WEIGHTED), tmp_path / "r.html").read_text()
    rows = [re.sub(r"<[^>]+>", "|", row) for row in re.findall(r'<tr><th scope="row".*?</tr>', html)]
    cells = [[cell for cell in row.split("|") if cell] for row in rows]
    assert cells[0] == ["1", "3", "2", "0.5", "+0.02"] and cells[1][2:] == ["1", "0.25", "−0.0012"]
    assert cells[6] == ["7", "&lt;eos&gt;", "–", "–", "0"] and len(cells) == 14


def test_the_page_says_what_the_step_is(tmp_path: Path) -> None:
    page = Page(write_rollout(record(WEIGHTED), tmp_path / "three words.html"))
    assert "Rollout of step 4" in page.text and "Step 4 of 6 · rollout 2, inner iteration 2 of 2" in page.text
    assert "sampled from checkpoint-2 · updated from checkpoint-3" in page.text
    assert "reward 0.25" in page.text and "advantage +0.5" in page.text and "advantage −0.5" in page.text
    assert "2 of 7 tokens have a weight." in page.text
    files = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert files and all((tmp_path / link).is_file() for link in files)


def test_without_weights_the_page_says_so(tmp_path: Path) -> None:
    unknown = record([completion(None, 0.5, logprobs=[])], updated_from=None)
    page = Page(write_rollout(unknown, tmp_path / "r.html"))
    assert "were not kept, so that tokens have no weights here" in page.text
    assert ("input", "value", "weight") not in page.attributes and "have a weight" not in page.text
    (tokens,) = canvases(page.path.read_text())
    assert tokens[0] == {"s": "2"}, "a forward without a recorded probability"


def test_texts_are_text(tmp_path: Path) -> None:
    evil = completion([1.0] * 7, 1.0, text=EVIL, where=EVIL, prompt_text=EVIL, pieces=[EVIL] * 7)
    page = Page(write_rollout(record([evil], sampled_from=EVIL), tmp_path / "r.html"))
    html = page.path.read_text()
    assert "<script>alert" not in html and "<img" not in html and "\u202e" not in html and "\x1b" not in html
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert "<script>alert(1)" in page.text
