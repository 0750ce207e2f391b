"""From words to runs: suites, recipes, and what the user says on top."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy_source
from toy_model import ToyModel

from dare_bench.engine.evaluate import evaluate_all
from dare_bench.engine.opener import Opener
from dare_bench.engine.plan import PlannedRun, plan
from dare_bench.errors import UnknownNameError, UsageError

toy_source.register()


def test_plain_tasks_are_one_run_as_given() -> None:
    fields = {"model": "m", "tasks": "gsm8k,dare_sudoku", "limit": None}
    assert plan(fields) == [PlannedRun("", {"model": "m", "tasks": "gsm8k,dare_sudoku"})]


def test_a_suite_is_a_run_for_each_entry_and_other_tasks_one_more() -> None:
    planned = plan({"model": "m", "tasks": "dare,dare_sudoku", "limit": 3, "decoding": {"gen_length": 16}})
    names = [item.name for item in planned]
    assert names[0] == "mmlu" and names[-1] == "dare_sudoku" and {"gpqa", "ifeval", "aime24"} <= set(names)
    assert {item.fields["harness"] for item in planned[:-1]} == {"lm-eval", "opencompass"}
    assert all(item.fields["limit"] == 3 and item.fields["decoding"]["gen_length"] == 16 for item in planned)
    gpqa = planned[names.index("gpqa")]
    assert "gated" in gpqa.note


def test_the_user_wins_over_a_recipe_field_by_field() -> None:
    (item,) = plan({"recipe": "llada-8b-instruct/gsm8k", "model": "tiny-llada", "decoding": {"max_new_tokens": 64}})
    assert item.fields["model"] == "tiny-llada" and item.fields["recipe"] == "llada-8b-instruct/gsm8k"
    assert item.fields["decoding"]["max_new_tokens"] == 64 and "gen_length" not in item.fields["decoding"]
    assert item.fields["decoding"]["block_length"] == 8  # the recipe's own
    assert item.recipe is not None


def test_an_engine_opens_the_checkpoint_of_a_recipe_itself() -> None:
    name = "sdar-8b-chat/gsm8k.lmdeploy"
    fields = {engine: plan({"recipe": name, "engine": engine})[0].fields for engine in ("native", "lmdeploy", "sglang")}
    assert [{"family", "dtype"} & {*own} for own in fields.values()] == [{"family", "dtype"}, {"dtype"}, set()]
    (given,) = plan({"recipe": name, "engine": "sglang", "dtype": "bfloat16"})
    assert given.fields["dtype"] == "bfloat16", "which loading refuses: the server has its own"


def test_a_checkpoint_stands_for_all_its_recipes_that_can_be_run() -> None:
    planned = plan({"recipe": "llada-8b-instruct"})
    assert len(planned) > 10 and all(item.fields["recipe"] == item.name for item in planned)


@pytest.mark.parametrize("name", ["llada-8b-instruct-dare-rl", "llada-8b-instruct-dare-rl/gsm8k.d1"])
def test_recipes_of_which_none_can_be_run_say_why(name: str) -> None:
    with pytest.raises(UsageError, match=r"gsm8k\.d1 cannot be run: the weights are not published"):
        plan({"recipe": name})


def test_what_excludes_each_other() -> None:
    with pytest.raises(UsageError, match="--recipe sets the tasks"):
        plan({"recipe": "llada-8b-instruct/gsm8k", "tasks": "gsm8k"})
    with pytest.raises(UsageError, match="--harness"):
        plan({"tasks": "dare", "harness": "lm-eval"})
    with pytest.raises(UnknownNameError, match="closest: llada-8b-instruct"):
        plan({"recipe": "llada-8b-instruc"})


def test_runs_share_one_open_model_and_one_refusal_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def load(checkpoint: str, arguments: object) -> ToyModel:
        opened.append(checkpoint)
        model = ToyModel()
        model.loaded = model  # type: ignore[attr-defined]
        return model

    monkeypatch.setattr("dare_bench.engine.opener.open_checkpoint", load)
    monkeypatch.setattr(Opener, "content", lambda self, spec: "toy content")
    base = {"model": "toy", "harness": "toy", "limit": 3, "output_path": str(tmp_path)}
    planned = [PlannedRun(name, {**base, "tasks": name}) for name in ("toygen", "nothing", "toycode", "toychoice")]
    outcomes = list(evaluate_all(planned, progress=False))
    assert opened == ["toy"]
    assert [outcome.run is not None for outcome in outcomes] == [True, False, False, True]
    assert "unknown" in str(outcomes[1].reason) and "run code" in str(outcomes[2].reason)
    again = list(evaluate_all(planned, progress=False))
    assert opened == ["toy"]  # finished runs are read, not made
    assert again[0].run is not None and again[0].run.path == outcomes[0].run.path  # type: ignore[union-attr]


def test_a_name_of_another_harness_or_a_suite_is_told(tmp_path: Path) -> None:
    from dare_bench.engine.evaluate import evaluate

    pytest.importorskip("lm_eval")
    pytest.importorskip("opencompass")

    def refused(**fields: str) -> str:
        with pytest.raises(UnknownNameError) as error:
            evaluate(model="tiny-llada", output_path=str(tmp_path), **fields)
        return str(error.value)

    assert "'gsm8k_gen' is known to --harness opencompass" in refused(tasks="gsm8k_gen")
    other = refused(tasks="gsm8k", harness="opencompass")
    assert "'gsm8k' is known to --harness lm-eval" in other and "closest: gsm8k_gen," in other
    assert "or the suite 'dare-smoke'?" in refused(tasks="dare_smok")
