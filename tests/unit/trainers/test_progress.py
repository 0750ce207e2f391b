"""What a training tells on stderr: the same lines everywhere, and on a terminal a bar that leaves room for itself."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from dare_bench.trainers.progress import TrainingProgress, log_line

LOGS = {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-5, "rewards/margins": 0.25, "epoch": 1.0}


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool) -> str:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    state = SimpleNamespace(global_step=0, max_steps=4, is_world_process_zero=True)
    progress = TrainingProgress(8)
    progress.on_train_begin(None, state, None)
    for step in range(1, 5):
        state.global_step = step
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, logs=dict(LOGS))
    progress.on_train_end(None, state, None)
    return capsys.readouterr().err.replace("\r", "\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_every_entry_of_the_log_has_a_line_of_its_own(monkeypatch, capsys, terminal):
    lines = shown(monkeypatch, capsys, terminal).splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.partition(":")[0] for line in steps] == ["step 1/4", "step 2/4", "step 3/4", "step 4/4"]
    assert all("rewards/margins 0.2500" in line and "rows/s" in line for line in steps)
    assert [" left" in line for line in steps] == [True, True, True, False] and "1s left" in steps[2]


def test_the_bar_has_the_loss_alone(monkeypatch, capsys):
    bars = [line for line in shown(monkeypatch, capsys, True).splitlines() if line.startswith("train:")]
    assert "4/4" in bars[-1] and "loss 0.5000" in bars[-1] and "margins" not in bars[-1]


def test_a_line_has_the_main_figures_first_and_as_many_as_fit():
    phases = {f"{name}/update": 12.0 for name in ("forwards", "seconds", "tokens_per_second")}
    others = {f"reward/part{number}": 0.0 for number in range(9)}
    logs = {
        **others,
        **phases,
        "kl": 0.5,
        "kl_std": 0.1,
        "only_std": 1.0,
        "reward_std": 0.25,
        "reward": 0.5,
        "loss": 0,
        "epoch": 1.0,
    }
    main = "loss 0, reward 0.5000 (std 0.2500), kl 0.5000"
    assert log_line(logs, len(main)) == log_line(logs, len(main) + 5) == main
    assert log_line(logs, 70) == f"{main}, reward/part0 0" and log_line(logs, 0) == "loss 0"
    assert log_line(logs, 500).endswith("reward/part8 0, only_std 1.0000")
