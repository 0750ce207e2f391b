"""``dare-bench eval`` and its neighbors as a user types them: words, output, exit codes, the table that a run ends
with."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_source
from run_factory import alter, make_run
from toy_model import ToyModel

from dare_bench.cli import leaderboard, main
from dare_bench.cli.summary import print_run, record
from dare_bench.errors import UsageError
from dare_bench.run_fields import run_fields
from dare_bench.runs.reader import Run

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


TASKS = {"gsm": 0.5, "choice_x": 0.3}


def test_seeds_are_named_by_what_they_are_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path)
    print_run(Run(folder))
    assert "float32, seeds 0 (Python), 1234 (NumPy, PyTorch, few-shot examples)\n" in capsys.readouterr().out
    alter(folder, seeds=(7, 7, 7, 7))
    print_run(Run(folder))
    assert "float32, seed 7\n" in capsys.readouterr().out


def test_the_share_of_answers_that_could_be_read_is_a_column_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path, tasks=TASKS)
    print_run(Run(folder))
    assert "extracted" not in capsys.readouterr().out

    (path,) = folder.glob("results_*.json")
    results = json.loads(path.read_text())
    results["dare_bench"]["extraction"] = {"gsm": {"none": {"matched": 12, "ambiguous": 1, "no_match": 7}}}
    path.write_text(json.dumps(results))
    run = Run(folder)
    print_run(run)
    head, generated, choices, *_ = capsys.readouterr().out.splitlines()
    at = head.index("extracted")
    assert generated[at:].split()[0] == "65.0%"
    assert not choices[at : at + len("extracted")].strip()
    assert [score["extraction_rate"] for score in record(run)["scores"]] == [0.65, None]


def test_decoding_fields_at_the_familys_defaults_are_counted_and_with_verbose_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = {"gen_length": 128, "temperature": 0.0, "remasking": "low_confidence", "cfg_scale": 1.5, "steps": 8}
    alter(folder := make_run(tmp_path, decoding=decoding), decoding_requested={"steps": 8})
    run = Run(folder)
    print_run(run)
    short = capsys.readouterr().out
    assert "remasking" not in short and "cfg_scale=1.5" in short
    (hidden,) = (line for line in short.splitlines() if line.startswith("decoding"))
    assert hidden.endswith("more with -v)") and "temperature" not in hidden and "requested: steps=8;" in hidden
    print_run(run, verbose=True)
    whole = capsys.readouterr().out
    assert "remasking=low_confidence" in whole and "with -v" not in whole
    alter(folder := make_run(tmp_path, "b", decoding={**decoding, "remasking": "random"}), decoding_requested={})
    print_run(Run(folder))
    shown = capsys.readouterr().out
    assert "remasking=random" in shown and "steps=8" in shown, "the task's steps, which are not gen_length"


def test_nothing_requested_prints_no_field_that_the_family_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = {"gen_length": 20, "stop": ["\n"], "steps": 20, "block_length": 20, "confidence_dtype": "float32"}
    alter(folder := make_run(tmp_path, decoding={**decoding, "temperature": 0.0}), decoding_requested={})
    print_run(Run(folder))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("decoding"))
    assert line.partition(": ")[2] == "gen_length=20 stop=['\\n'] (7 more with -v)"


# -- Progress of counted work: a bar on a terminal, lines now and then off it, nothing where it ------------------------


def test_off_a_terminal_what_is_done_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with leaderboard.counting("runs", "boards") as tell:
        tell(1, 2)
        tell(2, 2)
    result = capsys.readouterr()
    assert (result.out, result.err) == ("", "")


def test_off_a_terminal_long_work_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(leaderboard.time, "monotonic", lambda: now[0])
    with leaderboard.counting("runs", "boards") as tell:
        for done in range(1, 31):
            now[0] += 1.0
            tell(done, 30)
    result = capsys.readouterr()
    assert (result.out, result.err) == ("", "10/30 runs\n20/30 runs\n30/30 runs; boards\n")


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with leaderboard.counting("runs", "boards") as tell:
        tell(3, 4)
        tell(4, 4)
    assert "4/4" in screen.getvalue() and "boards" in screen.getvalue()


# -- ``eval`` on a suite and on recipes, as a user meets them ----------------------------------------------------------


SUITE = """
about: two small ones and one that nobody has
entries:
  - {name: boards, harness: lm-eval, tasks: dare_sudoku, limit: 2}
  - {name: sums, harness: lm-eval, tasks: dare_arithmetic, limit: 2}
  - {name: lost, harness: lm-eval, tasks: no_such_task, note: only to show what is said}
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from dare_bench import suites

    pytest.importorskip("lm_eval")
    file = tmp_path / "little.yaml"
    file.write_text(SUITE)
    monkeypatch.setattr(suites, "find", lambda word: suites.read(file) if word == "little" else None)
    monkeypatch.chdir(tmp_path)
    return "little"


