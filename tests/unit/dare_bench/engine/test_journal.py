"""The journal: what was written is read back, torn writes vanish, damage is named, a full disk breaks nothing; and
which program answered which request."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_source
from toy_model import ToyModel

from dare_bench import program, reading
from dare_bench.engine.codec import to_answer, to_record
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import Journal, pack, unpack
from dare_bench.errors import RunError, SaveError
from dare_bench.runs.reader import Run
from dare_bench.types import Event, Generation, Likelihood, Request


def sample(key: str, text: str = "text") -> dict[str, Any]:
    answer = {"tokens": [], "text": text, "nfe": 1, "finish_reason": "eos"}
    return {"type": "sample", "key": key, "kind": "generate", "answer": answer}


def fill(folder: Path, count: int) -> Path:
    with Journal(folder) as journal:
        for i in range(count):
            journal.append(sample(f"k{i}", "é\ud800 \n" * (i + 1)))
        journal.append({"type": "note", "value": 1})
        return journal.file


def test_written_is_read_back(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    with Journal(tmp_path) as journal:
        assert list(journal._places) == ["k0", "k1", "k2"]
        assert journal.sample("k1")["answer"]["text"] == "é\ud800 \n" * 2
        assert journal.records("note") == [{"type": "note", "value": 1}]
        assert "k1" in journal and "k9" not in journal
        with pytest.raises(KeyError):
            journal.sample("k9")


def test_a_line_is_strict_about_its_checksum() -> None:
    line = pack(sample("k"))
    assert unpack(line) == sample("k")
    for place in range(len(line)):
        broken = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
        assert unpack(broken) is None, place


def test_torn_last_line_is_dropped_at_every_length(tmp_path: Path) -> None:
    whole = fill(tmp_path / "whole", 3).read_bytes()
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for cut in range(starts[1] + 1, len(whole)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        file = folder / "main.jsonl"
        file.write_bytes(whole[:cut])
        lines = sum(1 for start in starts[1:] if start <= cut)
        with Journal(folder) as journal:
            assert len(journal._places) == min(lines, 3), cut
            assert not journal.damage
            journal.append(sample("after"))
        with Journal(folder) as journal:
            assert list(journal._places)[-1] == "after" and len(journal._places) == min(lines, 3) + 1, cut
            assert not journal.damage, "the torn line must not stay in front of what came after it"


def test_damage_in_the_middle_is_named_and_its_sample_is_gone(tmp_path: Path) -> None:
    file = fill(tmp_path, 3)
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"generate", b"generata")
    file.write_bytes(b"".join(lines))
    with Journal(tmp_path) as journal:
        assert list(journal._places) == ["k0", "k2"]
        assert [(d.file, d.line) for d in journal.damage] == [("main.jsonl", 2)]
        journal.append(sample("k1"))
        assert journal.sample("k2")["key"] == "k2"
    with Journal(tmp_path) as journal:
        assert sorted(journal._places) == ["k0", "k1", "k2"]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("wrong", [{"tokens": [10**30]}, {"nfe": "many"}, {"trajectory": [[0]]}, None])
def test_a_whole_line_without_a_valid_answer_is_one_sample_lost(
    tmp_path: Path, place: int, wrong: dict[str, Any] | None
) -> None:
    """Also the last line, which was not torn: it is reported, and what follows does not overwrite it."""
    with Journal(tmp_path) as journal:
        for i in range(3):
            record = sample(f"k{i}")
            if i == place:
                record["answer"] = wrong and {**record["answer"], **wrong}
            journal.append(record)
    others = [f"k{i}" for i in range(3) if i != place]
    with Journal(tmp_path) as journal:
        assert list(journal._places) == others
        assert [(d.file, d.line) for d in journal.damage] == [("main.jsonl", place + 1)]
        journal.append(sample(f"k{place}", "again"))
    with Journal(tmp_path) as journal:
        assert sorted(journal._places) == ["k0", "k1", "k2"] and len(journal.damage) == 1
        assert journal.sample(f"k{place}")["answer"]["text"] == "again"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_that_is_too_long_to_read_is_one_sample_lost(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(tmp_path) as journal:
        for i in range(3):
            journal.append(sample(f"k{i}", "x" * (5000 if i == place else 1)))
    monkeypatch.setattr(reading, "MAX_LINE", 1000)
    others = [f"k{i}" for i in range(3) if i != place]
    with Journal(tmp_path) as journal:
        assert list(journal._places) == others
        assert [d.line for d in journal.damage] == ([place + 1] if place < 2 else []), "the last one may be torn"
        assert [journal.sample(key)["key"] for key in others] == others
        journal.append(sample(f"k{place}", "again"))
    with Journal(tmp_path) as journal:
        assert sorted(journal._places) == ["k0", "k1", "k2"]


def test_zeros_at_the_end_after_a_power_cut(tmp_path: Path) -> None:
    file = fill(tmp_path, 2)
    with file.open("ab") as stream:
        stream.write(b"\0" * 5000 + b"\n\0\0\n")
    with Journal(tmp_path) as journal:
        assert len(journal._places) == 2 and not journal.damage
        assert b"\0" not in file.read_bytes()


def test_several_writers_are_read_together(tmp_path: Path) -> None:
    with Journal(tmp_path, "a") as item, Journal(tmp_path, "b") as two:
        item.append(sample("from a"))
        two.append(sample("from b"))
    with Journal(tmp_path, "c") as journal:
        assert sorted(journal._places) == ["from a", "from b"]
        assert journal.sample("from b")["key"] == "from b"


def test_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fill(tmp_path, 2)
    before = file.read_bytes()
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 40:
            return write(fd, data[:40])  # a short write first, as a filling disk does
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(SaveError, match="no space left on device"):
            journal.append(sample("lost", "x" * 100))
    assert file.read_bytes() == before
    assert "lost" not in journal
    journal.append(sample("kept"))
    journal.close()
    with Journal(tmp_path) as again:
        assert list(again._places) == ["k0", "k1", "kept"] and not again.damage


def test_half_a_line_that_cannot_be_taken_back_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 2)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 40:
            return write(fd, data[:40])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stuck(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "ftruncate", stuck)
        with pytest.raises(SaveError, match="no space left on device"):
            journal.append(sample("lost", "x" * 100))
    with pytest.raises(SaveError, match=r"No space left on device.*could not be removed"):
        journal.append(sample("behind half a line"))
    assert len(journal._places) == 2
    journal.close()
    with Journal(tmp_path) as again:
        assert list(again._places) == ["k0", "k1"] and not again.damage
        again.append(sample("kept"))
    with Journal(tmp_path) as again:
        assert list(again._places) == ["k0", "k1", "kept"] and not again.damage


def test_sync_failure_is_a_save_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path)
    journal.append(sample("k"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(SaveError, match=r"main\.jsonl"):
            journal.sync()
    journal.close()


def test_answers_survive_the_journal(tmp_path: Path) -> None:
    request = Request("t/1/0/0/x", "generate", "p", task="t", doc_id=1, seed=7)
    events = [Event(0, "set", 3, 11, 0.1 + 0.2, -0.1 / 3), Event(1, "remask", 3, 257, float("-inf"), 0.0)]
    built = Generation([11, 12], "hé", 5, "eos", 6, 4, 2, 1, "E0", 0.25, True, events, 3, [[11, 257], [11, 12]])
    scored = Likelihood(-0.1, 0.03, None, 128, "reference", 128, 9, 30, "E2", 0.5)
    with Journal(tmp_path) as journal:
        journal.append(to_record(request, built))
        journal.append(to_record(Request("s", "score", "p", "t"), scored))
    with Journal(tmp_path) as journal:
        assert to_answer(journal.sample(request.key)) == built
        assert to_answer(journal.sample("s")) == scored
        bare = to_answer(journal.sample(request.key), trajectory=False)
        assert isinstance(bare, Generation) and bare.trajectory is None and bare.tokens == [11, 12]


def test_events_of_earlier_versions_have_no_log_probability() -> None:
    request = Request("t/1/0/0/x", "generate", "p", task="t", doc_id=1)
    record = to_record(request, Generation([11], "h", 1, "length", trajectory=[]))
    del record["answer"]["predictions"]
    record["answer"]["trajectory"] = [[0, "set", 0, 11, 0.5]]
    answer = to_answer(record)
    assert isinstance(answer, Generation) and answer.predictions is None
    assert answer.trajectory == [Event(0, "set", 0, 11, 0.5, None)]


@pytest.mark.parametrize(("margin", "near_tie"), [(9e-5, True), (1e-4, False), (None, None)])
def test_margins_of_earlier_versions_are_near_ties(margin: float | None, near_tie: bool | None) -> None:
    record = to_record(Request("t/1/0/0/x", "generate", "p"), Generation([11], "h", 1, "length"))
    del record["answer"]["near_tie"]
    record["answer"]["margin"] = margin
    answer = to_answer(record)
    assert isinstance(answer, Generation) and answer.near_tie is near_tie


@pytest.mark.parametrize("kind", ["guess", [], {}, None])
def test_an_answer_of_an_unknown_kind_is_refused(kind: object) -> None:
    with pytest.raises(RunError, match=r"its kind is .*; add --fresh"):
        to_answer({"type": "sample", "key": "a", "kind": kind, "answer": {}})


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
