"""Sample pages in a browser: the slider, choosing and finding documents, phones, the dark, and hostile content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import COLORS, Look, breaches, faults, faults_in_all_views, fits, settle
from run_factory import make_run

from dare_bench.leaderboards.builder import build

EVIL = "</pre></script><script>window.pwned=1</script><img src=x onerror=window.pwned=1><!--\u202eabc\x00\ud800"
TRACE = {
    "pieces": ["b", "c\n", "d", *["<|endoftext|>"] * 5],
    "events": [
        [0, "set", 0, 7, 0.25], [1, "set", 1, 5, 0.5], [1, "set", 2, 6, 0.75], [2, "set", 0, 8, 0.9],
        [3, "remask", 2, 6, 0.1], [4, "set", 2, 9, 1.0], *[[5 + at, "set", 3 + at, 300, 0.99] for at in range(5)],
    ],
    "others": {"7": "a<i>", "6": "x"},
}  # fmt: skip


def rewrite(run: Path, kind: str, change: Any) -> None:
    file = next(run.glob(f"{kind}_*"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(change(at, line)) + "\n" for at, line in enumerate(lines)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample pages of 60 documents, the last six of them wrong; the first one's canvas is edited as it comes."""
    root = tmp_path_factory.mktemp("site")
    run = make_run(root / "runs", "r", n_docs=60)
    rewrite(run, "traces", lambda at, line: line | (TRACE if at == 0 else {}))
    build(root / "runs", root / "site")
    return root / "site" / "runs" / "r" / "samples" / "dare_sudoku"


def canvas(page: Any) -> list[tuple[str, str]]:
    """(classes that tell a state, text) of each position of the first canvas, ticks of folds included."""
    reported = (
        """nodes => nodes.map(n => [[...n.classList].filter(c => !/^[sc]\\d$/.test(c)).join(" "), n.textContent])"""
    )
    result = page.locator(".canvas").first.locator("b, i").evaluate_all(reported)
    return [tuple(each) for each in result]


def at_step(page: Any, step: int) -> str | None:
    slider = page.get_by_role("slider").first
    slider.fill(str(step))
    output: str | None = slider.get_attribute("aria-valuetext")
    return output


def test_the_slider_shows_the_canvas_as_it_stood(look: Look, folder: Path) -> None:
    page = look(folder / "1.html")
    end = [("", "b"), ("", "c↵"), ("", "d"), ("", "<|endoftext|>"), *[("", "")] * 4]
    assert canvas(page) == end, "the whole answer, before anything is touched"
    assert at_step(page, 0) == "step 0 of 10: all masked"
    assert canvas(page) == [("mask", "·"), ("mask", "··"), ("mask", "·"), ("mask", "·" * 13), *[("mask", "")] * 4]
    assert at_step(page, 1) == "step 1 of 10: 1 token written"
    assert canvas(page)[:2] == [("now", "a<i>"), ("mask", "··")]
    assert at_step(page, 2) == "step 2 of 10: 2 tokens written"
    assert canvas(page)[:3] == [("", "a<i>"), ("now", "c↵"), ("now", "x")]
    assert at_step(page, 3) == "step 3 of 10: 1 overwritten"
    assert canvas(page)[0] == ("now over", "b")
    assert at_step(page, 4) == "step 4 of 10: 1 remasked"
    assert canvas(page)[2] == ("mask now again", "·")
    assert at_step(page, 7) == "step 7 of 10: 1 token written"
    assert [state for state, _ in canvas(page)[3:]] == ["", "now", "mask", "mask", "mask"]
    at_step(page, 10)
    assert [text for _, text in canvas(page)] == [text for _, text in end]
    assert page.locator(".canvas").first.locator("b").first.get_attribute("class").split()[:2] == ["s2", "c9"]


def test_the_slider_goes_by_keyboard_and_buttons(look: Look, folder: Path) -> None:
    page = look(folder / "1.html")
    slider = page.get_by_role("slider", name="Unmasking step").first
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "step 9 of 10: 1 token written"
    assert page.locator(".player span").first.inner_text() == "Step 9 of 10: 1 token written"
    page.keyboard.press("Home")
    assert slider.input_value() == "0"
    page.get_by_role("button", name="One step forward").first.click()
    assert slider.input_value() == "1"
    assert page.get_by_role("button", name="Play").count() == 0, "motion is not wanted here"


