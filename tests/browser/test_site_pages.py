"""Speed, lineage, comparisons and replayed steps in a real browser: sound for axe, within the screen, readable
without scripts; and the fixture: what it is to catch, it catches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import DESKTOP, PHONE, Look, Tabs, breaches, faults, faults_in_all_views, fits
from lineages import WEIGHTED, completion, make_family, make_reinforced, record
from run_factory import alter, make_run

from dare_bench.analysis.comparison import compare
from dare_bench.leaderboards.answer_pages import write_rollout
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.comparison_page import write_standalone
from dare_bench.runs.reader import Run

TEXT_BOXES = """texts => texts.filter(text => text.getClientRects().length).map(text => {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    const figure = text.closest("figure").querySelector("figcaption").textContent;
    return { left, right, top, bottom, figure, text: text.textContent };
})"""
SMALL = """() => [...document.querySelectorAll("body *")].filter(node => node.getClientRects().length).flatMap(node => {
    const scale = node.getScreenCTM?.().a ?? 1;
    const own = [...node.childNodes].some(part => part.nodeType === 3 && part.data.trim());
    const styles = [own && getComputedStyle(node), ...["::before", "::after"].map(name => getComputedStyle(node, name))
        .filter(style => !["none", "normal", '""'].includes(style.content))];
    return styles.filter(style => style && scale * parseFloat(style.fontSize) < 11.95)
        .map(style => `${node.tagName} ${node.className} ${scale * parseFloat(style.fontSize)}`);
})"""
BROKEN_WORDS = """heads => heads.flatMap(head => {
    const texts = [...head.childNodes].filter(node => node.nodeType === 3);
    return texts.flatMap(text => [...text.data.matchAll(/[^ _]+_?/g)].filter(({ 0: word, index }) => {
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        return new Set([...range.getClientRects()].map(({ top }) => top)).size > 1;
    }).map(([word]) => word));
})"""
SCROLLING = """[...document.querySelectorAll(".scroll:has(.cards)")]
    .filter(box => box.scrollWidth > box.clientWidth).map(box => box.getAttribute("aria-label"))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    make_family(root)
    for number, gpu in enumerate(("NVIDIA H200", "NVIDIA H200", None)):
        tasks = {"dare_sudoku": 0.9 - number / 4, "choice_x": 0.5}
        name = f"a-model-with-a-rather-long-name-for-a-phone-{number}"
        make_run(root, name, model=name, content=name, tasks=tasks, n_docs=40, n_total=40, documents="same", gpu=gpu)
    board = root / "sudoku.yaml"
    board.write_text("title: Sudoku\ntasks: [dare_sudoku]\nrank_by: dare_sudoku\n")
    build(root, out, board=[str(board), "default"])
    runs = [Run(root / name) for name in ("base", "sft2-100", "rl0")]
    write_standalone(compare(runs), out / "alone.html")
    return out


def places(site: Path) -> list[Path]:
    result = [
        "index.html",
        "speed/index.html",
        "speed/1-default/index.html",
        "lineage/index.html",
        "compare.html",
        "changes.html",
        "checkpoints/sft2-100.html",
        "alone.html",
    ]
    return [site / place for place in result]


def test_pages_are_sound_and_fit_and_no_text_is_smaller_than_twelve_pixels(look: Look, site: Path) -> None:
    sound = places(site)
    page = look(sound[0])
    for place in (*sound, site / "unmasking.html", site / "runs/base/samples/dare_sudoku/1.html"):
        page.goto(place.as_uri())
        if place in sound:  # the others have tests of their own
            assert faults_in_all_views(page) == [], place
        for size in (PHONE, DESKTOP):
            page.set_viewport_size(size)
            assert page.evaluate(SMALL) == [], place


def test_words_of_charts_do_not_touch_on_a_phone(look: Look, site: Path) -> None:
    page = look(site / "index.html", phone=True)
    for place in ("index.html", "speed/index.html", "lineage/index.html", "alone.html"):
        page.goto((site / place).as_uri())
        boxes = page.locator("figure.chart svg text").evaluate_all(TEXT_BOXES)
        assert len(boxes) >= 10, place
        touching = [
            (a["text"], b["text"])
            for at, a in enumerate(boxes)
            for b in boxes[:at]
            if a["figure"] == b["figure"] and a["left"] < b["right"] and b["left"] < a["right"]
            and a["top"] + 1 < b["bottom"] and b["top"] + 1 < a["bottom"]
        ]  # fmt: skip
        assert touching == [], place
        assert [box["text"] for box in boxes if box["left"] < 0 or box["right"] > 390] == [], place


