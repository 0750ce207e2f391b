"""Comparisons as pages: the numbers that the statistics give, a few pairs whatever the number of runs, safe texts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from lineages import make_checkpoint, trained
from run_factory import make_run
from site_pages import EVIL, Page, plain
from typer.testing import CliRunner

from dare_bench.analysis.comparison import compare
from dare_bench.analysis.paired_tests import holm, paired_difference
from dare_bench.analysis.pairing import pair
from dare_bench.cli import app
from dare_bench.errors import RunError
from dare_bench.formatting import p_text, short_bounds, short_difference
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.charts.rows import Effect, forest
from dare_bench.leaderboards.comparison_index import TOP
from dare_bench.leaderboards.comparison_page import _shares, write_standalone
from dare_bench.leaderboards.pair_differences import p_of_bounds
from dare_bench.runs.reader import Run

SHARES = {"best": 0.9, "good": 0.8, "fair": 0.5, "poor": 0.2}


def ask(root: Path, name: str, share: float, **more: Any) -> Path:
    """A run of 50 documents that all runs are asked."""
    known: dict[str, Any] = {"tasks": {"sudoku": share}, "n_docs": 50, "n_total": 50, "documents": "same", **more}
    return make_run(root, name, model=name, content=name, **known)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    for number, (name, share) in enumerate(SHARES.items()):
        ask(root, name, share, created=f"2026-11-2{number}T00:00:00")
    build(root, out)
    return root, out


def cells(page: Path) -> list[list[str]]:
    """The matrix as text, row by row."""
    body = page.read_text().split('<table class="matrix">')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [[plain(cell.partition(">")[2]) for cell in row.split("<td")[1:]] for row in body.split("<tr>")[1:]]


def facts(out: Path) -> dict[str, Any]:
    """What was found of each pair, by the part's name."""
    parts = json.loads((out / "data/files.json").read_text())["parts"]
    return {name: part["facts"] for name, part in parts.items() if name.startswith("pair ")}


def test_the_matrix_is_what_the_paired_statistics_give(built: tuple[Path, Path]) -> None:
    root, out = built
    table = cells(out / "compare.html")
    names = list(SHARES)
    upper = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    runs = {name: Run(root / name) for name in names}
    created = [pair(runs[names[j]], runs[names[i]], "sudoku").difference() for i, j in upper]
    for (i, j), difference, adjusted in zip(upper, created, holm([item.p for item in created]), strict=True):
        p = p_text(adjusted).replace("<", "&lt;")
        for at, other, each in ((i, j, difference), (j, i, difference.reversed())):
            bounds = short_bounds(each.lo, each.hi, True)
            assert table[at][other] == f"{short_difference(each.value, True)} {bounds} {p}"
    assert [table[at][at] for at in range(4)] == ["–"] * 4
    html = (out / "compare.html").read_text()
    for one, other in (("better", "worse mirrored"), ("worse", "better mirrored")):
        assert html.count(f'<td class="{one}"') == html.count(f'<td class="{other}"')
    assert html.count('<td class="better') == html.count('<td class="worse') == 5  # best and good do not differ


def test_many_runs_make_few_pairs(tmp_path: Path) -> None:
    for number in range(TOP + 4):
        ask(tmp_path / "runs", f"run{number:02d}", 0.1 + number / 20, n_docs=20, n_total=20)
    build(tmp_path / "runs", tmp_path / "site")
    assert len(facts(tmp_path / "site")) == TOP * (TOP - 1) // 2
    assert len(cells(tmp_path / "site/compare.html")) == TOP


def test_a_mean_is_compared_over_all_its_tasks(tmp_path: Path) -> None:
    for name, item, two in (("first", 0.9, 0.3), ("second", 0.6, 0.4)):
        ask(tmp_path / "runs", name, 0, tasks={"a": item, "b": two})
    build(tmp_path / "runs", tmp_path / "site")
    assert cells(tmp_path / "site/compare.html")[0][1].startswith("+10.0 ")
    assert "by the mean of 2 tasks" in Page(tmp_path / "site/compare.html").text


