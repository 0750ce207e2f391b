"""The gallery of unmasking, the strip of the overview, and where the player stands on a sample page."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import PHONE, Look, faults_in_all_views, layout_shift
from run_factory import alter, make_run

from dare_bench.leaderboards.builder import build


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two families, and one checkpoint with two budgets and two strategies."""
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    make_run(root, "slow", documents="same")
    make_run(root, "fast", documents="same", tasks={"dare_sudoku": 0.7}, decoding={"steps": 4})
    random = {"remasking": "random"}
    make_run(root, "random", documents="same", tasks={"dare_sudoku": 0.5}, decoding=random)
    dream = make_run(root, "dream", model="tiny-dream", content="dd" * 32, tasks={"dare_sudoku": 0.8}, documents="same")
    alter(dream, model__family="dream")
    make_run(root, "unfinished", model="m", content="ee" * 32, documents="same", done=False)  # it has no sample pages
    build(root, out)
    return out


def test_two_answers_stand_side_by_side_under_one_player(look: Look, site: Path) -> None:
    page = look(site / "unmasking.html")
    assert page.locator("nav[aria-label=Site] [aria-current=page]").inner_text() == "Unmasking"
    assert page.locator("section.scene > h2").all_inner_texts() == [
        "dare_sudoku: two models",
        "dare_sudoku: two settings",
    ]
    for scene in page.locator("section.scene").all():
        assert scene.locator(".player").count() == 1 and scene.locator(".canvas").count() == 2
    first, second = (page.locator("section.scene").first.locator(".canvas").nth(at).bounding_box() for at in range(2))
    assert first and second and first["y"] == second["y"] and first["x"] + first["width"] < second["x"]
    names = page.locator("section.scene .who").all_inner_texts()
    assert names[0].startswith("A tiny-llada ") and names[1].startswith("B tiny-dream ")
    assert "random" in names[3], "another strategy comes before another budget"
    assert faults_in_all_views(page) == []


@pytest.mark.parametrize("scene", [0, 1], ids=["seed", "limit"])
def test_runs_with_equal_decoding_are_no_pair(tmp_path: Path, scene: int) -> None:
    """Another seed, or fewer documents, are no other settings."""
    make_run(tmp_path / "runs", "one", documents="same")
    alter(make_run(tmp_path / "runs", "two", documents="same", limit=20 if scene else None), seeds=[1] * 4)
    build(tmp_path / "runs", tmp_path / "site")
    assert not (tmp_path / "site/unmasking.html").exists()
    make_run(tmp_path / "runs", "three", documents="same", decoding={"steps": 8})
    build(tmp_path / "runs", tmp_path / "site")
    page = (tmp_path / "site/unmasking.html").read_text()
    assert page.count('class="scene together"') == 1 and "runs/three/" in page


def test_one_button_plays_both(look: Look, site: Path) -> None:
    page = look(site / "unmasking.html")
    scene = page.locator("section.scene").first
    masks = scene.locator(".canvas .mask")
    assert masks.count() == 0
    slider = scene.get_by_role("slider")
    slider.fill("0")
    half = masks.count()
    assert half > 8 and all(canvas.locator(".mask").count() for canvas in scene.locator(".canvas").all())
    page.emulate_media(reduced_motion="no-preference")
    scene.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelectorAll('section.scene:first-of-type .canvas .mask').length === 0")
    assert "A step" in slider.get_attribute("aria-valuetext") and "; B step" in slider.get_attribute("aria-valuetext")


def test_it_is_complete_without_scripts(look: Look, site: Path) -> None:
    page = look(site / "unmasking.html", scripts=False)
    assert page.locator(".canvas").count() == 4 and page.locator(".canvas .never").count() == 0
    assert page.locator(".controls").first.bounding_box() is None or not page.locator(".player").count()


def test_the_overview_plays_a_canvas_of_each_family_once(look: Look, site: Path) -> None:
    page = look(site / "index.html", fresh=True)
    assert page.locator(".strip h3 a").all_inner_texts() == ["llada", "dream"]
    assert page.locator(".strip .mask").count() == 0, "nothing moves where less motion is asked for"
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    page.wait_for_function("() => document.querySelectorAll('.strip .mask').length > 4")
    assert page.get_by_role("button", name="Pause").is_visible()
    page.wait_for_function("() => document.querySelectorAll('.strip .mask').length === 0")
    assert layout_shift(page) < 0.05
    assert faults_in_all_views(page) == []


@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_the_player_of_a_sample_page_is_on_its_first_screen(look: Look, site: Path, phone: bool) -> None:
    page = look(site / "runs/slow/samples/dare_sudoku/1.html", phone=phone, fresh=True)
    box = page.locator(".player").first.bounding_box()
    assert box and box["y"] + box["height"] <= (PHONE["height"] if phone else 900)
    assert layout_shift(page) < 0.05


def test_without_traces_there_is_no_gallery(look: Look, site: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run = make_run(tmp_path / "runs", name, model=name, content=name)
        for file in run.glob("traces_*"):
            file.unlink()
    build(tmp_path / "runs", tmp_path / "site")
    assert not (tmp_path / "site/unmasking.html").exists()
    assert look(tmp_path / "site/index.html").locator(".strip").count() == 0
