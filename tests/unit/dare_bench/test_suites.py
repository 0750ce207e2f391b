"""Suites: what one word stands for, and whose settings win."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from paths import ROOT
from require import need_package

from dare_bench import suites
from dare_bench.config import RunSpec, run_spec
from dare_bench.errors import UnknownNameError, UsageError
from dare_bench.harness.lm_eval.task_index import TaskIndex
from dare_bench.suites import Suite, SuiteEntry

ISSUE = (
    "mmlu mmlu-pro hellaswag arc-c gsm8k math math-500 gpqa aime24 aime25 olympiadbench humaneval mbpp"
    " c-eval bbh ifeval countdown sudoku"
)
BUNDLED = ("dare", "dare-smoke")


@pytest.fixture(params=BUNDLED)
def suite(request: pytest.FixtureRequest) -> Suite:
    return suites.load(request.param)


def test_dare_has_every_benchmark_and_the_smoke_suite_all_but_the_gated_one() -> None:
    dare, smoke = suites.load("dare"), suites.load("dare-smoke")
    assert [entry.name for entry in dare.entries] == ISSUE.split()
    open_ones = {entry.name for entry in dare.entries if not entry.gated}
    assert {entry.name for entry in dare.entries} - open_ones == {"gpqa"}
    assert open_ones <= {entry.name for entry in smoke.entries}
    assert all(entry.limit is not None and entry.limit <= 2 for entry in smoke.entries)


def test_what_cannot_be_had_freely_is_said(suite: Suite) -> None:
    for entry in suite.entries:
        if entry.gated:
            assert "hub" in entry.needs and "gated" in entry.note
            assert "data/gpqa/gpqa_diamond.csv" in entry.note and "COMPASS_DATA_CACHE" in entry.note
        code = entry.name.partition("-")[0] in ("humaneval", "mbpp")
        assert ("sandbox" in entry.needs) == code, entry.name


def test_only_the_smoke_suite_sets_decoding() -> None:
    assert not any(entry.decoding or entry.likelihood or entry.limit for entry in suites.load("dare").entries)


def test_each_entry_makes_a_valid_run(suite: Suite) -> None:
    for entry, fields in suite.specs({"model": "tiny-llada"}):
        spec = run_spec(**fields)
        assert spec.harness == entry.harness and spec.tasks == entry.tasks and spec.repeats == entry.repeats


def test_the_docs_name_every_task_of_dare() -> None:
    text = (ROOT / "docs" / "suites.md").read_text()
    for entry in suites.load("dare").entries:
        assert entry.name in text
        assert all(f"`{task}`" in text for task in entry.tasks), entry.name


def test_the_docs_say_what_each_need_is_and_where_gated_data_goes() -> None:
    text = (ROOT / "docs" / "suites.md").read_text()
    assert all(f"`{need}` (" in text for need in get_args(suites.Need))
    assert "data/gpqa/gpqa_diamond.csv" in text and "COMPASS_DATA_CACHE" in text


def test_a_word_that_is_no_suite_may_be_a_task() -> None:
    assert suites.find("gsm8k") is None
    result = suites.find("dare")
    assert result is not None and result.name == "dare"
    with pytest.raises(UnknownNameError, match="dare-smoke"):
        suites.load("dare-smok")


def _one(**entry: Any) -> Suite:
    return Suite(name="s", entries=(SuiteEntry(**{"name": "a", "harness": "lm-eval", "tasks": "t", **entry}),))


def _fields(suite: Suite, **given: Any) -> dict[str, Any]:
    return suite.specs(given)[0][1]


def test_the_command_line_wins() -> None:
    suite = _one(num_fewshot=5, limit=2, repeats=8, apply_chat_template=True, decoding={"gen_length": 32, "steps": 8})
    assert _fields(suite) == {
        "harness": "lm-eval", "tasks": ("t",), "num_fewshot": 5, "limit": 2, "repeats": 8,
        "apply_chat_template": True, "decoding": {"gen_length": 32, "steps": 8},
    }  # fmt: skip
    built = _fields(suite, num_fewshot=0, limit=7, repeats=1, apply_chat_template=False, decoding={"gen_length": 64})
    assert (built["num_fewshot"], built["limit"], built["repeats"], built["apply_chat_template"]) == (0, 7, 1, False)
    assert built["decoding"] == {"gen_length": 64, "steps": 8}


def test_another_name_of_the_same_field_wins_too() -> None:
    suite = _one(decoding={"gen_length": 32, "steps": 8})
    assert _fields(suite, decoding={"max_new_tokens": 64})["decoding"] == {"max_new_tokens": 64, "steps": 8}


def test_what_is_none_was_not_given_and_the_suites_word_is_no_task() -> None:
    assert _fields(_one(limit=2), limit=None, tasks=("dare",), model="m") == {
        "harness": "lm-eval", "tasks": ("t",), "limit": 2, "model": "m",
    }  # fmt: skip


def test_named_documents_take_the_place_of_a_limit() -> None:
    assert "limit" not in _fields(_one(limit=2), samples={"t": [5]})
    assert _fields(_one(limit=2), samples={"t": [5]}, limit=3)["limit"] == 3, "the engine refuses both, not the suite"


def test_a_harness_for_a_whole_suite_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--harness opencompass and the suite 's' exclude each other"):
        _one().specs({"harness": "opencompass"})


def test_merging_does_not_write_into_the_suite() -> None:
    suite = _one(decoding={"gen_length": 32})
    _fields(suite)["decoding"]["gen_length"] = 1
    assert suite.entries[0].decoding == {"gen_length": 32}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("entries: []", "entries"),
        ("entries: [{name: a, harness: x, tasks: []}]", "tasks"),
        ("entries: [{name: a, harness: x, tasks: t, shots: 3}]", "'entries.0.shots' is not a field of a suite"),
        ("entries: [{name: a, harness: x, tasks: t, repeats: 0}]", "repeats=0"),
        ("entries: [{name: a, harness: x, tasks: t, needs: gpu}]", "needs.0='gpu'"),
        ("entries: [{name: a, harness: x, tasks: t}, {name: a, harness: x, tasks: u}]", "duplicate entry 'a'"),
    ],
)
def test_a_file_that_is_no_suite(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        suites.read(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_is_named_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("entries: [{name: a, harness: lm-eval, tasks: t}]")
    assert suites.read(path).name == "mine"


def test_all_that_an_entry_sets_is_a_setting_of_a_run() -> None:
    full = SuiteEntry(
        name="a", harness="h", tasks=("t",), num_fewshot=1, repeats=2, apply_chat_template=True, limit=1,
        decoding={"gen_length": 1}, likelihood={"mc_num": 1},
    )  # fmt: skip
    assert set(full.fields()) <= set(RunSpec.model_fields)


def test_tasks_of_lm_eval_exist(suite: Suite) -> None:
    need_package("lm_eval")
    known = set(TaskIndex([]).entries)
    named = {task for entry in suite.entries if entry.harness == "lm-eval" for task in entry.tasks}
    assert named and named <= known, named - known


def test_configs_of_opencompass_exist_load_and_are_judged_by_rules(suite: Suite) -> None:
    need_package("opencompass")
    from dare_bench.harness.opencompass.catalog import ConfigCatalog

    catalog = ConfigCatalog()
    for word in (task for entry in suite.entries if entry.harness == "opencompass" for task in entry.tasks):
        (wanted,) = catalog.match([word])
        for dataset in catalog.load(wanted):
            evaluator = dataset["eval_cfg"]["evaluator"]
            judge = evaluator.get("judge_cfg") or evaluator.get("llm_evaluator")
            assert judge is None and "judge" not in str(evaluator["type"]).lower(), f"{word} asks another model"
