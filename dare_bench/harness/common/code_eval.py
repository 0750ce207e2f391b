"""Running generated code for both harnesses, all of it in :mod:`dare_bench.sandbox`.

evaluate's ``code_eval`` metric downloads its code from the hub and runs answers without isolation. Scorers written for
it call :class:`CodeEval` instead, an object that they keep: :func:`calls` sets what a call does.
"""

from __future__ import annotations

import builtins
import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dare_bench import sandbox
from dare_bench.config import RunSpec
from dare_bench.errors import DareError, UsageError
from dare_bench.harness.common.quiet import replaced

TIMEOUT = 20.0
"""Seconds of wall time for one program: four times what the slowest reference solution of HumanEval and MBPP takes on a
busy core (MBPP's task 123: 5 s). A limit that a right answer may miss if the machine is busy makes scores drift."""
HEAVY_TIMEOUT = 240.0
"""The same for EvalPlus's tests (the slowest: MBPP+'s 255, whose results are large to transfer, with 61 s)."""
TestedSolution = tuple[str, str]
"""(solution, tests): two Python texts."""


class CodeRunner:
    """Runs solutions against tests in pools of sandboxes, the same pair once. A pool opens with the first pair of its
    ``timeout`` (seconds of wall time) and is closed by :meth:`close`; a later pair opens another."""

    def __init__(self, spec: RunSpec | None = None) -> None:
        self.unsafe = spec is not None and spec.unsafe_no_sandbox
        self._pools: dict[float, sandbox.Pool] = {}
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, str, float], Future[sandbox.Verdict]] = {}
        self._open = True

    @classmethod
    def check(cls, spec: RunSpec, tasks: Sequence[str]) -> None:
        """Refuse code tasks that could not be scored, before a model is opened; raises UsageError."""
        if tasks and not spec.unsafe_no_sandbox and sandbox.isolation() == "none":
            more = f" (and {len(tasks) - 1} more)" if len(tasks) > 1 else ""
            raise UsageError(f"task {tasks[0]!r}{more} runs code that the model writes: {sandbox.InstallHint}")

    def prepare(self, solution: str, tests: str, timeout: float = TIMEOUT) -> None:
        """Start the tests; returns at once."""
        self._submit(solution, tests, timeout)

    def verdict(self, solution: str, tests: str, timeout: float = TIMEOUT) -> sandbox.Verdict:
        """The outcome of the tests; waits for it; raises UsageError."""
        if (reason := self.refusal(solution, tests, timeout)) is not None:
            raise UsageError(f"generated code was not run: {reason}")
        return self._submit(solution, tests, timeout).result()

    def refusal(self, solution: str, tests: str, timeout: float = TIMEOUT) -> str | None:
        """The reason why the sandbox did not run the pair (one line), or None if it did; waits for it."""
        verdict = self._submit(solution, tests, timeout).result()
        lines = verdict.stdout_tail.strip().splitlines() or ["no reason given"]
        return lines[-1] if verdict.status == "refused" else None

    def look_up_only(self) -> None:
        """From now on only known verdicts are returned, as in a forked process, which has no threads to run more;
        raises DareError for others."""
        self._open = False

    def _submit(self, solution: str, tests: str, timeout: float) -> Future[sandbox.Verdict]:
        key = solution, tests, timeout
        with self._lock:
            if key in self._verdicts:
                return self._verdicts[key]
            if not self._open:
                raise DareError("a scorer requested the verdict on a program that it had not submitted")
            if timeout not in self._pools:
                self._pools[timeout] = sandbox.Pool(timeout=timeout, unsafe=self.unsafe)
            self._verdicts[key] = self._pools[timeout].submit(solution, tests)
            return self._verdicts[key]

    def close(self) -> None:
        """Stop all running tests."""
        with self._lock:
            pools, self._pools, self._verdicts = self._pools, {}, {}
        for pool in pools.values():
            pool.close()

    def execution(
        self, samples: Mapping[str, Sequence[Mapping[str, Any]]], tasks: Iterable[str]
    ) -> dict[str, Any] | None:
        """How the code of these tasks was run, for the result: ``level`` of isolation, ``unsafe``, ``timeout`` (the
        longest of a program, in seconds) and the count of each status. Counted over the answers of all scored
        documents, by each task's first filter; None if no code was run."""
        rows = [row for task in tasks for row in samples.get(task, ()) if row["filter"] == samples[task][0]["filter"]]
        answers = [answer for row in rows for answer in row.get("_answers", ())]
        statuses = [answer["verdict"]["status"] for answer in answers if "verdict" in answer]
        if not statuses:
            return None
        counts, longest = dict(sorted(Counter(statuses).items())), max(self._pools, default=0.0)
        return {"level": sandbox.isolation(), "unsafe": self.unsafe, "timeout": longest, "statuses": counts}


@dataclass
class _Call:
    runner: CodeRunner | None
    adapt: Callable[[str], str] = str
    timeout: float = TIMEOUT
    pairs: list[TestedSolution] = field(default_factory=list)


