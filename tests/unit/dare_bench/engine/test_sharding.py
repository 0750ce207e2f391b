"""Evaluation in several processes: whole documents in small pieces, each taken once; equal results for any number of
shards, and nothing lost whoever is killed."""

from __future__ import annotations

import heapq
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_source
import toy_tasks
from command import forkserver
from executor_jobs import alive, answer_slowly, until
from paths import ROOT
from require import lacks, need_package
from toy_model import ToyModel

from dare_bench import sandbox
from dare_bench.config import run_spec
from dare_bench.engine import sharding
from dare_bench.engine.codec import to_record
from dare_bench.engine.evaluate import evaluate, evaluate_all
from dare_bench.engine.journal import Journal, unpack
from dare_bench.engine.pieces import MOST_DOCUMENTS, Pieces, cut, offered
from dare_bench.engine.plan import plan
from dare_bench.engine.sharding import Shard, answer
from dare_bench.errors import RunError, UnknownNameError, UsageError
from dare_bench.executors import devices
from dare_bench.fingerprint import content_hash
from dare_bench.loading import locate
from dare_bench.protocols import Done
from dare_bench.registry import registry
from dare_bench.runs.reader import Run
from dare_bench.types import Generation, Request

toy_source.register()
LIMIT = 12
ASKED = {"tasks": "toygen", "harness": "toy", "limit": LIMIT}


def go(out: Path, **fields: Any) -> Run:
    return evaluate(model="tiny-llada", progress=False, output_path=str(out), **fields)


def contents(run: Run) -> dict[str, Any]:
    """What a run is, without its dates and the times it took; floats to five digits: packs differ."""
    assert run.status == "complete" and run.block is not None
    lines = {task: [*run.samples(task), *run.traces(task)] for task in run.tasks}
    for row in (row for rows in lines.values() for row in rows):
        for entry in row.get("dare_bench", ()):
            for name in ("seconds", "tokens_per_s"):
                entry.pop(name, None)
                entry.get("verdict", {}).pop(name, None)
    cost = run.block.cost
    plain = json.loads(json.dumps([run.results["results"], lines]), parse_float=lambda text: round(float(text), 5))
    return {"name": run.path.name, "plain": plain, "cost": [cost.requests, cost.nfe, cost.tokens, cost.tokens_to_eos]}


def journaled(out: Path) -> dict[str, list[str]]:
    """By journal file: the keys of its samples."""
    result: dict[str, list[str]] = {}
    for file in out.glob("*/journal/*.jsonl"):
        records = map(unpack, file.read_bytes().splitlines(keepends=True))
        result[file.name] = [r["key"] for r in records if r is not None and r["type"] == "sample"]
    return result


def test_any_number_of_shards_gives_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_package("lm_eval")
    # Workers that import nothing again; the tests of the executors start them as users do.
    monkeypatch.setattr(devices, "get_context", lambda _: forkserver)
    fields: dict[str, Any] = {
        "tasks": "dare_sudoku,dare_arithmetic,toy_choice",
        "limit": 6,
        "include_path": str(toy_tasks.write_tasks(tmp_path / "tasks")),
        "data_dir": str(toy_tasks.write_data(tmp_path / "data")),
    }
    runs = {count: go(tmp_path / str(count), devices=count, **fields) for count in (1, 3)}
    alone = contents(runs[1])
    assert alone["cost"][0] == 6 + 6 + 5 * 3
    assert contents(runs[3]) == alone  # two of them: below
    written = journaled(tmp_path / "3")
    keys = Counter(key for held in written.values() for key in held)
    assert not written.pop("main.jsonl") and 1 <= len(written) <= 3, "whoever is there first takes the next piece"
    assert set(keys.values()) == {1} and len(keys) == 27
    block = runs[3].block
    assert block is not None and block.cost.seconds > 0 and (block.cost.peak_memory_mb or 0) > 10
    (program,) = block.programs
    assert program.requests == 27 and program.parts["device"] == "cpu" and program.parts["dtype"] == "float32"
    assert int(program.parts["threads"]) >= 1, "a worker's own share of the cores"
    (event,) = block.events
    assert event.what == "answered in 3 shards side by side"
    assert event.model_extra is not None and event.model_extra["wall_seconds"] > 0
    assert go(tmp_path / "3", **fields).path == runs[3].path, "devices are no part of what was asked"


