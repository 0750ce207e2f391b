"""Verbs that need no model: quick, without torch, readable by machines."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from calls import call, light, refused_early
from require import need_package

from dare_bench import __version__
from dare_bench.cli import app, main, train
from dare_bench.cli.doctor import cache, links
from dare_bench.engine import opener
from dare_bench.errors import UsageError
from dare_bench.registry import registry
from dare_bench.training import run as training_run

VERBS = (
    "generate",
    "eval",
    "train sft",
    "train vrpo",
    "sweep",
    "show",
    "report",
    "compare",
    "regress",
    "score",
    "validate",
    "ls tasks",
    "leaderboard build",
    "export table",
)


def cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dare_bench.cli", *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **env},
        check=False,
    )


LIGHT = (
    ("--help",),
    ("generate", "--help"),
    ("eval", "--help"),
    ("ls", "models"),
    ("ls", "tasks", "gsm8k"),
    ("ls", "runs", "."),
    ("ls", "trainers"),
    ("ls", "rewards"),
    ("ls", "strategies"),
)


def test_light_verbs_import_nothing_heavy(tmp_path: Path) -> None:
    """All in one fresh process: what an earlier verb has imported is there after it, and named beside it."""
    assert light(LIGHT, tmp_path) == [(0, [], "")] * len(LIGHT)


def test_help_is_quick() -> None:
    """0.25 s of processor time; measured so, and not by the clock, because other tests run beside this one, and again
    where they have slowed it down."""
    times = []
    while len(times) < 3 and min(times, default=1) >= 0.8:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = cli("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0 and "eval" in done.stdout
    assert min(times) < 0.8, times


def test_version() -> None:
    code, out, _ = call(["--version"])
    assert code == 0 and out.strip() == f"dare-bench {__version__}"


def test_ls_models_names_families(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ls", "models", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert "llada" in [family["name"] for family in result["families"]]
    for checkpoint in result["checkpoints"]:
        assert Path(checkpoint["path"]).is_dir() and checkpoint["mb"] > 0


def test_ls_tasks_filters_and_names_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        with pytest.raises(SystemExit):
            main(["ls", "tasks", *words, "--json"])
        return [row["name"] for row in json.loads(capsys.readouterr().out)]

    assert "gsm8k" in listed("gsm8k") and "gsm8k_cot" in listed("gsm8k")
    assert all(name.startswith("mmlu_a") for name in listed("mmlu_a*"))
    with pytest.raises(SystemExit) as left:
        main(["ls", "tasks", "gsm8kk"])
    assert left.value.code == 2 and "closest: gsm8k" in capsys.readouterr().err


def test_ls_tasks_of_a_data_folder_lists_what_it_can_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text(
        json.dumps(
            {
                "datasets": [
                    {"hf_ids": [name], "lm_eval": {"dataset_kwargs": {"data_files": {"test": "a.jsonl"}}}}
                    for name in ("gsm8k:main", "openai/gsm8k:main", "allenai/ai2_arc:ARC-Easy")
                ]
            }
        )
    )
    result = {}
    for word in ("gsm8k", "ai2_arc", "dare_sudoku", "wikitext"):
        with pytest.raises(SystemExit):
            main(["ls", "tasks", word, "--data-dir", str(tmp_path)])
        result[word] = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert "gsm8k" in result["gsm8k"] and "dare_sudoku" in result["dare_sudoku"]
    assert result["ai2_arc"] == [], "ARC-Easy alone does not make the group"
    assert "wikitext" not in result["wikitext"]


def test_ls_runs_of_no_folder_is_one_line(tmp_path: Path) -> None:
    code, _, err = call(["ls", "runs", str(tmp_path / "none")])
    assert code == 2 and err.startswith("error: no folder") and err.count("\n") == 1


def test_output_into_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m dare_bench.cli ls tasks | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1 and not done.stderr


def test_doctor_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks").write_text("../tasks")  # what unzip leaves of a link
    (tmp_path / "trainers").mkdir()
    result = {finding.name: finding for finding in links(tmp_path)}
    assert result["folder trainers"].level == "ok"
    assert result["folder tasks"].level == "bad" and "text file" in result["folder tasks"].detail
    assert result["folder reports"].level == "bad" and "missing" in result["folder reports"].detail
    monkeypatch.setenv("DARE_BENCH_CACHE", "/proc/none")
    assert cache().level == "note" and "DARE_BENCH_CACHE" in cache().detail


def test_doctor_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--json"])
    result = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert not left.value.code, result
    assert result["torch"]["level"] == "ok" and result["folder tasks"]["level"] == "ok"


def test_doctor_tells_where_layers_would_go(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_by(
        capsys, "doctor", "--model", "tiny-llada", "--max-memory", "0=1.5MB,cpu=1MB", "--dtype", "bfloat16"
    )
    heads = [line.split(": ")[0] for line in shown.splitlines()]
    assert heads == ["ok    family", "ok    mask", "ok    sampler", "ok    weights", "ok    cuda:0", "note  cpu"]
    assert "898,688 parameters in bfloat16" in shown and "copied to cuda:0 in every forward pass" in shown
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--dtype", "bfloat16"])
    assert left.value.code == 2 and "give --model too" in capsys.readouterr().err


def test_doctor_tells_what_a_checkpoint_is_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(registry().get("checkpoint", "tiny-llada").target)
    folder = shutil.copytree(source, tmp_path / "model")
    shown = shown_by(capsys, "doctor", "--model", str(folder)).splitlines()
    assert shown[0] == "ok    family: llada, by config.json (model_type='llada', architecture='LLaDAModelLM')"
    assert shown[1] == "ok    mask: id 301, by mask_token_id in config.json"
    assert shown[2].startswith("ok    sampler: quota, bidirectional attention, tier E1; gen_length=128")
    config = json.loads((folder / "config.json").read_text())
    del config["mask_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "lineage.json").write_text(json.dumps({"settings": {"family": "llada"}}))
    shown = shown_by(capsys, "doctor", "--model", str(folder)).splitlines()
    assert shown[0] == "ok    family: llada, as it was trained or saved (lineage.json)"
    assert shown[1] == "ok    mask: id 301, by the tokenizer's token '<|mdm_mask|>'"
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--model", str(folder)])
    assert left.value.code == 1 and "no mask id: neither config.json" in capsys.readouterr().err


def shown_by(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What ``dare-bench WORDS`` prints, in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(words)
    assert not left.value.code
    return capsys.readouterr().out


def test_help_of_a_training_names_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for method, rates in (
        ("sft", "(default: 1e-05, with LoRA 0.0001)"),
        ("vrpo", "(default: 5e-07, with LoRA 5e-06)"),
    ):
        shown = shown_by(capsys, "train", method, "--help")
        assert shown.index("\nData:") < shown.index("\nOptimizer:") < shown.index(f"\nSettings of {method}:")
        assert rates in " ".join(shown.split())


def test_a_process_that_calls_train_twice_has_each_method_once(capsys: pytest.CaptureFixture[str]) -> None:
    """They piled up, and each command took longer than the one before; the settings are those of the last method."""
    shown_by(capsys, "train", "vrpo", "--help")
    assert "Settings of vrpo:" not in shown_by(capsys, "train", "sft", "--help")
    names = [command.name for command in train.app.registered_commands]
    assert len(names) == len(set(names)) > 5


def test_help_of_a_group_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("ls", "leaderboard", "export", "rl", "train"):
        shown = shown_by(capsys, group, "--help")
        assert "..." not in shown.partition("Commands:")[2] and "Commands:" in shown, group


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_every_option_whole(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns, and none is left out."""
    monkeypatch.setenv("COLUMNS", "80")
    words = verb.split()
    shown = shown_by(capsys, *words, "--help")
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    if words[0] == "train":
        train.add_commands(words[1])
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    options = [flag for param in command.params for flag in [*param.opts, *param.secondary_opts] if flag[0] == "-"]
    assert options and all(re.search(rf"(?<![\w-]){flag}(?![\w-])", shown) for flag in options)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("eval", "--modell", "x"), "unknown option '--modell'; closest: --model"),
        (("eval", "--batch-sizes", "4"), "unknown option '--batch-sizes'; closest: --batch-size"),
        (("train", "sft", "--lr", "1"), "unknown option '--lr'; closest: --learning-rate"),
        (("eval", "--repeats", "0"), "--repeats='0' is not valid: it must be greater than or equal to 1; see"),
        (("eval", "--temperature", "hot"), "error: --temperature='hot' is not valid: it must be a number; see"),
        (("eval", "--num-fewshot", "1.5"), "--num-fewshot='1.5' is not valid: it must be a whole number; see"),
        (("train", "sft", "--max-steps", "ten"), "--max-steps='ten' is not valid: it must be a whole number; see"),
        (("eval", "--lr", "1"), "unknown option '--lr'; see dare-bench eval --help"),
        (("ls", "families"), "unknown command 'families'; dare-bench ls models lists them; see dare-bench ls --help"),
        (("ls", "modls"), "unknown command 'modls'; closest: 'models'; see dare-bench ls --help"),
        (("train", "--lr", "1"), "unknown option '--lr'; see dare-bench train --help"),
        (("train", "sft", "--num_beams", "1"), "unknown option '--num-beams'; see dare-bench train sft --help"),
        (("score",), "RUN"),
        (("evall",), "evall"),
    ],
)
def test_a_usage_error_is_one_line(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    out, err = capsys.readouterr()
    assert left.value.code == 2 and not out
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err and "--help" in err


EVAL = "eval --model tiny-llada --tasks dare_sudoku"
TRAIN = "train sft --model tiny-llada-base --task dare_sudoku -o out"


def test_what_no_model_takes_is_refused_without_torch(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("# A page\n\nSome: text\n- a\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/notes.txt").write_text("mine")
    (tmp_path / "sweep.yaml").write_text("models: tiny-llada\neval: {tasks: dare_sudoku, limit: 1}\n")
    cases = (
        (f"{EVAL} --gen-kwargs num_beams=2", "no model family has a decoding field 'num_beams'"),
        (f"{EVAL} --gen-kwargs steps", "'steps' has no value; give steps=VALUE"),
        (f"{EVAL} --gen-kwargs steps=x", "steps='x' is not valid: it must be a whole number"),
        (f"{EVAL} --gen-kwargs strategy=p3", "unknown strategy 'p3'; known: ascending"),
        (f"{EVAL} --remasking X", "remasking='X' is not valid: it must be 'low_confidence' or 'random'"),
        (f"{EVAL} --device X", "device 'X' is not known; allowed: cpu, cuda, cuda:0 and so on"),
        (f"{EVAL} --dtype flot32", "dtype='flot32': must be 'float32', 'bfloat16', 'float16', 'float64' or 'auto'"),
        (f"{EVAL} --attention sdap", "attention='sdap': must be 'auto', 'sdpa', 'padded', 'flex' or 'varlen'"),
        (f"{EVAL} --family lada", "unknown family 'lada'; closest: llada"),
        (f"{EVAL} --model-args dtpye=float32", "--model-args: 'dtpye' is not an argument of load; closest: dtype"),
        (f"{EVAL} --model-args attention=sdap", "attention='sdap': must be 'auto', 'sdpa', 'padded', 'flex' or 'var"),
        (f"{EVAL} --model-args family=lada", "unknown family 'lada'; closest: llada"),
        ("generate --model tiny-llada --model-args quantise=int8 hi", "load; closest: quantize"),
        (f"{TRAIN} --model-args mask=7", "--model-args: 'mask' is not an argument of load; closest: mask_id"),
        ("validate tiny-llada --model-args dtype=flot32", "dtype='flot32': must be "),
        (f"{EVAL} --steps 0", "steps=0 is not valid: it must be greater than or equal to 1"),
        (f"{EVAL} --gen-kwargs max_new_tokens=0", "gen_length=0 is not valid: it must be greater than or equal"),
        (f"{EVAL} --threshold 1.5", "threshold=1.5 is not valid: it must be less than or equal to 1"),
        (f"{EVAL} --estimator fats", "no model family has an estimator 'fats'; closest: fast"),
        (f"{EVAL} --estimator sizes+pair", "no model family has an estimator 'sizes+pair'; closest: pairs"),
        (f"{EVAL} --likelihood-args mc_nun=8", "no model family has a likelihood field 'mc_nun'; closest: mc_"),
        (f"{EVAL} --include-path none", "--include-path none: no such folder; give a folder with lm-eval task files"),
        (f"{EVAL} --include-path own", "--include-path own: no task file in this folder"),
        ("eval --model tiny-llada --tasks own/no.yaml", "--tasks own/no.yaml: no such task file"),
        (
            "eval --model own --tasks dare_sudoku",
            "own: no config.json in it; a checkpoint is a folder in the publ",
        ),
        ("generate --model own hi", "own: no config.json in it"),
        ("generate --model tiny-llada --dtype flot32 hi", "dtype='flot32': must be "),
        ("generate --model tiny-llada -", "no prompt; give one: dare-bench generate --model MODEL"),
        (f"{EVAL} --strategy p3", "unknown strategy 'p3'; known: ascending"),
        ("eval --model readme.md --tasks dare_sudoku", "readme.md is a file, and a checkpoint is a folder; give one"),
        ("generate --model tiny-llada --remasking X hi", "it must be 'low_confidence' or 'random'"),
        ("generate --model tiny-llada --device X hi", "device 'X' is not known"),
        ("generate --model tiny-llada --strategy p3 hi", "unknown strategy 'p3'; known: ascending"),
        ("train sftt", "unknown method 'sftt'; closest: 'sft'; see dare-bench train --help"),
        (f"{TRAIN} --device X", "device 'X' is not known"),
        (f"{TRAIN} --dtype flot32", "dtype='flot32': must be "),
        (f"{TRAIN} --eval X", "unknown option '--eval'; closest: --eval-tasks"),
        (f"{TRAIN} --report-to wandbb", "unknown tracker 'wandbb'; closest: wandb"),
        (f"{TRAIN} --report-to codecarbon", "report_to=codecarbon: codecarbon is not installed; pip install codecarb"),
        (f"{TRAIN} --normalise token", "unknown option '--normalise'; renamed: normalize (--normalize)"),
        ("train sft --model tiny-llada-base --task dare_sudoku", "no output path; give --output-path (Output folder"),
        ("sweep readme.md -o out", "not valid YAML (expected <block end>, but found '-'); a sweep is a YAML file of"),
        ("sweep sweep.yaml -o own", "own holds files that this command did not write ('notes.txt'); give a new or"),
        ("validate none", "no checkpoint 'none': no such folder or bundled name"),
        ("show none", "there is no folder none; give a run's folder"),
        ("ls runs none", "no folder at none; give a run directory"),
        ("leaderboard build own -o none", "/own; create one with dare-bench eval"),
        ("leaderboard build none -o own", "no folder at none; give a run directory"),
        ("rl replay none --step 1", "'none' is not the output folder of a training"),
    )
    refused_early(cases, tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["notes.txt", "own", "readme.md", "sweep.yaml"]


def test_a_model_is_named_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Seconds of silence were taken for a command that hangs."""

    def stop(*_: Any, **__: Any) -> None:
        raise UsageError("now it would be imported")

    monkeypatch.setattr(opener, "open_checkpoint", stop)
    monkeypatch.setattr(training_run, "settle", stop)
    first = {
        EVAL: "tiny-llada",
        TRAIN: "tiny-llada-base for sft in out",
    }
    for words, opened in first.items():
        with pytest.raises(SystemExit):
            main(words.split())
        assert capsys.readouterr().err.splitlines()[-2:] == [f"opening {opened}", "error: now it would be imported"]


def test_rewards_are_listed_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row["about"] for row in json.loads(shown_by(capsys, "ls", "rewards", "--json"))}
    assert {"code", "countdown", "dare_sort", "gsm8k", "math", "sudoku"} <= rows.keys()
    for name, option in (("dare_sort", "format_weight"), ("gsm8k", "scheme=exact|d1"), ("code", "timeout")):
        assert option in rows[name]
    assert "dare_sort" in shown_by(capsys, "ls", "rewards")


def test_trainers_are_listed_with_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert "supervised fine-tuning" in shown_by(capsys, "ls", "trainers")
    assert {"name", "about", "origin"} == set(json.loads(shown_by(capsys, "ls", "trainers", "--json"))[0])


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("harness", ["lm-eval", "opencompass"])
def test_a_listing_shows_a_terminals_commands_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harness: str, flags: list[str]
) -> None:
    if harness == "opencompass":
        need_package("opencompass")
    folder = tmp_path / "tasks\x1b[2J"
    folder.mkdir()
    (folder / "odd.yaml").write_text('task: "odd\\e]0;owned\\a"\n')
    (folder / "odd\x1b]0;owned.py").write_text("odd_datasets = []\n")
    words = ["ls", "tasks", "odd", "--include-path", str(folder), "--harness", harness, *flags]
    app(words, standalone_mode=False)
    out = capsys.readouterr().out
    assert "odd" in out and not {"\x1b", "\x07"} & set(out)
    if flags:
        assert str(folder) in {row["origin"] for row in json.loads(out)}
