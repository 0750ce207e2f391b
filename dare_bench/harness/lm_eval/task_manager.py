"""lm-eval's task manager over our index. Data sets are redirected while a task is built, and the task's settings are
restored afterwards, so that results and fingerprints (hashes of prompts, targets, filters and scorer) name the data
set, never a path."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Entry, Kind

from dare_bench.errors import DareError, DataError
from dare_bench.harness.common.answering import error_line, harness_errors
from dare_bench.harness.common.hashing import described, file_hash, short_hash
from dare_bench.harness.common.local_data import ENVIRONMENT, LocalData
from dare_bench.harness.lm_eval.lm import sandbox_templates
from dare_bench.harness.lm_eval.task_index import TaskEntry
from dare_bench.hub import why_offline

sandbox_templates()
_KINDS = {"task": Kind.TASK, "python": Kind.PY_TASK, "group": Kind.GROUP, "tag": Kind.TAG}
_DATA = ("dataset_path", "dataset_name", "dataset_kwargs")
_GATED = frozenset({"Idavidrein/gpqa"})
"""Known to be gated, also if the hub cannot be reached (it then looks like any data set that is not cached)."""

# Data sources and mere names; the data itself is covered by the hash of the documents.
_LEFT_OUT = re.compile(r"^(dataset_\w+|custom_dataset|\w+_split|split|task_alias|tag|metadata|num_fewshot)$")


class _Factory(TaskFactory):
    """Builds tasks as lm-eval does, from local data if available."""

    def __init__(self, data: LocalData | None, **named: Any) -> None:
        super().__init__(**named)
        self._data = data
        self.moved: dict[str, dict[str, Any]] = {}
        """By task name: the data set settings that a redirection replaced."""
        self._from_hub: dict[str, str] = {}
        """By task name: the data set requested from the hub."""

    def _redirected(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        change = self._data.redirect(config) if self._data else None
        if change is None:
            self._from_hub[name] = str(config.get("dataset_path"))
            return config
        self.moved[name] = {key: config.get(key) for key in _DATA}
        return {**config, **change}

    def _load_full_config(self, entry: Entry, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
        config = super()._load_full_config(entry, overrides)
        return config if entry.kind is Kind.GROUP else self._redirected(config.get("task", entry.name), config)

    def _build_task(self, entry: Entry, overrides: dict[str, Any] | None) -> Task:
        try:
            return super()._build_task(entry, overrides)
        except DareError:
            raise
        except Exception as error:
            raise self._build_error(entry.name, error) from error

    def _build_group_members(
        self, member_list: list[Any], group_name: str, overrides: dict[str, Any] | None, registry: dict[str, Entry]
    ) -> list[Any]:
        """Tasks written inside a group's file are built without :meth:`_load_full_config`: redirect these here."""
        members = []
        for item in member_list:
            if isinstance(item, dict) and "group" not in item and item.get("task") not in registry:
                name = f"{group_name}::{item.get('task')}"
                item = self._redirected(name, {**(overrides or {}), **item})
            members.append(item)
        return list(super()._build_group_members(members, group_name, overrides, registry))

    def _build_error(self, name: str, error: Exception) -> DataError:
        start = f"task {name!r} could not be built: "
        dataset, terms = self._from_hub.get(name, ""), ""
        if _is_gated(error, dataset):
            terms = (
                f"accept its terms at https://huggingface.co/datasets/{dataset}, give your token (hf auth login, or the"
                " variable HF_TOKEN) and run again"
            )
        if self._data and name not in self.moved:
            start += f"{self._data.folder}/manifest.json does not list its data set; "
        if dataset and (reason := why_offline(error)) is not None:
            gated = f". It is gated: {terms}" if terms else ""
            return DataError(
                f"{start}{reason}, and {dataset} is not in the cache (HF_HOME); --data-dir or {ENVIRONMENT} takes data"
                f" sets from local files (docs/data.md){gated}"
            )
        if terms:
            return DataError(
                f"{start}its data set {dataset} is gated and comes from the hub only: {terms} ({error_line(error)})"
            )
        return DataError(f"{start}{error_line(error)}")


class LocalTaskManager(TaskManager):
    """A task manager that builds tasks once and returns the same objects again.

    ``entries``: the tasks that can be requested, with what is in their groups and tags (an object for each of lm-eval's
    14,000 names takes longer than building a task). ``marks``: by task name, what else decides its scores, given the
    task; it becomes part of the fingerprint.
    """

    def __init__(
        self,
        entries: Mapping[str, TaskEntry],
        data: LocalData | None,
        marks: Mapping[str, Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(include_defaults=False)
        self._marks = marks or {}
        self.definitions: dict[str, str] = {}
        """Fingerprints of the tasks as their files define them, before the command line changes settings."""
        self._factory: _Factory = _Factory(data, meta=self.metadata)
        self._index = {
            name: Entry(name, _KINDS[entry.kind], entry.path, tags=set(entry.members) if entry.kind == "tag" else set())
            for name, entry in entries.items()
        }
        self._built: dict[str, Any] | None = None

    def load(self, task_list: Sequence[Any]) -> dict[str, Any]:
        """lm-eval's ``TaskDict`` of the names given at the first call; raises DataError."""
        if self._built is None:
            with harness_errors(f"lm-eval could not load {', '.join(map(str, task_list))}"):
                self._built = super().load(list(task_list))
            for name, task in self._built["tasks"].items():
                if (settings := self._factory.moved.get(name)) is not None:
                    vars(task.config).update(settings)
                    task.DATASET_PATH, task.DATASET_NAME = settings["dataset_path"], settings["dataset_name"]
                self.definitions[name] = definition(task, [self._marks[name](task)] if name in self._marks else ())
        return self._built

    def show(self, built: dict[str, Any]) -> None:
        """From now on :meth:`load` returns this ``TaskDict``."""
        self._built = built


def _is_gated(error: BaseException, dataset: str) -> bool:
    """Could the data set not be loaded because it is gated?"""
    cause: BaseException | None = error
    while dataset and cause is not None:
        if dataset in _GATED or type(cause).__name__ == "GatedRepoError" or "gated dataset" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def definition(task: Any, extra: Iterable[str] = ()) -> str:
    """Hash of a task's definition: its templates, metrics, filters, the source of the code they call, and anything else
    that decides scores (``extra``: our replacement of a metric)."""
    metadata = task.config.metadata
    version = metadata.get("version") if isinstance(metadata, Mapping) else None
    parts = [_mapping(vars(task.config)), str(version), _code(type(task)), sorted(extra)]
    return short_hash(json.dumps(parts, sort_keys=True))


def _described(value: Any) -> Any:
    return described(value, _mapping, _object)


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _described(item) for key, item in value.items() if not _LEFT_OUT.match(str(key))}


def _object(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return ["partial", _described(value.func), _described(value.args), _described(value.keywords)]
    if callable(value):
        return _code(value)
    return [type(value).__name__, _mapping(vars(value))] if hasattr(value, "__dict__") else None


def _code(value: Any) -> Any:
    """A function or class by the text of its file, which includes the helpers that it calls. Functions of
    lm-eval and Python are only named; their versions are recorded with the run."""
    name = getattr(value, "__qualname__", type(value).__name__)
    module = getattr(value, "__module__", "") or ""
    full_name = name if "/" in module else f"{module}.{name}"  # lm-eval names modules of other folders by their path
    if module.startswith("lm_eval.") and not module.startswith("lm_eval.tasks."):
        return full_name
    try:
        source = inspect.getsourcefile(value)
        return [name, file_hash(source)] if source else full_name
    except (TypeError, OSError):
        return full_name
