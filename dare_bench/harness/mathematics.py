"""Mathematical answers are compared within a time limit, in a process that can be killed.

Comparing two formulas can take for ever: ``10^{10^{10}}`` is short to write and its digits fill a disk. lm-eval's
scorers bound themselves with SIGALRM, which is not looked at inside one long C call and needs the main thread. Here the
whole scorer of a mathematical task runs under :class:`dare_bench.harness.guard.Guard`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dare_bench.errors import DataError
from dare_bench.harness.guard import Guard, ItemError, ItemTimeout
from dare_bench.harness.scoring_process import ITEM_SECONDS, worker

_MATHEMATICAL = re.compile(r"\b(math_verify|sympy|latex2sympy\w*|is_equiv|math_equal|\w*boxed\w*)\b")

Verdict = Literal["correct", "incorrect", "no answer"]


def scorer_of(task: Any) -> Callable[..., Any] | None:
    """The function that an lm-eval task scores with, if it has one of its own."""
    function = getattr(task.config, "process_results", None)
    if not callable(function):
        function = getattr(type(task), "process_results", None)
        if not callable(function) or function.__module__.startswith("lm_eval.api."):
            return None
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__code__") else None


@functools.cache
def _source(path: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text()
    return ""


def is_mathematical(task: Any) -> bool:
    """Does the file of the task's scorer read or compare formulas?"""
    scorer = scorer_of(task) if getattr(task, "OUTPUT_TYPE", None) == "generate_until" else None
    return scorer is not None and bool(_MATHEMATICAL.search(_source(scorer.__code__.co_filename)))


@contextlib.contextmanager
def guarded(tasks: Mapping[str, Any], seconds: float = ITEM_SECONDS, part: int = 0) -> Iterator[Guarded]:
    """Within it the mathematical ones of ``tasks`` (lm-eval's, by name) are scored by a worker process, ``seconds`` at
    most for each answer. One that takes longer, or kills the worker, counts as wrong; see :class:`Guarded`. ``part``:
    which of ``--repeats`` is scored, for the notes.

    Raises:
        DataError: at the end, if a task's scorer failed with an error of its own for every single answer.
    """
    chosen = {name: task for name, task in tasks.items() if is_mathematical(task)}
    originals = {name: task.process_results for name, task in chosen.items()}
    own = {name: vars(task).get("process_results") for name, task in chosen.items()}
    with Guard(originals, seconds) as guard:
        watched = Guarded(guard, chosen, part)
        try:
            for name, task in chosen.items():
                task.process_results = functools.partial(watched.score, name)
            yield watched
        finally:
            for name, task in chosen.items():
                del task.process_results
                if own[name] is not None:  # else the class has it
                    task.process_results = own[name]
    watched.refuse_broken()


