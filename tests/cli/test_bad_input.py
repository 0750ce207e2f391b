"""Words and files that make no sense: one line on stderr that is no defect, another exit code than 0, and no hang."""

from __future__ import annotations

import gzip
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from dare_bench.cli import main
from dare_bench.config import MAX_REPEATS
from dare_bench.sweeps.grid import MOST

LONG = "x" * 300
DEEP = "[" * 1000 + "]" * 1000
MODEL = "models: [tiny-llada-base]\n"
EVAL = ("eval", "--model", "tiny-llada", "--tasks", "dare_sudoku", "--limit", "1", "-o", "out")
TRAIN = ("train", "sft", "--model", "tiny-llada-base", "--task", "dare_sudoku", "--max-steps", "1", "-o", "out")
ROWS = ("train", "sft", "--model", "tiny-llada-base", "--max-steps", "1", "-o", "out", "--data")
SWEEP = ("sweep", "-o", "out", "--dry-run")


def axes(length: int, *names: str) -> str:
    """Axes of a grid in YAML."""
    return ", ".join(f"{name}: [{','.join(map(str, range(1, length + 1)))}]" for name in names)


FILES: dict[str, str | bytes] = {
    "deep.yaml": f"a: {DEEP}",
    "keys.yaml": "model: tiny-llada\n? [a, b]\n: 1\n",
    "large.yaml": "# " + "x" * (1 << 20),
    "tag.yaml": "model: !!int ''\n",
    "model.yaml": "model: [a]\ntasks: dare_sudoku\n",
    "tasks.yaml": "model: tiny-llada\ntasks: 5\n",
    "limit.yaml": "model: tiny-llada\ntasks: dare_sudoku\nlimit: {a: 1}\n",
    "word.yaml": "model: tiny-llada\ntasks: dare_sudoku\nlimit: four\n",
    "shots.yaml": "model: tiny-llada\ntasks: dare_sudoku\nnum_fewshot: four\n",
    "none.yaml": "model: tiny-llada\ntasks: dare_sudoku\nrepeats: 0\n",
    "warm.yaml": "model: tiny-llada\ntasks: dare_sudoku\ntemperature: hot\n",
    "steps.yaml": "model: tiny-llada\ntasks: dare_sudoku\nsteps: 2.5\n",
    "many_steps.yaml": "model: tiny-llada\ntasks: dare_sudoku\nsteps: 1000000000\n",
    "hex.yaml": f"model: 0x{'f' * 5000}\n",
    "sixty.yaml": f"model: 9{':59' * 3000}\n",
    "rows.yaml": "model: tiny-llada\ntasks: dare_sudoku\nbatch_size: many\n",
    "decoding.yaml": "model: tiny-llada\ntasks: dare_sudoku\ndecoding: 5\n",
    "eval_args.yaml": "model: tiny-llada-base\ntask: dare_sudoku\noutput_path: out\neval_args: 5\n",
    "grid6.yaml": f"{MODEL}eval: {{tasks: [a], gen_kwargs: {{{axes(100, 'steps', 'gen_length', 'top_k')}}}}}\n",
    "grid9.yaml": f"{MODEL}train: {{method: sft, task: dare_sudoku, {axes(1000, 'max_steps', 'seed', 'rows')}}}\n",
    "grids.yaml": f"{MODEL}train: {{method: sft, task: dare_sudoku, {axes(100, 'seed')}}}\n"
    f"eval: {{tasks: dare_sudoku, gen_kwargs: {{{axes(100, 'gen_length')}}}}}\n",
    "models.yaml": f"{MODEL}eval: {{tasks: dare_sudoku, models: 5}}\n",
    "repeats.yaml": f"{MODEL}eval: {{tasks: dare_sudoku, repeats: 1000000000}}\n",
    "lr.yaml": f"{MODEL}train: {{method: sft, task: dare_sudoku, lr: 1}}\n",
    "deep.jsonl": b'{"messages": ' + b"[" * 100_000 + b"\n",
    "line.jsonl": b'{"messages": "' + b"x" * (17 << 20) + b'"}\n',
    "line.jsonl.gz": gzip.compress(b"x" * (64 << 20), 1),
    "array.json": b'[{"a": ' + b"[" * 100_000,
}  # fmt: skip

