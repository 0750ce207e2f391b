"""Accuracy under parallelism on the speed pages: which runs are budgets of one method, and their tokens per forward."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from run_factory import alter, make_run
from site_pages import Page

from dare_bench.analysis.parallelism import aup
from dare_bench.leaderboards.builder import build


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
