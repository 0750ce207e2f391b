"""Trainings on a user's own rewards, also from a file: by one and two processes, and the tables of their
completions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks
from require import need_package

from dare_bench.cli import main
from dare_bench.errors import DareError, TrainingError, UsageError
from dare_bench.training.reward_functions import identity, names_functions, reward_functions, take_functions

need_package("accelerate")
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (12, 25, 31) for b in (14, 40)]
FIELDS: dict[str, Any] = {
    "method": "cj_grpo",
    "model": "tiny-llada-base",
    "num_generations": 4,
    "num_iterations": 2,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "max_completion_length": 4,
    "rollout": {"steps": 4},
    "per_device_train_batch_size": 8,
    "max_steps": 6,
    "save_steps": 3,
    "logging_steps": 1,
    "log_completions": 4,
    "report_to": (),
}


def train(out: Path, **more: Any) -> Any:
    from dare_bench.training.run import train

    return train(**{**FIELDS, "data": ROWS, "output_path": str(out), **more})


def matches(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[Any]:
    """TRL's signature; a tensor for each completion, or None for one that is empty or begins with 3."""
    pairs = zip(completions, answer, strict=True)
    return [None if c[:1] in ("", "3") else torch.tensor(float(c[:1] == a[:1])) for c, a in pairs]


def length(prompts: Any, texts: Sequence[str], options: Any) -> Any:
    return torch.tensor([len(text) / 4 for text in texts])


OWN: dict[str, Any] = {"reward": [matches, length], "reward_weights": [1.0, 0.25]}


def table(out: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"completions/step-{step:06d}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rollouts of two steps on own rewards. A checkpoint lies inside the second rollout."""
    out = tmp_path_factory.mktemp("own") / "out"
    train(out, **OWN)
    return out


def test_a_training_on_own_rewards_is_resumed_inside_a_rollout(tmp_path: Path) -> None:
    trained, out = tmp_path / "whole", tmp_path / "out"
    train(trained, reward=matches)
    shutil.copytree(trained, out)
    for name in ("lineage.json", "model.safetensors", "trainer_state.json"):
        (out / name).unlink()
    (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))
    (part,) = json.loads((out / "checkpoint-3/rollout.json").read_text())
    unscored = [i for i, reward in enumerate(part["rewards"]) if reward is None]
    assert 0 < len(unscored) < 8 and {part["advantage"][i] for i in unscored} == {0.0}
    train(out, reward=matches)
    assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_rewards_are_part_of_what_a_training_is(trained: Path) -> None:
    recorded = json.loads((trained / "train.json").read_text())["settings"]
    assert recorded["reward_weights"] == {"matches": 1.0, "length": 0.25}
    assert recorded["reward_functions"]["matches"].startswith(f"{matches.__module__}.matches (sha256:")
    assert (
        json.loads((trained / "lineage.json").read_text())["settings"]["reward_functions"]
        == recorded["reward_functions"]
    )

    def other(prompts: Any, texts: Sequence[str], options: Any) -> list[float]:
        return [0.0] * len(texts)

    with pytest.raises(UsageError, match="holds another training: reward_functions was"):
        train(trained, **{**OWN, "reward": {"matches": matches, "length": other}})


