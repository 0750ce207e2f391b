"""``--reward FILE.py:FUNCTION``: the user's own function from a file, on the command line alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from require import need_package

from dare_bench.cli import main
from dare_bench.errors import UsageError
from dare_bench.training.reward_functions import identity, names_functions, reward_functions, take_functions

need_package("accelerate")
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
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (12, 25) for b in (14, 40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
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
