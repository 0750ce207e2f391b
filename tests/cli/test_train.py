"""``dare-bench train`` on bundled checkpoints: layout, resume after a kill, refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command
import pytest
from bundled_training import difference, train
from require import need_package
from safetensors.torch import load_file

from dare_bench.errors import SaveError, TrainingError, UsageError
from dare_bench.training.spec import TRACKERS

need_package("accelerate")
COMMON = ("--model", "tiny-llada-base", "--task", "dare_sudoku", "--rows", "200", "--learning-rate", "1e-3")


def words(out: Path, *more: str) -> list[str]:
    return ["train", "sft", *COMMON, "-o", str(out), *more]


def run(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = command.run(*words(out, *more))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of eight rows in one process."""
    out = tmp_path_factory.mktemp("plain") / "out"
    train(out)
    return out


def test_the_command_trains_evaluates_and_does_nothing_the_second_time(tmp_path):
    out = tmp_path / "out"
    steps = ("--max-steps", "6", "--save-steps", "2")
    evaluation = ("--eval-tasks", "dare_sudoku", "--eval-limit", "4", "--eval-every", "3", "--eval-on-start")
    requested = (*steps, *evaluation, "--json")
    output = json.loads(run(out, *requested).stdout)
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "lineage.json", "train.json", "trainer_state.json", "logs"} <= names
    assert {f"checkpoint-{n}" for n in (2, 3, 4)} == {name for name in names if name.startswith("checkpoint")}
    lineage = json.loads((out / "checkpoint-3" / "lineage.json").read_text())
    assert (lineage["base"], lineage["method"], lineage["step"]) == ("tiny-llada-base", "sft", 3)
    assert lineage["data_hash"] == json.loads((out / "lineage.json").read_text())["data_hash"]
    assert len(output["runs"]) == 3
    assert not list(out.rglob("*.bin")), "a checkpoint holds no pickled arguments"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    again = run(out, *requested)
    assert "trained already" in again.stderr
    listed = [run["path"] for run in json.loads(again.stdout)["runs"]]
    assert listed == [run["path"] for run in output["runs"]], "the base, step 3 and the end, again"
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {path.name for path in before if before[path] != after[path]} <= {"train.json"}


def scalars(logs: Path, name: str) -> dict[int, list[float]]:
    """The values of a scalar in TensorBoard's event files, by step."""
    need_package("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    values: dict[int, list[float]] = {}
    for file in sorted(logs.iterdir()):
        events = EventAccumulator(str(file)).Reload()
        if name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                values.setdefault(event.step, []).append(event.value)
        if name in events.Tags()["tensors"]:
            for event in events.Tensors(name):
                values.setdefault(event.step, []).append(float(make_ndarray(event.tensor_proto)))
    return values


def test_scores_of_evaluations_are_in_the_trackers_at_their_steps_also_after_a_kill(tmp_path, monkeypatch, caplog):
    from dare_bench.training.services import TrainingServices

    out = tmp_path / "out"
    settings = {"max_steps": 5, "eval_every": 2, "save_total_limit": 1, "report_to": ("tensorboard",)}
    settings["eval"] = {"tasks": "dare_sudoku", "limit": 2}
    evaluate = TrainingServices.evaluate

    def killed(self: Any, checkpoint: Path, step: int) -> Any:
        if step == 4:
            raise KeyboardInterrupt
        return evaluate(self, checkpoint, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingServices, "evaluate", killed)
        train(out, **settings)
    with caplog.at_level("INFO", "dare_bench"):
        trained = train(out, **settings)
    assert f"continuing after step 4 of 5 from {out / 'checkpoint-4'}" in caplog.messages
    steps = [run.block.model.lineage["step"] for run in trained.runs]
    assert steps == [2, 4, 5], "also that of checkpoint-2, which is gone"
    assert not (out / "checkpoint-2").exists()
    for name in ("exact_match", "cell_accuracy"):
        logged = scalars(out / "logs", f"eval/dare_sudoku/{name}")
        assert list(logged) == [2, 4, 5]
        for evaluated, values in zip(trained.runs, logged.values(), strict=True):
            assert values == pytest.approx([score.value for score in evaluated.scores() if score.metric == name])
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "eval_dare_sudoku/exact_match" in entry] == [2, 4]