def test_play_goes_from_masks_to_the_answer_and_can_be_held(look: Look, folder: Path) -> None:
    page = look(folder / "1.html", fresh=True)
    page.emulate_media(reduced_motion="no-preference")
    page.clock.install()
    slider = page.get_by_role("slider").first
    page.get_by_role("button", name="Play").first.click()
    page.clock.run_for(2_000)
    held = slider.input_value()
    assert 2 <= int(held) < 10
    page.get_by_role("button", name="Pause").first.click()
    page.clock.run_for(10_000)
    assert slider.input_value() == held
    page.get_by_role("button", name="Play").first.click()
    page.clock.run_for(10_000)
    assert slider.input_value() == "10" and page.get_by_role("button", name="Play").first.is_visible()
    assert canvas(page)[0] == ("", "b")


@pytest.mark.parametrize("scripts", [True, False])
def test_figure_and_color_are_the_steps_or_the_confidences(look: Look, folder: Path, scripts: bool) -> None:
    page = look(folder / "1.html", scripts=scripts)
    token = page.locator(".canvas b").nth(1)

    def drawn() -> list[str]:
        color = token.evaluate("e => getComputedStyle(e).borderBottomColor")
        return [token.evaluate("e => getComputedStyle(e, '::after').content"), color]

    by_step = drawn()
    assert by_step[0] in ('"2"', "attr(data-s)")
    page.get_by_role("radio", name="confidence").first.check()
    by_confidence = drawn()
    assert by_confidence[0] == '".50"' and by_confidence[1] != by_step[1]
    assert page.get_by_text("confidence 0").first.is_visible()


def test_without_scripts_all_is_there_to_read(look: Look, folder: Path) -> None:
    page = look(folder / "2.html", scripts=False)
    assert page.get_by_role("slider").count() == 0 and page.locator(".choose *").count() == 0
    page.locator("summary").nth(3).click()
    assert page.locator(".sample").nth(3).get_by_text("Question 28: which digits?").is_visible()
    assert page.locator(".sample").nth(3).locator("svg.order").is_visible()
    page.get_by_role("link", name="Next →").first.click()
    assert page.url.endswith("/3.html")
    page.get_by_role("link", name="table of all documents").click()
    page.get_by_role("link", name="57", exact=True).click()
    assert page.url.endswith("3.html#doc-57")
    assert page.get_by_text("Question 57: which digits?").is_visible(), "the browser opens what a link leads into"


def table_rows(page: Any) -> list[str]:
    """The ids of the rows of the task's table that are shown."""
    settle(page)
    return page.locator(".documents-table tbody tr:visible th").all_inner_texts()


def test_wrong_shows_all_wrong_documents_of_the_task(look: Look, folder: Path) -> None:
    page = look(folder / "2.html")
    page.get_by_role("button", name="Wrong 6", exact=True).click()
    page.wait_for_url("**/index.html#wrong")
    assert table_rows(page) == [str(at) for at in range(54, 60)]
    page.get_by_role("link", name="Right 54").click()
    assert table_rows(page) == [str(at) for at in range(54)]
    assert page.get_by_role("link", name="Right 54").get_attribute("aria-current") == "true"
    page.get_by_role("link", name="All 60").click()
    assert len(table_rows(page)) == 60
    page.locator(".documents-table").get_by_role("link", name="57", exact=True).click()
    page.wait_for_url("**/3.html#doc-57")
    assert page.get_by_text("Question 57: which digits?").last.is_visible()


def test_a_task_of_one_page_is_filtered_in_place(look: Look, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=10)
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/runs/r/samples/dare_sudoku/1.html")
    page.get_by_role("button", name="Wrong 1", exact=True).click()
    assert page.locator(".sample:visible > summary .doc").all_inner_texts() == ["9"]
    page.get_by_role("button", name="All 10", exact=True).click()
    assert page.locator(".sample:visible").count() == 10


