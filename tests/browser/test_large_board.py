"""A board of 300 runs and 12 tasks stays small, still and quick. All tests here share one site.  Times are those of
the processor and of the page's own thread, so that other work on the machine counts less."""

from __future__ import annotations

import gzip
import os
import random
import resource
import shutil
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from browsing import Look, breaches, faults_in_all_views, fits, layout_shift, settle
from run_factory import alter, make_run

from dare_bench.leaderboards.builder import build

TASKS = (*(f"task_{number:02d}" for number in range(10)), "choice_a", "choice_b")
FAMILIES = ("llada", "dream", "sdar", "llada2")
BUDGETS = (2, 4, 8, 16, 32, 64)


def make_large_board(root: Path, runs: int = 300) -> None:
    """Later checkpoints are better, and so are larger budgets; each run has two documents of each task, 36
    requests in all."""
    rng = random.Random(0)
    for at in range(runs):
        model, budget = divmod(at, len(BUDGETS))
        level = 0.2 + 0.5 * model * len(BUDGETS) / runs + 0.2 * budget / len(BUDGETS)
        folder = make_run(
            root,
            f"run-{at:03d}",
            model=f"model-{model:02d}",
            content=f"{model:064x}",
            tasks={task: min(max(rng.gauss(level, 0.2), 0.0), 1.0) for task in TASKS},
            n_docs=2,
            n_total=2,
            documents="same",
            decoding={"steps": BUDGETS[budget]},
            created=f"2026-11-{1 + at // 24:02d}T{at % 24:02d}:00:00",
        )
        alter(folder, model__family=FAMILIES[model % len(FAMILIES)], cost__nfe=36 * BUDGETS[budget])


pytestmark = pytest.mark.slow

NODES = "document.querySelectorAll('*').length"
HEIGHT = "document.documentElement.scrollHeight"
LARGEST_TARGET_GAPS = """() => [...document.querySelectorAll("label:has(> #every), .passes input")]
  .filter((node) => node.getClientRects().length && node.getBoundingClientRect().height < 24).length"""


def processor_time() -> float:
    """Seconds that this process and its children have worked, where two of the children work at a time."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + (children.ru_utime + children.ru_stime) / 2


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """The site without samples, and the seconds of its builds on two processors: of all runs, and of one more run; and
    of one with the samples of 20 of its runs, which lies beside it."""
    runs, out, sampled, other = (tmp_path_factory.mktemp(name) for name in ("runs", "site", "sampled", "other"))
    make_large_board(runs)
    before = processor_time()
    build(runs, out, samples=False)
    seconds = {"all": processor_time() - before}
    before = processor_time()
    assert build(sorted(runs.iterdir())[-20:], sampled).documents == 20 * 12 * 2
    seconds["samples of 20"] = processor_time() - before
    (out / "sampled").symlink_to(sampled)
    grown = shutil.copytree(out, other / "site", copy_function=os.link, symlinks=True)  # a build replaces files
    more = make_run(other, "new", model="new", tasks={"task_00": 0.9}, n_docs=2, content="cd" * 32)
    before = processor_time()
    assert build([runs, more], grown, samples=False).runs == 301
    seconds["new"] = processor_time() - before
    return out, seconds


@pytest.fixture
def table(large: tuple[Path, dict[str, float]]) -> Path:
    return large[0] / "table.html"


def test_it_builds_quickly(large: tuple[Path, dict[str, float]]) -> None:
    """On two processors without other work all of it takes less than 10 seconds, a new run less than 5, and the pages
    of samples of 20 runs less than 3; work beside it shares the caches."""
    _, seconds = large
    assert seconds["all"] < 16 and seconds["new"] < 8 and seconds["samples of 20"] < 6, seconds


def test_the_first_page_is_small(look: Look, large: tuple[Path, dict[str, float]]) -> None:
    place = large[0] / "index.html"
    page, requests = look(place), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.reload()
    settle(page)
    assert 3 <= len(requests) <= 10 and all(address.startswith("file:") for address in requests)
    assert (
        sum(len(gzip.compress(Path(address.removeprefix("file://")).read_bytes())) for address in requests) <= 120_000
    )
    assert page.evaluate(NODES) <= 12_000


@pytest.mark.parametrize("width", [390, 768, 1024, 1440])
def test_nothing_moves(look: Look, large: tuple[Path, dict[str, float]], width: int) -> None:
    page = look(large[0] / "index.html")
    page.set_viewport_size({"width": width, "height": 844})
    for place in ("index.html", "table.html"):
        page.goto((large[0] / place).as_uri())
        assert layout_shift(page) < 0.05, place
    height = page.locator("header.top .facts").bounding_box()["height"]
    assert height < 50, "beside the slider is space for one line, on a phone for two"


def used(page: Any, script: str) -> float:
    """Seconds of the page's thread until what a script changes is laid out: the rows in the window. The others follow,
    and have come when this returns."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def now() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    before = now()
    page.evaluate(f"{script}; document.body.offsetHeight")
    seconds = now() - before
    settle(page)
    return seconds


