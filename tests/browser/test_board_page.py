"""The board in a real browser: with and without scripts, light and dark, on a desk and in a hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import COLORS, DESKTOP, PHONE, Look, faults, faults_in_all_views, fits, layout_shift, settle
from run_factory import make_run

from dare_bench.leaderboards.builder import build

TASKS = {"dare_sudoku": 0.95, "dare_countdown3": 0.4, "choice_x": 0.3}


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")

    def run(name: str, model: str, family: str, factor: float, **options: Any) -> None:
        shares = {task: share * factor for task, share in TASKS.items()}
        folder = make_run(root, name, **{"model": model, "tasks": shares, "n_docs": 60, **options})
        (file,) = folder.glob("results_*.json")
        results = json.loads(file.read_text())
        results["dare_bench"]["model"]["family"] = family
        if family == "dream":
            results["dare_bench"]["cost"]["tpf"] = None
        file.write_text(json.dumps(results))

    run("best", "tiny-llada", "llada", 1.0)
    run("middle", "tiny-dream", "dream", 0.6, gpu="NVIDIA H200")
    run("low", "tiny-sdar", "sdar", 0.2, created="2026-11-18T00:00:00")
    run("limited", "tiny-llada2", "llada2", 0.9, n_docs=50, limit=50, created="2026-11-17T00:00:00")
    run("long", "a-name-" * 20, "llada", 0.5, tasks={"dare_sudoku": 0.5}, created="2026-11-16T00:00:00")
    out = tmp_path_factory.mktemp("site")
    build(root, out)
    return out / "table.html"


def shown(page: Any) -> list[str]:
    """Models of the rows as they stand."""
    settle(page)
    return [name[:10] for name in page.locator("table.board tbody th[scope=row] > div > a").all_inner_texts()]


def heads(page: Any) -> list[str]:
    settle(page)
    return [text.split()[0] for text in page.locator("table.board thead th").all_inner_texts()]


def query(page: Any) -> str:
    settle(page)
    return str(page.evaluate("location.search"))


HEIGHTS = "nodes => nodes.map((node) => node.getBoundingClientRect().height)"
ALL = ["tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada", "a-name-a-n"]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "none"])
def test_the_board_is_accessible_everywhere(look: Look, board: Path, scripts: bool) -> None:
    if not scripts:  # axe needs scripts to run at all: so the page is given without its own
        bare = re.sub(r"<script[^>]*></script>", "", board.read_text())
        board = board.with_name("bare.html")
        board.write_text(bare)
    page = look(board)
    assert len(shown(page)) == 5 and fits(page)
    if scripts:
        page.locator("summary", has_text="Columns").click()
    assert faults_in_all_views(page) == []
    page.set_viewport_size(PHONE)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert faults(page, *COLORS) == [], scheme


def test_a_runs_page_is_accessible(look: Look, board: Path) -> None:
    page = look(board.parent / "runs" / "limited" / "index.html")
    assert faults_in_all_views(page) == []


def test_without_scripts_nothing_dead_stands_there(look: Look, board: Path) -> None:
    page = look(board, scripts=False)
    assert page.locator("button, select, input:not(#detailed)").count() == 0
    details = page.locator("table.board td > small").first
    assert not details.is_visible()
    page.get_by_role("checkbox", name="Detailed").check()
    assert details.is_visible(), "this needs no script"
    assert page.get_by_role("link", name="CSV").get_attribute("href") == "data/board.csv"


def test_headings_sort_by_mouse_and_by_key(look: Look, board: Path) -> None:
    page = look(board)
    head = page.locator("th[data-key=dare_sudoku]")
    assert shown(page) == ALL and page.locator("[aria-sort]").count() == 0
    head.get_by_role("button").click()
    assert query(page) == "?rank=dare_sudoku" and head.get_attribute("aria-sort") == "descending"
    assert shown(page) == ["tiny-llada", "tiny-llada", "tiny-dream", "a-name-a-n", "tiny-sdar"]
    head.get_by_role("button").press("Enter")
    assert query(page) == "?sort=dare_sudoku" and head.get_attribute("aria-sort") == "ascending"
    assert shown(page)[0] == "tiny-sdar"
    head.get_by_role("button").click()
    assert shown(page) == ALL and query(page) == ""


def test_empty_cells_stay_last_in_both_directions(look: Look, board: Path) -> None:
    page = look(board)
    for way in ("tpf", "-tpf"):
        page.goto(f"{board.as_uri()}?sort={way}")
        assert page.locator("[aria-sort]").get_attribute("data-key") == "tpf" and shown(page)[-1] == "tiny-dream"


def test_search_and_filters_narrow_and_say_how_many_are_left(look: Look, board: Path) -> None:
    page = look(board)
    status = page.get_by_role("status").first
    assert status.inner_text() == "5 rows"
    page.get_by_role("searchbox").fill("TINY llada")
    assert shown(page) == ["tiny-llada", "tiny-llada"] and status.inner_text() == "2 of 5 rows"
    assert query(page) == "?q=TINY+llada"
    page.get_by_role("combobox", name="Family").select_option("llada2")
    assert shown(page) == ["tiny-llada"] and query(page) == "?q=TINY+llada&family=llada2"
    page.get_by_role("searchbox").fill("nothing like it")
    nothing = page.locator("table.board tbody")
    assert nothing.inner_text().strip() == "No matching rows. Show all rows" and status.inner_text() == "0 of 5 rows"
    page.get_by_role("button", name="Reset").click()
    assert shown(page) == ALL and query(page) == "" and page.get_by_role("searchbox").input_value() == ""
    page.get_by_role("combobox", name="Rows").select_option("badged")
    assert shown(page) == ["tiny-llada", "a-name-a-n"]
    page.get_by_role("combobox", name="Rows").select_option("ranked")
    assert len(shown(page)) == 3
    page.get_by_role("combobox", name="Rows").select_option("")
    page.get_by_role("combobox", name="Hardware").select_option("NVIDIA H200")
    assert shown(page) == ["tiny-dream"]


@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
def test_a_search_without_a_hit_says_so_and_offers_all_rows(look: Look, board: Path, phone: bool) -> None:
    page = look(board, query="?q=nothing+like+it", phone=phone)
    cell = page.locator("td.empty")
    assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth") and fits(page) and faults(page) == []
    cell.get_by_role("button", name="Show all rows").click()
    assert shown(page) == ALL and query(page) == ""


def test_search_finds_whole_words_of_names_and_settings_only(look: Look, tmp_path: Path) -> None:
    for seed, temperature in ((1, 0.0), (2, 1.0), (3, 0.5), (12, 0.0)):
        settings = {"temperature": temperature, "seed": seed}
        make_run(tmp_path / "runs", f"s{seed}", content=f"{seed:064x}", model=f"m-{seed}x", decoding=settings)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site" / "table.html")
    found = {
        "seed 1": ["m-1x"], "seed": ["m-12x", "m-1x", "m-2x", "m-3x"], "temperature 0.5": ["m-3x"],
        "2026": [], "E1": [], "exact_match": [], "m-2x": ["m-2x"], "tempera": ["m-12x", "m-1x", "m-2x", "m-3x"],
        "tempera ": [],
    }  # fmt: skip
    for text, names in found.items():
        page.get_by_role("searchbox").fill(text)
        assert sorted(shown(page)) == names, text


def test_columns_can_be_chosen(look: Look, board: Path) -> None:
    page = look(board)
    assert heads(page) == ["Rank", "Model", "Mean", *TASKS, "NFE", "TPF", "tokens/s", "Hardware"]
    page.locator("summary", has_text="Columns").click()
    page.get_by_role("checkbox", name="dare_countdown3").uncheck()
    page.get_by_role("checkbox", name="NFE").uncheck()
    assert heads(page) == ["Rank", "Model", "Mean", "dare_sudoku", "choice_x", "TPF", "tokens/s", "Hardware"]
    assert query(page) == "?tasks=dare_sudoku,choice_x&hide=nfe"
    page.keyboard.press("Escape")
    assert page.locator("details.columns[open]").count() == 0
    page.get_by_role("button", name="Reset").click()
    assert len(heads(page)) == 10 and query(page) == ""


def test_the_address_holds_the_view(look: Look, board: Path) -> None:
    address = "?rank=choice_x&q=tiny&status=ranked&tasks=choice_x&hide=hardware&detailed=1"
    page = look(board, query=address)
    assert shown(page) == ["tiny-llada", "tiny-dream", "tiny-sdar"]
    assert heads(page) == ["Rank", "Model", "Mean", "choice_x", "NFE", "TPF", "tokens/s"]
    assert page.locator("th[data-key=choice_x]").get_attribute("aria-sort") == "descending"
    assert page.locator("table.board td > small").first.is_visible()
    page.get_by_role("searchbox").fill("tiny-")
    assert query(page) == address.replace("q=tiny", "q=tiny-")
    page.locator("table.board tbody a").first.click()
    page.wait_for_url("**/checkpoints/abababababab.html")
    page.go_back()
    page.wait_for_url("**/table.html?*")
    assert (
        shown(page) == ["tiny-llada", "tiny-dream", "tiny-sdar"]
        and page.get_by_role("searchbox").input_value() == "tiny-"
    )


def test_an_address_that_means_nothing_here_shows_everything(look: Look, board: Path) -> None:
    page = look(board, query="?sort=-nothing&family=gone&hide=never&other=%3Cb%3E#x")
    assert shown(page) == ALL and len(heads(page)) == 10


def test_where_a_browser_lets_no_script_change_the_query_the_fragment_holds_the_view(look: Look, board: Path) -> None:
    page = look(board)
    page.evaluate("void (history.replaceState = () => { throw new DOMException('no', 'SecurityError'); })")
    page.get_by_role("searchbox").fill("sdar")
    settle(page)
    assert page.evaluate("location.hash") == "#?q=sdar"
    page.reload()
    assert shown(page) == ["tiny-sdar"]


def saved(page: Any, name: str) -> tuple[str, str]:
    with page.expect_download() as waiting:
        page.get_by_role("button", name=name).click()
    download = waiting.value
    return download.suggested_filename, Path(download.path()).read_bytes().decode()


def test_the_whole_view_downloads_as_the_whole_board(look: Look, board: Path) -> None:
    page = look(board)
    data = board.parent / "data"
    assert saved(page, "CSV") == ("default.csv", (data / "board.csv").read_bytes().decode())
    name, text = saved(page, "JSON")
    assert name == "default.json" and json.loads(text) == json.loads((data / "board.json").read_text())


def test_the_current_view_downloads_with_its_rows_order_and_columns(look: Look, board: Path) -> None:
    page = look(board, query="?sort=dare_sudoku&status=ranked&tasks=dare_sudoku&hide=mean,tpf")
    lines = list(csv.DictReader(io.StringIO(saved(page, "CSV")[1])))
    assert [line["model"] for line in lines] == ["tiny-sdar", "tiny-dream", "tiny-llada"]
    assert "dare_sudoku lo" in lines[0] and "nfe_per_request" in lines[0]
    assert not {"choice_x value", "mean", "tpf"} & set(lines[0])
    result = json.loads(saved(page, "JSON")[1])
    assert [row["model"] for row in result["rows"]] == ["tiny-sdar", "tiny-dream", "tiny-llada"]
    assert [column["task"] for column in result["columns"]] == ["dare_sudoku"]
    assert list(result["rows"][0]["scores"]) == ["dare_sudoku"]


def color(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_colors_follow_the_system_or_the_reader_who_is_remembered(look: Look, board: Path) -> None:
    page = look(board)
    light = color(page)
    page.emulate_media(color_scheme="dark")
    dark = color(page)
    assert light != dark
    page.get_by_role("button", name="Light").click()
    assert color(page) == light and page.get_by_role("button", name="Light").get_attribute("aria-pressed") == "true"
    page.goto((board.parent / "runs" / "best" / "index.html").as_uri())
    assert color(page) == light
    page.get_by_role("button", name="Auto").click()
    assert color(page) == dark


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "none"])
def test_four_ranked_cards_or_eighteen_rows_fit_on_the_first_screen(look: Look, tmp_path: Path, scripts: bool) -> None:
    for at in range(20):
        tasks = {task: share * (1 - at / 25) for task, share in TASKS.items()}
        name = f"LLaDA-8B-Instruct-{at}"
        make_run(
            tmp_path / "runs", f"run{at}", model=name, content=name, tasks=tasks, n_docs=30, decoding={"steps": at}
        )
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site" / "table.html", phone=True, scripts=scripts)
    assert bottoms(page)[3] <= 844 and fits(page)
    assert page.locator("table.board tbody tr").first.locator("td:has(> .bar)").inner_text().startswith("54.4")
    page = look(tmp_path / "site" / "table.html", scripts=scripts)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert bottoms(page)[17] <= 900
    heights = page.locator("table.board tbody tr").evaluate_all("rows => rows.map(row => row.offsetHeight)")
    assert set(heights) == {36}


def bottoms(page: Any) -> list[float]:
    """Where the rows end, from the top of the page."""
    return list(
        page.locator("table.board tbody tr").evaluate_all("rows => rows.map(row => row.getBoundingClientRect().bottom)")
    )


def test_any_score_can_rank_and_its_heading_says_so(look: Look, board: Path) -> None:
    page = look(board)

    def ranks() -> list[str]:
        settle(page)
        return list(page.locator("table.board tbody td:first-child").all_inner_texts())

    own, marked = ranks(), page.locator("th[data-ranks]")
    assert marked.get_attribute("data-key") == "mean" and "ranks" in str(
        marked.evaluate("head => getComputedStyle(head, '::after').content")
    )
    assert own[-1].startswith("–"), "it lacks two of three tasks"
    page.goto(f"{board.as_uri()}?rank=dare_sudoku")
    page.locator("th[data-ranks][data-key=dare_sudoku]").wait_for()
    page.locator("td[data-of=dare_sudoku] > .bar").first.wait_for()
    assert shown(page) == ["tiny-llada", "tiny-llada", "tiny-dream", "a-name-a-n", "tiny-sdar"]
    assert ranks() == ["1", "–", "2–3", "2–3", "4"], "a limited run has no rank"
    bars = page.locator("table.board td > .bar")
    assert bars.count() == 5 and marked.count() == 1
    assert page.get_by_role("combobox", name="Rank by").input_value() == "dare_sudoku"
    page.get_by_role("combobox", name="Rank by").select_option("mean")
    page.locator("td[data-of=mean] > .bar").first.wait_for()
    assert ranks()[0] == own[0] and query(page) == "" and marked.get_attribute("data-key") == "mean"


def test_the_keyboard_reaches_the_content_first(look: Look, board: Path) -> None:
    page = look(board)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the rows"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.get_by_role("button", name="Rank").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    outline = "(el => getComputedStyle(el).outlineStyle)(document.activeElement)"
    assert page.evaluate(outline) == "solid"


def test_a_command_can_be_copied(look: Look, board: Path) -> None:
    page = look(board.parent / "runs" / "best" / "index.html", fresh=True)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("dare-bench eval --model tiny-llada")


def test_print_shows_the_table_and_no_controls(look: Look, board: Path) -> None:
    page = look(board, dark=True)
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator(".tools").is_visible() and page.locator("table.board").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(28, 29, 34)"


def test_the_choice_of_columns_stays_on_a_phone(look: Look, tmp_path: Path) -> None:
    for number, family in enumerate(("llada", "dream")):
        tasks = {f"a_task_with_a_rather_long_name_{at}": 0.5 for at in range(2)}
        make_run(
            tmp_path / "runs", f"r{number}", model=family, content=family, tasks=tasks, n_docs=3, gpu=f"GPU {family}"
        )
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/table.html", phone=True)
    page.locator("summary", has_text="Filters").click()
    page.locator("details.columns summary").click()
    box = page.locator(".choices").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390 and fits(page)


SMALL = """() => [...document.querySelectorAll("body *")].filter((node) => !node.closest("svg")
  && node.getClientRects().length
  && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())
  && parseFloat(getComputedStyle(node).fontSize) < 12).map((node) => node.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
def test_nothing_moves_when_the_controls_come_and_all_text_can_be_read(look: Look, board: Path, phone: bool) -> None:
    for place in ("index.html", "table.html", "speed/index.html", "runs/best/index.html"):
        page = look(board.parent / place, phone=phone)
        assert layout_shift(page) < 0.02, place
        assert page.evaluate(SMALL) == [], place


@pytest.mark.parametrize("width", [1440, 1280, 1024])
def test_the_table_stays_where_it_is_when_its_controls_come(look: Look, board: Path, width: int) -> None:
    page = look(board, fresh=True)
    page.set_viewport_size({"width": width, "height": 900})
    page.reload()
    settle(page)
    assert layout_shift(page) < 0.05 and fits(page)
    links = page.locator("nav.facts a, table.board tbody th > div > a")
    assert links.count() > 8 and all(height >= 24 for height in links.evaluate_all(HEIGHTS))


def test_few_tab_stops_stand_before_the_first_row(look: Look, board: Path) -> None:
    page = look(board)

    def stops() -> int:
        count = 0
        while page.evaluate("document.activeElement.closest('tbody') === null") and count < 40:
            page.keyboard.press("Tab")
            count += 1
        return count

    assert stops() <= 19
    page.reload()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert stops() == 2, "from the link to the rows: their headings, the first row"
    page.get_by_role("button", name="Rank").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert query(page) == "?rank=mean"


def test_filters_are_behind_one_button_on_a_phone(look: Look, board: Path) -> None:
    page = look(board, phone=True)
    family = page.get_by_role("combobox", name="Family")
    assert not family.is_visible() and page.get_by_role("searchbox").is_visible()
    page.locator("summary", has_text="Filters").click()
    family.select_option("llada2")
    assert len(shown(page)) == 1 and fits(page)


def test_the_page_ends_at_its_footer(look: Look, tmp_path: Path) -> None:
    """Words for screen readers in a table that scrolls in its own box must not stand below the page."""
    for at in range(40):
        make_run(tmp_path / "runs", f"run{at}", model=f"m{at}", tasks={"dare_sudoku": 0.5}, n_docs=4, limit=4)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/table.html")
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        settle(page)
        footer = page.evaluate("scrollY + document.querySelector('footer').getBoundingClientRect().bottom")
        assert page.evaluate("document.documentElement.scrollHeight") - footer < 100


def test_the_details_of_one_score_stand_beside_it(look: Look, board: Path) -> None:
    page = look(board)
    cell, box = page.locator("td[data-of=dare_sudoku]").first, page.locator(".score-details")
    cell.hover()
    box.wait_for()
    text = box.inner_text()
    assert text.startswith("dare_sudoku 95.0") and "n 60" in text and "E1" in text
    assert cell.locator("code").text_content() in text, "the settings fingerprint"
    assert faults(page) == []
    page.mouse.move(5, 5)
    box.wait_for(state="hidden")
    cell.click()
    assert box.is_visible()
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    assert not box.is_visible()
    page.get_by_role("checkbox", name="Detailed").check()
    cell.click()
    assert not box.is_visible(), "all details are shown already"
