"""Names of tasks without lm-eval's scan, and which of them run generated code."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_tasks import write_tasks

from dare_bench.errors import DataError, UnknownNameError, UsageError
from dare_bench.harness.lm_eval import task_index
from dare_bench.harness.lm_eval.code_tasks import CodeTaskError, refuse_unknown_code, sandboxed_tasks
from dare_bench.harness.lm_eval.task_index import TaskIndex, lm_eval_folder

KINDS = {"TASK": "task", "PY_TASK": "python", "GROUP": "group", "TAG": "tag"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))


def as_lm_eval(root: Path) -> dict[str, tuple[str, str | None, list[str]]]:
    from lm_eval.tasks._index import TaskIndex as Theirs

    return {
        name: (KINDS[entry.kind.name], str(entry.yaml_path) if entry.yaml_path else None, sorted(entry.tags))
        for name, entry in Theirs.build([root]).items()
    }


def as_ours(root: Path) -> dict[str, tuple[str, str | None, list[str]]]:
    return {
        name: (entry.kind, str(entry.path) if entry.path else None, list(entry.members))
        for name, entry in task_index._entries(root, "", task_index._scanned(root, {})).items()
    }


def same(root: Path) -> None:
    reference, ours = as_lm_eval(root), as_ours(root)
    assert ours and set(ours) == set(reference)
    for name, (kind, path, tags) in reference.items():
        assert ours[name][:2] == (kind, path), name
        if kind == "tag":
            assert ours[name][2] == tags, name


def test_odd_files_are_read_as_lm_eval_reads_them(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    odd = {
        "a_first.yaml": "task: twin\ntag: [one, 'two']\n",
        "b_second.yaml": "task: twin\ntag: three\n",
        "broken.yaml": "task: [unclosed\n",
        "no_name.yaml": "dataset_path: x\n",
        "lost.yaml": "include: nowhere.yaml\ntask: lost\n",
        "circle.yaml": "include: circle.yaml\ntask: circle\n",
        "quoted.yaml": "'task': \"quoted name\"   # with a remark\n'tag':\n- three\n",
        "inner.yaml": "dataset_kwargs:\n  task: not_me\n  tag: nor_me\ntask: inner\ndescription: |\n  task: not me\n",
        "made.yaml": "class: !function utils.process_docs\ntask: made\n",
        "deep/up.yaml": "include: ../_base_yaml\ntask: up\n",
        "deep/tagless.yaml": "include: ../_base_yaml\ntask: tagless\ntag: null\n",
        "deep/both.yaml": "include:\n  - ../_base_yaml\n  - ../add.yaml\n",
        "deep/.ipynb_checkpoints/old.yaml": "task: old\n",
        "group_in.yaml": "include: _group.yaml\ngroup: other_group\n",
    }
    for name, text in odd.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    same(tmp_path)


# What to write into a task file, and what a listing makes of the file: left out, or there with these tags.
DAMAGED = {
    "tag 3,000 deep": ("task: bad\ntag: " + "[" * 3000 + "]" * 3000, None),
    "tag so deep that the parser's stack ends": ("task: bad\ntag:\n" + " -" * 30_000 + " x", None),
    "tag deep and never closed": ("task: bad\ntag: " + "[" * 30_000, None),
    "tag that holds itself": ("task: bad\ntag: &a [*a]", None),
    "tag is a number": ("task: bad\ntag: 5", ["5"]),
    "tag is a list of lists": ("task: bad\ntag: [[x]]", None),
    "include is a number": ("task: bad\ninclude: 5", None),
    "include is a FIFO": ("task: bad\ninclude: fifo", None),
    "include is a device": ("task: bad\ninclude: /dev/zero", None),
    "larger than a task file may be": ("task: bad\n#" + "x" * (256 << 10), None),
}


@pytest.mark.parametrize("text,tags", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_task_file_is_left_out_and_the_others_stay(tmp_path: Path, text: str, tags: list[str] | None) -> None:
    root = tmp_path / "tasks"
    root.mkdir()
    os.mkfifo(root / "fifo")
    os.mkfifo(root / "fifo.yaml")
    (root / "bad.yaml").write_text(text)
    (root / "good.yaml").write_text("task: good\n")
    result = TaskIndex([root])._extra
    assert "good" in result
    assert ("bad" in result) == (tags is not None)
    assert all("bad" in result[tag].members for tag in tags or ())


def test_includes_go_only_so_deep(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("include: 0\n")
    for number in range(1200):
        (tmp_path / str(number)).write_text(f"include: {number + 1}\n")
    (tmp_path / "deep.yaml").write_text("task: deep\n")
    assert "deep" in TaskIndex([tmp_path])._extra


@pytest.mark.parametrize("deep", ["[" * 3000 + "]" * 3000, "&a [{task: *a}]"], ids=["deep", "holds itself"])
def test_a_group_nested_without_end_is_told_as_an_error(tmp_path: Path, deep: str) -> None:
    (tmp_path / "group.yaml").write_text(f"group: mine\ntask: {deep}\n")
    with pytest.raises(DataError, match=r"group\.yaml: cannot be read as a task file .*deep"):
        TaskIndex([tmp_path])


BROKEN = r"mine\.yaml: cannot be read as a task file \(.*line 2"


def test_a_file_that_cannot_be_read_is_named_where_it_is_missed(tmp_path: Path) -> None:
    """By itself, in a folder with nothing else, and where a name is not known; next to others it is left out."""
    (tmp_path / "mine.yaml").write_text("task: mine\ndoc_to_text: 'open\n")
    for ask in (lambda: TaskIndex().match([str(tmp_path / "mine.yaml")]), lambda: TaskIndex().match([str(tmp_path)])):
        with pytest.raises(DataError, match=BROKEN):
            ask()
    with pytest.raises(DataError, match=BROKEN):
        TaskIndex([tmp_path])
    (tmp_path / "other.yaml").write_text("task: other\noutput_type: generate_until\n")
    index = TaskIndex([tmp_path])
    assert index.match(["other"]) == ["other"]
    with pytest.raises(DataError, match=BROKEN):
        index.match(["mine"])
    assert TaskIndex().match([str(tmp_path / "other.yaml")]) == ["other"]


def test_a_missing_include_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("include: nothing.yaml\ntask: mine\n")
    with pytest.raises(DataError, match=r"nothing\.yaml"):
        TaskIndex().match([str(tmp_path / "mine.yaml")])


@pytest.mark.parametrize("folder", ["glue", "bbh", "mmlu", "leaderboard", "minerva_math"])
def test_lm_evals_own_folders_are_read_as_lm_eval_reads_them(folder: str) -> None:
    same(lm_eval_folder() / folder)


def test_names_are_remembered_and_read_again_when_the_memory_is_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, version = lm_eval_folder() / "glue", importlib.metadata.version("lm_eval")
    first = task_index._lm_eval_names(root)
    assert "cola" in first
    kept = next((tmp_path / "cache").glob("lm_eval-tasks-*.json"))
    scans = []
    monkeypatch.setattr(task_index, "_scanned", lambda root, _: scans.append(root) or {"gsm8k": ["task", "x.yaml", []]})
    assert task_index._lm_eval_names(root) == first and not scans
    kept.write_text(kept.read_text().replace(f'"{version}"', '"0.0.1"'))
    assert len(task_index._lm_eval_names(root)) == 1 and scans
    kept.write_text("{broken")
    assert len(task_index._lm_eval_names(root)) == 1


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "file" / "below"))
    assert task_index._lm_eval_names(lm_eval_folder() / "glue")["cola"][0] == "task"


def test_names_need_neither_torch_nor_lm_eval() -> None:
    code = (
        "import sys; from dare_bench.harness.lm_eval.task_index import TaskIndex; names = TaskIndex().entries;"
        "assert {'gsm8k', 'bbh', 'hellaswag', 'ai2_arc'} <= set(names), len(names);"
        "print([m for m in ('torch', 'lm_eval', 'transformers', 'datasets') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_match_names_globs_paths_and_the_closest(tmp_path: Path) -> None:
    index = TaskIndex([write_tasks(tmp_path)])
    assert index.match(["toy_w*", "gsm8k", "gsm8k"]) == ["toy_words", "gsm8k"]
    assert index.match(["mmlu_anatomy"]) == ["mmlu_anatomy"]
    with pytest.raises(UnknownNameError, match="unknown task 'toy_ad'; closest: toy_add, "):
        index.match(["toy_ad"])
    with pytest.raises(UnknownNameError, match="nothing_"):
        index.match(["nothing_*"])
    with pytest.raises(UsageError, match=r"absent\.yaml: no such task file"):
        index.match(["absent.yaml"])
    alone = TaskIndex()
    assert alone.match([str(tmp_path / "add.yaml")]) == ["toy_add"]
    assert "toy_choice" in alone.match([str(tmp_path)])
    assert "toy_family" not in alone.match([str(tmp_path)])


def test_an_include_path_wins_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: gsm8k\ndataset_path: json\n")
    index = TaskIndex([tmp_path])
    assert index.entries["gsm8k"].path == tmp_path / "mine.yaml"
    assert "replaces lm-eval's" in index.replaced["gsm8k"]
    assert "hellaswag" not in index.replaced
    with pytest.raises(UsageError, match="no such folder"):
        TaskIndex([tmp_path / "absent"])


def test_groups_and_tags_open_to_tasks(tmp_path: Path) -> None:
    index = TaskIndex([write_tasks(tmp_path)])
    assert [e.name for e in index.leaves(["toy_group"])] == ["toy_add", "toy_choice"]
    assert {e.name for e in index.leaves(["toy_family"])} == {"toy_add", "toy_shots", "toy_twice", "toy_sampled"}
    assert len(index.leaves(["bbh"])) == 27
    assert len(index.leaves(["mmlu"])) == 57


def test_scorers_that_run_code_by_themselves_are_refused_with_the_reason(tmp_path: Path) -> None:
    index = TaskIndex([write_tasks(tmp_path)])
    (tmp_path / "code" / "starts.yaml").write_text(
        "task: toy_starts\nunsafe_code: true\nmetric_list:\n  - metric: !function shell.score\n"
    )
    (tmp_path / "code" / "shell.py").write_text("import subprocess\nmetric = 'code_eval'\ndef score(**_): ...\n")
    for name, reason in {
        "toy_code": "marked unsafe_code, and its scorer does not use code_eval",
        "toy_code_child": "marked unsafe_code",
        "toy_runs": "scorer.py runs code by itself",
        "toy_code_group": "toy_code_child",
        str(tmp_path / "code" / "starts.yaml"): "shell.py starts programs by itself",
        "cruxeval_input": "utils.py runs code by itself",
        "longproc_pseudo_to_code_2k": "metrics.py runs code by itself",
    }.items():
        with pytest.raises(CodeTaskError, match=reason) as error:
            sandboxed_tasks(index.leaves(index.match([name])))
        assert "\n" not in str(error.value) and error.value.exit_code == 2


def test_tasks_that_use_code_eval_run_in_the_sandbox(tmp_path: Path) -> None:
    index = TaskIndex([write_tasks(tmp_path)])
    (tmp_path / "code" / "metric.yaml").write_text("task: toy_metric\nmetric_list: [{metric: code_eval}]\n")

    def found(*names: str) -> list[str]:
        return sandboxed_tasks(index.leaves(index.match(names)))

    assert found(str(tmp_path / "code" / "metric.yaml")) == ["toy_metric"]
    assert set(found("humaneval*", "mbpp*", "gsm8k")) >= {
        *("humaneval", "humaneval_plus", "humaneval_instruct", "humaneval_64", "humaneval_64_instruct"),
        *("mbpp", "mbpp_plus", "mbpp_instruct", "mbpp_plus_instruct", "humaneval_single_line_infilling"),
    }
    assert found("toy_group", "gsm8k", "bbh", "ifeval", "minerva_math") == []
    assert not sandboxed_tasks(index.leaves(index.match(["dare_*", "hellaswag"])))


def test_a_marked_task_that_no_file_told_of_is_refused() -> None:
    refuse_unknown_code(["humaneval"], ["humaneval", "mbpp"])
    with pytest.raises(CodeTaskError, match=r"task 'g::x' would run .*inside a group's file"):
        refuse_unknown_code(["humaneval", "g::x"], ["humaneval"])


def test_a_task_that_cannot_be_answered_is_refused_by_its_file(tmp_path: Path) -> None:
    """Before its data are fetched, wherever its file has the key from."""
    (tmp_path / "base.yaml").write_text("output_type: loglikelihood_rolling\n")
    (tmp_path / "own.yaml").write_text("task: my_perplexity\ninclude: base.yaml\ndataset_path: nobody/nothing\n")
    (tmp_path / "fine.yaml").write_text("task: my_answers\noutput_type: generate_until\n")
    index = TaskIndex([tmp_path])
    index.refuse_rolling(index.leaves(["my_answers"]))
    assert tuple(index.entries["my_perplexity"].data_set) == ("nobody/nothing", None)
    with pytest.raises(UsageError, match="'my_perplexity' needs loglikelihood_rolling"):
        index.refuse_rolling(index.leaves(["my_answers", "my_perplexity"]))