def test_tables_of_comparisons_and_scores_are_cards_on_a_phone(look: Look, site: Path) -> None:
    """No column is beyond the edge: the box does not scroll sideways."""
    page = look(site / "compare.html", phone=True, query="?a=base&b=sft2-100")
    page.locator("table.compared").wait_for()
    cells = page.locator("table.compared tbody td")
    assert [cell.get_attribute("data-of") for cell in cells.all()] == [
        "A",
        "B",
        "Difference",
        "p",
        "Result",
        "Documents",
    ]
    assert page.evaluate(SCROLLING) == []
    for place in ("alone.html", "speed/index.html", "checkpoints/sft2-100.html"):
        page.goto((site / place).as_uri())
        assert page.locator("table.cards").count() >= 1 and page.evaluate(SCROLLING) == [], place


def test_the_table_of_budgets_is_sound_and_fits(look: Look, tmp_path: Path) -> None:
    for steps, share in ((16, 0.9), (8, 0.8)):
        known: dict[str, Any] = {"decoding": {"steps": steps}, "n_docs": 20, "n_total": 20, "documents": "same"}
        alter(make_run(tmp_path / "runs", f"s{steps}", tasks={"dare_sudoku": share}, **known), cost__tpf=16 / steps)
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/speed/index.html")
    assert page.get_by_role("heading", name="Accuracy under parallelism").is_visible()
    assert faults_in_all_views(page) == []


def test_charts_are_there_without_scripts(look: Look, site: Path) -> None:
    page = look(site / "speed/index.html", scripts=False)
    assert page.locator("figure.chart > svg").count() == 3  # forward passes, and each of two classes
    assert page.locator(".front table tbody tr").count() >= 2
    page = look(site / "lineage/index.html", scripts=False)
    assert page.locator("figure.lines path.line").count() == 1, "three seeds are one line"


def test_scores_by_forwards_are_sound_and_fit(look: Look, tmp_path: Path) -> None:
    make_reinforced(tmp_path / "runs")
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/lineage/index.html")
    assert faults_in_all_views(page) == []
    assert page.locator("#forwards-1 path.line").count() == 2
    mark = page.locator("#forwards-1").get_by_role("link", name="28,800 forward passes, step 100").first
    mark.hover()
    tip = page.locator("#forwards-1 .chart-tip")
    assert tip.is_visible() and "rollout 12,800, score 8,000, update 8,000" in tip.inner_text()


def test_a_difference_leads_to_the_documents_that_changed(look: Look, site: Path) -> None:
    page = look(site / "lineage/index.html")
    page.locator("details.every > summary").last.click()
    page.locator("details.every > summary").first.click()
    page.locator("details.every > summary").nth(1).click()
    page.get_by_role("row", name="seed 1, step 60").get_by_role("link").last.click()
    page.locator("table.compared").wait_for()
    assert page.get_by_role("heading", level=1).inner_text() == "tiny-base → SFT → MDPO against tiny-base → SFT"
    page.locator("details.flip summary").last.click()
    page.locator("details.flip .side").last.wait_for()
    sides = page.locator("details.flip").last.locator(".side")
    first, second = (sides.nth(at).bounding_box() for at in range(2))
    assert first and second and first["y"] == second["y"] and first["x"] + first["width"] < second["x"]


def test_earlier_steps_unfold(look: Look, site: Path) -> None:
    page = look(site / "lineage/index.html")
    step = page.get_by_role("link", name="seed 0, step 25")
    assert not step.is_visible()
    page.get_by_text("Each seed, with its difference and test").first.click()
    page.get_by_text("6 earlier checkpoints").click()
    assert step.is_visible()


