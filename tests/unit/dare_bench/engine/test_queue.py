"""The queue: everything is answered once, what is there is served, failures are asked again next time."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from toy_model import ToyModel

from dare_bench.engine.journal import Journal
from dare_bench.engine.meters import last_costs
from dare_bench.engine.progress import Progress
from dare_bench.engine.queue import Queue, longest_first
from dare_bench.errors import RunError, SaveError
from dare_bench.types import Generation, Request, Sample


def generate(i: int, **decoding: Any) -> Request:
    return Request(f"g/{i}", "generate", f"prompt {i}", None, {"gen_length": 16, **decoding}, i, "g", i)


def score(doc: int, choice: int) -> Request:
    return Request(f"s/{doc}/{choice}", "score", f"prompt {doc}", "x" * (choice + 1), {}, doc, "s", doc)


MIXED = [generate(i) for i in range(7)] + [score(i, c) for i in range(3) for c in range(2)]


def answers(samples: Iterable[Sample]) -> list[Any]:
    return [s.answer for s in samples]


class Display(Progress):
    def __init__(self, journal: Journal) -> None:
        self.journal, self.seen, self.counted = journal, (0, 0), 0
        self.forwards_at_first_sample: int | None = None
        self.forwards = 0

    def start(self, total: int, served: int, total_work: int, served_work: int) -> None:
        self.seen = (total, served)

    def forward(self, rows: int) -> None:
        self.forwards += rows

    def advance(self, samples: int, work: int, failed: int) -> None:
        if self.forwards_at_first_sample is None:
            self.forwards_at_first_sample = self.forwards
        assert not self.journal._unsynced, "counted before it was durable"
        self.counted += samples


def test_in_the_order_given_and_the_same_in_any_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "a") as journal:
        first = Queue(ToyModel(), journal).answer(MIXED)
    assert [s.request for s in first] == MIXED
    shuffled = MIXED[:]
    random.Random(1).shuffle(shuffled)
    for rows in (1, 3, 8):
        with Journal(tmp_path / str(rows)) as journal:
            second = Queue(ToyModel(), journal, max_rows=rows).answer(shuffled)
        assert [s.request for s in second] == shuffled
        assert {s.request.key: s.answer for s in first} == {s.request.key: s.answer for s in second}


def test_served_from_the_journal_and_counted_when_durable(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        first = Queue(ToyModel(), journal).answer(MIXED[:5])
    model = ToyModel()
    with Journal(tmp_path) as journal:
        display = Display(journal)
        queue = Queue(model, journal, progress=display)
        whole = queue.answer(MIXED)
        assert display.seen == (len(MIXED), 5) and display.counted == len(MIXED) - 5
        assert display.forwards_at_first_sample, "forward passes are told before the first sample is finished"
        assert display.forwards == queue.stats.row_forwards
    assert sorted(model.answered) == sorted(r.key for r in MIXED[5:])
    assert answers(whole[:5]) == answers(first)


def test_failures_are_samples_and_asked_again_only_in_the_next_session(tmp_path: Path) -> None:
    model = ToyModel(fail_on=lambda r: "bad luck" if r.key == "g/3" else False)
    with Journal(tmp_path) as journal:
        queue = Queue(model, journal)
        result = {s.request.key: s for s in queue.answer(MIXED)}
        assert result["g/3"].answer is None and result["g/3"].error == "bad luck"
        assert queue.answer([MIXED[3]])[0].error == "bad luck"
        assert model.answered.count("g/3") == 1
        assert queue.failures == {"g/3": "bad luck"}
    model = ToyModel()
    with Journal(tmp_path) as journal:
        assert journal.records("failure")[0]["error"] == "bad luck"
        assert isinstance(Queue(model, journal).answer(MIXED)[3].answer, Generation)
    assert model.answered == ["g/3"]


def test_duplicate_keys_are_a_mistake_of_the_source(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, pytest.raises(ValueError, match="'g/1' occurs 2 times"):
        Queue(ToyModel(), journal).answer([generate(1), generate(2), generate(1)])


def test_the_model_sees_added_fields_and_the_harness_its_own_request(tmp_path: Path) -> None:
    seen: list[Request] = []

    class Curious(ToyModel):
        def generate(self, requests: Iterable[Request], **kwargs: Any) -> Iterator[Sample]:
            seen.extend(kept := list(requests))
            return super().generate(iter(kept), **kwargs)

    def prepare(request: Request) -> Request:
        return replace(request, decoding={"trajectory": True, "gen_length": 99, **request.decoding})

    with Journal(tmp_path) as journal:
        queue = Queue(Curious(), journal, prepare=prepare)
        request = generate(1)
        sample = queue.answer([request])[0]
        assert seen[0].decoding == {"trajectory": True, "gen_length": 16} and seen[0].key == request.key
        assert sample.request is request
        assert isinstance(sample.answer, Generation) and sample.answer.trajectory is None
        assert len(journal.sample("g/1")["answer"]["trajectory"]) == sample.answer.tokens_to_eos


def test_long_work_first_and_documents_stay_together() -> None:
    work = {r.key: (100 if r.key == "s/1/1" else 1) for r in MIXED}
    order = [r.key for r in longest_first(MIXED, work)]
    assert order[:2] == ["s/1/0", "s/1/1"]
    assert sorted(order) == sorted(r.key for r in MIXED)
    long = {r.key: int(r.doc_id) for r in MIXED[:7]}
    assert [r.doc_id for r in longest_first(MIXED[:7], long)] == [6, 5, 4, 3, 2, 1, 0]


def test_a_sample_that_never_comes_back_is_named(tmp_path: Path) -> None:
    class Forgetful(ToyModel):
        def generate(self, requests: Iterable[Request], **kwargs: Any) -> Iterator[Sample]:
            return (s for s in super().generate(requests, **kwargs) if s.request.key != "g/2")

    with Journal(tmp_path) as journal, pytest.raises(RunError, match="no sample for request g/2"):
        Queue(Forgetful(), journal).answer(MIXED)


def test_what_came_before_an_error_is_kept(tmp_path: Path) -> None:
    def explode(request: Request) -> bool:
        if request.key == "g/5":
            raise RunError("out of luck")
        return False

    with Journal(tmp_path) as journal, pytest.raises(RunError, match="out of luck"):
        Queue(ToyModel(fail_on=explode), journal, max_rows=1).answer(MIXED[:7])
    with Journal(tmp_path) as journal:
        assert 0 < len(journal._places) < 7
        assert last_costs(journal.records("cost"))[-1]["forwards"] == 16 * len(journal._places)


def test_disk_full_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, budget = os.write, [2500]

    def filling(fd: int, data: bytes) -> int:
        if len(data) > budget[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        budget[0] -= len(data)
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", filling)
        with pytest.raises(SaveError, match="free some space"), Journal(tmp_path) as journal:
            Queue(ToyModel(), journal).answer(MIXED)
    with Journal(tmp_path) as journal:
        held = list(journal._places)
        assert 0 < len(held) < len(MIXED) and not journal.damage
        model = ToyModel()
        Queue(model, journal).answer(MIXED)
        assert not set(model.answered) & set(held)


def test_pieces_are_pulled_when_the_model_has_room(tmp_path: Path) -> None:
    """Of generations no more than the share, of scores one piece at a time; what the journal has is left out."""
    taken: list[str] = []
    pieces = [[generate(i)] for i in range(6)] + [[score(i, c) for c in range(2)] for i in range(3)]

    class Roomy(ToyModel):
        default_rows = 64

        def generate(self, requests: Iterable[Request], *, max_rows: int | None = None, **_: Any) -> Iterator[Sample]:
            given = iter(requests)
            rows = list(islice(given, max_rows))
            assert len(rows) == 2 and len(taken) == 3, "the first one is answered already"
            for row in chain(rows, given):
                yield from super().generate([row])

        def score(self, requests: Iterable[Request], *, max_rows: int | None = None, **_: Any) -> Iterator[Sample]:
            before, pulled = len(taken), list(requests)
            assert max_rows is None and len(pulled) == 2 and len(taken) == before
            yield from super().score(pulled)

    def offered() -> Iterator[list[Request]]:
        for piece in pieces:
            taken.append(piece[0].key)
            yield piece

    with Journal(tmp_path) as journal:
        Queue(ToyModel(), journal).answer(pieces[0])
        queue = Queue(Roomy(), journal)
        queue.drain(offered(), share=2)
        assert taken == [piece[0].key for piece in pieces] and not queue.failures
        assert sorted(journal._places) == sorted(r.key for piece in pieces for r in piece)
        found = answers(queue.answer(list(chain(*pieces))))
    with Journal(tmp_path / "whole") as journal:
        assert found == answers(Queue(ToyModel(), journal).answer(list(chain(*pieces))))
