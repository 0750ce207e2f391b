"""What stands in for evaluate's code_eval: the same call and answer, run in the sandbox."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest
from require import lacks, need_package

from dare_bench import sandbox
from dare_bench.config import run_spec
from dare_bench.errors import DareError, UsageError
from dare_bench.harness.common import code_eval
from dare_bench.harness.common.code_eval import CodeEval, CodeRunner, calls, code_eval_replaced, pass_at_k
from dare_bench.sandbox import Verdict

ADD = "def add(a, b):\n    return a + b\n"
TIMES = "def add(a, b):\n    return a * b\n"
TEST = "assert add(2, 3) == 5"


@pytest.fixture
def runner() -> Iterator[CodeRunner]:
    """A runner in the sandbox of this machine."""
    if sandbox.isolation() == "none":
        lacks("bubblewrap", "is not installed or may not isolate, and neither may namespaces")
    built = CodeRunner(run_spec(model="toy", tasks="x"))
    yield built
    built.close()


class Paper:
    """A pool that decides by the text alone: what holds ``+`` passes; ``refuse`` refuses all."""

    made: ClassVar[list[Paper]] = []
    status = "passed"

    def __init__(self, workers: int | None = None, *, timeout: float = 10.0, unsafe: bool = False) -> None:
        self.timeout, self.unsafe, self.asked, self.closed = timeout, unsafe, [], False
        Paper.made.append(self)

    def submit(self, solution: str, tests: str) -> Future[Verdict]:
        if (solution, tests) not in self.asked:
            self.asked.append((solution, tests))
        done: Future[Verdict] = Future()
        done.set_result(Verdict(self.status if "+" in solution else "failed", "bubblewrap", "why\nno start", 0.1))
        return done

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> type[Paper]:
    Paper.made, Paper.status = [], "passed"
    monkeypatch.setattr(sandbox, "Pool", Paper)
    return Paper


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n in range(1, 7):
        for c in range(n + 1):
            answers = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(itertools.combinations(answers, k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    for n, c, k in [(3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)]:
        with pytest.raises(ValueError, match="pass@k needs"):
            pass_at_k(n, c, k)


def test_the_originals_own_example(runner: CodeRunner) -> None:
    with calls(runner) as pairs:
        scores, results = CodeEval().compute([TEST], [[TIMES, ADD]], k=[1, 2, 10], num_workers=4, timeout=3.0)
    assert scores == {"pass@1": 0.5, "pass@2": 1.0}  # no pass@10 of two candidates
    assert results == {
        0: [
            (0, {"task_id": 0, "passed": False, "result": "failed", "completion_id": 0}),
            (1, {"task_id": 0, "passed": True, "result": "passed", "completion_id": 1}),
        ]
    }
    assert pairs == [(TIMES, TEST), (ADD, TEST)]
    rows = [{"filter": "none", "_answers": [{"verdict": {"status": s}}, {}]} for s in ("passed", "failed", "passed")]
    assert runner.execution({"other": rows}, ["code"]) is None
    facts = runner.execution({"code": [*rows, {**rows[0], "filter": "second"}]}, ["code"])
    assert (
        facts is not None and facts["statuses"] == {"failed": 1, "passed": 2} and facts["timeout"] == code_eval.TIMEOUT
    )
    assert facts["level"] in ("bubblewrap", "namespaces") and facts["unsafe"] is False


def test_problems_are_averaged(paper: type[Paper]) -> None:
    with calls(CodeRunner()):
        scores, results = CodeEval().compute([TEST, "assert add", TEST], [[ADD, TIMES], [ADD, ADD], [TIMES] * 2], [1])
    assert scores == {"pass@1": pytest.approx((0.5 + 1 + 0) / 3)} and list(results) == [0, 1, 2]


def test_a_call_that_only_asks_runs_nothing(paper: type[Paper]) -> None:
    with calls(None, adapt=lambda tests: f"import math\n{tests}") as pairs:
        scores, results = CodeEval().compute([TEST], [[ADD]], k=[1, 4])
    assert (scores, results) == ({"pass@1": 0.0, "pass@4": 0.0}, {})
    assert pairs == [(ADD, f"import math\n{TEST}")] and not paper.made


def test_a_forked_runner_gives_known_verdicts_alone(paper: type[Paper]) -> None:
    runner = CodeRunner()
    known = runner.verdict(ADD, TEST, 90.0)
    assert paper.made[0].timeout == 90.0
    facts = runner.execution({"code": [{"filter": "none", "_answers": [{"verdict": {"status": "passed"}}]}]}, ["code"])
    assert facts is not None and facts["timeout"] == 90.0
    runner.look_up_only()
    assert runner.verdict(ADD, TEST, 90.0) == known
    with pytest.raises(DareError, match="had not submitted"):
        runner.verdict(ADD, f"{TEST}\n", 90.0)


def test_without_a_run_around_it_there_is_a_sandbox_all_the_same(paper: type[Paper]) -> None:
    assert CodeEval().compute([TEST], [[ADD]], k=[1])[0] == {"pass@1": 1.0}
    assert [(pool.unsafe, pool.closed) for pool in paper.made] == [(False, True)]


def test_the_pool_opens_when_needed_and_again_after_close(paper: type[Paper]) -> None:
    runner = CodeRunner(run_spec(model="toy", tasks="x", unsafe_no_sandbox=True))
    assert paper.made == []
    runner.prepare(ADD, TEST)
    runner.close()
    assert runner.verdict(ADD, TEST).status == "passed"
    assert [(pool.unsafe, pool.closed) for pool in paper.made] == [(True, True), (True, False)]


def test_what_the_sandbox_refuses_is_no_wrong_answer(paper: type[Paper]) -> None:
    paper.status = "refused"
    runner = CodeRunner()
    assert runner.refusal(ADD, TEST) == "no start" and runner.refusal(TIMES, TEST) is None
    with calls(runner), pytest.raises(UsageError, match="generated code was not run: no start"):
        CodeEval().compute([TEST], [[ADD]])


def test_no_isolation_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    spec = run_spec(model="toy", tasks="humaneval")
    with pytest.raises(
        UsageError, match=r"task 'humaneval' \(and 1 more\) runs code .*bubblewrap.*--unsafe-no-sandbox"
    ):
        CodeRunner.check(spec, ["humaneval", "mbpp"])
    CodeRunner.check(spec, [])
    CodeRunner.check(spec.model_copy(update={"unsafe_no_sandbox": True}), ["humaneval"])
    monkeypatch.setattr(sandbox, "isolation", lambda: "namespaces")
    CodeRunner.check(spec, ["humaneval"])


def test_evaluate_gives_ours_while_tasks_load(monkeypatch: pytest.MonkeyPatch, paper: type[Paper]) -> None:
    evaluate = need_package("evaluate")

    def load(path: str, *args: Any, **named: Any) -> str:
        return f"the original {path}"

    class Original(evaluate.EvaluationModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None: ...

        name = "code_eval"

    holding, other = types.ModuleType("holding"), types.ModuleType("other")
    vars(holding).update(__mtime__=1, metric=Original())
    vars(other).update(__mtime__=1, metric=CodeEval())
    monkeypatch.setitem(sys.modules, "holding", holding)
    monkeypatch.setitem(sys.modules, "other", other)
    monkeypatch.setattr(evaluate, "load", load)
    with code_eval_replaced(CodeRunner()):
        assert "holding" not in sys.modules and "other" in sys.modules
        assert isinstance(evaluate.load("code_eval"), CodeEval)
        assert evaluate.load("rouge") == "the original rouge"
        evaluate.load("code_eval").compute(references=[TEST], predictions=[[TIMES]], k=[1])
    assert evaluate.load is load and paper.made[0].asked == [(TIMES, TEST)]
