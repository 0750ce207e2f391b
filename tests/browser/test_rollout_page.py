"""A replayed step in a browser: weights on the slider, by number and by color, without scripts, on a phone, for axe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Look, faults_in_all_views
from lineages import WEIGHTED, completion, record

from dare_bench.leaderboards.answer_pages import write_rollout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rollout(record(WEIGHTED, [completion([0.0] * 7, 0.0)]), tmp_path_factory.mktemp("rollout") / "r.html")


def drawn(token: Any) -> tuple[str, str]:
    """The number beside a token, and the color of the line below it."""
    number = token.evaluate("e => getComputedStyle(e, '::after').content")
    names = {"attr(data-v)": "data-v", "attr(data-s)": "data-s"}
    text = token.get_attribute(names[number]) if number in names else number.strip('"')
    return text, token.evaluate("e => getComputedStyle(e).borderBottomColor")


@pytest.mark.parametrize("scripts", [True, False])
def test_weights_are_signed_numbers_and_colors_by_sign(look: Look, place: Path, scripts: bool) -> None:
    page = look(place, scripts=scripts)
    up, down = page.locator(".canvas b").nth(0), page.locator(".canvas b").nth(1)
    assert drawn(up) == ("+.02", "rgb(59, 130, 196)") and drawn(down) == ("−.0012", "rgb(217, 130, 43)")
    page.get_by_role("radio", name="step").first.check()
    assert drawn(up)[0] == "2" and drawn(up)[1] != "rgb(59, 130, 196)"


def test_the_slider_shows_what_each_forward_wrote(look: Look, place: Path) -> None:
    page = look(place)
    slider = page.get_by_role("slider").first
    slider.fill("1")
    tokens = page.locator(".canvas").first.locator("b")
    assert tokens.evaluate_all("all => all.map(e => e.classList.contains('mask'))") == [True, False, True]
    assert tokens.nth(0).evaluate("e => getComputedStyle(e, '::after').content") == "none", "a mask has no weight yet"
    slider.fill("6")
    tokens.nth(0).hover()
    assert tokens.nth(0).get_attribute("title") == 'step 2 of 6: "3", confidence 0.5\nweight in the update +.02'


def test_axe_finds_nothing_and_the_page_fits(look: Look, place: Path) -> None:
    page = look(place)
    for details in page.locator("details:not([open]) > summary").all():
        if details.is_visible():
            details.click()
    assert faults_in_all_views(page) == []
