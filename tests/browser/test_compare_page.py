"""Two to five rows compared in the browser: the numbers of ``dare-bench compare``, and every changed document."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from browsing import Look, faults_in_all_views, layout_shift
from run_factory import make_run

from dare_bench.analysis.comparison import ScoreComparison, compare
from dare_bench.analysis.paired_tests import paired_difference
from dare_bench.leaderboards.builder import build
from dare_bench.runs.reader import Run

RUNS = 11
"""Of 55 pairs."""
ITEMS = """async pairs => {
  const rows = new Map();
  for (const name of new Set(pairs.flat())) rows.set(name, await Comparison.row(name));
  return pairs.map((pair) => Comparison.compare(pair.map((name) => rows.get(name))).map((item) => ({
    task: item.task, values: item.values, ...item.difference, adjusted: item.adjusted,
    verdict: item.verdict, breaks: item.breaks,
  })));
}"""


def same(first: float | None, second: float | None) -> bool:
    return first is second if first is None or second is None else math.isclose(first, second, abs_tol=1e-9, rel_tol=0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs that answer 30 to 120 documents of two tasks, from almost none to almost all of them right."""
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    draw = random.Random(7)
    for at in range(RUNS):
        skill = (at + 0.5) / RUNS
        values = {
            "many": [float(draw.random() < skill) for _ in range(120)],
            "few": [float(draw.random() < (skill + 1) / 3) for _ in range(30)],
        }
        make_run(root, f"r{at}", values=values, model=f"m{at}", content=f"c{at}", documents="same", n_total=120)
    build(root, out)
    return root, out


def agrees(own: dict[str, Any], item: ScoreComparison) -> None:
    difference = item.difference
    assert own["task"] == item.task and own["test"] == difference.test == "exact McNemar"
    assert (own["n"], own["won"], own["lost"]) == (difference.n, difference.won, difference.lost)
    assert same(own["value"], difference.value) and same(own["p"], difference.p)
    assert same(own["adjusted"], item.adjusted)
    assert all(same(*pair) for pair in zip(own["values"], item.values, strict=True))
    assert own["verdict"] == item.verdict and own["breaks"] == ""
    assert own["closed"] == ("bootstrap" in difference.method)
    if not own["closed"]:
        assert same(own["lo"], difference.lo) and same(own["hi"], difference.hi) and own["method"] == difference.method


def test_mcnemar_and_holm_are_those_of_the_command_on_55_pairs(look: Look, built: tuple[Path, Path]) -> None:
    root, out = built
    pairs = list(itertools.combinations([f"r{at}" for at in range(RUNS)], 2))
    found = look(out / "compare.html").evaluate(ITEMS, pairs)
    runs = {f"r{at}": Run(root / f"r{at}") for at in range(RUNS)}
    closed = 0
    for (first, second), items in zip(pairs, found, strict=True):
        comparison = compare([runs[first], runs[second]])
        assert len(items) == len(comparison.items) == 2
        for own, item in zip(items, comparison.items, strict=True):
            agrees(own, item)
            closed += own["closed"]
    assert len(pairs) == 55 and 0 < closed < 55


def test_five_rows_are_adjusted_together(look: Look, built: tuple[Path, Path]) -> None:
    root, out = built
    names = ["r2", "r3", "r5", "r7", "r9"]
    (found,) = look(out / "compare.html").evaluate(ITEMS, [names])
    comparison = compare([Run(root / name) for name in names])
    assert len(found) == len(comparison.items) == 8
    for own, item in zip(found, comparison.items, strict=True):
        agrees(own, item)


def test_other_values_are_those_of_the_command_where_it_draws_nothing(look: Look, built: tuple[Path, Path]) -> None:
    """All signs of up to 13 changes; more than 2000 changes; and adjusted t intervals of few changes. Where the command
    draws, the closed form says so and is near."""
    draw = random.Random(3)

    def values(n: int, changed: int, shift: float) -> tuple[list[float], list[float]]:
        first = [draw.randrange(5) / 4 for _ in range(n)]
        return first, [v + shift + draw.gauss(0, 0.2) if at < changed else v for at, v in enumerate(first)]

    exact = [values(40, changed, 0.1) for changed in (0, 1, 2, 7, 13)] + [values(2100, 2100, 0.01)]
    drawn = [values(200, 120, 0.05), values(60, 20, 0.1), values(300, 60, 0.02)]
    page = look(built[1] / "compare.html")
    for first, second in (*exact, *drawn):
        own = page.evaluate("([first, second]) => PairedTests.difference(first, second)", [first, second])
        created = paired_difference(first, second)
        assert own["closed"] == ((first, second) in drawn)
        assert same(own["value"], created.value)
        if own["closed"]:
            assert own["p"] == pytest.approx(created.p, abs=0.03)
            assert own["lo"] == pytest.approx(created.lo, abs=0.02) and own["hi"] == pytest.approx(created.hi, abs=0.02)
        else:
            assert own["test"] == created.test and own["method"] == created.method
            assert all(same(own[name], getattr(created, name)) for name in ("p", "lo", "hi"))


