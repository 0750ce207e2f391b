"""The page of ``dare-bench generate`` in a browser: two sliders beside each other, for axe, on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Look, faults_in_all_views

from dare_bench.leaderboards.answer_pages import write_answers


def answer(title: str, steps: tuple[int, int, int]) -> dict[str, Any]:
    events = [[step, "set", at, 10 + at, 0.5] for at, step in enumerate(steps)]
    trace = {"pieces": ["4", "6", "<|end|>"], "events": sorted(events)}
    return {"title": title, "text": "46", "facts": "3 tokens", "decoding": {"gen_length": 3}, "trace": trace}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    turn = {"prompt": "<b>12+34=", "answers": [answer("one", (0, 2, 1)), answer("two", (0, 0, 0))]}
    return write_answers({"model": "tiny", "turns": [turn]}, tmp_path_factory.mktemp("answers") / "a.html")


def test_each_answer_has_its_slider(look: Look, place: Path) -> None:
    page = look(place)
    assert page.get_by_role("slider").count() == 2
    page.get_by_role("slider").first.fill("1")
    masked = "all => all.map(e => e.classList.contains('mask'))"
    assert page.locator(".canvas").nth(0).locator("b").evaluate_all(masked) == [False, True, True]
    assert page.locator(".canvas").nth(1).locator("b").evaluate_all(masked) == [False, False, False]
    boxes = [page.locator(".beside > section").nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    assert "<b>12+34=" in page.locator("pre").first.inner_text()


def test_axe_finds_nothing_and_the_page_fits(look: Look, place: Path) -> None:
    page = look(place)
    closed = page.locator("details:not([open]) > summary")
    for _ in range(closed.count()):
        closed.first.click()
    assert faults_in_all_views(page) == []
