"""Results of other programs on a board: shown, badged, not ranked, with unknown facts said to be unknown."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hostile_external import DATA
from run_factory import make_run
from site_pages import EVIL, Page, board_data, pages, ranks_of, rows

from dare_bench.analysis.run_finder import find_runs
from dare_bench.leaderboards.builder import build
from dare_bench.runs import index
from dare_bench.runs.field_types import LineModel
from dare_bench.runs.opencompass_results import DataSetResult


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of two runs of our own and of external results."""
    root = tmp_path_factory.mktemp("external")
    shutil.copytree(DATA, root / "runs" / "data")
    for name, share in (("good", 0.9), ("bad", 0.1)):
        make_run(root / "runs", name, tasks={"dare_sudoku": share}, n_docs=60, created="2026-11-01T00:00:00")
    build(root / "runs", root / "site")
    return root / "site"


def test_external_rows_are_badged_and_not_ranked(mixed: Path) -> None:
    records = {row["run_id"]: row for row in board_data(mixed)["rows"]}
    external = {name: row for name, row in records.items() if name not in ("good", "bad")}
    assert len(external) == 5 and all("external" in row["badges"] and row["rank"] is None for row in external.values())
    assert all(row["cost"] is None and row["status"] == "external" for row in external.values())
    assert {row["family"] for row in external.values()} == {"unknown"}


def test_external_results_share_no_row_and_no_checkpoint(mixed: Path) -> None:
    assert all(len(row["runs"]) == 1 for row in board_data(mixed)["rows"])
    assert "7 rows of 6 checkpoints" in Page(mixed / "table.html").words  # the two runs of our own are one checkpoint


def test_what_is_unknown_is_said(mixed: Path) -> None:
    row = next(text for name, text in rows(mixed).items() if name.startswith("tiny-llada-lm-eval"))
    assert "float32, lm-eval, other settings unknown" in row and "external" in row and "limit 6" in row
    assert "n 6 · 0-shot · tier unknown" in row and "None" not in row
    assert row.endswith("unknown unknown unknown unknown")  # passes, tokens per pass and second, hardware
    page = next(page for page in pages(mixed) if page.path.parent.name.startswith("tiny-llada-opencompass"))
    for words in ("Recorded settings", "family unknown, unknown number of parameters, dtype unknown", "version unknown",
                  "Unknown: the program that wrote this result does not record it."):  # fmt: skip
        assert words in page.words
    assert "Reproduce this run" not in page.words and "None" not in page.words


def test_the_data_of_a_run_have_no_facts_that_are_unknown(mixed: Path) -> None:
    data = json.loads(next((mixed / "data" / "runs").glob("tiny-llada-opencompass-*.json")).read_text())
    assert data["dare_bench"] is None and "cost" in data["external"]["not_recorded"]
    assert data["external"]["seeds"] is None and "cost" not in data["external"]


def test_their_documents_have_pages(mixed: Path) -> None:
    names = {path.parent.name for path in mixed.rglob("samples/*/index.html")}
    assert {"words_gen", "words_choice", "ARC-c", "gsm8k", "gsm8k-twice"} <= names
    choices = {name: next(mixed.rglob(f"samples/{name}/1.html")).read_text() for name in ("words_choice", "ARC-c")}
    assert ">log-likelihood<" in choices["words_choice"] and ">log-likelihood per token<" in choices["ARC-c"]


@pytest.mark.parametrize("tasks", [("dare_sudoku",), ("dare_sudoku", "choice_x")])
def test_ranks_do_not_depend_on_external_results(tmp_path: Path, tasks: tuple[str, ...]) -> None:
    """They are newer than our runs, have other prompts, and tasks that ours lack."""
    for name, share in (("good", 0.9), ("bad", 0.1)):
        make_run(tmp_path / "runs", name, tasks=dict.fromkeys(tasks, share), n_docs=60, created="2026-11-01T00:00:00")
    alone = ranks_of(tmp_path / "runs", tmp_path / "alone")
    assert alone == {"good": (1, []), "bad": (2, [])}
    shutil.copytree(DATA, tmp_path / "runs" / "external")
    mixed = ranks_of(tmp_path / "runs", tmp_path / "mixed")
    assert {name: mixed[name] for name in alone} == alone


def test_a_build_parses_each_sample_line_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the intervals and once for its page; those of a group whose metric is not the headline of its tasks once
    more."""
    shutil.copytree(DATA / "lm-eval", tmp_path / "runs")
    parsed: Counter[bytes] = Counter()
    parse = index._parse

    def counted(raw: bytes, model: type[LineModel]) -> dict[str, Any]:
        parsed[raw] += 1
        return parse(raw, model)

    monkeypatch.setattr(index, "_parse", counted)
    build(tmp_path / "runs", tmp_path / "site")
    lines = Counter(line for file in tmp_path.rglob("samples_*.jsonl") for line in file.read_bytes().splitlines(True))
    assert parsed == {line: (3 if b'"acc_norm"' in line else 2) * count for line, count in lines.items()}


def test_a_build_reads_each_file_of_opencompass_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the scores and once for the documents' pages."""
    shutil.copytree(DATA / "opencompass", tmp_path / "runs")
    opened: Counter[str] = Counter()
    read = DataSetResult._read

    def counted(files: DataSetResult) -> Any:
        opened[str(files.result)] += 1
        return read(files)

    monkeypatch.setattr(DataSetResult, "_read", counted)
    build(tmp_path / "runs", tmp_path / "site")
    assert len(opened) == 6 and set(opened.values()) == {2}


def test_a_rebuild_writes_only_what_changed(tmp_path: Path) -> None:
    runs = Path(shutil.copytree(DATA, tmp_path / "runs"))
    assert build(runs, tmp_path / "site").parts_written > 0
    assert build(runs, tmp_path / "site").parts_written == 0
    (predictions,) = runs.rglob("predictions/tiny-llada/gsm8k.json")
    predictions.write_text(predictions.read_text().replace('"prediction": "', '"prediction": "other'))
    assert build(runs, tmp_path / "site").parts_written > 0
    assert any("other" in page.words for page in pages(tmp_path / "site") if "gsm8k" in page.path.parts)
    file = next(runs.glob("opencompass/*/configs/*.py"))
    file.write_text(f"{file.read_text()}\n")
    assert build(runs, tmp_path / "site").parts_written > 0


def test_text_of_others_is_never_markup(tmp_path: Path) -> None:
    runs = Path(shutil.copytree(DATA, tmp_path / "runs"))
    for file in runs.rglob("results_*.json"):
        value = json.loads(file.read_text())
        value["model_name"] = value["lm_eval_version"] = value["config"]["model_dtype"] = EVIL
        value["config"]["model_args"] = {EVIL: EVIL}
        file.write_text(json.dumps(value))
    for part in ("results", "predictions"):
        folder = next(runs.glob(f"opencompass/*/{part}/tiny-llada"))
        folder.rename(folder.with_name(EVIL.replace("/", "")))
    assert len(find_runs(runs)) == 5
    build(runs, tmp_path / "site")
    for page in pages(tmp_path / "site"):
        assert "img" not in page.tags and "alert(1)" not in [
            value for _, name, value in page.attributes if name == "src"
        ]
        assert "\x1b" not in page.text and "\u202e" not in page.text
