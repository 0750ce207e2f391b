"""Work in small pieces: whole documents, each taken once, and workers that are rarely without."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dare_bench.engine.pieces import MOST_DOCUMENTS, Pieces, cut, offered
from dare_bench.errors import RunError
from dare_bench.types import Request


def request(task: str, doc: int, choice: int = 0) -> Request:
    kind = "generate" if task == "generate" else "score"
    return Request(f"{task}/{doc}/{choice}", kind, f"q {doc}", "x" * choice, task=task, doc_id=doc)


def test_pieces_have_whole_documents_of_one_kind_and_become_small() -> None:
    requests = [request("choice", doc, i) for i in range(4) for doc in range(300)]
    requests += [request("generate", doc) for doc in range(200)] + [request("long", 0)]
    work = {r.key: 100 if r.task == "long" else 3 for r in requests}
    pieces = cut(requests, work, 3)
    assert sorted(r.key for piece in pieces for r in piece) == sorted(work)
    documents = [{(r.task, r.doc_id) for r in piece} for piece in pieces]
    assert sum(map(len, documents)) == 501, "no document is in two pieces"
    kinds = [{r.kind for r in piece} for piece in pieces]
    assert kinds == sorted(kinds, key=lambda kind: "score" in kind) and all(len(kind) == 1 for kind in kinds)
    scored = [piece for piece in pieces if piece[0].kind == "score"]
    assert scored[0][0].task == "long", "the longest document goes first"
    sizes = [len(d) for d, kind in zip(documents, kinds, strict=True) if kind == {"score"}][1:]
    assert sizes == sorted(sizes, reverse=True) and 8 < sizes[0] <= MOST_DOCUMENTS and sizes[-1] == 1
    assert len(pieces) < 501 / 2
    assert cut(requests, work, 3) == pieces and cut([], {}, 3) == [] and len(cut(requests[:1], work, 8)) == 1


def test_each_piece_is_taken_once_and_a_restarted_worker_has_its_own_first(tmp_path: Path) -> None:
    requests = [
        Request("a", "generate", [1, 2], decoding={"stop": ["\n"], "strategy": {"name": "quota"}}, seed=2**63 + 5),
        Request("b", "generate", [{"role": "user", "content": "\ud800 ü"}], task="t", doc_id="x", repeat=2),
        Request("c", "score", "question", " answer", want_greedy=True),
        Request("d", "score", "question", [7]),
    ]
    with offered([[one] for one in requests], tmp_path) as folder:
        first, second = Pieces(folder, 1), Pieces(folder, 11)
        taken = [next(iter(first)), next(iter(second))]
        again = Pieces(folder, 1)  # worker 1 died while it was at its piece
        rest = list(again)
        assert [piece[0] for piece in taken] == requests[:2]
        assert [piece[0] for piece in rest] == [requests[0], *requests[2:]]
        assert not Pieces(folder, 2).any() and Pieces(folder, 11).any()
        assert list(Pieces(folder, 2)) == [] and [p[0] for p in Pieces(folder, 11)] == [requests[1]]
    assert not folder.exists() and list(Pieces(folder, 1)) == [] and not Pieces(folder, 1).any()


def test_the_next_session_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    killed = offered([[request("choice", 0)]], tmp_path)
    old = killed.__enter__()
    with offered([], tmp_path) as new:
        assert not old.exists() and new.exists()


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[{"key": "a"}]', '[{"key": "a", "kind": "score", "prompt": "", "x": 1}]']
)
def test_a_piece_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    with offered([[request("choice", 0)]], tmp_path) as folder:
        (folder / "000000.json").write_text(text)
        with pytest.raises(RunError, match="is not a shard of an evaluation"):
            list(Pieces(folder, 1))


WORKERS, DOCUMENTS = 8, 1319  # as GSM8K has


def lengths(kind: str, count: int) -> list[float]:
    """How long answers really take, between 1 and 64 times as long as the shortest."""
    rng = random.Random(0)
    if kind == "few are long":
        return [64.0 if rng.random() < 0.05 else 1.0 for _ in range(count)]
    return [min(64.0, rng.lognormvariate(1.0, 1.2)) for _ in range(count)]


def idle(ends: list[float]) -> float:
    """The share of the workers' time that is spent waiting for the last one."""
    return 1 - sum(ends) / (len(ends) * max(ends))


@pytest.mark.parametrize("kind", ["few are long", "lognormal"])
def test_workers_are_idle_for_less_than_a_tenth_of_the_time(tmp_path: Path, kind: str) -> None:
    """In simulated time: every answer is expected to take equally long, and takes what nobody knows before."""
    seconds = lengths(kind, DOCUMENTS)
    requests = [request("generate", doc) for doc in range(DOCUMENTS)]
    with offered(cut(requests, dict.fromkeys((r.key for r in requests), 256), WORKERS), tmp_path) as folder:
        rows: list[Iterator[Request]] = [_each(Pieces(folder, worker)) for worker in range(WORKERS)]
        ends, clock = [0.0] * WORKERS, [(0.0, worker) for worker in range(WORKERS)]
        while clock:
            now, worker = heapq.heappop(clock)
            ends[worker] = now
            if (row := next(rows[worker], None)) is not None:
                heapq.heappush(clock, (now + seconds[int(row.doc_id)], worker))
    assert sum(ends) == pytest.approx(sum(seconds))
    dealt = [sum(seconds[worker::WORKERS]) for worker in range(WORKERS)]
    assert idle(ends) < 0.1 < idle(dealt), (idle(ends), idle(dealt))


def _each(pieces: Pieces) -> Iterator[Request]:
    for piece in pieces:
        yield from piece