def test_runs_of_other_documents_are_paired_over_those_of_both(look: Look, tmp_path: Path) -> None:
    known: dict[str, Any] = {"documents": "same", "n_total": 60}
    whole = make_run(tmp_path / "runs", "whole", tasks={"sudoku": 0.5}, n_docs=60, model="a", content="a", **known)
    part = make_run(
        tmp_path / "runs", "part", tasks={"sudoku": 0.2}, n_docs=40, limit=40, model="b", content="b", **known
    )
    other = make_run(
        tmp_path / "runs", "other", fingerprint="v2", tasks={"sudoku": 0.2}, n_docs=60, content="c", **known
    )
    build(tmp_path / "runs", tmp_path / "site")
    (found, refused) = look(tmp_path / "site/compare.html").evaluate(ITEMS, [["whole", "part"], ["whole", "other"]])
    (item,) = compare([Run(whole), Run(part)]).items
    assert found[0]["n"] == 40
    agrees(found[0], item)
    assert refused[0]["breaks"] == "the task's prompts, filters or scorer changed"
    page = look(tmp_path / "site/compare.html", query="?a=whole&b=part")
    page.wait_for_selector("table.compared")
    scores = page.locator("table.compared tbody td").all_inner_texts()[:2]
    assert "–" not in scores[0] and "–" in scores[1], "the interval of 60 documents is not that of these 40"
    assert page.get_by_text("The rows were scored on different documents").is_visible()
    assert compare([Run(whole), Run(other)], force=True).items[0].breaks