@pytest.mark.parametrize(("schedule", "said"), [("linear", True), ("constant", False)])
def test_a_training_that_only_warms_up_says_so(tmp_path, caplog, schedule, said):
    train(tmp_path / "out", max_steps=1, lr_scheduler_type=schedule)
    assert ("warmup_steps covers all steps (1), of which the first has a learning rate of 0" in caplog.text) is said


def test_the_trackers_are_those_of_transformers():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(TRACKERS) == set(INTEGRATION_TO_CALLBACK)


def test_the_name_of_a_training_is_passed_to_the_trackers(tmp_path, monkeypatch):
    from dare_bench.trainers import training_run

    seen = []
    arguments = training_run.training_arguments
    monkeypatch.setattr(training_run, "training_arguments", lambda *given: seen.append(arguments(*given)) or seen[-1])
    train(tmp_path / "out", max_steps=1, run_name="sudoku, first try")
    assert seen[0].run_name == "sudoku, first try"
    train(tmp_path / "out", max_steps=1, run_name="another name for the same training")


@pytest.mark.parametrize("save_steps", [3, 500], ids=["from a checkpoint", "from the beginning"])
def test_more_steps_extend_a_training_with_a_constant_rate_to_the_same_weights(tmp_path, caplog, save_steps):
    constant = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2, "save_steps": save_steps}
    whole, extended = tmp_path / "whole", tmp_path / "extended"
    train(whole, max_steps=8, **constant)
    train(extended, max_steps=5, **constant)
    with caplog.at_level("INFO", "dare_bench"):
        train(extended, max_steps=8, **constant)
    assert f"extending the training in {extended} from 5 to 8 steps" in caplog.messages
    assert (f"continuing after step 3 of 8 from {extended / 'checkpoint-3'}" in caplog.messages) == (save_steps == 3)
    assert (whole / "model.safetensors").read_bytes() == (extended / "model.safetensors").read_bytes()
    assert json.loads((extended / "lineage.json").read_text())["steps"] == 8
    assert json.loads((extended / "train.json").read_text())["status"] == "complete"
    with pytest.raises(
        UsageError, match=r"a training of 8 steps, now 5: a training can be extended, but not shortened"
    ):
        train(extended, max_steps=5, **constant)


def test_a_killed_extension_is_resumed(tmp_path, monkeypatch):
    constant = {"lr_scheduler_type": "constant", "save_steps": 3}
    whole, extended = tmp_path / "whole", tmp_path / "extended"
    train(whole, max_steps=8, **constant)
    train(extended, max_steps=5, **constant)
    from dare_bench.trainers.loop import Loop

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "train", _killed)
        train(extended, max_steps=8, **constant)
    assert json.loads((extended / "lineage.json").read_text())["step"] == 5, "until the end it is what it was"
    train(extended, max_steps=8, **constant)
    assert (whole / "model.safetensors").read_bytes() == (extended / "model.safetensors").read_bytes()


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_killed_training_ends_with_the_weights_of_an_unbroken_one(tmp_path):
    """With an adapter and dropout: ``test_train_rl.py``."""
    requested = {"max_steps": 12, "save_steps": 2, "per_device_train_batch_size": 4}
    flags = [word for name, value in requested.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, **requested)
    process = command.start(words(broken, *flags, "--report-to", "none"))
    deadline = time.monotonic() + 120
    while not (broken / "checkpoint-2" / "lineage.json").exists():
        assert time.monotonic() < deadline
        assert process.is_alive(), "it ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not (broken / "lineage.json").exists(), "it was to be killed before its end"
    (broken / "checkpoint-11").mkdir()  # as a kill leaves it in the middle of a save
    train(broken, **requested)
    assert not (broken / "checkpoint-11").exists()
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("rows", "parts"), [(4, 2), (1, 8)])
def test_the_cut_into_micro_batches_changes_nothing(tmp_path, plain, rows, parts):
    train(tmp_path / "cut", per_device_train_batch_size=rows, gradient_accumulation_steps=parts)
    assert difference(plain, tmp_path / "cut") < 2e-5
    left, right = (json.loads((o / "trainer_state.json").read_text()) for o in (plain, tmp_path / "cut"))
    assert left["log_history"][0]["loss"] == pytest.approx(right["log_history"][0]["loss"], rel=1e-5)
    assert left["log_history"][0]["grad_norm"] == pytest.approx(right["log_history"][0]["grad_norm"], rel=1e-4)