CASES: dict[str, tuple[tuple[Any, ...], int, str]] = {
    "settings nested": (("eval", "-C", "deep.yaml"), 2, "nested deeper than 64 levels"),
    "settings with lists as keys": (("eval", "-C", "keys.yaml"), 2, "a key is a sequence"),
    "settings too large": (("eval", "-C", "large.yaml"), 2, "262,144 bytes"),
    "settings with a false tag": (("eval", "-C", "tag.yaml"), 2, "not what its tag says"),
    "settings in a FIFO": (("eval", "-C", "fifo"), 2, "it is a FIFO, not a regular file"),
    "settings in a device": (("eval", "-C", "/dev/zero"), 2, "it is a device, not a regular file"),
    "settings of training in a FIFO": (("train", "sft", "-C", "fifo"), 2, "it is a FIFO"),
    "a model that is a list": (("eval", "-C", "model.yaml"), 2, "model=['a']: expected one name"),
    "tasks that are a number": (("eval", "-C", "tasks.yaml"), 2, "tasks=5: expected names"),
    "a limit that is a mapping": (("eval", "-C", "limit.yaml"), 2, "limit.yaml: limit={'a': 1}: must be a number"),
    "a limit that is a word": (("eval", "-C", "word.yaml"), 2, "word.yaml: limit='four': expected a count (50)"),
    "a limit of nothing": ((*EVAL, "--limit", "0"), 2, "limit=0: must be a number of documents (50) or a fraction"),
    "shots that are a word": (("eval", "-C", "shots.yaml"), 2, "shots.yaml: num_fewshot='four': must be a whole"),
    "repeats of none": (("eval", "-C", "none.yaml"), 2, "none.yaml: repeats=0: must be greater than or equal to 1"),
    "a temperature that is a word": (("eval", "-C", "warm.yaml"), 2, "warm.yaml: temperature='hot': expected a number"),
    "steps that are broken": (("eval", "-C", "steps.yaml"), 2, "steps.yaml: steps=2.5: expected a whole number"),
    "too many steps": (("eval", "-C", "many_steps.yaml"), 2, "steps=1000000000 is not valid: it must be"),
    "a hexadecimal number of 5,000 digits": (("eval", "-C", "hex.yaml"), 2, "a number of more than 64 digits"),
    "a sexagesimal number": (("eval", "-C", "sixty.yaml"), 2, "a number of more than 64 digits"),
    "a device as a checkpoint": (("validate", "/dev/zero"), 2, "/dev/zero is a file, and"),
    "an answer too long": ((*EVAL, "--gen-length", "1000000000"), 2, "gen_length=1000000000 is not valid: it must be"),
    "rows that are a word": (("eval", "-C", "rows.yaml"), 2, "rows.yaml: max_rows='many': expected a number of rows"),
    "decoding that is a number": (("eval", "-C", "decoding.yaml"), 2, "expected settings as a mapping"),
    "an evaluation that is a number": (("train", "sft", "-C", "eval_args.yaml"), 2, "expected settings as a mapping"),
    "a model's name": (("eval", "--model", LONG, "--tasks", "dare_sudoku"), 2, "no checkpoint 'xxx"),
    "a model's name mistyped": (("eval", "--model", "tiny-lada", "--tasks", "dare_sudoku"), 2, "closest: tiny-llada,"),
    "a checkpoint's name": (("validate", LONG), 2, "no checkpoint 'xxx"),
    "an adapter's name": ((*EVAL, "--adapter", LONG), 2, "no checkpoint 'xxx"),
    "a training's model": ((*TRAIN, "--model", LONG), 2, "no checkpoint 'xxx"),
    "a task's name": ((*EVAL, "--tasks", LONG), 2, "unknown task 'xxx"),
    "a task's path": ((*EVAL, "--tasks", f"{LONG}/a.yaml"), 2, "no such task file"),
    "a folder of tasks": ((*EVAL, "--include-path", LONG), 2, "no such folder"),
    "an output folder": ((*EVAL, "-o", LONG), 1, "file name too long; choose another folder"),
    "an output folder with NUL": ((*EVAL, "-o", "a\0b"), 1, "cannot write 'a\\x00b'"),
    "an output folder of training": ((*TRAIN, "-o", LONG), 1, "file name too long; choose another folder"),
    "an output folder of a sweep": (("sweep", "repeats.yaml", "-o", LONG), 2, "repeats=1000000000"),
    "training data": ((*ROWS, f"{LONG}.jsonl"), 2, "is not there"),
    "until": ((*EVAL, "--gen-kwargs", "until=5"), 2, "until=5: expected a text or a list of texts"),
    "until a mapping": ((*EVAL, "--gen-kwargs", '{"until": {"a": 1}}'), 2, "until={'a': 1}: expected a text"),
    "max_gen_toks": ((*EVAL, "--gen-kwargs", "max_gen_toks=x"), 2, "max_gen_toks='x': expected a number"),
    "max_gen_toks infinite": ((*EVAL, "--gen-kwargs", "max_gen_toks=.inf"), 2, "max_gen_toks=inf"),
    "max_gen_toks a list": ((*EVAL, "--gen-kwargs", '{"max_gen_toks": [1]}'), 2, "max_gen_toks=[1]"),
    "do_sample": ((*EVAL, "--gen-kwargs", "do_sample=5"), 2, "do_sample=5: expected true or false"),
    "gen_kwargs nested": ((*EVAL, "--gen-kwargs", "{" * 2000), 2, "nested deeper than 64 levels"),
    "samples in a device": ((*EVAL[:5], "--samples", "/dev/zero"), 2, "/dev/zero: it is a device"),
    "samples in a FIFO": ((*EVAL[:5], "--samples", "fifo"), 2, "fifo: it is a FIFO"),
    "samples nested": ((*EVAL[:5], "--samples", f'{{"a": {DEEP}}}'), 2, "--samples: nested deeper than 64 levels"),
    "repeats": ((*EVAL, "--repeats", "1000000000"), 2, f"less than or equal to {MAX_REPEATS}"),
    "repeats of a sweep": ((*SWEEP, "repeats.yaml"), 2, f"less than or equal to {MAX_REPEATS}"),
    "a device without values": ((*EVAL, "--device", "meta"), 2, "device 'meta' is not known; allowed: cpu"),
    "a mask id that is not the tokenizer's": ((*EVAL, "-a", "mask_id=7"), 1, "the tokenizer's mask token is 301"),
    "a decoding mask id that is not the tokenizer's": (
        (*EVAL, "--gen-kwargs", "mask_id=7"),
        2,
        "mask id 7, but the tokenizer's mask token is 301",
    ),
    "a decoding end id that is the mask": ((*EVAL, "--gen-kwargs", "eot_id=301"), 2, "is also an end or padding id"),
    "another program's name of a setting": ((*SWEEP, "lr.yaml"), 2, "closest: learning_rate"),
    "an unknown opening setting": (("validate", "tiny-llada", "-a", "foo=1"), 2, "'foo' is not an argument of load"),
    "a dtype that is a list": (("validate", "tiny-llada", "-a", '{"dtype": [1]}'), 2, "dtype [1] is not known"),
    "a family that is a number": (("validate", "tiny-llada", "-a", "family=5"), 2, "family=5: expected a name"),
    "an adapter that is a number": (("validate", "tiny-llada", "-a", "adapter=5"), 2, "adapter=5: expected a name"),
    "a rank": ((*TRAIN, "--peft", "lora", "--lora-r", "1" + "0" * 20), 2, "less than or equal to 8192"),
    "a sweep in a FIFO": ((*SWEEP, "fifo"), 2, "it is a FIFO"),
    "a sweep of 10^6": ((*SWEEP, "grid6.yaml"), 2, f"1,000,000 combinations; at most {MOST:,} are allowed"),
    "a sweep of 10^9": ((*SWEEP, "grid9.yaml"), 2, f"1,000,000,000 combinations; at most {MOST:,} are allowed"),
    "a sweep of two grids": ((*SWEEP, "grids.yaml"), 2, f"10,200 nodes; at most {MOST:,} are allowed"),
    "models of an entry": ((*SWEEP, "models.yaml"), 2, "models=5: expected names"),
    "rows nested": ((*ROWS, "deep.jsonl"), 1, "deep.jsonl:1: not valid JSON (nested too deeply)"),
    "an array nested": ((*ROWS, "array.json"), 1, "array.json:1: not valid JSON (nested too deeply)"),
    "a row that is too long": ((*ROWS, "line.jsonl"), 1, "line.jsonl:1:"),
    "a row that unpacks without end": ((*ROWS, "line.jsonl.gz"), 1, "16,777,216 bytes"),
    "training data in a FIFO": ((*ROWS, "fifo.jsonl"), 2, "is neither a file nor a folder"),
}  # fmt: skip


