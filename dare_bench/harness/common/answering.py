"""Shared by both harnesses: the documents to request, those without an answer, errors of harness code, and folders of
task files."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench.errors import DareError, DataError, UsageError
from dare_bench.protocols import Answer
from dare_bench.reading import existing
from dare_bench.types import Request, Sample

Failures = dict[tuple[str, Any], str]
"""By task and document, the reason why it cannot be scored."""


def sample_numbers(task: str, numbers: Sequence[int], total: int) -> list[int]:
    """The document numbers of ``--samples`` for a task of ``total`` documents, sorted, each once; raises UsageError."""
    documents = sorted(set(numbers))
    outside = [document for document in documents if not 0 <= document < total]
    if outside or not documents:
        seen = f"document {outside[0]}" if outside else "no document"
        raise UsageError(f"--samples: {seen} for task {task!r}; it has documents 0 to {total - 1}")
    return documents


def answered(
    requests: Sequence[Request],
    answer: Answer,
    watch: Callable[[Sample], None],
    refusal: Callable[[Request, Sample], str | None],
) -> tuple[list[tuple[Request, Sample]], Failures]:
    """Each request with its sample, from one call of ``answer``; and the documents with a request that has no answer,
    or whose code the sandbox did not run (``refusal`` waits for it and gives the reason). ``watch`` starts the tests of
    an answer's code, unless it did so while answers came."""
    samples = list(answer(requests))
    if len(samples) != len(requests):
        raise DareError(f"{len(requests)} requests got {len(samples)} samples; one each is needed")
    failures: Failures = {}
    pairs = list(zip(requests, samples, strict=True))
    for request, sample in pairs:
        watch(sample)
        if sample.error is not None or sample.answer is None:
            failures.setdefault((request.task, request.doc_id), sample.error or "no answer")
    for request, sample in pairs:
        if sample.answer is not None and (reason := refusal(request, sample)) is not None:
            failures.setdefault((request.task, request.doc_id), f"its code was not run: {reason}")
    return pairs, failures


def failure_rows(failures: Mapping[tuple[str, Any], str]) -> list[dict[str, Any]]:
    """The ``failures`` of :class:`~dare_bench.protocols.HarnessResult`."""
    return [{"task": task, "doc_id": doc, "error": error} for (task, doc), error in failures.items()]


@contextlib.contextmanager
def harness_errors(where: str) -> Iterator[None]:
    """Inside, an exception of harness code becomes a DataError of one line that begins with ``where``."""
    try:
        yield
    except DareError:
        raise
    except Exception as error:
        raise DataError(f"{where}: {error_line(error)}") from error


def error_line(error: BaseException) -> str:
    """The type of an exception of harness code and its message, on one line; a long one is cut after a word."""
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = text[:300].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text or 'no reason given'}"


def package_folder(package: str, title: str) -> Path:
    """The folder of an installed harness, without importing it; raises DareError."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DareError(f"{title} is not installed; install it with: pip install 'dare-bench[eval]'")
    return Path(next(iter(spec.submodule_search_locations)))


def included_folder(folder: str | Path, files: str) -> Path:
    """The resolved folder of ``--include-path`` with ``files`` (for the message); raises UsageError for none."""
    root = existing(folder)
    if root is None or not root.is_dir():
        raise UsageError(f"--include-path {folder}: no such folder; give a folder with {files}")
    return root.resolve()