_current: ContextVar[_Call | None] = ContextVar("code_eval", default=None)


@contextmanager
def calls(
    runner: CodeRunner | None, *, adapt: Callable[[str], str] = str, timeout: float = TIMEOUT
) -> Iterator[list[TestedSolution]]:
    """Set what calls of :class:`CodeEval` do within the block, and yield the pairs of all calls so far.

    Without a ``runner`` the code is not run: every solution counts as failed, and only the pairs are of use. ``adapt``
    makes the tests that run from the scorer's; ``timeout`` is in seconds of wall time for each program.
    """
    call = _Call(runner, adapt, timeout)
    token = _current.set(call)
    try:
        yield call.pairs
    finally:
        _current.reset(token)


class CodeEval:
    """Replaces evaluate's ``code_eval``: same call, same result, but in the sandbox.

    Outside of :func:`calls` it runs in a separate sandbox, and refuses if there is none.
    """

    name = "code_eval"

    def compute(
        self,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **ignored: Any,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Run every candidate (``predictions``) of every problem against its tests (``references``), all Python texts.

        Returns ``({"pass@k": mean over problems}, {problem: [(candidate, outcome), ...]})``, without a k for which a
        problem has too few candidates. The original's ``num_workers`` and ``timeout`` are ignored: the pool decides.
        """
        if (call := _current.get()) is None:
            with closing(CodeRunner()) as own, calls(own):
                return self.compute(references, predictions, k)
        problems = [
            [(candidate, call.adapt(tests)) for candidate in candidates]
            for tests, candidates in zip(references, predictions, strict=True)
        ]
        call.pairs += [pair for pairs in problems for pair in pairs]
        if (runner := call.runner) is None:
            return {f"pass@{size}": 0.0 for size in k}, {}
        for pair in (pair for pairs in problems for pair in pairs):
            runner.prepare(*pair, call.timeout)
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for problem, pairs in enumerate(problems):
            statuses = [runner.verdict(*pair, call.timeout).status for pair in pairs]
            results[problem] = [
                (i, {"task_id": problem, "passed": status == "passed", "result": status, "completion_id": i})
                for i, status in enumerate(statuses)
            ]
        counts = [(len(rows), sum(outcome["passed"] for _, outcome in rows)) for rows in results.values()]
        sizes = [size for size in k if counts and all(n >= size for n, _ in counts)]
        return {f"pass@{s}": math.fsum(pass_at_k(n, c, s) for n, c in counts) / len(counts) for s in sizes}, results


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of ``k`` answers is right, estimated without bias from ``c`` right ones of
    ``n`` (Chen et al. 2021, arXiv:2107.03374): 1 - C(n-c, k) / C(n, k); raises ValueError."""
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n; got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@contextmanager
def code_eval_replaced(runner: CodeRunner) -> Iterator[None]:
    """Inside, ``evaluate.load("code_eval")`` returns :class:`CodeEval`, and calls of it by a module that is being
    imported run in the sandbox. Task modules that hold the original from an earlier import are imported again."""
    import evaluate

    load = evaluate.load

    def load_ours(path: str, *args: Any, **named: Any) -> Any:
        return CodeEval() if str(path) == CodeEval.name else load(path, *args, **named)

    def is_original(value: Any) -> bool:
        return isinstance(value, evaluate.EvaluationModule) and value.name == CodeEval.name

    for name, module in list(sys.modules.items()):
        # lm-eval marks the modules it keeps with the time of their file.
        if hasattr(module, "__mtime__") and any(is_original(value) for value in list(vars(module).values())):
            del sys.modules[name]
    with replaced(evaluate, load=load_ours), calls(runner):
        yield


def setup_code(doc: Any) -> str:
    """The code that a document (a row of MBPP or MBPP+) requires before its tests; usually empty."""
    if not isinstance(doc, Mapping):
        return ""
    lines = [*(doc.get("test_imports") or ()), doc.get("test_setup_code") or ""]
    return "\n".join(line for line in lines if isinstance(line, str) and line.strip())


def with_setup(doc: Any, tests: str) -> str:
    """The tests of a document, after :func:`built_ins_line` and :func:`setup_code`."""
    setup = setup_code(doc)
    return built_ins_line(doc) + (f"{setup}\n" if setup else "") + tests


def built_ins_line(doc: Any) -> str:
    """The line that declares which built-in name a document (MBPP's 126: ``sum``) expects the solution to define;
    usually empty. In tests all other names of built-ins are Python's, whatever a solution defines."""
    if not isinstance(doc, Mapping):
        return ""
    defined = re.findall(r"^def (\w+)", str(doc.get("code")), re.MULTILINE)
    called = re.findall(r"\b(\w+)\(", str(doc.get("test_list")))
    names = dict.fromkeys(name for name in defined if name in called and hasattr(builtins, name))
    return f"global {', '.join(names)}\n" if names else ""