def test_the_tree_reads_as_a_nested_list(look: Look, site: Path) -> None:
    """What a screen reader is told: a list in a list in a list, the reinforcement learning below its fine-tuning."""
    page = look(site / "lineage/index.html")
    tree = page.locator("ul.tree.first")
    inner = tree.locator(":scope > li > ul > li")
    assert [item.locator("p.recipe").first.inner_text() for item in inner.all()] == [
        "SFT on dare_sudoku, 100 steps, 3 seeds",
        "SFT (LoRA) on dare_sudoku, 100 steps",
    ]
    assert inner.first.locator(":scope > ul > li p.recipe").inner_text() == "MDPO on dare_sudoku, 60 steps, 2 seeds"


def test_two_charts_stand_on_the_first_screen_of_the_overview(look: Look, site: Path) -> None:
    for scripts in (True, False):
        page = look(site / "index.html", scripts=scripts)
        page.set_viewport_size({"width": 1440, "height": 900})
        boxes = [figure.bounding_box() for figure in page.locator("figure.chart > svg").all()]
        assert len(boxes) == 2 and all(box and box["y"] + box["height"] <= 900 for box in boxes)
        assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
        assert page.locator("table.heat td").count() >= 6


def test_text_of_the_overviews_charts_can_be_read_on_a_phone(look: Look, site: Path) -> None:
    page = look(site / "index.html", phone=True)
    heights = page.locator("figure.standings svg text, #passes svg .axes text").evaluate_all(
        "texts => texts.map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
    )
    assert len(heights) > 20 and min(heights) >= 12
    boxes = page.locator("figure.standings svg a text").evaluate_all(
        "texts => texts.map(text => [text.getBoundingClientRect().left, text.getBoundingClientRect().right])"
    )
    names, scores = boxes[::2], boxes[1::2]
    assert all(name[1] < score[0] and score[1] <= 390 for name, score in zip(names, scores, strict=True))


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


def test_a_clean_page_is_clean(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "clean.html"
    file.write_text("<!doctype html><html lang=en><title>t</title><main><h1>Hello</h1><p>text</p></main></html>")
    page = look(file, phone=True)
    assert faults(page) == [] and fits(page)


def test_what_is_wrong_is_seen(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    wide = "<p><svg width=2000 height=10></svg></p>"
    file.write_text(f"<!doctype html><title>t</title><main><h1>x</h1><img src='data:,'><button></button>{wide}</main>")
    page = look(file, dark=True, scripts="empty")
    result = " ".join(faults(page))
    assert "html-has-lang" in result and "image-alt" in result and "button-name" in result
    assert not fits(page)


def test_scripts_can_be_off(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "plain.html"
    file.write_text("<!doctype html><html lang=en><title>t</title><script>document.title = 'run'</script>")
    assert look(file).title() == "run" and look(file, scripts=False).title() == "t"


@pytest.mark.parametrize(
    "body",
    [
        "<script>console.error('bad')</script>",
        "<script>throw new Error('bad')</script>",
        "<script>alert(1)</script>",
        "<link rel=stylesheet href='missing.css'>",
        "<img src='http://127.0.0.1:9/x.png' alt=''>",
    ],
)
def test_trouble_fails_the_test(tabs: Tabs, tmp_path: Path, body: str) -> None:
    file = tmp_path / "trouble.html"
    file.write_text(f"<!doctype html><html lang=en><title>t</title>{body}")
    built = tabs.looking()
    next(built)(file).wait_for_timeout(100)
    with pytest.raises(AssertionError):
        next(built)


def test_words_above_the_heat_map_are_whole(look: Look, tmp_path: Path) -> None:
    tasks = ["arithmetic", "dare_countdown3", "minerva_math_counting_and_probability", "gsm8k"]
    make_run(tmp_path / "runs", "run", tasks=dict.fromkeys(tasks, 0.5))
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/index.html", phone=True)
    heads = page.locator("table.heat thead th")
    assert heads.all_text_contents() == ["Checkpoint", *tasks] and heads.evaluate_all(BROKEN_WORDS) == []
    assert fits(page)


def test_pages_of_a_run_of_many_tasks_are_not_tall(look: Look, tmp_path: Path) -> None:
    tasks = {f"mmlu_a_subject_with_number_{at}": 0.5 for at in range(57)}
    make_run(tmp_path / "runs", "suite", tasks=tasks, n_docs=2)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/runs/suite/index.html", phone=True)
    for place in ("runs/suite/index.html", "checkpoints/abababababab.html"):
        page.goto((tmp_path / "site" / place).as_uri())
        assert breaches(page) == [], place