SUITE = """
entries:
  - {name: code, harness: lm-eval, tasks: humaneval, decoding: {gen_length: 16}}
  - {name: repeated, harness: lm-eval, tasks: dare_arithmetic, repeats: 3, limit: 3, decoding: {temperature: 0.7}}
"""


def test_a_suite_with_code_and_repeats_is_the_same_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_package("lm_eval")
    if sandbox.isolation() == "none":
        lacks("bubblewrap", "is not installed or may not isolate, and neither may namespaces")
    monkeypatch.setattr(devices, "get_context", lambda _: forkserver)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(registry(), "_entries", dict(registry()._entries))
    (tmp_path / "both.yaml").write_text(SUITE)
    registry().add("suite", "both", str(tmp_path / "both.yaml"), origin=__name__)
    found: list[list[dict[str, Any]]] = []
    for count in (1, 2):
        fields = {"model": "tiny-llada", "output_path": str(tmp_path / str(count)), "devices": count}
        planned = plan({**fields, "tasks": "both", "data_dir": str(ROOT / "tests" / "data" / "bench")})
        outcomes = list(evaluate_all(planned, progress=False))
        assert [outcome.reason for outcome in outcomes] == [None, None]
        found.append([contents(outcome.run) for outcome in outcomes if outcome.run is not None])
        code, repeated = (outcome.run for outcome in outcomes)
        assert code is not None and code.block is not None and repeated is not None
        assert [len(row["resps"][0]) for row in repeated.samples("dare_arithmetic")] == [3, 3, 3]
        assert code.block.execution is not None and sum(code.block.execution.statuses.values()) == 2
        assert [event.what for event in code.block.events] == ["answered in 2 shards side by side"][: count - 1]
    assert found[0] == found[1]


def _evaluate_slowly(out: Path) -> None:
    devices.get_context = lambda _: forkserver  # in this process alone, as the next
    sharding.answer = answer_slowly
    go(out, devices=2, max_rows=1, **ASKED)


def shards(out: Path) -> dict[str, list[str]]:
    return {name: keys for name, keys in journaled(out).items() if name != "main.jsonl"}


def begun(out: Path) -> dict[str, list[str]]:
    """The shards' files, once both hold a sample."""
    result = shards(out)
    return result if len(result) == 2 and all(result.values()) else {}