def test_a_file_of_prompts_with_other_columns_is_enough_for_own_rewards(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    train(tmp_path / "out", data=str(tmp_path / "rows.parquet"), max_steps=1, **OWN)
    assert {row["terms"].get("matches") for row in table(tmp_path / "out", 1)} >= {0.0, 1.0}
    with pytest.raises(DareError, match="dare-bench train sft"):
        train(tmp_path / "no reward", data=str(tmp_path / "rows.parquet"), max_steps=1)


def test_every_forward_of_mdpo_may_have_an_answer_that_cannot_be_scored(tmp_path: Path) -> None:
    def last_digit(prompts: Any, texts: Sequence[str], options: Any) -> list[Any]:
        return [None if text[:1] == "3" else int(text[-1:]) if text[-1:].isdecimal() else 0 for text in texts]

    train(tmp_path / "out", method="mdpo", max_steps=2, reward=last_digit)
    assert None in {row["reward"] for row in table(tmp_path / "out", 1)}
    history = json.loads((tmp_path / "out/trainer_state.json").read_text())["log_history"]
    assert 0 < history[0]["unscored"] < 1 and history[0]["grad_norm"] > 1e-3


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_of_a_rollout_are_those_of_its_table(trained: Path) -> None:
    history = json.loads((trained / "trainer_state.json").read_text())["log_history"]
    first, second = history[0], history[1]
    rows = table(trained, 1)
    known = [row["reward"] for row in rows if row["reward"] is not None]
    groups = [[row["reward"] for row in rows if row["group"] == g and row["reward"] is not None] for g in (0, 1)]
    spreads = [float(torch.tensor(values).double().std()) for values in groups]
    assert len(rows) == 8 and len(set(known)) > 1
    assert first["reward"] == pytest.approx(sum(known) / len(known))
    assert first["reward_group_std"] == pytest.approx(sum(spreads) / 2)
    assert first["unscored"] == 1 - len(known) / 8
    assert first["truncated"] == sum(row["truncated"] for row in rows) / 8
    assert first["reward/length"] == pytest.approx(sum(row["terms"]["length"] for row in rows) / 8)
    matched = [row["terms"]["matches"] for row in rows if "matches" in row["terms"]]
    assert 0 < len(matched) < 8 and first["reward/matches"] == pytest.approx(sum(matched) / len(matched))
    assert "accuracy" not in first, "no reward has one"
    assert "ratio_min" not in first and second["ratio_min"] < 1 < second["ratio_max"]
    assert second["clip_low"] + second["clip_high"] == pytest.approx(second["clip_fraction"])


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_step_is_replayed_from_its_table(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dare_bench.cli.rl import replay
    from dare_bench.trainers.rl.rollout import Rollouts

    out, rollouts = tmp_path / "out", []
    sample = Rollouts.sample
    monkeypatch.setattr(Rollouts, "sample", lambda self, number: rollouts.append(sample(self, number)) or rollouts[-1])
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    train(out, data=str(file), save_steps=10, **OWN)
    assert sorted(path.name for path in (out / "completions").iterdir()) == ["step-000001.jsonl", "step-000005.jsonl"]
    replay(str(out), 6, groups=2, model=None, html=str(tmp_path / "page.html"), json=True)
    shown = [c for group in json.loads(capsys.readouterr().out)["groups"] for c in group]
    assert [c["tokens"] for c in shown] == [list(c.tokens) for c in rollouts[2].completions]
    assert [c["reward"] for c in shown] == rollouts[2].rewards
    assert [c["advantage"] for c in shown] == rollouts[2].advantage
    assert all(c["weights"] is None for c in shown)
    replay(str(out), 6, groups=2, model=None, html=None, json=False)
    assert "sampled from the table completions/step-000005.jsonl; it has no weights" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"'length' is a function of your own.*: 1 to 2, 5 to 6; "):
        replay(str(out), 3, groups=2, model=None, html=None, json=False)
    kept = out / "completions/step-000005.jsonl"
    for damaged in ("", "{", "[1]\n", kept.read_text().replace('"advantage"', '"gain"')):
        kept.write_text(damaged)
        with pytest.raises(TrainingError, match=r"step-000005\.jsonl.*; remove it"):
            replay(str(out), 6, groups=2, model=None, html=None, json=False)


def test_tables_can_be_left_out_and_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "none", max_steps=1, log_completions=0, **OWN)
    assert not (tmp_path / "none" / "completions").exists()
    monkeypatch.setattr("dare_bench.trainers.rl.completions_table.MOST", 6)
    train(tmp_path / "few", max_steps=1, **OWN)
    assert len(table(tmp_path / "few", 1)) == 4, "whole groups"


def test_trees_have_tables_of_their_leaves(tmp_path: Path) -> None:
    fields = {"method": "dtreerpo", "num_iterations": 1, "max_steps": 1, "tree_branch_factor": 2}
    train(tmp_path / "out", **fields, reward=matches)
    rows = table(tmp_path / "out", 1)
    assert len(rows) == 8 and [row["group"] for row in rows] == [0] * 4 + [1] * 4
    assert {row["reward"] for row in rows} >= {None, 0.0} and all(row["completion"] for row in rows)
    assert all(row["advantage"] == 0.0 for row in rows if row["reward"] is None)


# -- two processes -----------------------------------------------------------------------------------------------------


def _failing(prompts: Any, texts: Sequence[str], options: Any) -> Any:
    import os

    if os.environ["RANK"] == "1":
        raise ValueError("no label")
    return torch.zeros(len(texts))


def _hanging(prompts: Any, texts: Sequence[str], options: Any) -> Any:
    import os
    import threading

    if os.environ["RANK"] == "1":
        threading.Event().wait()
    return torch.zeros(len(texts))


def _on_rank(folder: str) -> list[str]:
    """What the trainings on failing rewards raise; then a training of two processes."""
    from accelerate.state import AcceleratorState

    half = {"per_device_train_batch_size": 4, "max_steps": 1}
    faults: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (_failing, {}),
        (_hanging, {"reward_timeout": 0.5}),
        (_failing, {"sequence_parallel_size": 2, "per_device_train_batch_size": 8}),
    ]
    said = []
    for number, (function, more) in enumerate(faults):
        AcceleratorState._reset_state()
        try:
            train(Path(folder) / f"fault-{number}", **{**half, **more, "reward": function})
        except TrainingError as error:
            said.append(str(error))
    AcceleratorState._reset_state()
    train(Path(folder) / "two", **{**half, **OWN})
    return said