def test_a_kill_while_the_end_is_evaluated_costs_no_training(tmp_path):
    out = tmp_path / "out"
    train(out, max_steps=2)
    status = json.loads((out / "train.json").read_text())
    (out / "train.json").write_text(json.dumps({**status, "status": "running"}))
    before = (out / "model.safetensors").stat().st_mtime_ns
    result = train(out, max_steps=2, eval_on_start=True, eval={"tasks": "dare_sudoku", "limit": 2})
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    assert [run.block.model.name for run in result.runs] == ["tiny-llada-base", "out"]
    assert json.loads((out / "train.json").read_text())["status"] == "complete"


def test_another_training_is_kept_out_of_the_folder(plain):
    with pytest.raises(UsageError, match=r"learning_rate was 0\.001, now 0\.002"):
        train(plain, learning_rate=2e-3)
    with pytest.raises(UsageError, match="padding"):
        train(plain, padding="masked_out")


def test_a_checkpoint_that_no_training_made_is_not_written_over(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"did not write \('config.json'\); give a new or an empty folder"):
        train(tmp_path)


def test_a_loss_that_is_no_number_ends_it_and_names_the_rows(tmp_path):
    output = r"step \d+: the (loss|gradient's norm) is (nan|inf); rows of .* batch: dare_sudoku:"
    with pytest.raises(TrainingError, match=output):
        train(tmp_path / "out", learning_rate=1e30, max_grad_norm=0, warmup_steps=0)


def test_only_the_last_checkpoints_are_kept(tmp_path):
    train(tmp_path / "out", save_steps=1, save_total_limit=2)
    kept = sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*"))
    assert kept == ["checkpoint-2", "checkpoint-3"]


def test_a_kill_while_an_old_checkpoint_is_removed_is_survived(tmp_path, monkeypatch):
    settings = {"save_steps": 1, "save_total_limit": 1}
    rmtree = shutil.rmtree

    def killed(folder: Path, **more: Any) -> None:
        if folder.name != "checkpoint-1":
            return rmtree(folder, **more)
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        train(tmp_path / "out", **settings)
    assert (tmp_path / "out" / "checkpoint-1").exists()
    train(tmp_path / "out", **settings)
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-3"]


def test_a_full_disk_is_told_and_costs_nothing_that_was_saved(tmp_path, plain, monkeypatch):
    import torch

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 4724416 vs 4724304")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(SaveError, match=r"cannot write .*checkpoint-2: .*unexpected pos .*; fix that"):
            train(out, save_steps=2)
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
        with pytest.raises(SaveError, match=r"cannot write .*checkpoint-2: no space left on device; free some space"):
            train(out, save_steps=2)
    train(out, save_steps=2)
    assert difference(out, plain) == 0


def test_a_wrong_evaluation_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UsageError, match="dare_sudokoo"):
        train(tmp_path / "out", eval={"tasks": "dare_sudokoo"})
    assert not (tmp_path / "out" / "trainer_state.json").exists()