def test_without_samples_intervals_are_compared(look: Look, built: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = built
    build([root / "r2", root / "r8"], tmp_path / "site", samples=False)
    page = look(tmp_path / "site/compare.html", query="?a=r2&b=r8")
    assert page.get_by_text("Unpaired: a row has no sample lines").is_visible()
    assert "unpaired" in page.get_by_role("row", name="many").inner_text()
    (items,) = page.evaluate(ITEMS, [["r2", "r8"]])
    difference = json.loads((tmp_path / "site/data/board.json").read_text())["rows"]
    assert len(difference) == 2 and items[0]["p"] < 1e-6 and items[0]["lo"] > 0


def test_ticked_rows_lead_to_their_comparison(look: Look, built: tuple[Path, Path]) -> None:
    page = look(built[1] / "table.html")
    ticks = page.locator("table.board .tick")
    ticks.nth(0).check()
    assert page.locator(".compare-bar").inner_text() == "Tick one more row to compare."
    for at in range(1, 5):
        ticks.nth(at).check()
    assert ticks.nth(5).is_disabled()
    ticks.nth(4).uncheck()
    assert faults_in_all_views(page) == []
    page.get_by_role("link", name="Compare 4 rows").click()
    page.wait_for_selector("table.compared")
    assert page.get_by_role("heading", level=1).inner_text() == "4 rows compared"
    assert page.locator("table.compared tbody tr").count() == 6
    assert page.locator("figure.forest .effect").count() == 6


def test_a_changed_document_shows_both_answers_and_their_difference(look: Look, built: tuple[Path, Path]) -> None:
    root, out = built
    page = look(out / "compare.html", query="?a=r9&b=r1")
    page.wait_for_selector("table.compared")
    (item, _) = compare([Run(root / "r9"), Run(root / "r1")]).items
    changed = item.worse + item.better
    section = page.locator("section", has=page.get_by_role("heading", name="many: documents that changed"))
    assert section.locator("details.flip").count() == 25
    while (more := section.get_by_role("button", name="Show")).is_visible():
        more.click()
    assert section.locator("details.flip").count() == len(changed)
    assert [text.strip() for text in section.locator(".doc").all_inner_texts()] == [doc.doc_id for doc in changed]
    details = section.locator("details.flip").first
    details.locator("summary").click()
    details.locator(".side").nth(1).wait_for()
    first, second = compare([Run(root / "r9"), Run(root / "r1")]).documents(item, changed[0])
    sides = details.locator(".side pre")
    question = details.locator(".body > pre").first.inner_text()
    assert question == first.rows[0]["doc"]["question"] and "\n" in question, "its lines are kept"
    assert sides.nth(0).inner_text() == first.rows[0]["resps"][0][0]
    after = second.rows[0]["resps"][0][0]
    kept = sides.nth(1).evaluate(
        "pre => [...pre.childNodes].filter(n => n.localName !== 'del').map(n => n.textContent).join('')"
    )
    assert kept == after and details.locator("ins").count() == (first.rows[0]["resps"] != second.rows[0]["resps"])
    assert faults_in_all_views(page) == []
    details.get_by_role("link", name="document").last.click()
    page.wait_for_url(f"**/runs/r1/samples/many/*.html#doc-{changed[0].doc_id}")
    assert page.locator(f"#doc-{changed[0].doc_id}").is_visible()


def test_no_two_names_of_the_forest_are_equal(look: Look, tmp_path: Path) -> None:
    tasks = [f"bbh_cot_fewshot_tracking_shuffled_objects_{count}_objects" for count in ("three", "five", "seven")]
    for name, share in (("a", 0.2), ("b", 0.5), ("c", 0.8)):
        known: dict[str, Any] = {"model": name, "content": name, "documents": "same"}
        make_run(tmp_path / "runs", name, tasks=dict.fromkeys(tasks, share), **known)
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/compare.html", query="?a=a&b=b&c=c")
    page.wait_for_selector("table.compared")
    names = page.locator("figure.forest .effect text").all_text_contents()
    assert len(names) == len(set(names)) == 6 and max(map(len, names)) <= 38


def test_twenty_seven_changed_documents_are_all_listed(look: Look, tmp_path: Path) -> None:
    for name, values in (("a", [1.0] * 40), ("b", [0.0] * 27 + [1.0] * 13)):
        make_run(tmp_path / "runs", name, values={"one": values}, model=name, content=name, documents="same")
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/compare.html", query="?a=a&b=b")
    page.wait_for_selector("table.compared")
    assert page.locator("details.flip").count() == 27 and not page.locator(".more-documents").is_visible()


def test_nothing_moves_while_it_loads(look: Look, built: tuple[Path, Path]) -> None:
    page = look(built[1] / "compare.html", query="?a=r9&b=r1", fresh=True)
    page.wait_for_selector("table.compared")
    assert layout_shift(page) < 0.05


def test_two_rows_of_one_checkpoint_without_a_changed_document_say_both(look: Look, tmp_path: Path) -> None:
    for steps in (8, 16):
        known: dict[str, Any] = {"values": {"one": [1.0, 0.0] * 10}, "documents": "same", "content": "c"}
        make_run(tmp_path / "runs", f"s{steps}", decoding={"steps": steps}, **known)
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/compare.html", query="?a=s16&b=s8")
    page.get_by_text("No document changed: each has the same value in both rows.").wait_for()
    assert page.get_by_role("heading", level=1).inner_text() == "tiny-llada: steps 8 against steps 16"


def test_a_pair_of_the_matrix_has_both_its_own_p_and_the_adjusted_one(look: Look, tmp_path: Path) -> None:
    """Significant alone, but not among three pairs: the page of the pair says both."""
    half = [1.0, 0.0] * 20
    for name, values in (("a", half), ("b", [1.0] * 12 + half[12:]), ("c", [1.0] * 6 + half[6:])):
        make_run(tmp_path / "runs", name, values={"s": values}, model=name, content=name, documents="same", n_total=40)
    build(tmp_path / "runs", tmp_path / "site")
    page = look(tmp_path / "site/compare.html")
    facts = page.locator("section", has=page.locator("table.matrix")).locator("p.facts").inner_text()
    assert "adjusted by Holm's method over the 3 pairs, intervals are not adjusted" in facts
    cell = page.locator("table.matrix td:not(.mirrored)", has=page.locator("a[href$='a=a&b=b']"))
    assert "p = 0.094" in cell.inner_text() and cell.get_attribute("class") == "none"
    cell.locator("a").click()
    page.wait_for_selector("table.compared")
    assert "0.031" in page.get_by_role("row", name="s exact_match").inner_text()
    note = page.locator("#picked p.facts").first.inner_text()
    assert "p is that of this pair alone. Adjusted over the 3 pairs of “" in note
    assert "”: p = 0.094, no difference shown." in note


def test_the_title_of_a_pair_has_the_settings_of_the_tasks_of_both(look: Look, tmp_path: Path) -> None:
    """A task that only one row has may have other settings, which say nothing about the comparison."""
    known: dict[str, Any] = {"documents": "same", "content": "c"}
    both, more = {"one": [1.0, 0.0] * 10}, {"two": [1.0] * 20}
    lengths = {"gen_length": 4, "block_length": 4}
    make_run(tmp_path / "runs", "s8", values=both, decoding={"steps": 8}, **known)
    make_run(tmp_path / "runs", "s16", values=both, decoding={"steps": 16}, **known)
    make_run(tmp_path / "runs", "more", values=more, decoding={"steps": 16, **lengths}, **known)
    build(tmp_path / "runs", tmp_path / "site")
    for rows in ("a=s16,more&b=s8", "a=more,s16&b=s8"):
        page = look(tmp_path / "site/compare.html", query=f"?{rows}")
        page.wait_for_selector("table.compared")
        assert page.get_by_role("heading", level=1).inner_text() == "tiny-llada: steps 8 against steps 16"


def test_an_address_without_such_runs_says_so(look: Look, built: tuple[Path, Path]) -> None:
    page = look(built[1] / "compare.html", query="?a=r1&b=..%2Fx")
    page.get_by_text("cannot be compared: ../x names no run").wait_for()


def test_it_is_complete_without_scripts(look: Look, built: tuple[Path, Path]) -> None:
    page = look(built[1] / "compare.html", scripts=False)
    assert page.locator("table.matrix td").count() == 64
    assert page.get_by_text("dare-bench compare A B --html FILE").is_visible()
