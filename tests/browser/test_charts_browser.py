"""Charts in a browser: names at the marks, arrow keys, families that stand out; sound without scripts, and for axe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browsing import faults_in_all_views, fits

from dare_bench.leaderboards.charts import Base, CurvePoint, Point, Series, scatter, training_curves
from dare_bench.leaderboards.rendering import HERE

HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>charts</title><link rel="icon" href="data:,">'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="site.css">'
    '<link rel="stylesheet" href="charts.css"><script src="site.js" defer></script>'
    '<script src="charts.js" defer></script>'
)
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'self' file:; "
    "script-src 'self' file:; img-src 'self' data:; base-uri 'none'; form-action 'none'\">"
)


def write(folder: Path) -> Path:
    points = [
        Point(f"run-{at}", 10.0 * 2**at, 0.2 * at + 0.1, "#there", f"family-{at % 2}", 0.2 * at, 0.2 * at + 0.2,
              approximate=at == 2, ranked=at != 3)
        for at in range(5)
    ]  # fmt: skip
    series = [
        Series(f"seed {seed}", [CurvePoint(s, s / 300 + seed / 9, "#there") for s in (50, 100)]) for seed in (0, 1)
    ]
    flat = scatter(points, ident="flat", title="Score against cost", x_title="forward passes", y_title="exact match")
    drawn = training_curves(
        series, ident="drawn", title="Training", y_title="exact match", base=Base("start", 0.1, "#there")
    )
    for name in ("site.css", "charts.css", "site.js", "charts.js"):
        shutil.copy(HERE / "static" / name, folder / name)
    page = folder / "index.html"
    page.write_text(
        f'{HEAD}{POLICY}</head><body><main id="there"><h1>Charts</h1><div class="charts">{flat}{drawn}</div></main>'
    )
    return page


def test_pointing_at_a_mark_shows_its_name_at_once(look, tmp_path):
    page = look(write(tmp_path))
    tip = page.locator("#flat .chart-tip")
    assert not tip.is_visible()
    mark = page.locator("#flat svg a").nth(2)
    mark.locator("use").hover()
    assert tip.inner_text().split("\n") == mark.get_attribute("aria-label").split("\n")
    box, at = tip.bounding_box(), mark.locator("use").bounding_box()
    assert box["y"] + box["height"] < at["y"] or box["y"] > at["y"] + at["height"]  # beside it, not on it
    page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_a_chart_is_one_tab_stop_with_arrow_keys_between_its_marks(look, tmp_path):
    page = look(write(tmp_path))
    assert page.locator("#flat svg a[tabindex='0']").count() == 1
    page.locator("#flat svg a[tabindex='0']").focus()
    names = []
    for _ in range(5):
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label').split('\\n')[0]"))
        page.keyboard.press("ArrowRight")
    assert names == [f"run-{at}" for at in range(5)]  # from left to right, not as drawn
    assert page.locator("#flat .chart-tip").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#flat .chart-tip").is_visible()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.url.endswith("#there")


def test_a_family_pressed_in_the_legend_stands_out_until_pressed_again(look, tmp_path):
    page = look(write(tmp_path))
    button = page.get_by_role("button", name="family-1")
    button.click()
    page.mouse.move(2, 2)
    assert button.get_attribute("aria-pressed") == "true"
    off = page.locator("#flat svg a.off").evaluate_all("them => them.map(one => one.getAttribute('aria-label'))")
    assert sorted(name.split("\n")[0] for name in off) == ["run-0", "run-2", "run-4"]
    button.click()
    page.mouse.move(2, 2)
    assert page.locator("#flat svg a.off").count() == 0


@pytest.mark.parametrize("phone", [False, True])
def test_without_scripts_marks_are_links_with_names_and_the_words_can_be_read(look, tmp_path, phone):
    page = look(write(tmp_path), scripts=False, phone=phone)
    assert fits(page)
    assert page.locator("#flat svg a title").count() == page.locator("#flat svg a").count() == 5
    for figure in ("#flat", "#drawn"):
        heights = page.locator(f"{figure} .axes text").evaluate_all(
            "them => them.map(one => parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a)"
        )
        assert min(heights) >= 10 and max(heights) <= 16  # pixels on the screen


@pytest.mark.parametrize("scripts", [True, "empty"])
def test_axe_finds_nothing(look, tmp_path, scripts):
    assert faults_in_all_views(look(write(tmp_path), scripts=scripts)) == []