def test_of_several_evaluations_one_that_can_be_made_is_enough(tmp_path, monkeypatch):
    from dare_bench.engine.plan import PlannedRun
    from dare_bench.training import services

    def plan(*names):
        made = lambda fields: [PlannedRun(name, {**fields, "tasks": name}) for name in names]  # noqa: E731
        monkeypatch.setattr(services, "plan", made)

    plan("dare_sudokoo", "dare_nothing")
    with pytest.raises(UsageError, match="dare_sudokoo"):
        train(tmp_path / "out", eval={"tasks": "a", "limit": 2})
    plan("dare_sudokoo", "dare_sudoku")
    result = train(tmp_path / "out", max_steps=1, eval={"tasks": "a", "limit": 2})
    assert len(result.runs) == 1 and "dare_sudokoo" in result.not_run[0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["train", "sftt", *COMMON, "-o", "x"], "sftt"),
        (["train", "sft", "--model", "tiny-llada-base", "-o", "x"], "neither is given"),
        (["train", "sft", *COMMON], "give --output-path"),
        (["train", "sft", *COMMON, "-o", "x", "--noise", "pink"], "noise='pink'"),
        (["train", "sft", *COMMON, "-o", "x", "--eval-every", "3"], "eval_tasks, eval_suite or validation_data"),
        (
            ["train", "sft", *COMMON, "-o", "x", "--lr-scheduler-type", "cosin"],
            "lr_scheduler_type='cosin': must be",
        ),
        (["train", "sft", *COMMON, "-o", "x", "--report-to", "wanb"], "unknown tracker 'wanb'; closest: wandb"),
        (["train", "sft", *COMMON, "-o", "x", "--report-to", "codecarbon"], "codecarbon is not installed; pip install"),
    ],
)
def test_wrong_words_are_told_in_one_line(asked, said, tmp_path):
    done = command.run(*asked, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_come_from_a_file_too_and_flags_win(tmp_path):
    from dare_bench.cli.train import settings
    from dare_bench.trainers.sft import SFTOptions

    file = tmp_path / "train.yaml"
    file.write_text("model: tiny-llada-base\ntask: dare_sudoku\nlearning-rate: 0.5\nnoise: even\neval: {tasks: a}\n")
    flags = {"config": str(file), "learning_rate": 0.1, "output_path": "o", "eval_limit": "4"}
    built = settings("sft", SFTOptions.model_fields, flags)
    assert built["learning_rate"] == 0.1
    assert built["noise"] == "even"
    assert built["eval"] == {"tasks": "a", "limit": "4"}
    file.write_text("modle: x\n")
    with pytest.raises(UsageError, match="unknown setting 'modle'; closest: model"):
        settings("sft", SFTOptions.model_fields, {"config": str(file)})


def test_a_checkpoint_is_evaluated_on_a_task_of_ones_own(tmp_path):
    folder = Path(__file__).parents[2] / "docs" / "example-tasks" / "dare_reverse" / "tasks"
    options = ("--eval-tasks", "reverse", "--include-path", str(folder), "--eval-limit", "2", "--report-to", "none")
    done = run(tmp_path / "out", "--max-steps", "1", "--json", *options)
    (evaluated,) = json.loads(done.stdout)["runs"]
    assert {score["task"] for score in evaluated["scores"]} == {"reverse"}


def test_an_adapter_goes_on_learning_and_its_base_stays(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    train(first, peft="lora", learning_rate=3e-3)
    with pytest.raises(UsageError, match="is an adapter; give --peft lora"):
        train(second, model=str(first))
    train(second, model=str(first), peft="lora", learning_rate=3e-3)
    left, right = (load_file(out / "adapter_model.safetensors") for out in (first, second))
    assert left.keys() == right.keys()
    assert any((left[name] != right[name]).any() for name in left)
    lineage = json.loads((second / "lineage.json").read_text())
    assert lineage["base"] == "tiny-llada-base"
    assert [parent["peft"] for parent in lineage["parents"]] == ["lora"]
