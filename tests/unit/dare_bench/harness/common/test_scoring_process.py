"""Harness code that sees answers runs in a sandboxed process: what an answer makes it do harms nothing outside."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from require import need_package
from toy_model import ToyModel
from toy_tasks import answer_with, write_data, write_tasks

from dare_bench.config import run_spec
from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common import scoring_process
from dare_bench.harness.common.scoring_process import check_scoring, score, worker
from dare_bench.harness.lm_eval.scoring_limits import Answers, AnswerTimeout
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.protocols import HarnessResult
from dare_bench.sandbox.processes import children
from dare_bench.sandbox.worker_process import ItemError, ItemTimeout, WorkerProcess, why_not_enclosed

pytestmark = pytest.mark.skipif(why_not_enclosed() is not None, reason=f"no sandbox works here: {why_not_enclosed()}")
SECRET = "token-that-nobody-may-see"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a secret, a port that answers, and a token in the environment."""
    monkeypatch.setenv("DARE_TEST_TOKEN", SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
        yield tmp_path


REACHES: dict[str, Callable[[Path], Any]] = {
    "a file is written": lambda here: (here / "out").write_text("x"),
    "a program writes one": lambda here: subprocess.run(["/bin/sh", "-c", f"echo x > {here}/out"], check=True).args,
    "a secret is read": lambda here: (here / "secret.txt").read_text(),
    "the users are read": lambda here: Path("/etc/passwd").read_text(),
    "the environment has a token": lambda here: os.environ["DARE_TEST_TOKEN"],
    "our process is seen": lambda here: os.kill(OURS, 0),
}
OURS = os.getpid()


@pytest.mark.parametrize("attempt", REACHES.values(), ids=REACHES)
def test_what_can_be_reached_with_our_rights_is_out_of_reach(attempt: Callable[[Path], Any], here: Path) -> None:
    functions = {"attempt": lambda: str(attempt(here))}
    with WorkerProcess(functions, 30) as guard:
        guard.call("attempt")  # it does reach: or the rest would prove nothing
    (here / "out").unlink(missing_ok=True)
    with worker(functions) as guard, pytest.raises(ItemError) as caught:
        guard.call("attempt")
    assert not caught.value.died and SECRET not in str(caught.value)
    assert not (here / "out").exists()


def test_the_network_is_out_of_reach(here: Path) -> None:
    port = int((here / "port").read_text())
    functions = {"connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close()}
    with WorkerProcess(functions, 30) as guard:
        guard.call("connect")
    with worker(functions) as guard, pytest.raises(ItemError, match=r"ConnectionRefused|unreachable"):
        guard.call("connect")


@pytest.mark.parametrize("place", [scoring_process.__file__, json.__file__, pytest.__file__])
def test_code_that_others_import_is_read_only(place: str) -> None:
    planted = Path(place).with_name("planted_by_a_test.py")
    functions = {"plant": lambda: planted.write_text("raise SystemExit")}
    with worker(functions) as guard, pytest.raises(ItemError, match=r"Read-only|Permission"):
        guard.call("plant")
    assert not planted.exists()


def test_the_token_is_not_in_the_memory_of_the_environment(here: Path) -> None:
    """The kernel's block of the environment is wiped, not only Python's copy of it."""
    code = """
import ctypes
from dare_bench.harness.common.scoring_process import worker
start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
look = lambda: ctypes.string_at(start, end - start).decode(errors="replace")
assert "token-that-nobody" in look()
with worker({"look": look}) as guard:
    print("token-that-nobody" in guard.call("look"), end="")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False"


def test_data_that_is_named_can_be_read_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    functions = {
        "read": lambda: (tmp_path / "data.txt").read_text(),
        "write": lambda: (tmp_path / "data.txt").write_text("x"),
        "scratch": lambda: Path(tempfile.mkdtemp(), "x").write_text("x"),
    }
    with worker(functions, [str(tmp_path), None]) as guard:
        assert guard.call("read") == "data"
        with pytest.raises(ItemError, match=r"Read-only|Permission"):
            guard.call("write")
        assert guard.call("scratch") == 1
    assert (tmp_path / "data.txt").read_text() == "data"


def test_what_a_worker_sends_is_never_unpickled(tmp_path: Path) -> None:
    """A worker that is taken over may write what it likes into the pipe."""

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "exploded",)

    message = pickle.dumps(Bomb())

    def send() -> None:
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(number, len(message).to_bytes(8, "big") + message)

    with worker({"send": send}) as guard, pytest.raises(ItemError, match="something that is not a result"):
        guard.call("send")
    with worker({"value": lambda: Bomb()}) as guard, pytest.raises(ItemError, match="cannot be sent as JSON"):
        guard.call("value")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: os._exit(3), r"died \(exit status 3\)"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"died \(SIGKILL\)"),
        (lambda: bytearray(6 << 30), "MemoryError"),
    ],
)
def test_a_worker_that_dies_is_one_error_and_leaves_no_process(function: Any, said: str) -> None:
    before = children(os.getpid())
    with worker({"die": function, "echo": str}) as guard:
        with pytest.raises(ItemError, match=said):
            guard.call("die")
        assert guard.call("echo", 1) == "1"
    assert children(os.getpid()) == before


def test_a_call_without_end_is_ended_with_all_that_it_started() -> None:
    before = children(os.getpid())
    functions = {"hang": lambda: subprocess.run(["sleep", "600"], check=True)}
    with worker(functions) as guard, pytest.raises(ItemTimeout):
        guard.call("hang", seconds=1)
    assert children(os.getpid()) == before


def test_errors_keep_their_kind() -> None:
    def raises(error: Exception) -> Callable[[], None]:
        def function() -> None:
            raise error

        return function

    with pytest.raises(UsageError, match=r"^told as it is$"):
        score(raises(UsageError("told as it is")), [])
    with pytest.raises(DataError, match="scoring failed: KeyError: 'x'; the answers are kept"):
        score(raises(KeyError("x")), [])
    with pytest.raises(DataError, match=r"scoring failed: .*; the answers are kept"):
        score(raises(type("SaveError", (Exception,), {})("not one that a scorer has")), [])


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"results": 5}, "sent no result: results=5"),
        ({"samples": [1]}, "sent no result: samples="),
        ({"samples": {"other": []}}, "sent a result of 'other', which was not requested"),
        ({"fingerprints": {"other": "x"}}, "sent a result of 'other', which was not requested"),
    ],
)
def test_a_worker_that_is_taken_over_sends_what_a_result_may_hold(sent: dict[str, Any], said: str) -> None:
    built = HarnessResult(results={}, samples={}, fingerprints={})
    vars(built).update(sent)
    with pytest.raises(DataError, match=said):
        score(lambda: built, [])


def test_the_language_of_a_text_is_the_same_every_time() -> None:
    """IFEval asks langdetect, which takes "hello" for Finnish or Dutch by chance."""
    need_package("langdetect")

    def languages() -> HarnessResult:
        from langdetect import detect

        return HarnessResult({}, {}, {}, [detect("hello") for _ in range(30)], [], {}, None)

    assert len(set(score(languages, []).notes)) == 1


def test_a_message_that_stops_in_the_middle_is_ended_in_time() -> None:
    def stall() -> None:
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(number, (1000).to_bytes(8, "big") + b"x")
        time.sleep(600)

    with worker({"stall": stall, "echo": str}) as guard:
        with pytest.raises(ItemTimeout):
            guard.call("stall", seconds=1)
        assert guard.call("echo", 1) == "1"


def test_a_worker_outlives_the_thread_that_made_it() -> None:
    with worker({"pid": os.getpid, "echo": str}) as guard:
        thread = threading.Thread(target=guard.call, args=("pid",))
        thread.start()
        thread.join()
        time.sleep(0.1)  # the kernel's signal, if there were one, would be sent by now
        alive = guard._pid
        assert guard.call("echo", 1) == "1" and guard._pid == alive


def test_a_worker_ends_with_a_killed_parent() -> None:
    code = """
import os, time
from dare_bench.harness.common.scoring_process import worker
from dare_bench.sandbox.processes import below
guard = worker({"echo": str, "sleep": lambda: time.sleep(600)})
guard.call("echo", 1)
print(*below(os.getpid()), flush=True)
guard.call("sleep", seconds=600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    below = [int(word) for word in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(below) == 3
    deadline = time.monotonic() + 30
    while any(map(running, below)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


# --- answers that a harness's own code evaluates ----------------------------------------------------------------------

EVALUATED = """
dataset_path: toys/sums
dataset_name: small
task: toy_evaluated
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Q:"], max_gen_toks: 512}
process_results: !function formula.process_results
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
FORMULA = """
import sympy

def process_results(doc, results):
    return {"exact_match": float(str(sympy.sympify(results[0])) == str(doc["answer"]))}
"""


def lm_eval_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: Any, **fields: Any) -> LmEvalSource:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    folder, data = write_tasks(tmp_path / "tasks"), write_data(tmp_path / "data")
    (folder / "evaluated.yaml").write_text(EVALUATED)
    (folder / "formula.py").write_text(FORMULA)
    (folder / "endless.yaml").write_text(ENDLESS)
    (folder / "endless.py").write_text(SCORER)
    fields = {"tasks": "toy_evaluated", **fields}
    spec = run_spec(model="toy", include_path=str(folder), data_dir=str(data), **fields)
    return LmEvalSource(spec, ToyModel(reply=reply))


def test_an_answer_that_lm_eval_code_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "ran"
    answer = f"__import__('pathlib').Path({str(place)!r}).touch()"
    source = lm_eval_source(tmp_path, monkeypatch, lambda request: answer if request.doc_id == 0 else "3")
    result = source.run(answer_with(source.model))
    assert not place.exists()
    assert [row["exact_match"] for row in result.samples["toy_evaluated"] if row["doc_id"] == 0] == [0.0]
    eval(answer)  # the payload works where nothing holds it
    assert place.exists()


ENDLESS = """
dataset_path: toys/sums
dataset_name: small
task: toy_endless
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Q:"], max_gen_toks: 512}
filter_list:
  - {name: slow, filter: [{function: regex, regex_pattern: "^(?:a+)+b$|(-?\\\\d+)"}, {function: take_first}]}
  - {name: raw, filter: [{function: take_first}]}
process_results: !function endless.process_results
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
SCORER = """
import re

def process_results(doc, results):
    re.match("^(?:c+)+d$", results[0])
    return {"exact_match": float(results[0].strip() == str(doc["answer"]))}
"""


def test_an_answer_that_lm_eval_code_does_not_end_for_is_wrong_and_the_others_keep_their_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regular expression that backtracks for ever: in a filter for one answer, in a scorer for another."""
    monkeypatch.setattr("dare_bench.harness.lm_eval.scoring_limits.ANSWER_SECONDS", 0.5)
    replies = {0: "a" * 60, 1: "c" * 60}
    source = lm_eval_source(
        tmp_path, monkeypatch, lambda request: replies.get(int(request.doc_id), "11"), tasks="toy_endless"
    )
    result = source.run(answer_with(source.model))
    plain = lm_eval_source(tmp_path, monkeypatch, lambda request: "11", tasks="toy_endless")
    scores = {(row["doc_id"], row["filter"]): row["exact_match"] for row in result.samples["toy_endless"]}
    for row in plain.run(answer_with(plain.model)).samples["toy_endless"]:
        wanted = 0.0 if row["doc_id"] in replies else row["exact_match"]
        assert scores[row["doc_id"], row["filter"]] == wanted
    assert any(scores.values())
    late = {
        (row["doc_id"], row["filter"])
        for row in result.samples["toy_endless"]
        for answer in row.get("_answers", ())
        if answer.get("verdict", {}).get("status") == "timeout"
    }
    assert late == {(0, "slow"), (1, "raw")}  # the filter leaves nothing of the second for the scorer to hang on
    assert "task 'toy_endless': 1 answer could not be read within 0.5 s; counted as wrong" in result.notes
    assert "task 'toy_endless': 1 answer could not be compared within 0.5 s; counted as wrong" in result.notes


def test_an_answer_may_be_endless_even_when_it_is_empty() -> None:
    def never_ends() -> None:
        answers = Answers(["a"], 0.1)
        while True:
            try:
                for _ in answers:
                    while True:
                        pass
            except AnswerTimeout:
                answers.give_up()

    with pytest.raises(DataError, match=r"does not end within 0\.1 s even for an empty one"):
        never_ends()


def test_an_answer_that_opencompass_code_evaluates(tmp_path: Path) -> None:
    need_package("opencompass")
    from opencompass.datasets.srbench import SRbenchDatasetEvaluator

    place = tmp_path / "ran"
    evaluator = object.__new__(SRbenchDatasetEvaluator)  # its data set is not at hand
    answer = f"y=exec(\"open({str(place)!r}, 'w').close()\")"
    with worker({"parse": lambda: str(evaluator.parse_formula(answer))}) as guard, contextlib.suppress(ItemError):
        guard.call("parse")
    assert not place.exists()
    with (
        WorkerProcess({"parse": lambda: str(evaluator.parse_formula(answer))}, 60) as guard,
        contextlib.suppress(ItemError),
    ):
        guard.call("parse")
    assert place.exists()  # as it was when scoring had our rights


def test_where_nothing_isolates_such_tasks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_process, "why_not_enclosed", lambda: "unshare: Operation not permitted")
    with pytest.raises(UsageError, match=r"'toy_evaluated' is scored by code .*sympy in formula\.py.*--unsafe"):
        lm_eval_source(tmp_path, monkeypatch, lambda request: "3")
    source = lm_eval_source(tmp_path, monkeypatch, lambda request: "3", unsafe_no_sandbox=True)
    result = source.run(answer_with(source.model))
    assert result.results["results"]["toy_evaluated"]["exact_match,none"] > 0
    assert any("scored with the user's rights" in note for note in result.notes)
    check_scoring(run_spec(model="toy", tasks="gsm8k"), {})  # what evaluates nothing is not refused