def test_searching_sorting_and_ranking_are_quick(look: Look, table: Path) -> None:
    """Each by the median of five times: work beside it shares the caches."""
    page = look(table)
    change = "(node => (node.value = '{}', node.dispatchEvent(new Event('input', {{ bubbles: true }}))))"
    search, rank = (f"{change}(document.querySelector('{of}'))" for of in ("input[type=search]", ".filters select"))
    assert median(used(page, search.format(word)) for word in ("sdar", "dream", "llada2", "llada", "llada2")) < 0.3
    used(page, search.format("llada2"))
    assert page.locator("table.board tbody tr").count() == 72
    page.get_by_role("searchbox").fill("")
    assert median(used(page, "document.querySelector('th[data-key=nfe] button').click()") for _ in range(5)) < 0.3
    tasks = ("task_05", "task_07", "task_03", "task_01", "task_04")
    assert median(used(page, rank.format(task)) for task in tasks) < 0.3
    assert page.locator("td[data-of=task_04] > .bar").count() == 300


def test_the_rows_that_follow_an_order_move_nothing(look: Look, table: Path) -> None:
    page = look(table)
    widths = "[...document.querySelectorAll('table.board thead th')].map((head) => head.offsetWidth)"
    click = "document.querySelector('th[data-key=nfe] button').click()"
    first, count = page.evaluate(f"{click}; [{widths}, document.querySelectorAll('tbody tr').length]")
    assert count < 100, "only the rows in the window and some more"
    settle(page)
    assert page.evaluate(widths) == first
    passes = [float(text) for text in page.locator("table.board td[data-of=NFE]").all_inner_texts()]
    assert len(passes) == 300 and passes == sorted(passes)


@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
def test_every_page_can_be_read_and_ends(look: Look, large: tuple[Path, dict[str, float]], phone: bool) -> None:
    places = ["index", "table", "compare", "changes", "sampled/unmasking", "speed/index", "speed/1-task_00",
              "checkpoints/000000000000--50", "runs/run-299/index", "sampled/runs/run-299/samples/task_00/1",
              "sampled/runs/run-299/samples/task_00/index"]  # fmt: skip
    found = {}
    for place in places if phone else places[:4]:  # on a desktop those that grow with the number of runs
        # Of the table some rows: axe compares each target with all others. A filter shortens the table, which is a
        # layout shift if the browser has drawn it before.
        few = place == "table"
        page = look(large[0] / f"{place}.html", phone=phone, query="?q=model+00" if few else "")
        if problems := [each for each in breaches(page) if not (few and "layout shift" in each)]:
            found[place] = problems
    assert found == {}


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "none"])
def test_a_phone_shows_twenty_cards_until_all_are_asked_for(look: Look, table: Path, scripts: bool) -> None:
    page = look(table, phone=True, scripts=scripts)
    rows = page.locator("table.board tbody tr:visible")
    assert page.evaluate(HEIGHT) <= 6000 and rows.count() == 20 and fits(page)
    assert page.evaluate(LARGEST_TARGET_GAPS) == 0
    page.get_by_role("checkbox", name="All 300 rows").check()
    assert rows.count() == 300
    page.get_by_role("checkbox", name="All 300 rows").uncheck()


