"""HumanEval, MBPP and their plus versions: OpenCompass reads the answer, our sandbox runs it.

OpenCompass executes answers in unprotected processes and lets evalplus download tests. Here only its extraction of the
code from an answer is used; programs and tests are assembled from the rows of the data set.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

from dare_bench.errors import DataError
from dare_bench.harness.common.answering import error_line
from dare_bench.harness.common.by_name import by_name
from dare_bench.harness.common.code_eval import HEAVY_TIMEOUT, TIMEOUT, with_setup
from dare_bench.harness.opencompass import mbpp_assertion
from dare_bench.harness.opencompass.components import evaluator_name, resolve
from dare_bench.harness.opencompass.manifest_rows import ManifestRows
from dare_bench.hub import why_offline

PROGRAMS_VERSION = "6eeccc72814a0722"
"""Part of the fingerprint of a task whose programs are assembled here. Change it when other programs are run."""
# evaluator -> (the metric's name in OpenCompass's results, hub id of the rows with the plus tests)
_HUMANEVAL = {
    "HumanEvalEvaluator": ("humaneval_pass@1", None),
    "HumanEvalPlusEvaluator": ("humaneval_plus_pass@1", "evalplus/humanevalplus"),
}
_MBPP = {"MBPPEvaluator": "score", "MBPPEvaluator2": "score", "MBPPPassKEvaluator": "pass@1"}
_MBPP_PLUS = ("mbpp_plus_pass@1", "evalplus/mbppplus")


class TestProgram(NamedTuple):
    """A program: ``tests`` follow ``solution`` in the same namespace; ``timeout`` in seconds."""

    solution: str
    tests: str
    timeout: float = TIMEOUT


def runs_code(cfg: Mapping[str, Any]) -> bool:
    """Is the data set one of those whose answers are run here?"""
    return evaluator_name(cfg) in {*_HUMANEVAL, *_MBPP}


class CodeSet:
    """Makes programs from the answers to one data set; raises DataError."""

    def __init__(self, cfg: Mapping[str, Any], bench: ManifestRows | None) -> None:
        self.name, self._bench, self._cfg = evaluator_name(cfg), bench, cfg
        evaluator = cfg["eval_cfg"]["evaluator"]
        plus = evaluator.get("metric") == "MBPPPlus"
        self.metric, self._plus = (
            _HUMANEVAL[self.name] if self.name in _HUMANEVAL else _MBPP_PLUS if plus else (_MBPP[self.name], None)
        )

    def read(self, answer: str) -> str:
        """The code in an answer that is postprocessed already."""
        return answer if self.name in _HUMANEVAL else str(self._mbpp._process_answer(answer))

    def program(self, code: str, row: Mapping[str, Any]) -> TestProgram:
        """The program of the code in one answer to the document ``row``."""
        start = row["prompt"] if self.name in _HUMANEVAL else ""
        return TestProgram(start + code, self.tests(row), TIMEOUT if self._plus is None else HEAVY_TIMEOUT)

    def tests(self, row: Mapping[str, Any]) -> str:
        """The tests of a document, after its setup code. OpenCompass omits that code, and some reference solutions of
        MBPP fail without it."""
        return with_setup(row, self._tests(row))

    def _tests(self, row: Mapping[str, Any]) -> str:
        if self.name in _HUMANEVAL:
            source = row if self._plus is None else self._plus_row(row)
            return f"{source['test']}\ncheck({source.get('entry_point') or row['entry_point']})\n"
        if self._plus is not None:
            return str(row["test"] if row.get("test") else self._plus_row(row)["test"])
        reference = row[self._cfg["reader_cfg"]["output_column"]]
        from opencompass.utils.code_execution import make_assertions_type_aware

        assertions = reference["test_list_2"] if isinstance(reference, Mapping) else reference
        return f"{_comparison()}{make_assertions_type_aware(assertions)}\n"

    @cached_property
    def _mbpp(self) -> Any:
        return resolve(self._cfg["eval_cfg"]["evaluator"]["type"], "ICL_EVALUATORS")()

    @cached_property
    def _plus_rows(self) -> dict[str, dict[str, Any]]:
        hub_id = str(self._plus)
        rows = self._bench.rows([hub_id], "test") if self._bench is not None else None
        return {_number(row["task_id"]): row for row in (rows if rows is not None else _from_hub(hub_id))}

    def _plus_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        number = _number(row["task_id"])
        if number not in self._plus_rows:
            raise DataError(
                f"{self._plus} has no tests for {row['task_id']!r}; it has {len(self._plus_rows)} documents"
            )
        return self._plus_rows[number]


def _from_hub(hub_id: str) -> Iterable[dict[str, Any]]:
    import datasets

    try:
        with by_name():
            rows: Iterable[dict[str, Any]] = datasets.load_dataset(hub_id, split="test")
        return rows
    except Exception as error:
        reason = why_offline(error) or error_line(error)
        raise DataError(
            f"the tests of {hub_id} cannot be loaded ({reason}); give --data-dir with a manifest that lists {hub_id}"
        ) from error


def _number(task_id: Any) -> str:
    """``2`` of ``Mbpp/2``, ``HumanEval/2``, 2: the files name their documents differently."""
    return re.sub(r"\D", "", str(task_id).rpartition("/")[2])


@cache
def _comparison() -> str:
    """Python source of the replacement for ``==`` in MBPP's tests, under OpenCompass's name for it; its own names and
    imports are not visible to the solution."""
    from opencompass.utils import code_execution

    name = code_execution.TYPE_AWARE_EQUAL_NAME
    opencompass, ours = inspect.getsource(code_execution), inspect.getsource(mbpp_assertion)
    return (
        f"{name}_names = {{}}\nexec({opencompass!r}, {name}_names)\nexec({ours!r}, {name}_names)\n"
        f"def {name}(actual, expected, _names={name}_names):\n"
        "    return _names['holds'](actual, expected, _names['type_aware_equal'])\n"
    )
