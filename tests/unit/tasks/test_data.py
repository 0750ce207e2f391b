"""Our own tasks: what is in their data, that train and test never meet, and that lm-eval loads their folders from
any working directory."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from paths import ROOT
from require import need_package

import dare_bench.tasks
from dare_bench.registry import registry
from dare_bench.tasks.dare_arithmetic import generate as arithmetic
from dare_bench.tasks.dare_countdown import generate as countdown
from dare_bench.tasks.dare_countdown import utils as countdown_utils
from dare_bench.tasks.dare_sort import generate as sort
from dare_bench.tasks.dare_sudoku import generate as sudoku
from dare_bench.tasks.dare_sudoku.utils import solves

FOLDERS = ("dare_sudoku", "dare_countdown", "dare_arithmetic", "dare_sort")
SCRIPT = ROOT / "scripts" / "make_task_data.py"


def committed(folder: str, name: str) -> list[dict]:
    module = importlib.import_module(f"dare_bench.tasks.{folder}.generate")
    return [json.loads(line) for line in (Path(module.__file__).parent / name).read_text().splitlines()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_committed_data_are_what_the_seed_gives(folder):
    module = importlib.import_module(f"dare_bench.tasks.{folder}.generate")
    for name, rows in module.files().items():
        assert committed(folder, name) == rows, name


def test_the_script_reports_a_changed_file(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("make_task_data", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FOLDERS", ("dare_arithmetic",))
    monkeypatch.setattr(sys, "argv", ["make_task_data.py", "--check"])
    assert script.main() == 0
    monkeypatch.setattr(arithmetic, "files", lambda: {"test.jsonl": [{"a": 1}]})
    assert script.main() == 1


def test_all_data_are_small():
    root = Path(sudoku.__file__).parents[1]
    assert sum(p.stat().st_size for p in root.rglob("*.jsonl")) < 1_000_000


def test_there_are_288_grids_and_the_split_shares_none():
    grids = sudoku.all_grids()
    assert len(set(grids)) == 288
    assert all(solves("." * 16, grid) for grid in grids)
    train, test = map(set, sudoku.split_grids())
    assert not train & test
    assert train | test == set(grids)
    assert len(test) == sudoku.TEST_GRIDS


def test_sudoku_test_set_is_unique_solvable_and_held_out():
    train, test = sudoku.split_grids()
    rows = committed("dare_sudoku", "test.jsonl")
    assert len({row["puzzle"] for row in rows}) == len(rows) == 250
    assert {row["solution"] for row in rows} == set(test)
    for row in rows:
        fits = [g for g in sudoku.all_grids() if all(p in (".", c) for p, c in zip(row["puzzle"], g, strict=True))]
        assert fits == [row["solution"]]
        assert 6 <= 16 - row["puzzle"].count(".") <= 10
    built = list(islice(sudoku.train_items(5), 2000))
    assert {row["solution"] for row in built} == set(train)
    assert built[:50] == list(islice(sudoku.train_items(5), 50))
    assert built[:50] != list(islice(sudoku.train_items(6), 50))


def test_arithmetic_never_shares_a_pair_in_either_order():
    rows = committed("dare_arithmetic", "test.jsonl")
    assert len({tuple(row.values()) for row in rows}) == len(rows) == 300
    assert {row["op"] for row in rows} == {"+", "-"}
    assert all(row["answer"] == (row["a"] + row["b"] if row["op"] == "+" else row["a"] - row["b"]) for row in rows)
    held = {frozenset((row["a"], row["b"])) for row in rows}
    seen = {frozenset((row["a"], row["b"])) for row in islice(arithmetic.train_items(1), 20000)}
    assert not held & seen
    assert len(seen) > 3000


def test_sorting_never_shares_a_sequence():
    rows = [row["digits"] for row in committed("dare_sort", "test.jsonl")]
    assert len(set(rows)) == len(rows) == 1000
    assert all(len(digits) == 6 and digits.isdecimal() and sort.held_out(digits) for digits in rows)
    seen = [row["digits"] for row in islice(sort.train_items(1), 20000)]
    assert not set(rows) & set(seen) and not any(map(sort.held_out, seen))
    assert 0.09 < sum(sort.held_out(f"{i:06}") for i in range(20000)) / 20000 < 0.11
    assert len({"".join(sorted(digits)) for digits in seen}) > 3000  # of 5,005 answers


def test_the_larger_countdown_test_set_begins_with_the_smaller_one():
    rows = committed("dare_countdown", "test3_1000.jsonl")
    assert rows[:250] == committed("dare_countdown", "test3.jsonl")
    assert len({(*sorted(row["numbers"]), row["target"]) for row in rows}) == len(rows) == 1000
    assert all(countdown.held_out(row["numbers"], row["target"]) for row in rows)
    assert all(countdown_utils.score(row, [row["solution"]])["exact_match"] == 1.0 for row in rows)


@pytest.mark.parametrize("count", [3, 4])
def test_countdown_problems_are_solvable_and_held_out(count):
    def problem(row):
        return (*sorted(row["numbers"]), row["target"])

    rows = committed("dare_countdown", f"test{count}.jsonl")
    built = list(islice(countdown.train_items(1, count), 3000))
    assert len({problem(row) for row in rows}) == len(rows) == 250
    assert not {problem(row) for row in rows} & {problem(row) for row in built}
    for row in rows + built:
        assert countdown_utils.score(row, [row["solution"]]) == {"exact_match": 1.0, "format": 1.0}
        assert len(row["solution"]) <= 4 * count + 2 - 1, "the answer and one end token fit max_gen_toks"
        assert 1 <= row["target"] <= 99


def test_scoring_files_need_nothing_of_the_package():
    code = (
        "import sys, importlib.util as u\n"
        "for path in sys.argv[1:]:\n"
        "    s = u.spec_from_file_location('scorer', path); m = u.module_from_spec(s); s.loader.exec_module(m)\n"
        "assert not [n for n in sys.modules if n.startswith('dare_bench')]\n"
    )
    root = Path(sudoku.__file__).parents[1]
    files = [*(str(root / folder / "utils.py") for folder in FOLDERS), str(root / "dare_countdown" / "larger.py")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)


FIRST = {
    "dare_sudoku": ("sudoku\n", "=\n", 20, 250, "cell_accuracy"),
    "dare_countdown3": ("make ", "=", 14, 250, "format"),
    "dare_countdown4": ("make ", "=", 18, 250, "format"),
    "dare_countdown3_1000": ("make ", "=", 14, 1000, "format"),
    "dare_arithmetic": ("", "=", 4, 300, "digit_accuracy"),
    "dare_sort": ("sort ", "=", 8, 1000, "format"),
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    need_package("lm_eval")
    from lm_eval.tasks import TaskManager

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        folder = Path(dare_bench.tasks.__file__).parent
        manager = TaskManager(include_defaults=False, include_path=str(folder))
        assert set(FIRST) <= set(manager.all_subtasks)
        return manager.load(sorted(FIRST))["tasks"]


@pytest.mark.parametrize("name", sorted(FIRST))
def test_requests_metrics_and_limits(tasks, name):
    start, end, longest, count, partial = FIRST[name]
    task = tasks[name]
    task.build_all_requests(rank=0, world_size=1, limit=None)
    assert len(task.instances) == count
    for instance in task.instances:
        text, settings = instance.args
        assert text.startswith(start)
        assert text.endswith(end)
        assert settings["max_gen_toks"] == longest
        assert settings["do_sample"] is False
        assert settings["until"]
    assert set(task.aggregation()) == {"exact_match", partial}
    assert all(task.higher_is_better().values())


@pytest.mark.parametrize("name", sorted(FIRST))
def test_the_target_scores_full_marks(tasks, name):
    task = tasks[name]
    for doc in list(task.test_docs())[:20]:
        target = task.doc_to_target(doc)
        until = task.config.generation_kwargs["until"]
        assert not any(stop in target for stop in until)
        assert len(target) < task.config.generation_kwargs["max_gen_toks"]
        assert set(task.process_results(doc, [target]).values()) == {1.0}
        assert task.process_results(doc, ["?"])["exact_match"] == 0.0


def test_few_shot_examples_come_from_the_training_split(tasks):
    task = tasks["dare_arithmetic"]
    task.build_all_requests(limit=1, rank=0, world_size=1)
    shots = {(d["a"], d["b"]) for d in task.fewshot_docs()}
    assert not shots & {(d["a"], d["b"]) for d in task.test_docs()}


def test_the_registry_names_the_folder():
    assert Path(registry().get("task_folder", "dare").target).joinpath("dare_sudoku/dare_sudoku.yaml").is_file()