def test_eighteen_rows_are_on_the_first_screen_below_the_slider(look: Look, table: Path) -> None:
    page = look(table)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.get_by_role("slider").is_visible()
    assert page.locator("table.board tbody tr").nth(17).bounding_box()["y"] <= 900 - 36


def test_a_number_of_passes_leaves_the_rows_within_it_and_names_the_best(look: Look, table: Path) -> None:
    page = look(table)
    slider, words = page.get_by_role("slider"), page.locator(".passes span")
    best = page.locator("table.board tbody tr").first
    name, score = best.locator("th > div > a").inner_text(), best.locator("td[data-of=mean] b").inner_text()
    assert words.inner_text().startswith(f"Any number of passes: best is {name} {score} (")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    settle(page)
    shown = page.locator("table.board tbody tr")
    assert shown.count() == 150 and page.evaluate("location.search") == "?passes=8"
    costs = [float(cell) for cell in page.locator("td[data-of=NFE]").all_inner_texts()]
    assert max(costs) == 8
    name = shown.first.locator("th > div > a").inner_text()
    score = shown.first.locator("td[data-of=mean] b").inner_text()
    settings = ", ".join(shown.first.locator("th i.own").all_inner_texts())
    assert settings and words.inner_text() == f"At most 8 passes: best is {name} {score} ({settings})"
    page.goto(f"{table.as_uri()}?passes=8&rank=task_07")
    page.locator("td[data-of=task_07] > .bar").first.wait_for()
    settle(page)
    values = [float(text) for text in page.locator("td[data-of=task_07] b").all_inner_texts()]
    assert len(values) == 150 and f" {max(values):.1f} (" in words.inner_text()
    page.get_by_role("button", name="Reset").click()
    settle(page)
    assert shown.count() == 300


def test_pages_of_tasks_and_releases_are_sound_and_fit(look: Look, tmp_path: Path) -> None:
    for at in range(5):
        tasks = {f"task_{at}": 0.5, "task_a": at / 5} if at else {"task_b": 0.7}
        make_run(tmp_path / "runs", f"r{at}", model=f"m{at}", content=f"{at:064x}", tasks=tasks, n_docs=30)
    build(tmp_path / "runs", tmp_path / "site", samples=False, release="2026-11")
    page = look(tmp_path / "site/boards/table-task_a.html")
    assert page.locator("nav.tabs a").count() == 7
    assert faults_in_all_views(page) == []
    page.get_by_role("navigation", name="Releases").get_by_role("link", name="2026-11").click()
    page.wait_for_url("**/releases/2026-11.html")
    assert faults_in_all_views(page) == []


def test_the_table_is_sound_and_fits(look: Look, table: Path) -> None:
    assert faults_in_all_views(look(table, query="?q=model+00")) == []


def test_on_a_phone_the_pairs_of_the_comparison_are_a_list_that_fits(look: Look, large: tuple[Path, Any]) -> None:
    page = look(large[0] / "compare.html", phone=True)
    region = page.locator(".scroll:has(> .matrix)")
    assert region.evaluate("node => node.scrollWidth <= node.clientWidth")
    pairs = page.locator(".matrix td:visible")
    assert pairs.count() == 8 * 7 // 2 and page.locator(".matrix th:visible").count() == 8
    assert pairs.evaluate_all("nodes => nodes.every((node) => node.getBoundingClientRect().height <= 34)")
    assert pairs.first.get_attribute("data-of") == "minus B" and page.locator(".key").nth(1).inner_text() == "B"
