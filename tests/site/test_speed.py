"""Speed and quality: hardware never mixed, fronts of ranked rows alone, whose forward passes are counted; and
accuracy under parallelism: which runs are budgets of one method."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lineages import trained
from run_factory import alter, make_run
from site_pages import Page

from dare_bench.analysis.parallelism import aup
from dare_bench.leaderboards.builder import build

TASKS = {"sudoku": 0.8, "countdown": 0.4}


def run(root: Path, name: str, factor: float = 1.0, nfe: float = 12, speed: float = 100.0, **more: Any) -> None:
    """A run that solves ``factor`` of what others do, with so many forward passes a request and tokens a second."""
    known = {"tasks": {task: share * factor for task, share in TASKS.items()}, "n_docs": 50, "n_total": 50, **more}
    each = known.pop("task_nfe", None)
    (file,) = make_run(root, name, model=name, **known).glob("results_*.json")
    results = json.loads(file.read_text())
    block = results["dare_bench"]
    block["cost"] |= {"nfe": round(nfe * block["cost"]["requests"]), "tokens_per_s": speed}
    for task, passes in (each or {}).items():
        block["tasks"][task]["nfe"] = passes * block["tasks"][task]["requests"]
    file.write_text(json.dumps(results))


def charts(page: Path) -> dict[str, set[str]]:
    """The runs that each chart of a page leads to, by the chart's title; its front's table is not in it."""
    result = {}
    for figure in page.read_text().split("<figure")[1:]:
        figure = figure.split("</figure>")[0]
        title = re.sub(r"<[^>]+>", "", figure.split("<figcaption")[1].partition(">")[2].split("</figcaption>")[0])
        result[title] = set(re.findall(r'href="[./]*runs/([^/]+)/', figure))
    return result


def fronts(page: Path) -> list[list[str]]:
    """The runs in each table of a front, in its order."""
    parts = page.read_text().split('<div class="front">')[1:]
    return [re.findall(r'href="[./]*runs/([^/]+)/', part.split("</section>")[0]) for part in parts]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    run(root, "slow-good", 1.0, nfe=64, speed=50, gpu="NVIDIA H200")
    run(root, "fast-fair", 0.7, nfe=16, speed=200, gpu="NVIDIA H200")
    run(root, "slow-bad", 0.3, nfe=64, speed=40, gpu="NVIDIA H200")
    run(root, "other-card", 0.9, nfe=32, speed=900, gpu="NVIDIA A100")
    run(root, "other-card-too", 0.5, nfe=40, speed=700, gpu="NVIDIA A100")
    run(root, "processor", 0.2, nfe=32, speed=2)
    run(root, "few", 1.0, nfe=1, speed=9999, limit=50, n_total=500, gpu="NVIDIA H200")
    build(root, tmp_path / "site", samples=False)
    return tmp_path / "site"


def test_each_class_of_hardware_has_a_chart_of_its_own(site: Path) -> None:
    result = charts(site / "speed/index.html")
    assert result["Mean of 2 tasks against tokens per second on NVIDIA H200"] == {
        "slow-good", "fast-fair", "slow-bad", "few",
    }  # fmt: skip
    assert result["Mean of 2 tasks against tokens per second on NVIDIA A100"] == {"other-card", "other-card-too"}
    assert len(result["Mean of 2 tasks against forward passes per request"]) == 7
    assert len(result) == 3, "one run alone is in the table, not in a chart"
    text = Page(site / "speed/index.html").text
    assert "Only run on its hardware" in text and "Test CPU, 2 cores" in text


def test_fronts_hold_ranked_rows_that_none_beats(site: Path) -> None:
    nfe, h200, a100 = fronts(site / "speed/index.html")
    assert nfe == ["slow-good", "other-card", "fast-fair"]  # "few" is limited, so not ranked
    assert h200 == ["slow-good", "fast-fair"] and a100 == ["other-card"]
    assert all("few" not in front for front in fronts(site / "speed/1-sudoku.html"))
    words = re.sub(r"\s+(?=\d)", "", Page(site / "speed/index.html").words)
    assert "slow-goodllada, float32, lm-eval, gen_length16, block_length16, steps1660.0%" in words


def test_every_task_has_its_page_and_all_lead_to_each_other(site: Path) -> None:
    names = {"index.html", "1-sudoku.html", "2-countdown.html"}
    assert {path.name for path in (site / "speed").iterdir()} == names
    for name in names:
        page = Page(site / "speed" / name)
        assert {link for link in page.links if "/speed/" in link} >= {f"../speed/{other}" for other in names}
    assert "80.0%" in Page(site / "speed/1-sudoku.html").text


def test_a_task_counts_its_own_forward_passes_where_they_are_known(tmp_path: Path) -> None:
    run(tmp_path / "runs", "knows", nfe=20, task_nfe={"sudoku": 8, "countdown": 32})
    run(tmp_path / "runs", "older", 0.5, nfe=20)
    run(tmp_path / "runs", "one-task", 0.5, nfe=24, tasks={"sudoku": 0.1})
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = Page(tmp_path / "site/speed/1-sudoku.html")
    marks = re.findall(r"<title>(.*?)</title>", page.path.read_text().split("<figure")[1], re.S)
    mark = {text.splitlines()[0]: text for text in marks}
    assert "· 8 NFE" in mark["knows"] and "· 20 NFE" in mark["older"] and "· 24 NFE" in mark["one-task"]
    reported = "cost of all 2 tasks of its run together"
    assert reported in mark["older"] and reported not in mark["knows"] and reported not in mark["one-task"]
    assert "1 of these runs evaluated several tasks" in page.text


def test_a_family_has_one_color_on_all_charts_of_a_site(tmp_path: Path) -> None:
    """Also on a page that lacks the family which comes first by name."""
    for at, (family, tasks) in enumerate({"dream": {"a": 0.5}, "llada": {"a": 0.4, "b": 0.5}}.items()):
        folder = make_run(tmp_path / "runs", f"r{at}", model=family, content=f"{at:064x}", tasks=tasks)
        alter(folder, model__family=family)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    looks = {
        re.findall(r'class="family (f\d+)"><svg[^>]*><path[^>]*></svg>llada ', path.read_text())[0]
        for path in (tmp_path / "site" / "speed").glob("*.html")
    }
    assert len(list((tmp_path / "site" / "speed").glob("*.html"))) == 3 and looks == {"f1"}


@pytest.mark.parametrize(("speed", "front"), [(149.0, True), (151.0, False)])
def test_there_is_no_front_of_speeds_where_replicates_are_far_apart(tmp_path: Path, speed: float, front: bool) -> None:
    """Two seeds of a recipe are replicates, and neither its base nor a run with other settings is one."""
    lineages = [trained(seed=seed) for seed in range(2)]
    run(tmp_path / "runs", "slow", speed=100.0, content="s0", lineage=lineages[0])
    run(tmp_path / "runs", "fast", speed=speed, content="s1", lineage=lineages[1])
    run(tmp_path / "runs", "base", speed=900.0, content="base", factor=0.1)
    run(tmp_path / "runs", "other", speed=9.0, content="s0", lineage=lineages[0], decoding={"steps": 8})
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = (tmp_path / "site/speed/index.html").read_text()
    passes, speeds = page.split('<section class="beside"')[1:3]
    assert 'class="stairs"' in passes and ('class="stairs"' in speeds) == front
    assert speeds.count("100–149" if front else "100–151") >= 2
    assert ("No frontier: here the fastest run of one recipe" in speeds) != front


def test_likelihoods_have_no_speed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / "runs", name, tasks={"choice_x": 0.5, "sudoku": 0.5})
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    assert len(charts(tmp_path / "site/speed/1-choice_x.html")) == 1
    assert "Nothing here was generated" in Page(tmp_path / "site/speed/1-choice_x.html").text
    assert len(charts(tmp_path / "site/speed/2-sudoku.html")) == 2


def test_a_second_board_has_its_own_sheets(tmp_path: Path) -> None:
    run(tmp_path / "runs", "one")
    run(tmp_path / "runs", "two", 0.5)
    board = tmp_path / "sums.yaml"
    board.write_text("title: Sums\ntasks: [countdown]\nrank_by: countdown\n")
    build(tmp_path / "runs", tmp_path / "site", board=["default", str(board)], samples=False)
    page = Page(tmp_path / "site/speed/1-sums/index.html")
    assert [path.name for path in page.path.parent.iterdir()] == ["index.html"]
    assert all(
        (page.path.parent / link).resolve().is_file() for link in page.links if not link.startswith(("#", "data"))
    )
    assert "../../speed/index.html" in page.links and "40.0%" in page.text


def test_a_new_run_writes_the_speed_pages_and_nothing_new_none(site: Path, tmp_path: Path) -> None:
    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (site / "speed").iterdir()}

    before = times()
    assert build(tmp_path / "runs", site, samples=False).parts_written == 0 and times() == before
    run(tmp_path / "runs", "new", tasks={"sudoku": 0.6})
    build(tmp_path / "runs", site, samples=False)
    after = times()
    assert after["1-sudoku.html"] != before["1-sudoku.html"] and after["2-countdown.html"] == before["2-countdown.html"]


@pytest.mark.parametrize("speed", [5e-324, 1e-99, 1e99])
def test_a_speed_of_another_world_ends_no_build(tmp_path: Path, speed: float) -> None:
    run(tmp_path / "runs", "odd", speed=speed)
    run(tmp_path / "runs", "sound")
    problems: list[str] = []
    build(tmp_path / "runs", tmp_path / "site", on_problem=problems.append)
    assert len(problems) == 1 and f"the dare_bench block is damaged: cost.tokens_per_s={speed}: " in problems[0]
    (chart,) = [
        names for title, names in charts(tmp_path / "site" / "speed" / "index.html").items() if "second" in title
    ]
    assert chart == {"sound"}


def budget(runs: Path, name: str, share: float, tpf: float, **more: Any) -> Path:
    known = {"tasks": {"a": share}, "n_docs": 50, "documents": "same", **more}
    run = make_run(runs, name, **known)
    alter(run, cost__tpf=tpf)
    return run


def table(out: Path, page: str = "index.html") -> list[list[str]]:
    html = (out / "speed" / page).read_text()
    _, found, rest = html.partition('<h2 id="aup">')
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", rest.partition("</table>")[0]) if found else []
    return [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[dh].*?</t[dh]>", row)] for row in rows[1:]]


def test_budgets_of_one_checkpoint_have_an_area(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    for steps, share, tpf in ((16, 0.9, 1.0), (8, 0.88, 2.0), (4, 0.5, 4.0)):
        budget(runs, f"s{steps}", share, tpf, decoding={"steps": steps})
    budget(runs, "other", 0.96, 1.5, model="other", content="cd" * 32)
    build(runs, out)
    head, *budgets = table(out)
    expected = aup([(1.0, 90.0), (2.0, 88.0), (4.0, 50.0)], 96.0)
    assert head == ["tiny-llada", "1.00–4.00", "", f"{expected:.1f}"]
    assert [row[1:] for row in budgets] == [["1.00", "90.0%", ""], ["2.00", "88.0%", ""], ["4.00", "50.0%", "–"]]
    assert "runs/s8/index.html" in "".join(Page(out / "speed/index.html").links)


@pytest.mark.parametrize(
    "change",
    [{"decoding": {"steps": 8, "remasking": "random"}}, {"decoding": {"steps": 8, "gen_length": 32}},
     {"decoding": {"steps": 8}, "documents": "others", "prompts": "v2"}, {"decoding": {"steps": 8}, "limit": 50}],
    ids=["strategy", "length", "prompts", "limit"],
)  # fmt: skip
def test_other_methods_and_incomparable_runs_are_no_budgets(tmp_path: Path, change: dict[str, Any]) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    budget(runs, "one", 0.9, 1.0)
    budget(runs, "two", 0.8, 2.0, **change)
    build(runs, out)
    assert table(out) == []


def test_thresholds_inside_a_strategy_are_budgets(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    for number, threshold in enumerate((0.9, 0.7)):
        strategy = {"name": "confidence_threshold", "threshold": threshold}
        budget(runs, f"t{number}", 0.9, 1.0 + number, decoding={"strategy": strategy})
    build(runs, out)
    assert len(table(out)) == 3


def test_tokens_per_forward_of_a_task_come_from_its_sample_lines(tmp_path: Path) -> None:
    """A run of two generated tasks recorded only the rate of both together."""
    runs, out = tmp_path / "runs", tmp_path / "site"
    for steps, nfe in ((16, 12), (8, 6)):
        decoding = {"steps": steps}
        run = make_run(
            runs, f"s{steps}", tasks={"a": 0.9, "b": 0.5}, n_docs=20, decoding=decoding, documents="same", digests=False
        )
        (file,) = run.glob("samples_a_*")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["dare_bench"][0]["nfe"] = nfe
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    build(runs, out)
    (page,) = (path.name for path in (out / "speed").glob("*-a.html"))
    assert [row[1] for row in table(out, page)] == ["0.75–1.50", "0.75", "1.50"]
    assert table(out, next(path.name for path in (out / "speed").glob("*-b.html"))) == []
    build(runs, out, samples=False)
    assert table(out, page) == []
