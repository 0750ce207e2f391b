"""Which program answered which request of a run: told apart at a resume, noted in the results, never guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_source
from toy_model import ToyModel

from dare_bench import program
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import pack, unpack
from dare_bench.runs.reader import Run

toy_source.register()
CODE = dict(program.code())


def go(out: Path, model: ToyModel | None = None, **fields: Any) -> Run:
    whole: Any = {"tasks": "toygen,toychoice", "harness": "toy", "output_path": str(out), **fields}
    return evaluate(model=model or ToyModel(), progress=False, **whole)


def _becomes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, this is a program with another sampler, of another version."""
    monkeypatch.setattr("dare_bench.program.code", lambda: {**CODE, "sampler": "ast:another"})
    monkeypatch.setattr("dare_bench.version.__version__", "9.9.9")


def test_answers_of_two_programs_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "dare_bench")
    go(tmp_path, limit=2)
    item = go(tmp_path, limit=3).block
    assert item is not None and [p.requests for p in item.programs] == [12] and not item.notes and not caplog.messages
    _becomes_another(monkeypatch)
    run = go(tmp_path, limit=4)
    assert run.run_id == item.run_id and run.block is not None
    assert [(p.requests, p.parts["sampler"]) for p in run.block.programs] == [(12, CODE["sampler"]), (4, "ast:another")]
    assert run.block.environment.dare_bench == f"{item.environment.dare_bench} and 9.9.9"
    what = f"sampler {CODE['sampler']} -> ast:another"
    assert any(
        "12 answers came from a different program version" in message and what in message for message in caplog.messages
    )
    (note,) = run.block.notes
    assert "2 programs" in note and what in note and "--fresh" in note
    fresh = go(tmp_path, limit=4, fresh=True).block
    assert fresh is not None and [p.requests for p in fresh.programs] == [16] and not fresh.notes


def test_the_attention_backend_is_recorded(tmp_path: Path) -> None:
    model = ToyModel()
    model.spec = replace(model.spec, attention_backend="padded")
    run = go(tmp_path, model, limit=2)
    assert run.block is not None and [program.parts["attention"] for program in run.block.programs] == ["padded"]
    assert run.run_id == go(tmp_path, limit=2).run_id


def test_compiled_steps_are_recorded(tmp_path: Path) -> None:
    model = ToyModel()
    model.spec = replace(model.spec, compiled=True)
    run = go(tmp_path, model, limit=2)
    assert run.block is not None and [program.parts["compiled"] for program in run.block.programs] == ["steps"]
    assert run.run_id == go(tmp_path, limit=2).run_id


def test_captured_steps_are_recorded(tmp_path: Path) -> None:
    model = ToyModel()
    model.spec = replace(model.spec, attention_backend="varlen", captured=True)
    run = go(tmp_path, model, limit=2)
    attention = "varlen, padded in small steps"
    assert run.block is not None and [program.parts["attention"] for program in run.block.programs] == [attention]
    assert run.run_id == go(tmp_path, limit=2).run_id


def test_a_finished_run_of_another_program_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = go(tmp_path, limit=3).block
    _becomes_another(monkeypatch)
    model = ToyModel()
    after = [go(tmp_path, model, limit=3).block for _ in range(2)][-1]
    assert before is not None and after is not None and not model.answered
    assert (after.environment, after.programs) == (before.environment, before.programs)
    assert any("12 answers came from a different program version" in message for message in caplog.messages)
    assert [note for note in after.notes if "scored by a different program version" in note and "sampler" in note]


def test_a_session_that_answered_nothing_is_no_program_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path, limit=2)
    with monkeypatch.context() as another:
        _becomes_another(another)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, ToyModel(fail_on=_stop), limit=3)
    block = go(tmp_path, limit=3).block
    assert block is not None and len(block.programs) == 1 and block.environment.dare_bench != "9.9.9"


def _stop(request: Any) -> bool:
    raise KeyboardInterrupt


def test_a_journal_that_does_not_tell_its_program_is_not_taken_for_ours(tmp_path: Path) -> None:
    run = go(tmp_path, limit=2)
    file = run.path / "journal" / "main.jsonl"
    records = [record for line in file.read_bytes().splitlines(True) if (record := unpack(line)) is not None]
    old = [{k: v for k, v in r.items() if k not in ("sum", "program")} for r in records if r["type"] != "program"]
    file.write_bytes(b"".join(map(pack, old)))
    block = go(tmp_path, limit=3).block
    assert block is not None and [bool(p.parts) for p in block.programs] == [False, True]
    assert "not recorded" in " ".join(block.notes)