@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
def test_a_long_table_of_documents_scrolls_below_its_headings(look: Look, folder: Path, phone: bool) -> None:
    page = look(folder / "index.html", phone=phone)
    assert page.locator("#all tbody tr").count() == 60 and breaches(page, 2400) == []
    box = page.get_by_role("region", name="All documents of dare_sudoku")
    box.evaluate("box => box.scrollTo(0, 1000)")
    top, head = box.bounding_box(), box.locator("thead th").first.bounding_box()
    assert top and head and abs(head["y"] - top["y"]) < 2


def test_a_document_is_found_by_its_number(look: Look, folder: Path) -> None:
    page = look(folder / "1.html")

    def jump(number: str) -> None:
        page.get_by_label("Document", exact=True).fill(number)
        page.get_by_role("button", name="Go").click()

    jump("7")
    assert page.get_by_text("Question 7: which digits?").is_visible()
    jump("31")
    page.wait_for_url("**/2.html#doc-31")
    assert page.get_by_text("Question 31: which digits?").is_visible()
    jump("999")
    page.wait_for_url("**/3.html#doc-999")
    assert page.get_by_text("This task has no document 999.").is_visible()


def test_an_address_with_a_document_of_another_page_leads_there(look: Look, folder: Path) -> None:
    page = look(folder / "1.html", query="#doc-58")
    page.wait_for_url("**/3.html#doc-58")
    assert page.get_by_text("Question 58: which digits?").is_visible()


def test_axe_finds_nothing_and_the_page_fits(look: Look, folder: Path) -> None:
    """Of 25 documents that are built alike, axe reads three."""
    page = look(folder / "1.html")
    page.evaluate("document.querySelectorAll('.sample').forEach((sample, at) => { if (at > 2) sample.remove() })")
    at_step(page, 3)
    page.locator(".sample > summary").nth(1).click()
    assert faults_in_all_views(page) == []
    page.get_by_role("radio", name="confidence").first.check()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert faults(page, *COLORS) == [], scheme
    page.goto((folder / "index.html").as_uri())
    assert faults_in_all_views(page) == []


@pytest.mark.parametrize("kind", ["generate", "choice"])
def test_hostile_content_runs_nowhere(look: Look, tmp_path: Path, kind: str) -> None:
    task = "choice_x" if kind == "choice" else "dare_sudoku"
    run = make_run(tmp_path / "runs", "r", tasks={task: 0.5}, n_docs=2, prompt=EVIL * 50, answer=EVIL)

    def sample(at: int, line: dict[str, Any]) -> dict[str, Any]:
        line |= {"target": EVIL, "filter": EVIL, "metrics": [*line["metrics"], EVIL], EVIL: EVIL, "doc": {EVIL: EVIL}}
        if kind == "generate":
            verdict = {"status": EVIL, "level": EVIL, "seconds": 1.0}
            line["dare_bench"][0] |= {"extraction": EVIL, "extracted": EVIL, "verdict": verdict}
        return line | ({"doc_id": EVIL} if at == 1 else {})

    rewrite(run, "samples", sample)
    if kind == "generate":
        evil = {"pieces": [EVIL, EVIL + "\n" + EVIL, EVIL], "others": {"7": EVIL, "6": EVIL, "5": EVIL}}
        rewrite(
            run,
            "traces",
            lambda at, line: line | {"events": TRACE["events"]} | evil | ({"doc_id": EVIL} if at == 1 else {}),
        )
    build(tmp_path / "runs", tmp_path / "site")
    file = next((tmp_path / "site").rglob("1.html"))
    page = look(file, phone=True)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    page.wait_for_timeout(100)
    for slider in page.get_by_role("slider").all():
        for step in ("0", "1", "3", "5"):
            slider.fill(step)
    for token in page.locator(".canvas b").all():
        token.hover(force=True)
    assert page.evaluate("window.pwned") is None and page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == task
    assert faults(page) == [] and fits(page)
    scripts = page.locator("script:not([src])").evaluate_all("nodes => nodes.map(n => n.type + n.id)")
    assert scripts == ["application/jsonpages"]
    page = look(file.with_name("index.html"))
    assert page.evaluate("window.pwned") is None and faults(page) == []