def said(words: tuple[Any, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit code, the last line on stderr) of a command."""
    logging.getLogger("dare_bench").handlers.clear()  # of a test before, whose stderr is gone
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    err = capsys.readouterr().err
    assert "this is a bug" not in err
    return int(stop.value.code or 0), (err.splitlines() or [""])[-1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(120)  # a FIFO or an endless file would wait for ever
def test_bad_input(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, code, says = CASES[case]
    for word in words:
        if word in FILES:
            content = FILES[word]
            Path(word).write_bytes(content if isinstance(content, bytes) else content.encode())
        elif str(word).startswith("fifo"):
            os.mkfifo(word)
    seen, line = said(words, capsys)
    assert seen == code and says in line
    assert not says or line.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--system-instruction", "x " * 20_000), "the model's context limit is 8192"),
        (("--gen-length", "60000"), "the model's context limit is 8192"),
    ],
)
def test_samples_that_fail_are_told_as_an_error(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = said((*EVAL[:-1], tmp_path, *words), capsys)
    assert code == 4 and line.startswith("error: incomplete: 1 document has no answer") and says in line


def test_a_long_task_name_makes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine cuts what no file name can hold; the run is read back under the task's whole name."""
    from dare_bench.runs.reader import Run

    name = "dare_" + "n" * 230
    source = Path(__file__).parents[2] / "tasks" / "dare_sudoku"
    folder = tmp_path / "tasks"
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".yaml":
            (folder / file.name).symlink_to(file)
    text = next(source.glob("*.yaml")).read_text()
    assert "task: dare_sudoku\n" in text
    (folder / "long.yaml").write_text(text.replace("task: dare_sudoku\n", f"task: {name}\n"))
    words = ("eval", "--model", "tiny-llada", "--include-path", folder, "--tasks", name, "--limit", "1", "--json")
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in (*words, "-o", tmp_path / "out")])
    assert stop.value.code == 0
    run = Run(json.loads(capsys.readouterr().out)["path"])
    assert len(list(run.samples(name))) == 1
