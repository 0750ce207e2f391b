"""``dare-bench eval`` and its neighbors as a user types them: words, output, exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_source
from toy_model import ToyModel

from dare_bench.cli import main
from dare_bench.errors import UsageError
from dare_bench.run_fields import run_fields

toy_source.register()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ToyModel:
    """``--model toy`` opens a torch-free model; the test stands in an empty folder."""
    model = ToyModel()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dare_bench.engine.opener.Opener.model", lambda self, spec: model)
    monkeypatch.setattr("dare_bench.engine.opener.Opener.content", lambda self, spec: "toy content")
    return model


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one command."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    out, err = capsys.readouterr()
    code = left.value.code
    return (code if isinstance(code, int) else 0 if code is None else 1), out, err


def test_the_estimator_has_a_flag_of_its_own() -> None:
    flags = {"likelihood": "estimator=exact,mc_num=8", "estimator": "fast"}
    for given in (flags, dict(reversed(flags.items()))):
        assert run_fields(None, given)["likelihood"] == {"estimator": "fast", "mc_num": 8}


EVAL = ("eval", "--model", "toy", "--harness", "toy", "--tasks", "toygen,toychoice", "--limit", "3")


def test_prints_scores_settings_and_last_the_path(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *EVAL, "--output_path", "there", "--gen_length=16", "--likelihood-args", "mc_num=4")
    assert code == 0
    path = Path(out.splitlines()[-1])
    assert path.is_file() and path.name.startswith("results_") and path.parts[0] == "there"
    assert "toygen" in out and "95% interval" in out and "E1" in out
    (settings,) = (line for line in out.splitlines() if line.startswith("decoding"))
    assert re.fullmatch(r"decoding \(toygen\): requested: gen_length=16; others: (.*) \(\d+ more with -v\)", settings)
    assert "temperature" not in settings and "mask_id" not in settings and len(settings) < 160
    assert "mc_num=4" in out and "3 of 40" in out and "tokens/forward" in out
    assert "answering 12 requests" in err and "answering" not in out
    block = json.loads(path.read_text())["dare_bench"]
    assert block["decoding_requested"] == {"gen_length": 16}
    assert block["tasks"]["toychoice"]["likelihood"]["mc_num"] == 4
    requested = len(toy.answered)
    code, again, _ = call(
        capsys, *EVAL, "-o", "there", "--gen-kwargs", "gen_length=16", "--likelihood_args", "mc_num=4"
    )
    assert code == 0 and again.splitlines()[-1] == str(path) and len(toy.answered) == requested


def test_compiled_steps_are_announced(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert "compiled" not in call(capsys, *EVAL)[2]
    toy.spec = replace(toy.spec, compiled=True)
    _, _, err = call(capsys, *EVAL, "--fresh")
    assert [line for line in err.splitlines() if "compiled" in line] == [
        "steps are compiled: each shape takes seconds to a minute when it first occurs; on a CPU this rarely pays"
    ]


def test_json_is_one_object(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *EVAL, "--json")
    result = json.loads(out)
    assert code == 0 and result["status"] == "complete" and Path(result["results_path"]).is_file()
    assert {score["task"] for score in result["scores"]} == {"toygen", "toychoice"}


def test_failed_samples_leave_with_four(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    toy.fail_on = lambda request: request.key.startswith("toygen/1/")
    code, out, _ = call(capsys, *EVAL)
    assert code == 4 and "INCOMPLETE: 1 document " in out and "toygen 1" in out
    assert Path(out.splitlines()[-1]).is_file()


def test_interrupt_leaves_with_130_and_says_how_to_go_on(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(request: Any) -> bool:
        raise KeyboardInterrupt

    toy.fail_on = interrupt
    code, out, err = call(capsys, *EVAL)
    assert code == 130 and not out
    assert err.splitlines()[-1] == "interrupted; run the same command to resume"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--tasks", "toygn"), 2, "unknown task 'toygn'; closest: toygen"),
        (("--tasks", "toycode"), 2, "run code"),
        (("--block-length", "5"), 2, "block_length=5"),
        (("--gen-kwargs", "stpes=3"), 2, "no model family has a decoding field 'stpes'; closest: steps"),
        (("--harness", "none"), 2, "unknown harness 'none'"),
        (("--gen-kwargs", "stop=@"), 2, "cannot read 'stop=@'"),
        (("--gen-kwargs", "{a"), 2, "cannot read '{a'"),
        (("--gen-kwargs", "stop=2001-99-99"), 2, "cannot read 'stop=2001-99-99'"),
        (("--limit", "many"), 2, "limit='many'"),
        (("--limit", "inf"), 2, "limit=inf"),
        (("--limit", "nan"), 2, "limit=nan"),
        (("--seed", "None"), 2, "lm-eval's None is not"),
        (("--seed", "0,None,1,2"), 2, "expected one whole number, or four"),
        (("--samples", "[1"), 2, "--samples"),
        (("--seed", "1,2"), 2, "seeds"),
        (("--num-fewshot", "-1"), 2, "num_fewshot=-1"),
        (("--data-dir", "/nowhere", "--tasks", ""), 2, "no task"),
        (("-C", "/nowhere.yaml"), 2, "/nowhere.yaml"),
        (("-o", "/proc/here"), 1, "/proc/here"),
    ],
)
def test_errors_are_one_line(
    toy: ToyModel, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    seen, out, err = call(capsys, *EVAL, *words)
    assert seen == code and not out
    err = err.removeprefix("opening toy\n")
    assert len(err.strip().splitlines()) == 1 and err.startswith("error: ") and said in err
    assert not toy.answered


def test_debug_anywhere_shows_the_traceback(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = call(capsys, *EVAL, "--tasks", "toygn", "--debug")
    assert "Traceback" in err and err.splitlines()[-1].startswith("error: unknown task")
    _, _, err = call(capsys, *EVAL, "--tasks", "toygn")
    assert "Traceback" not in err


def test_a_defect_is_one_line_too(toy: ToyModel, capsys: pytest.CaptureFixture[str]) -> None:
    toy.fail_on = lambda request: 1 / 0 > 0
    code, _, err = call(capsys, *EVAL)
    assert code == 1 and err.splitlines()[-1].startswith("error: ZeroDivisionError") and "--debug" in err


def test_unknown_flag_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "eval", "--modell", "x")
    assert code == 2 and "--model" in err


def test_dry_run_shows_and_writes_nothing(toy: ToyModel, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = call(capsys, *EVAL, "--dry_run")
    assert code == 0 and not list(tmp_path.iterdir())
    assert "requests: 12 (toygen 3, toychoice 9)" in out
    assert f"forward passes: at most {3 * 32 + 9 * 128}" in out
    assert "question 0" in out and "gen_length=32" in out and "mc_num=128" in out
    assert "mask_id=" not in out and "more with -v)" in out
    last = out.splitlines()[-1]
    assert last.startswith("time: about ") and "s at the speed of a sample measured now: " in last, (
        "what is known at once comes first"
    )
    assert "mask_id=" in call(capsys, *EVAL, "--dry-run", "-v")[1]
    code, out, _ = call(capsys, *EVAL, "--dry-run", "--json")
    assert code == 0 and json.loads(out)["requests"] == {"toygen": 3, "toychoice": 9}


def test_config_file_first_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: a\ntasks: x,y\nlimit: 5\nseed: 3\nbatch-size: 2\nsteps: 8\n"
        "gen_kwargs: {gen_length: 64, temperature: 0.5}\nlikelihood-args: mc_num=4\n"
    )
    fields = run_fields(str(file), {"tasks": "z", "limit": None, "gen_length": 32, "gen_kwargs": "temperature=1,top=2"})
    assert fields == {
        "model": "a",
        "tasks": "z",
        "limit": 5,
        "seeds": 3,
        "max_rows": 2,
        "decoding": {"gen_length": 32, "temperature": 1, "steps": 8, "top": 2},
        "likelihood": {"mc_num": 4},
        "model_args": {},
        "engine_args": {},
    }
    file.write_text("modle: a\n")
    with pytest.raises(UsageError, match="closest: model"):
        run_fields(str(file), {})


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("--apply-chat-template",), True),
        (("--apply_chat_template", "--limit", "3"), True),
        (("--apply-chat-template", "short", "--limit", "3"), "short"),
        (("--apply-chat-template=short",), "short"),
        (("--no-apply-chat-template",), False),
        ((), False),
    ],
)
def test_a_chat_template_may_have_a_name(
    toy: ToyModel, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], value: bool | str
) -> None:
    code, out, _ = call(capsys, *EVAL, *words, "--json")
    assert code == 0
    about = json.loads((Path(json.loads(out)["path"]) / "run.json").read_text())
    assert about["spec"]["apply_chat_template"] == value and type(about["spec"]["apply_chat_template"]) is type(value)


def test_values_are_read_as_lm_eval_reads_them(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.json"
    chosen.write_text('{"toygen": [1, 2]}')
    fields = run_fields(
        None,
        {"limit": "0.1", "samples": str(chosen), "max_rows": "auto", "model_args": "mask_id=3,eos_id=4", "steps": 4},
    )
    assert fields["limit"] == 0.1 and fields["samples"] == {"toygen": [1, 2]} and fields["max_rows"] is None
    assert fields["model_args"] == {"mask_id": 3, "eos_id": 4} and fields["decoding"] == {"steps": 4}
    assert run_fields(None, {"limit": "7"})["limit"] == 7
    assert run_fields(None, {"samples": '{"a": [0]}'})["samples"] == {"a": [0]}
