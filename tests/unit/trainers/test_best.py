"""The validation loss, the best checkpoint and early stopping."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

import dare_bench
from dare_bench.errors import TrainingError, UsageError
from dare_bench.trainers.best import best_of
from dare_bench.trainers.preference import DPO
from dare_bench.training.services import checked
from dare_bench.training.spec import train_spec

TRAIN = [{"prompt": f"{a}+{a}=", "completion": str(2 * a)} for a in range(10, 26)]
OTHER = [{"prompt": f"{a}+{a}=", "completion": "77777"[: 1 + a % 5]} for a in range(30, 38)]


def spec(**more: Any) -> Any:
    given = {"method": "sft", "model": "m", "data": "d", "output_path": "o", "validation_data": "v", "eval_every": 2}
    return train_spec(**{**given, **more})


def log(*values: float, name: str = "eval_loss") -> list[dict[str, float]]:
    return [{"step": 2 * i, name: value} for i, value in enumerate(values, 1)]


def test_the_best_and_when_to_stop():
    lowest = spec(metric_for_best_model="loss", early_stopping_patience=2)
    assert lowest.is_greater_better is False
    assert best_of(lowest, []) is None
    best = best_of(lowest, log(3, 1, 2))
    assert (best.step, best.value, best.stop) == (4, 1, False)
    assert best_of(lowest, log(3, 1, 2, 1)).stop, "twice no better"
    assert not best_of(lowest, log(3, 1, 2, 0.5)).stop
    small = spec(metric_for_best_model="loss", early_stopping_patience=2, early_stopping_threshold=0.5)
    assert best_of(small, log(3, 2.8, 2.6)).stop and best_of(small, log(3, 2.8, 2.6)).step == 6
    highest = spec(metric_for_best_model="eval_t/acc", early_stopping_patience=1)
    assert highest.is_greater_better is True
    assert (best_of(highest, log(1, 2, 2, name="eval_t/acc")).step) == 4
    with pytest.raises(
        TrainingError, match="metric_for_best_model='t/em': no evaluation has it; they have loss, t/acc"
    ):
        best_of(spec(metric_for_best_model="t/em"), [*log(1, name="eval_t/acc"), *log(2)])


def test_a_validation_set_makes_the_loss_the_metric():
    assert spec(load_best_model_at_end=True).best_metric == "eval_loss"
    assert spec().best_metric is None
    for more, message in [
        (
            {"early_stopping_patience": 1, "validation_data": None, "eval": {"tasks": "t"}},
            "needs a metric; give",
        ),
        (
            {"load_best_model_at_end": True, "eval_every": None},
            "needs evaluations during the training; give",
        ),
        ({"validation_data": None}, "eval_every needs something to evaluate"),
        ({"early_stopping_patience": 0}, "early_stopping_patience"),
    ]:
        with pytest.raises(UsageError, match=message):
            spec(**more)


def lines(file: Path, rows: list[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def train(folder: Path, **more: Any) -> list[dict[str, Any]]:
    """The log of a training in ``folder/out``."""
    given: dict[str, Any] = {
        "method": "sft", "model": "tiny-llada-base", "data": lines(folder / "train.jsonl", TRAIN),
        "validation_data": lines(folder / "other.jsonl", OTHER), "output_path": str(folder / "out"), "device": "cpu",
        "max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 3e-3, "lr_scheduler_type": "constant",
        "warmup_steps": 0, "report_to": "none", "eval_every": 2,
    }  # fmt: skip
    dare_bench.train(**{**given, **more})
    log: list[dict[str, Any]] = json.loads((folder / "out/trainer_state.json").read_text())["log_history"]
    return log


def curve(log: list[dict[str, Any]], name: str = "eval_loss") -> dict[int, float]:
    return {entry["step"]: entry[name] for entry in log if name in entry}


def test_the_best_checkpoint_is_the_output_and_patience_ends_the_training(tmp_path: Path, caplog: Any) -> None:
    """Validated on answers that the training data contradict: the loss rises soon."""
    asked: dict[str, Any] = {"load_best_model_at_end": True, "early_stopping_patience": 2, "save_total_limit": 1}
    asked |= {"max_steps": 60, "learning_rate": 1e-2}
    with caplog.at_level("INFO", "dare_bench"):
        losses = curve(train(tmp_path, **asked))
    last, best, out = max(losses), min(losses, key=lambda step: losses[step]), tmp_path / "out"
    assert last < 60 and last == best + 4 and all(losses[step] > losses[best] for step in losses if step > best)
    assert f"best checkpoint: step {best} of {last}, loss={losses[best]:.6g}; stopped early" in caplog.text
    weights = (out / "model.safetensors").read_bytes()
    assert weights == (out / f"checkpoint-{best}/model.safetensors").read_bytes()
    assert json.loads((out / "lineage.json").read_text())["step"] == best
    assert {path.name for path in out.glob("checkpoint-*")} == {f"checkpoint-{best}", f"checkpoint-{last}"}

    (out / "lineage.json").unlink()  # as if killed before its end
    (out / "model.safetensors").write_bytes(b"")
    assert curve(train(tmp_path, **asked)) == losses, "nothing is trained again"
    assert (out / "model.safetensors").read_bytes() == weights

    shutil.rmtree(out / f"checkpoint-{last}")
    for name in ("lineage.json", "model.safetensors"):
        (out / name).unlink()
    assert curve(train(tmp_path, **asked)) == losses, "resumed from the best one, with its log"
    assert (out / "model.safetensors").read_bytes() == weights
    with pytest.raises(UsageError, match="holds another training: early_stopping_patience was 2, now 3"):
        train(tmp_path, **{**asked, "early_stopping_patience": 3})


def test_the_validation_loss_has_the_same_noise_at_every_step_and_for_every_seed(tmp_path: Path) -> None:
    curves = []
    for seed in (0, 1):
        (folder := tmp_path / str(seed)).mkdir()
        log = train(folder, seed=seed, learning_rate=1e-12, max_steps=4, per_device_train_batch_size=3)
        curves.append(curve(log))
        assert not list((folder / "out").glob("checkpoint-*")), "a validation alone saves nothing"
    values = [value for losses in curves for value in losses.values()]
    assert len(values) == 4 and max(values) == pytest.approx(min(values), rel=1e-5)
    assert curve(log, "loss")[1] != pytest.approx(values[0], rel=1e-2)


def test_the_validation_does_not_change_the_training(tmp_path: Path) -> None:
    weights = []
    for name, more in {"with": {}, "without": {"validation_data": None, "eval_every": None}}.items():
        (folder := tmp_path / name).mkdir()
        train(folder, max_steps=3, **more)
        weights.append((folder / "out/model.safetensors").read_bytes())
        assert "score" not in json.loads((folder / "out/lineage.json").read_text())["forwards"]
    assert weights[0] == weights[1]


def test_a_metric_that_no_evaluation_has_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown metric_for_best_model 'los'.*loss"):
        train(tmp_path, metric_for_best_model="los")
    (tmp_path / "none.jsonl").write_text("no row\n")
    tasks = {"eval": {"tasks": "dare_sort", "limit": 2}, "data": str(tmp_path / "none.jsonl")}
    with pytest.raises(UsageError, match=r"unknown metric_for_best_model 'dare_sort/exact'.*dare_sort/exact_match"):
        train(tmp_path, metric_for_best_model="dare_sort/exact", **tasks)
    assert not (tmp_path / "out").exists(), "and before the data is read"


TASK = """
task: wrong_share
custom_dataset: !function {utils}.dataset
output_type: generate_until
test_split: test
doc_to_text: !function {utils}.prompt
doc_to_target: !function {utils}.answer
process_results: !function {utils}.score
generation_kwargs: {{max_gen_toks: 8, until: ["\\n"]}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: false}}
"""


def test_the_direction_is_the_tasks(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tasks" / "dare_sort", tmp_path / "tasks", ignore=shutil.ignore_patterns("*.yaml", "__*"))
    (tmp_path / "tasks" / "wrong.yaml").write_text(TASK.format(utils="utils"))
    model: Any = dare_bench.load("tiny-llada").loaded
    task = {"tasks": "wrong_share", "include_path": str(tmp_path / "tasks")}
    for metric, given, greater in [
        ("wrong_share/exact_match", None, False),
        ("wrong_share/exact_match", True, True),
        ("rewards/accuracies", None, True),
        ("logps/rejected", None, False),
    ]:
        asked = spec(metric_for_best_model=metric, greater_is_better=given, eval=task, model="tiny-llada")
        assert checked(asked, DPO, model).greater_is_better is greater


def test_the_best_by_the_score_of_a_task(tmp_path: Path) -> None:
    """Equal scores: the first evaluation is the best, and its checkpoint is the output."""
    tasks = {"eval": {"tasks": "dare_sort", "limit": 1}, "load_best_model_at_end": True, "validation_data": None}
    log = train(tmp_path, max_steps=4, metric_for_best_model="dare_sort/exact_match", learning_rate=1e-12, **tasks)
    assert set(curve(log, "eval_dare_sort/exact_match")) == {2, 4}
    assert json.loads((tmp_path / "out/lineage.json").read_text())["step"] == 2
    same = [(tmp_path / f"out{name}/model.safetensors").read_bytes() for name in ("", "/checkpoint-2", "/checkpoint-4")]
    assert same[0] == same[1] != same[2]
    runs = {path.name.partition("-dare_sort")[0] for path in (tmp_path / "out/runs").iterdir()}
    assert runs == {"checkpoint-2", "checkpoint-4"}, "the output is one of them, and not evaluated again"
    shutil.rmtree(tmp_path / "out/checkpoint-4")
    for name in ("lineage.json", "model.safetensors"):
        (tmp_path / "out" / name).unlink()
    other = {**tasks, "eval": {"tasks": "dare_sort", "limit": 2}}
    with pytest.raises(UsageError, match=r"another training: eval was .*\"limit\": 1.*, now .*\"limit\": 2"):
        train(tmp_path, max_steps=4, metric_for_best_model="dare_sort/exact_match", learning_rate=1e-12, **other)
    again = train(tmp_path, max_steps=4, metric_for_best_model="dare_sort/exact_match", learning_rate=1e-12, **tasks)
    assert curve(again, "eval_dare_sort/exact_match") == curve(log, "eval_dare_sort/exact_match"), "step 2 is not lost"
    assert json.loads((tmp_path / "out/lineage.json").read_text())["step"] == 2


def test_a_method_with_rewards_has_no_validation_loss(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="validation_data: cj_grpo learns from rewards; give eval_tasks"):
        train(tmp_path, method="cj_grpo", data=None, task="dare_sort", rows=8)