def writer(file: str) -> int:
    """The process that writes a shard's file."""
    return int(file.rpartition("-")[2].removesuffix(".jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return contents(go(tmp_path_factory.mktemp("whole"), **ASKED))


def test_killed_workers_and_a_killed_parent(tmp_path: Path, whole: dict[str, Any]) -> None:
    parent = forkserver.Process(target=_evaluate_slowly, args=(tmp_path,))
    parent.start()
    assert parent.pid is not None
    files = until(lambda: begun(tmp_path) or not parent.is_alive())
    assert parent.is_alive()
    os.kill(writer(min(files, key=lambda name: len(files[name]))), signal.SIGKILL)
    until(lambda: len(shards(tmp_path)) == 3)  # the shard goes on in a new process
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    until(lambda: not any(alive(writer(name)) for name in shards(tmp_path)))
    before = shards(tmp_path)
    kept = sum(map(len, before.values()))
    assert 2 <= kept < LIMIT, "killed in the middle"
    run = go(tmp_path, **ASKED)  # any number of devices goes on from there
    assert contents(run) == whole
    assert shards(tmp_path) == before, "no other session's file was touched"
    assert sum(map(len, journaled(tmp_path).values())) == LIMIT, "nothing finished was computed twice"
    assert run.block is not None and [r.samples for r in run.block.resumed_from] == [kept]


def test_a_shard_is_of_the_checkpoint_that_the_run_is_of(tmp_path: Path) -> None:
    spec = run_spec(model="tiny-llada", tasks="x")
    request = Request("a", "generate", [5, 6], decoding={"gen_length": 8}, task="x")
    with offered([[request]], tmp_path) as folder:
        with pytest.raises(RunError, match="tiny-llada changed while its evaluation began"):
            answer(Shard(spec, ("sha256:other", None), tmp_path, 0, 1, folder, 1))
        right = (content_hash(locate("tiny-llada")), None)
        assert answer(Shard(spec, right, tmp_path, 0, 1, folder, 1)) == {}
        assert answer(Shard(spec, ("sha256:other", None), tmp_path, 0, 2, folder, 1)) == {}, "nothing is left to do"
    with Journal(tmp_path) as journal:
        assert list(journal._places) == ["a"]


def test_failures_and_errors_of_shards_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"tasks": "toygen", "harness": "toy", "limit": 4, "decoding": {"gen_length": 32}}

    class Fake:
        workers = 2
        error: Exception | None = None

        def run(self, function: Any, jobs: Any) -> Any:
            for number, job in enumerate(jobs):
                failed = {} if number else {r.key: "no luck" for r in next(iter(Pieces(job.payload.pieces, 99)))}
                yield Done(job.name, {**function(job.payload), **failed}, error=self.error if number else None)

    monkeypatch.setattr(sharding, "executor", lambda name, **_: Fake())
    run = go(tmp_path, devices=2, **long)
    assert run.status == "incomplete" and run.block is not None
    assert [failure.error for failure in run.block.failures] == ["no luck"]
    Fake.error = RunError("a shard said so")
    with pytest.raises(RunError, match="a shard said so"):
        go(tmp_path, devices=2, **{**long, "limit": 8})
    monkeypatch.undo()
    assert go(tmp_path, **long).status == "complete"


def test_what_cannot_be_sharded(tmp_path: Path) -> None:
    toy = {"tasks": "toygen", "harness": "toy", "output_path": str(tmp_path)}
    with pytest.raises(UsageError, match="a model that is open in this process cannot be sharded"):
        evaluate(model=ToyModel(), devices=2, **toy)
    with pytest.raises(UsageError, match="devices=2 needs an executor other than 'local'"):
        evaluate(model="tiny-llada", devices=2, executor="local", **toy)
    with pytest.raises(UnknownNameError, match="unknown executor 'slurm'"):
        evaluate(model="tiny-llada", executor="slurm", **toy)
    with pytest.raises(UsageError, match="devices"):
        evaluate(model="tiny-llada", devices=0, **toy)
    assert not list(tmp_path.iterdir())


def test_a_journal_takes_in_what_others_write(tmp_path: Path) -> None:
    finished = Generation([5], "x", 1, "length")
    with Journal(tmp_path) as journal, Journal(tmp_path, "shard-0-1") as other:
        assert journal.reread() == []
        other.append(to_record(Request("a", "generate", "p"), finished))
        assert journal.reread() == [("sample", "a")] and journal.reread() == []
        with other.file.open("ab") as torn:
            torn.write(b'{"sum":"half a li')
        assert journal.reread() == [] and not journal.damage
        with other.file.open("ab") as torn:
            torn.write(b"ne\n")
        other._end = other.file.stat().st_size
        other.append(to_record(Request("b", "generate", "p"), finished))
        assert journal.adopt() == [("sample", "b")]
        assert [(d.file, d.line) for d in journal.damage] == [("shard-0-1.jsonl", 2)]
        assert journal.sample("a")["key"] == "a" and journal.sample("b")["key"] == "b"
    with Journal(tmp_path) as again:
        assert list(again._places) == ["a", "b"] and [d.line for d in again.damage] == [2]


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
