"""Running generated code for both harnesses: the pool that starts tests while generation goes on, and what stands in
for evaluate's ``code_eval`` metric. All of it runs in :mod:`dare_bench.sandbox`.

evaluate's own metric fetches its code from the hub and runs answers in a forked process without isolation. Scorers
written for it call :class:`CodeEval` instead; what such a call means (whose sandbox, wait or only start) is said by
:func:`calls` around it, since the scorers keep the object from the time when they were imported.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dare_bench import sandbox
from dare_bench.config import RunSpec
from dare_bench.errors import DareError, UsageError
from dare_bench.harness.common.replaced import replaced

TIMEOUT = 20.0
"""Seconds of wall time for one program: four times what the slowest reference solution of HumanEval and MBPP takes on a
busy core (MBPP's task 123: 5 s). A limit that a right answer may miss when the machine is busy makes scores drift."""
HEAVY_TIMEOUT = 240.0
"""The same for EvalPlus's tests (the slowest: MBPP+'s 255, whose results are large to hand over, with 61 s)."""
TestedSolution = tuple[str, str]
"""(solution, tests): two Python texts."""


class CodeRunner:
    """Runs solutions against tests in a pool of sandboxes; the same pair runs once, however often it is asked for.

    A pool opens with the first pair and is closed by :meth:`close`; a later pair opens another. ``timeout`` is in
    seconds of wall time.
    """

    def __init__(self, spec: RunSpec | None = None) -> None:
        self.unsafe = spec is not None and spec.unsafe_no_sandbox
        self._pools: dict[float, sandbox.Pool] = {}
        self._lock = threading.Lock()
        self._longest = 0.0
        self._known: dict[tuple[str, str, float], Future[sandbox.Verdict]] = {}
        self._open = True

    @classmethod
    def check(cls, spec: RunSpec, tasks: Sequence[str]) -> None:
        """Refuse before a model is opened what could not be scored.

        Raises:
            UsageError: nothing on this machine isolates a process, and ``--unsafe-no-sandbox`` was not given.
        """
        if tasks and not spec.unsafe_no_sandbox and sandbox.isolation() == "none":
            more = f" (and {len(tasks) - 1} more)" if len(tasks) > 1 else ""
            raise UsageError(f"task {tasks[0]!r}{more} runs code that the model writes: {sandbox.InstallHint}")

    @property
    def level(self) -> str:
        """The strongest isolation there is here: bubblewrap, namespaces, none."""
        return sandbox.isolation()

    def prepare(self, solution: str, tests: str, timeout: float = TIMEOUT) -> None:
        """Start the tests; returns at once."""
        self._submit(solution, tests, timeout)

    def verdict(self, solution: str, tests: str, timeout: float = TIMEOUT) -> sandbox.Verdict:
        """The outcome of the tests; waits for it.

        Raises:
            UsageError: the sandbox refused (no isolation, and not asked to do without).
        """
        found = self._submit(solution, tests, timeout).result()
        if found.status == "refused":
            raise UsageError(f"generated code was not run: {_last_line(found.stdout_tail)}")
        return found

    def refusal(self, solution: str, tests: str, timeout: float = TIMEOUT) -> str | None:
        """Why the sandbox did not run the pair (one line), or None if it did; waits for it."""
        found = self._submit(solution, tests, timeout).result()
        return _last_line(found.stdout_tail) if found.status == "refused" else None

    def look_up_only(self) -> None:
        """From now on only verdicts that are known are given, as in a forked process, which has no threads to run more.

        Raises, when another is asked for:
            DareError: the program was not run before.
        """
        self._open = False

    def _submit(self, solution: str, tests: str, timeout: float) -> Future[sandbox.Verdict]:
        key = solution, tests, timeout
        with self._lock:
            if key in self._known:
                return self._known[key]
            if not self._open:
                raise DareError("a scorer asks for the verdict on a program that it did not name before")
            if timeout not in self._pools:
                self._pools[timeout] = sandbox.Pool(timeout=timeout, unsafe=self.unsafe)
                self._longest = max(self._longest, timeout)
            self._known[key] = self._pools[timeout].submit(solution, tests)
            return self._known[key]

    def close(self) -> None:
        """Stop what still runs."""
        with self._lock:
            pools, self._pools, self._known = self._pools, {}, {}
        for pool in pools.values():
            pool.close()

    def facts(self, statuses: Iterable[str]) -> dict[str, Any]:
        """How code was run, for the result: ``level``, ``unsafe``, ``timeout`` (the longest that a program was given,
        in seconds) and how often each status came."""
        counts = dict(sorted(Counter(statuses).items()))
        return {"level": self.level, "unsafe": self.unsafe, "timeout": self._longest, "statuses": counts}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


@dataclass
class _Call:
    runner: CodeRunner | None
    adapt: Callable[[str], str] = str
    timeout: float = TIMEOUT
    pairs: list[TestedSolution] = field(default_factory=list)


_now: ContextVar[_Call | None] = ContextVar("code_eval", default=None)


@contextmanager
def calls(
    runner: CodeRunner | None, *, adapt: Callable[[str], str] = str, timeout: float = TIMEOUT
) -> Iterator[list[TestedSolution]]:
    """Say what calls of :class:`CodeEval` mean within the block.

    Args:
        runner: who runs the code; None: nobody. Every solution then counts as failed, and only the pairs are of use.
        adapt: makes the tests that run from those that are asked for.
        timeout: seconds of wall time for each program.

    Yields:
        the pairs that were asked for, filled as calls come.
    """
    call = _Call(runner, adapt, timeout)
    token = _now.set(call)
    try:
        yield call.pairs
    finally:
        _now.reset(token)


class CodeEval:
    """Stands in for evaluate's ``code_eval``: same call, same answer, but in the sandbox.

    Outside of :func:`calls` it runs in a sandbox of its own, and refuses where there is none.
    """

    name = "code_eval"

    def compute(
        self,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **ignored: Any,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Run every candidate of every problem against its tests.

        Args:
            references: the tests of each problem, as Python text.
            predictions: the candidates of each problem, as Python text.
            k: for which k to estimate pass@k; left out where a problem has fewer candidates.
            ignored: the original's ``num_workers`` and ``timeout``, which the pool decides.

        Returns:
            ``({"pass@k": mean over problems}, {problem: [(candidate, outcome), ...]})``.
        """
        call = _now.get()
        if call is not None:
            return self._compute(call, references, predictions, k)
        runner = CodeRunner()
        try:
            return self._compute(_Call(runner), references, predictions, k)
        finally:
            runner.close()

    def _compute(
        self, call: _Call, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        problems = list(zip(references, predictions, strict=True))
        for tests, candidates in problems:
            adapted = call.adapt(tests)
            for candidate in candidates:
                call.pairs.append((candidate, adapted))
                if call.runner is not None:
                    call.runner.prepare(candidate, adapted, call.timeout)
        if call.runner is None:
            return {f"pass@{size}": 0.0 for size in k}, {}
        pairs = iter(call.pairs[-sum(len(candidates) for _, candidates in problems) :])
        results = {
            problem: [
                (i, self._outcome(problem, i, call.runner.verdict(*next(pairs), call.timeout)))
                for i in range(len(candidates))
            ]
            for problem, (_, candidates) in enumerate(problems)
        }
        counts = [(len(found), sum(outcome["passed"] for _, outcome in found)) for found in results.values()]
        sizes = [size for size in k if counts and all(n >= size for n, _ in counts)]
        return {f"pass@{s}": math.fsum(pass_at_k(n, c, s) for n, c in counts) / len(counts) for s in sizes}, results

    def _outcome(self, problem: int, candidate: int, verdict: sandbox.Verdict) -> dict[str, Any]:
        passed = verdict.status == "passed"
        return {"task_id": problem, "passed": passed, "result": verdict.status, "completion_id": candidate}


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of ``k`` answers is right, estimated without bias from ``c`` right ones of ``n``
    (Chen et al. 2021, arXiv:2107.03374): 1 - C(n-c, k) / C(n, k).

    Raises:
        ValueError: not 0 <= c <= n or not 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n; got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@contextmanager
def standing_in(runner: CodeRunner) -> Iterator[None]:
    """Within it ``evaluate.load("code_eval")`` gives :class:`CodeEval`, and what a module tries with it while it is
    imported runs in the sandbox. Task modules that hold the original from an earlier import are imported anew."""
    import evaluate

    load = evaluate.load

    def ours(path: str, *args: Any, **named: Any) -> Any:
        return CodeEval() if str(path) == CodeEval.name else load(path, *args, **named)

    for name, module in list(sys.modules.items()):
        # lm-eval marks the modules it keeps with the time of their file.
        if hasattr(module, "__mtime__") and any(_is_original(value) for value in list(vars(module).values())):
            del sys.modules[name]
    with replaced(evaluate, load=ours), calls(runner):
        yield


def _is_original(value: Any) -> bool:
    from evaluate import EvaluationModule

    return isinstance(value, EvaluationModule) and value.name == CodeEval.name