def test_the_p_of_an_interval_agrees_with_the_test_of_its_values() -> None:
    first = [0.1 * (at % 7) for at in range(120)]
    for shift in (0.0, 0.02, 0.05, 0.1):
        second = [value + shift + 0.3 * ((at * 37 % 11) / 10 - 0.5) for at, value in enumerate(first)]
        created = paired_difference(first, second)
        assert created.p == pytest.approx(p_of_bounds(created.value, created.lo, created.hi), abs=0.03)
    assert p_of_bounds(0.1, None, None) is None


def test_a_page_has_its_numbers_and_the_documents_that_changed(built: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = built
    page = Page(write_standalone(compare([Run(root / "best"), Run(root / "poor")]), tmp_path / "page.html"))
    assert "poor against best" in page.words and "35 worse and 0 better in B." in page.words
    assert "−70.0" in page.text and "▼ worse" in page.text and "&lt; 0.0001" in page.path.read_text()
    assert page.tags.count("details") == 35 and "figure" in page.tags
    row = next(row for row in Run(root / "poor").samples("sudoku") if row["doc_id"] == 30)
    assert str(row["target"]) in page.text and row["resps"][0][0] in page.text


def data_of(script: Path) -> Any:
    """The data of a script of a site."""
    call = script.read_text()
    assert call.startswith("dareData(") and call.endswith(");\n") and "<" not in call
    return json.loads(f"[{call.removeprefix('dareData(').removesuffix(');' + chr(10))}]")[1]


def test_a_pair_links_to_the_page_that_compares_it(built: tuple[Path, Path]) -> None:
    _, out = built
    assert "compare.html?a=best&b=poor" in Page(out / "compare.html").links
    assert not (out / "compare").exists()


def test_the_script_of_a_run_has_one_character_for_each_document(built: tuple[Path, Path]) -> None:
    root, out = built
    record = data_of(out / "data/verdicts/poor.js")
    ((score,), answers) = record["scores"], record["answers"]["sudoku"]
    (stratum,) = score["strata"]
    assert stratum["values"] == "1" * 10 + "0" * 40 and stratum["ids"] is None
    assert answers == {"folder": "runs/poor/samples/sudoku", "sizes": [25, 25], "ids": None}
    row = next(row for row in Run(root / "poor").samples("sudoku") if row["doc_id"] == 30)
    question, target, texts, read, anchor = data_of(out / "runs/poor/samples/sudoku/2.js")["30"]
    assert question and target == str(row["target"]) and texts == [row["resps"][0][0]] and anchor == "doc-30"
    assert read is None or read == str(row["filtered_resps"][0])


def test_ids_and_values_that_are_not_plain_are_listed(tmp_path: Path) -> None:
    run = ask(tmp_path / "runs", "one", 0, values={"sudoku": [0.5, 1.0, 0.25]})
    file = next(run.glob("samples_*"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row, doc_id in zip(rows, (7, 3, 12), strict=True):
        row["doc_id"] = doc_id
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    build(tmp_path / "runs", tmp_path / "site")
    record = data_of(tmp_path / "site/data/verdicts/one.js")
    (stratum,) = record["scores"][0]["strata"]
    assert stratum["ids"] == ["3", "7", "12"] and stratum["values"] == [1.0, 0.5, 0.25]
    assert record["answers"]["sudoku"]["ids"] == ["7", "3", "12"]  # as they stand on the pages
    assert record["notes"] == ["samples were changed after the run: sudoku"]


def test_all_changed_documents_are_listed_and_the_first_hundred_have_their_texts(tmp_path: Path) -> None:
    ask(tmp_path, "one", 0.9, n_docs=200, n_total=200)
    ask(tmp_path, "two", 0.1, n_docs=200, n_total=200)
    page = Page(write_standalone(compare([Run(tmp_path / "one"), Run(tmp_path / "two")]), tmp_path / "c.html"))
    assert page.tags.count("details") == 100
    assert "160 worse and 0 better in B; 100 of them are shown, the others are listed" in page.words
    listed = page.words.partition("▼ worse, 60 more")[2].split()
    assert listed[:60] == [str(at) for at in range(120, 180)]


def test_documents_that_one_task_leaves_are_shown_of_another() -> None:
    assert _shares([27, 30]) == [27, 30] and _shares([2, 500, 90]) == [2, 49, 49] and sum(_shares([9] * 50)) == 200


def test_what_was_asked_differently_is_named_and_its_numbers_are_not_told(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.2)
    make_checkpoint(root, "made", 0.5, trained(), fingerprint="v2")
    make_checkpoint(root, "steps", 0.5, trained(seed=1), decoding={"steps": 4})
    build(root, tmp_path / "site")
    index = Page(tmp_path / "site/compare.html").words
    assert "Not comparable" in index and "the task's prompts, filters or scorer changed" in index
    written = write_standalone(compare([Run(root / "base"), Run(root / "made")], force=True), tmp_path / "made.html")
    assert "Not comparable" in Page(written).text
    reported = Page(write_standalone(compare([Run(root / "base"), Run(root / "steps")]), tmp_path / "steps.html")).words
    assert "Warnings" in reported and re.search(r"steps\D+16\D+4\b", reported) and "Not comparable" not in reported


@pytest.mark.parametrize("built_with", [True, False], ids=["no-lines", "no-samples"])
def test_without_sample_lines_intervals_are_compared_and_that_is_said_once(tmp_path: Path, built_with: bool) -> None:
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.2, n_docs=200)
    make_checkpoint(root, "made", 0.5, trained(), n_docs=200)
    make_checkpoint(root, "new", 0.5, trained(seed=1), n_docs=200, fingerprint="v2")
    if built_with:
        for file in root.glob("*/samples_*"):
            file.unlink()
    build(root, tmp_path / "site", samples=built_with)
    page = Page(tmp_path / "site/compare.html")
    assert cells(page.path)[1][0] == "−30.0 −38.5 to −20.8 p &lt; 0.0001"  # Newcombe's method 10
    assert page.words.count("unpaired") == 2, "in the sentence about all pairs, and beside the one training"
    assert page.words.count("Sample lines are absent") == 1 and page.words.count("Not comparable") == 1
    assert "the task's prompts, filters or scorer changed" in page.words
    assert data_of(tmp_path / "site/data/verdicts/made.js")["scores"][0]["strata"] == []
    assert "1 difference is unpaired" in Page(tmp_path / "site/lineage/index.html").words
    assert str(tmp_path) not in page.text


def test_an_edited_samples_file_is_compared_anew(tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "site"
    make_checkpoint(root, "base", 0.9)
    make_checkpoint(root, "made", 0.5, trained())
    build(root, out)
    assert facts(out)["pair base made"]["items"]["dare_sudoku"]["breaks"] == []
    file = next((root / "made").glob("samples_*"))
    file.write_text(file.read_text().replace('"exact_match": 0.0', '"exact_match": 1.0'))
    build(root, out)
    (why,) = facts(out)["pair base made"]["items"]["dare_sudoku"]["breaks"]
    assert "the lines were changed after the run" in why


def test_documents_that_cannot_be_read_any_more_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run(ask(tmp_path, name, share, n_docs=20, n_total=20)) for name, share in (("a", 0.5), ("b", 0.8))]
    created = compare(runs)
    documents = type(created).documents

    def read(self: Any, item: Any, flip: Any) -> Any:
        if flip == item.better[0]:
            raise RunError("the file has changed")
        return documents(self, item, flip)

    monkeypatch.setattr(type(created), "documents", read)
    page = plain(write_standalone(created, tmp_path / "page.html").read_text())
    assert "0 worse and 6 better in B; 5 of them are shown; 1 could no longer be read." in page


def test_what_nothing_can_show_is_a_dash() -> None:
    assert [short_difference(value, share) for value in (-math.inf, math.nan, None) for share in (True, False)] == [
        "–"
    ] * 6


def test_texts_of_models_and_data_are_text(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    ask(root, "one", 0.9, n_docs=4, answer=EVIL, prompt=EVIL)
    ask(root, "two", 0.2, n_docs=4, answer=EVIL * 20_000, prompt=EVIL)
    build(root, tmp_path / "site")
    alone = write_standalone(compare([Run(root / "one"), Run(root / "two")]), tmp_path / "alone.html")
    assert data_of(tmp_path / "site/runs/two/samples/sudoku/1.js")["0"][2][0].startswith("</pre><script>alert(1)")
    for page in [Page(tmp_path / "site/compare.html"), Page(alone)]:
        html = page.path.read_text()
        assert "<script>alert" not in html and "<img" not in html and "\u202e" not in html and "\x1b" not in html
        inline = [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
        assert inline == [] and "style" not in page.tags and len(html) < 1_000_000
    assert "<script>alert(1)" in Page(alone).text and "more characters" in Page(alone).text


def test_two_runs_of_one_checkpoint_are_named_by_what_differs(tmp_path: Path) -> None:
    for steps in (8, 16):
        make_run(tmp_path, f"s{steps}", model="m", documents="same", decoding={"steps": steps})
    page = Page(write_standalone(compare([Run(tmp_path / "s16"), Run(tmp_path / "s8")]), tmp_path / "page.html"))
    assert "m: steps 8 against steps 16" in page.words
    assert "No document changed: each has the same value in both runs." in page.words


def test_a_page_alone_has_all_it_needs_beside_it(built: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = built
    runs = [Run(root / name) for name in SHARES]
    page = Page(write_standalone(compare(runs), tmp_path / "three words.html"))
    assert "4 runs compared" in page.words and "sudoku, A to D" in page.words
    files = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert files and all((tmp_path / link).is_file() for link in files)
    policy = [value for tag, _, value in page.attributes if tag == "meta" and value.startswith("default-src")]
    assert policy and "unsafe" not in policy[0]


def test_the_command_writes_the_page(built: tuple[Path, Path], tmp_path: Path) -> None:
    root, _ = built
    words = ["compare", str(root / "best"), str(root / "poor"), "--html", str(tmp_path / "c.html"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "poor against best" in Page(tmp_path / "c.html").text


def test_pairs_without_sample_lines_are_marked_among_others(tmp_path: Path) -> None:
    for name in ("one", "two", "bare"):
        ask(tmp_path / "runs", name, 0.5)
    for file in (tmp_path / "runs" / "bare").glob("samples_*"):
        file.unlink()
    build(tmp_path / "runs", tmp_path / "site")
    page = Page(tmp_path / "site/compare.html")
    assert "Sample lines are absent, so 2 of these 3 pairs are compared by their intervals" in page.words
    marked = [["unpaired" in cell for cell in row] for row in cells(page.path)]
    assert sorted(map(sum, marked)) == [1, 1, 2]


def test_a_forest_turns_nothing_round() -> None:
    drawn = forest([Effect("<up>", 0.1, 0.05, 0.2, "better"), Effect("flat", 0.0, None, None)], ident="f", title="t")
    dots = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)"', drawn)]
    whisker = [float(x) for x in re.findall(r'whisker" d="M([\d.]+) [\d.]+H([\d.]+)', drawn)[0]]
    assert dots[1] < whisker[0] < dots[0] < whisker[1] and drawn.count("whisker") == 1
    assert "&lt;up&gt;" in drawn and "<up>" not in drawn


def test_no_two_names_of_a_forest_are_equal() -> None:
    tasks = [f"bbh_cot_fewshot_tracking_shuffled_objects_{count}_objects" for count in ("three", "five", "five")]
    drawn = forest([Effect(f"{task}, A to B", 0.1, None, None) for task in tasks], ident="f", title="t")
    names = re.findall(r'class="effect none"><text[^>]*>([^<]*)', drawn)
    assert len(set(names)) == 3 and "three" in names[0] and "five" not in names[0]
