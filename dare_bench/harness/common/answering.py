"""What both harnesses do around answering: which documents, which of them have no answer, errors of their code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.errors import DareError, DataError, UsageError
from dare_bench.protocols import Answer
from dare_bench.types import Request, Sample

Failures = dict[tuple[str, Any], str]
"""By task and document, why it cannot be scored."""


def check_scope(spec: RunSpec) -> None:
    """Raises UsageError where ``limit`` and ``samples`` are both given."""
    if spec.limit is not None and spec.samples is not None:
        raise UsageError("--limit and --samples exclude each other: the one counts documents, the other names them")


def sample_numbers(task: str, numbers: Sequence[int], total: int) -> list[int]:
    """The document numbers of ``--samples`` for a task of ``total`` documents, sorted, each once.

    Raises:
        UsageError: none is given, or one is not in the data set.
    """
    places = sorted(set(numbers))
    outside = [place for place in places if not 0 <= place < total]
    if outside or not places:
        what = f"document {outside[0]}" if outside else "no document"
        raise UsageError(f"--samples: {what} for task {task!r}; it has documents 0 to {total - 1}")
    return places


def answered(
    requests: Sequence[Request], answer: Answer, only: Mapping[str, Sequence[int]] | None
) -> list[tuple[Request, Sample]]:
    """Each request with its sample, from one call of ``answer``.

    Args:
        only: documents to ask, by task; tasks that it does not name are left whole.

    Raises:
        DareError: there are more or fewer samples than requests.
    """
    chosen = [r for r in requests if only is None or r.task not in only or r.doc_id in only[r.task]]
    samples = list(answer(chosen))
    if len(samples) != len(chosen):
        raise DareError(f"{len(chosen)} requests got {len(samples)} samples; one each is needed")
    return list(zip(chosen, samples, strict=True))


def unanswered(pairs: Sequence[tuple[Request, Sample]]) -> Failures:
    """The documents with a request that has no answer."""
    failures: Failures = {}
    for request, sample in pairs:
        if sample.error is not None or sample.answer is None:
            failures.setdefault((request.task, request.doc_id), sample.error or "no answer")
    return failures


def failure_rows(failures: Mapping[tuple[str, Any], str]) -> list[dict[str, Any]]:
    """As :class:`~dare_bench.harness.common.result.HarnessResult` has them."""
    return [{"task": task, "doc_id": doc, "error": error} for (task, doc), error in failures.items()]


@contextlib.contextmanager
def harness_errors(where: str) -> Iterator[None]:
    """Inside, an exception of a harness's code becomes a DataError of one line that begins with ``where``."""
    try:
        yield
    except DareError:
        raise
    except Exception as error:
        first = str(error).strip().split("\n")[0][:300]
        raise DataError(f"{where}: {type(error).__name__}: {first}") from error