def test_one_word_runs_all_and_says_what_was_not_run(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "eval", "--model", "tiny-llada", "--tasks", suite)
    assert code == 4
    assert "boards" in out and "sums" in out and "NOT RUN: lost: unknown task 'no_such_task'" in out
    assert "only to show what is said" in out and "[3/3] lost" in err
    paths = [line for line in out.splitlines() if line.endswith(".json")]
    assert len(paths) == 2 and all(Path(path).is_file() for path in paths)
    code, out, _ = call(capsys, "eval", "--model", "tiny-llada", "--tasks", suite, "--json")
    result = json.loads(out)
    assert code == 4 and [item["name"] for item in result] == ["boards", "sums", "lost"]
    assert result[2]["run"] is None and "no_such_task" in result[2]["not_run"]


def test_a_dry_run_of_a_recipe_needs_no_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "eval", "--recipe", "llada-8b-instruct/gsm8k", "--dry-run")
    assert code == 0
    assert "337,664 forward passes" in out  # 1,319 documents x 256 steps
    assert "GPU hours" in out and "not a measurement" in out and "assumed:" in out
    code, out, _ = call(capsys, "eval", "--recipe", "llada-8b-instruct/gsm8k", "--dry-run", "--json", "--limit", "10")
    assert code == 0 and json.loads(out)["forwards"] == 2560


def test_a_dry_run_without_the_size_of_the_test_set_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    dry = ("eval", "--recipe", "llada2.0-mini/c-eval.report", "--dry-run")
    code, out, _ = call(capsys, *dry)
    assert code == 0 and "model: inclusionAI/LLaDA2.0-mini" in out and "(1 documents)" in out
    assert "assumed: one document: the size of the test set is not recorded (" in out
    code, out, _ = call(capsys, *dry, "--json")
    assert code == 0 and json.loads(out)["documents"] == 1
    code, out, _ = call(capsys, *dry, "--limit", "10")
    assert code == 0 and "10 documents" in out and "GPU" in out
    code, _, err = call(capsys, *dry, "--gen-kwargs", "stepps=3")
    assert code == 2 and "'stepps'" in err


def test_a_dry_run_of_a_recipe_counts_the_flags_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    dry = ("eval", "--recipe", "llada-8b-instruct/gsm8k", "--dry-run")
    short = ("--gen-length", "32", "--steps", "32", "--repeats", "4")
    code, out, _ = call(capsys, *dry, *short)
    assert code == 0 and f"{1319 * 4 * 32:,} forward passes" in out
    code, out, _ = call(capsys, *dry, "--model", "org/another")
    assert code == 0 and "a network of GSAI-ML/LLaDA-8B-Instruct's shape; the shape of org/another is not known" in out
    code, _, err = call(capsys, *dry, "--gen-length", "33")
    assert code != 0 and "gen_length=33 is not divisible by block_length=8" in err
    code, out, _ = call(capsys, "eval", "--recipe", "sdar-8b-chat/olympiadbench", "--dry-run")
    assert code == 0 and "2,674 documents" in out