def test_a_fault_of_one_process_ends_both_with_its_line(tmp_path: Path, trained: Path) -> None:
    first, second = on_ranks(_on_rank, 2, str(tmp_path), timeout=180)
    assert len(first) == 3 and first[:2] == second[:2]
    assert first[0].startswith("the completions could not be scored: data:row ") and "ValueError: no label" in first[0]
    assert "'_hanging' took longer than reward_timeout=0.5 seconds" in first[1]
    assert "ValueError: no label" in first[2] and "ValueError: no label" in second[2]
    keep = ("where", "tokens", "reward", "terms", "group")
    one, two = ([{name: row[name] for name in keep} for row in table(f, 1)] for f in (trained, tmp_path / "two"))
    assert one == two


CODE = '''
from dataclasses import dataclass


@dataclass
class Brief:
    most: int = 3

    def __call__(self, prompts, texts, options):
        return [len(text) < self.most for text in texts]


def close(completions, answer, **columns):
    """TRL's signature."""
    return [float(text[:1] == truth[:1]) for text, truth in zip(completions, answer)]


brief = Brief()
'''
FOUR_ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (12, 25) for b in (14, 40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FOUR_ROWS))
    return tmp_path


COMMAND = [
    *("train", "cj_grpo", "--model", "tiny-llada-base", "--data", "rows.jsonl", "-o", "out", "--max-steps", "1"),
    *("--num-generations", "4", "--num-iterations", "1", "--beta", "0", "--max-completion-length", "4"),
    *("--rollout", "steps=4", "--report-to", "none"),
]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def test_a_function_of_a_file_scores_every_row(folder: Path) -> None:
    more = ["--reward", "mine.py:close,mine.py:brief", "--reward-weights", "close=1,Brief=0.25"]
    assert run(*COMMAND, *more, "--dry-run") == 0 and not (folder / "out").exists()
    assert run(*COMMAND, *more) == 0
    recorded = json.loads((folder / "out/train.json").read_text())["settings"]
    assert recorded["reward_weights"] == {"close": 1, "Brief": 0.25}
    named = recorded["reward_functions"]["close"]
    assert named.startswith("dare_bench_reward_mine.close (sha256:")
    assert named == identity(reward_functions(f"{folder}/mine.py:close")[0]), "the same from another folder"
    lines = (folder / "out/completions/step-000001.jsonl").read_text().splitlines()
    assert {line["reward"] for line in map(json.loads, lines)} <= {0.0, 0.25, 1.0, 1.25}


def test_another_body_of_the_function_is_another_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*COMMAND, "--reward", "mine.py:close") == 0
    (folder / "mine.py").write_text(CODE.replace("[:1] == truth", "[:2] == truth"))
    assert run(*COMMAND, "--reward", "mine.py:close") == 2
    assert "holds another training: reward_functions was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("gone.py:close", "there is no file gone.py; give FILE.py:FUNCTION"),
        ("mine.py:closee", "unknown function 'closee' in mine.py; closest: close"),
        ("mine.py", "name the function too, as mine.py:FUNCTION"),
        ("mine.py:CODE", "unknown function 'CODE' in mine.py"),
        ("mine.py:close,scheme=d1", "'scheme=d1' is an option"),
        ("mine.py:close,nothing", "there is no reward 'nothing'"),
        ("broken.py:close", "broken.py raised NameError: name 'missing' is not defined; "),
        ("apart.py:close", "apart.py raised ModuleNotFoundError: No module named 'mine'"),
        ("wrong.py:close", "wrong.py raised SyntaxError: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    reward: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is alone: its folder is not searched for other modules."""
    for name, code in {"broken": "x = 1\ny = missing\n", "apart": "import mine\n", "wrong": "def f(:\n"}.items():
        (folder / f"{name}.py").write_text(code)
    assert run(*COMMAND, "--reward", reward) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "frozen" not in error and "Traceback" not in error
    assert ("broken.py:2, in <module>: y = missing" in error) == (reward == "broken.py:close")
    assert not (folder / "out").exists()


def test_a_file_of_settings_does_not_run_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text("raise SystemExit('it ran')\n")
    for text in ("reward: bad.py:close\n", "options: {reward: bad.py:close}\n"):
        (folder / "train.yaml").write_text(text)
        assert run(*COMMAND, "-C", "train.yaml") == 2
        error = capsys.readouterr().err
        assert "it ran" not in error and "bad.py:close" in error


def test_options_of_registered_rewards_stay_what_they_were() -> None:
    assert not names_functions("format_weight=0.5") and not names_functions({"random": True})
    assert take_functions(fields := {"reward": "format_weight=0.5"}) == {} and fields["reward"] == "format_weight=0.5"
    with pytest.raises(UsageError, match="no file"):
        reward_functions("a.py:b")
