"""Runs the harness code that processes answers, in one sandboxed worker process: postprocessors, filters, metrics and
parsers were not written to withstand hostile text, and some evaluate it (``sympify``). Only JSON comes back."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dare_bench.config import RunSpec, one_line
from dare_bench.errors import DareError, DataError, UsageError
from dare_bench.harness.common.by_name import by_name
from dare_bench.protocols import HarnessResult
from dare_bench.sandbox import InstallHint
from dare_bench.sandbox.forked import SandboxView, is_enclosed
from dare_bench.sandbox.worker_process import ItemError, ItemTimeout, WorkerProcess, why_not_enclosed
from dare_bench.types import Request

ITEM_SECONDS = 40.0
"""Limit for one answer. lm-eval's limits add up to 35 s (5 s each: one simplification, two parses, and four
comparisons), so whatever ends by itself under lm-eval ends here too, with the same score."""
_START_SECONDS = 600.0
_ERRORS = {kind.__name__: kind for kind in (DareError, DataError, UsageError)}
"""Errors that keep their type when they come back."""
_RESULT = TypeAdapter(HarnessResult)
_CACHES = ("HF_EVALUATE_CACHE", "HF_METRICS_CACHE", "HF_MODULES_CACHE", "HF_DATASETS_CACHE")
_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "TZ")


def check_scoring(spec: RunSpec, evaluating: Mapping[str, str]) -> None:
    """Raise UsageError for tasks that could not be scored safely, before a model is opened. ``evaluating``: tasks whose
    scorers can evaluate text, each with the code that does it."""
    if not evaluating or spec.unsafe_no_sandbox:
        return
    task, code = next(iter(evaluating.items()))
    more = f" (and {len(evaluating) - 1} more)" if len(evaluating) > 1 else ""
    check_enclosed(f"task {task!r}{more}", code)


def check_enclosed(what: str, code: str, otherwise: str = "") -> None:
    """Raise UsageError if no sandbox works: ``what`` (a task or reward) is scored by ``code`` that can evaluate text.
    ``otherwise``: what to do instead of installing a sandbox, besides ``--unsafe-no-sandbox``."""
    if (reason := why_not_enclosed()) is None:
        return
    raise UsageError(
        f"{what} is scored by code that can evaluate text as a program ({code}), and harness code cannot"
        f" be put into a sandbox here ({reason}); {InstallHint}{otherwise and f', or {otherwise}'}"
    )


def check_sentence_model(subject: str) -> None:
    """Refuse ``subject``, a task that splits sentences, if nltk does not find its model punkt_tab, which is not part of
    its package: another splitter would give other scores. Raises UsageError with the command that installs it."""
    try:
        import nltk

        nltk.data.find("tokenizers/punkt_tab/english")
    except (ImportError, LookupError) as error:
        raise UsageError(
            f"{subject} needs nltk's sentence model punkt_tab, which is not installed; install it with:"
            " python -m nltk.downloader punkt_tab (offline: unpack punkt_tab.zip into tokenizers/ of a folder that"
            " NLTK_DATA names)"
        ) from error


def unprotected() -> list[str]:
    """A note for the result if answers were scored outside of a sandbox."""
    if (reason := why_not_enclosed()) is None:
        return []
    return [f"answers were scored with the user's rights: no sandbox works here ({reason})"]


def worker(functions: Mapping[str, Callable[..., Any]], folders: Iterable[str | None] = ()) -> WorkerProcess:
    """A worker process for harness code that processes answers, each call within :data:`ITEM_SECONDS` by default. It
    may read the data and task ``folders``. In a sandbox, if one works and this is not in one already; otherwise with
    our rights (:func:`check_scoring` has refused the tasks for which that is unsafe)."""
    view = _sandbox_view(folders) if not is_enclosed() and why_not_enclosed() is None else None
    return WorkerProcess(functions, ITEM_SECONDS, sandbox=view)


def score(
    function: Callable[[], HarnessResult],
    requests: Sequence[Request],
    folders: Iterable[str | None] = (),
    *,
    formulas: Collection[str] = (),
) -> HarnessResult:
    """``function()`` in such a worker; raises DareError. The time limit grows with the number of ``requests``; one
    answer may take :data:`ITEM_SECONDS` in tasks whose scorers compare ``formulas``."""
    limit = _START_SECONDS + sum(2 * ITEM_SECONDS if request.task in formulas else 1.0 for request in requests)

    def seeded() -> dict[str, Any]:
        with contextlib.suppress(ImportError):
            from langdetect import DetectorFactory

            DetectorFactory.seed = 0  # IFEval uses it: otherwise it draws random numbers for each text
        with by_name():
            return vars(function())

    with worker({"score": seeded}, folders) as process:
        try:
            value = process.call("score", seconds=limit)
        except ItemTimeout as error:
            raise DataError(f"scoring did not end within {limit:g} s; the answers are kept") from error
        except ItemError as error:
            if error.kind in _ERRORS:
                raise _ERRORS[error.kind](str(error)) from error
            raise DataError(f"scoring failed: {error}; the answers are kept") from error
    try:
        result = _RESULT.validate_python(value)
    except ValidationError as error:
        raise DataError(f"the scoring process sent no result: {one_line(error, 'it')[:500]}") from error
    if others := {*result.samples, *result.fingerprints} - {request.task for request in requests}:
        raise DataError(f"the scoring process sent a result of {min(others)[:80]!r}, which was not requested")
    return result


def _sandbox_view(folders: Iterable[str | None]) -> SandboxView:
    """The given folders, those of nltk's data, and scratch folders for the caches of evaluate and datasets."""
    nltk = [str(path) for path in _nltk_folders() if path.is_dir()]
    modules = [sys.modules[name] for name in ("evaluate.config", "datasets.config") if name in sys.modules]
    scratch = {str(getattr(module, name)) for module in modules for name in _CACHES if hasattr(module, name)}
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    given = [str(Path(folder).expanduser().resolve()) for folder in folders if folder]
    return SandboxView([*given, *nltk], sorted(scratch), {**variables, "NLTK_DATA": os.pathsep.join(nltk)})


def _nltk_folders() -> Iterable[Path]:
    if "nltk.data" in sys.modules:
        return map(Path, sys.modules["nltk.data"].path)
    variable = [word for word in os.environ.get("NLTK_DATA", "").split(os.pathsep) if word]
    prefixes = (Path.home(), Path(sys.prefix), Path(sys.prefix, "share"), Path("/usr/share"), Path("/usr/local/share"))
    return [*map(Path, variable), *(prefix / "nltk_data" for prefix in prefixes)]
