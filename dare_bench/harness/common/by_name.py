"""What harness code loads by name is what the name means anywhere: a data set of the hub, a metric of an installed
package. Nothing in the current folder is taken for it, and no script of a data set or of the hub runs."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from dare_bench.errors import DataError
from dare_bench.harness.common.answering import error_line
from dare_bench.harness.common.quiet import replaced
from dare_bench.hub import asked_once, why_offline

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_HUB_FILE = re.compile(r"hf://datasets/(.+)@([0-9a-f]{7,40})/")
_METRICS = "evaluate.loading"


@contextlib.contextmanager
def by_name() -> Iterator[None]:
    """Inside, ``datasets`` and ``evaluate`` load by name as the module says, whatever a task file or a harness
    requests. They do not wait for a hub that cannot be reached. A data set or metric that has only a script is an
    error."""
    from datasets import load

    data_set = partial(_data_set, load.dataset_module_factory)
    guarded = replaced(load, resolve_trust_remote_code=_refuse_script, dataset_module_factory=data_set)
    with guarded, _metrics_by_name(), asked_once():
        yield


def origin(data_set: Any) -> str | None:
    """Where a ``datasets.Dataset`` came from: ``hub ID@REVISION``, or files; None if it was made in memory."""
    info = getattr(data_set, "info", None)
    files = list(getattr(info, "download_checksums", None) or ())
    if not files:
        return None
    if hub := _HUB_FILE.match(files[0]):
        return f"hub {hub[1]}@{hub[2][:12]}"
    return os.path.commonpath(files) if all(map(os.path.isabs, files)) else files[0]


def _refuse_script(_: bool | None, name: str) -> bool:
    raise DataError(
        f"data set {name!r} is loaded by a script, which dare-bench never runs; convert it to JSON, CSV"
        " or Parquet files and name them in a manifest (--data-dir)"
    )


def _data_set(find: Callable[..., Any], path: str, *args: Any, **named: Any) -> Any:
    """``datasets.load.dataset_module_factory``, which would take a folder for the data set of the hub."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if path in _PACKAGED_DATASETS_MODULES or not _HUB_ID.fullmatch(path) or not Path(path).exists():
        return find(path, *args, **named)
    try:
        with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
            return find(path, *args, **named)
    except Exception as error:
        reason = why_offline(error) or error_line(error)
        raise DataError(
            f"data set {path!r} cannot be loaded from the hub ({reason}), and the folder of that name here is not "
            f"taken for it: list its files in a manifest (--data-dir), or write ./{path} in your task"
        ) from error


def _metric(find: Callable[..., Any], path: str, *args: Any, **named: Any) -> Any:
    """``evaluate.loading.evaluation_module_factory``, which would run a script of the current folder or the hub."""
    if not Path(path).is_absolute():  # OpenCompass gives the path of one of its files
        raise DataError(
            f"metric {path!r} of the evaluate library is a script, of the hub or of a folder, which dare-bench never"
            " runs; leave out the task"
        )
    return find(path, *args, **named)


@contextlib.contextmanager
def _metrics_by_name() -> Iterator[None]:
    with contextlib.ExitStack() as stack:

        def change(module: ModuleType) -> None:
            named = partial(_metric, module.evaluation_module_factory)
            stack.enter_context(replaced(module, evaluation_module_factory=named))

        if (imported := sys.modules.get(_METRICS)) is not None:
            change(imported)
        else:
            finder = _WhenImported(_METRICS, change)
            sys.meta_path.insert(0, finder)
            stack.callback(sys.meta_path.remove, finder)
        yield


class _WhenImported(MetaPathFinder):
    """Calls ``then`` with a module that something imports: ``evaluate`` takes seconds, and few tasks use it."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then_change(module: ModuleType) -> None:
                run(module)
                self._then(module)

            spec.loader.exec_module = run_then_change  # type: ignore[method-assign]
        return spec