class Guarded:
    """Scores through a guard and remembers which answers had no verdict of their own."""

    def __init__(self, guard: Guard, tasks: Mapping[str, Any], part: int = 0) -> None:
        self._guard, self._tasks, self._part = guard, tasks, part
        self._scored: Counter[str] = Counter()
        self._lost: dict[str, dict[tuple[str, str], str]] = {}
        self._errors: dict[str, list[str]] = {}

    def score(self, name: str, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """A task's ``process_results``. Never longer than twice the limit, never an exception of the scorer."""
        try:
            metrics = self._guard.call(name, doc, list(results))
        except ItemTimeout:
            self._lose(name, doc, results, "timeout")
        except ItemError as error:
            self._lose(name, doc, results, "crashed")
            self._errors.setdefault(name, []).append(str(error))
        else:
            self._scored[name] += 1
            return dict(metrics)
        return self._wrong(name, doc, len(results))

    def _lose(self, name: str, doc: Any, results: Sequence[Any], why: str) -> None:
        self._lost.setdefault(name, {})[_doc_hash(doc), _key(results)] = why

    def _wrong(self, name: str, doc: Any, count: int) -> dict[str, Any]:
        """What the scorer gives for an empty answer: its own metrics in their own shapes."""
        try:
            return dict(self._guard.call(name, doc, [""] * count))
        except (ItemTimeout, ItemError):
            return dict.fromkeys(self._tasks[name].aggregation(), 0.0)

    def mark(self, samples: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Write the verdict ``timeout`` or ``crashed`` into the rows (lm-eval's logged samples) that it concerns."""
        for name in self._tasks.keys() & samples.keys():
            for row in samples[name]:
                # Every row gets its list: rows of several repeats are joined later, entry by entry.
                answers = row.setdefault("_answers", [{} for asked in row["resps"] for _ in asked])
                why = self._lost.get(name, {}).get((row["doc_hash"], _key(row["filtered_resps"])))
                if why is not None:
                    answers[0]["verdict"] = {"status": why, "level": "none", "seconds": self._guard.seconds}

    @property
    def notes(self) -> list[str]:
        """A sentence for each task with answers that were counted as wrong without a comparison."""
        said = []
        for name, lost in self._lost.items():
            kinds = Counter(lost.values())
            where = f"task {name!r}" + (f", repeat {self._part}" if self._part else "")
            if count := kinds["timeout"]:
                limit = f"{self._guard.seconds:g} s"
                said.append(f"{where}: {_answers(count)} could not be compared within {limit}; counted as wrong")
            if count := kinds["crashed"]:
                first = self._errors[name][0]
                said.append(f"{where}: the scorer failed on {_answers(count)}; counted as wrong ({first})")
        return said

    def refuse_broken(self) -> None:
        """Raises DataError for a task whose scorer never worked: that is no wrong answer, but a broken installation."""
        for name, errors in self._errors.items():
            if not self._scored[name] and len(errors) > 1 and len(set(errors)) == 1:
                raise DataError(f"task {name!r}: its scorer fails on every answer: {errors[0]}")


def _answers(count: int) -> str:
    return f"{count} answer{'s' if count > 1 else ''}"


def _key(results: Sequence[Any]) -> str:
    return json.dumps(list(results), default=str)


def _doc_hash(doc: Any) -> str:
    """lm-eval's ``doc_hash`` of a logged sample."""
    from lm_eval.utils import handle_non_serializable, hash_string

    return str(hash_string(json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)))


def equal(gold: str, answer: str, seconds: float = 10.0) -> Verdict:
    """Does ``answer`` (a response, or the answer alone) state the value ``gold`` (LaTeX or plain)? By math-verify.

    Raises:
        ItemTimeout: the comparison takes longer than ``seconds``. ItemError: it crashed.
        DataError: ``gold`` holds nothing that can be compared.
    """
    verdict = _math_guard().call("equal", gold, answer, seconds=seconds)
    if verdict == "no gold":
        raise DataError(f"the reference answer {gold[:80]!r} holds no formula, number or text to compare with")
    known: Verdict = verdict
    return known


def states_formula(answer: str, seconds: float = 10.0) -> bool:
    """Does math-verify find anything to compare in ``answer``? Raises ItemTimeout and ItemError as :func:`equal`."""
    return bool(_math_guard().call("found", answer, seconds=seconds))


@functools.cache
def _math_guard() -> Guard:
    import math_verify  # noqa: F401  (a second of imports, inherited by every worker)

    return worker({"equal": _equal, "found": _found})


def _found(answer: str) -> bool:
    from math_verify import parse

    return bool(parse(answer, parsing_timeout=None))  # its alarm is off: the guard has the limit


def _equal(gold: str, answer: str) -> str:
    from math_verify import parse, verify

    stated = gold if re.search(r"\$|\\boxed|\\\(|\\\[", gold) else f"${gold}$"
    wanted, given = parse(stated, parsing_timeout=None), parse(answer, parsing_timeout=None)
    if not wanted:
        return "no gold"
    if not given:
        return "no answer"
    return "correct" if verify(wanted, given, timeout_seconds=None) else "incorrect"
