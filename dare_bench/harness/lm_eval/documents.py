"""The documents of one task: which are requested, which are scored, and their indices in the data set."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from dare_bench.errors import UsageError
from dare_bench.harness.common.answering import sample_numbers
from dare_bench.harness.common.by_name import origin
from dare_bench.harness.common.requests import place
from dare_bench.types import Request


class Indices(list[int]):
    """A list with fast membership: lm-eval evaluates ``i in samples`` once for each document of the data set."""

    def __init__(self, values: Collection[int]) -> None:
        super().__init__(values)
        self._members = frozenset(values)

    def __contains__(self, value: object) -> bool:
        return value in self._members


class TaskDocuments:
    """Wraps a task's ``build_all_requests``, so that prompts are built once: few-shot examples are drawn in the order
    of the documents, and a second build over fewer documents would give other prompts. Later passes see the same
    instances, or those of selected documents, with empty responses. ``samples`` and ``repeats`` are those of the
    command line; raises UsageError."""

    def __init__(self, task: Any, samples: Sequence[int] | None, repeats: int = 1) -> None:
        self.task, self._repeats = task, repeats
        self.name: str = task.task_name
        # lm-eval reads the documents in the data set's order but takes the numbers in the order given.
        self.samples = Indices(sample_numbers(self.name, samples, len(task.eval_docs))) if samples is not None else None
        self._built: list[tuple[int, Any]] = []
        self._by_key: dict[tuple[int, int], Any] = {}
        self._selected: Indices | None = None
        self._requested: Indices | None = None
        self._original = task.build_all_requests
        task.build_all_requests = self._build

    def _build(self, *, limit: int | None = None, samples: Sequence[int] | None = None, **named: Any) -> None:
        """lm-eval's call: build, or provide copies of what was built."""
        if not self._built:
            self._original(limit=limit, samples=samples, **named)
            self._built = [(samples[i.doc_id] if samples else i.doc_id, i) for i in self.task.instances]
            self._by_key = {(doc, instance.idx): instance for doc, instance in self._built}
        # lm-eval numbers documents from 0 under ``samples``; otherwise position and number are the same.
        selected = self._built_documents if self._selected is None else self._selected
        positions = {doc: position for position, doc in enumerate(selected)}
        self.task._instances = [self._copy(i, doc, positions[doc]) for doc, i in self._built if doc in positions]

    @property
    def _built_documents(self) -> list[int]:
        return list(dict.fromkeys(doc for doc, _ in self._built))

    def _copy(self, instance: Any, doc_id: int, position: int) -> Any:
        new = copy.copy(instance)
        new.resps, new.filtered_resps, new.doc_id = [], {}, position
        new.true_key = (self.name, doc_id, instance.idx)
        return new

    @property
    def repeated(self) -> bool:
        """Is each request repeated? Only if all of them generate an answer; a likelihood is computed once."""
        return self._repeats > 1 and all(i.request_type == "generate_until" for _, i in self._built)

    def instances(self) -> Iterator[tuple[int, Any]]:
        """(document, instance), once for each answer: those of a document as often as the task itself requires, then
        again for each further repeat."""
        times = self._repeats if self.repeated else 1
        for doc_id, group in itertools.groupby(self._built, key=lambda built: built[0]):
            for _, instance in list(group) * times:
                for _ in range(instance.repeats or 1):
                    yield doc_id, instance

    def of_part(self, requests: Sequence[Request], part: int) -> Sequence[Request]:
        """Those of a document's requests, in their order, that belong to one of the repeats."""
        size = len(requests) // (self._repeats if self.repeated else 1)
        return requests[part * size : (part + 1) * size]

    def instance(self, request: Request) -> Any:
        """A copy, without responses, of the instance that a request was built from."""
        _, doc_id, idx, _ = place(request)
        return self._copy(self._by_key[doc_id, idx], doc_id, 0)

    def narrow(self, documents: Collection[int]) -> None:
        """Count only these documents as requested."""
        self._requested = Indices(documents)

    def is_requested(self, document: int) -> bool:
        return self._requested is None or document in self._requested

    def to_score(self, failures: Mapping[tuple[str, Any], str]) -> list[int] | None:
        """The documents to score; None if these are all that were built."""
        documents = self._built_documents
        remaining = [doc for doc in documents if self.is_requested(doc) and (self.name, doc) not in failures]
        return None if len(remaining) == len(documents) else remaining

    def select(self, documents: Sequence[int] | None) -> Indices:
        """Provide only these documents from now on (None: all that were built); returns their numbers."""
        self._selected = None if documents is None else Indices(sorted(documents))
        return self._selected or Indices(sorted(self._built_documents))

    def rows(self) -> Iterator[tuple[int, str, str]]:
        """(document, prompt, target) of each requested instance, for the fingerprint."""
        for doc_id, instance in self._built:
            if not self.is_requested(doc_id):
                continue
            texts = instance.args[:1] if instance.request_type == "generate_until" else instance.args
            target = self.task.doc_to_target(instance.doc) if instance.idx == 0 else ""
            yield doc_id, "\x1f".join(map(str, texts)), str(target)

    @property
    def origin(self) -> str | None:
        """Where the data set came from, if that is known."""
        splits = self.task.dataset
        split = next((name for name in (self.task.config.test_split, *splits) if name in splits), None)
        return None if split is None else origin(splits[split])

    @cached_property
    def wants_greedy(self) -> bool:
        """Does the task's scoring read ``is_greedy``? It costs a forward pass for each token of a target."""
        output = getattr(self.task, "OUTPUT_TYPE", None)
        if output != "multiple_choice":
            return bool(output == "loglikelihood")
        if "exact_match" in getattr(self.task, "_metric_fn_list", ()):
            return True
        scorer = getattr(self.task.config, "process_results", None)
        return callable(scorer) and self._reads_greedy(scorer)

    def _reads_greedy(self, scorer: Callable[..., Any]) -> bool:
        """Does a scorer read ``is_greedy`` of the first document's choices? True also if it fails on these values."""
        first = [instance for doc, instance in self._built if doc == self._built[0][0]]
        flag = _Flag()
        try:
            scorer(first[0].doc, [(-1.0 - choice, flag) for choice in range(len(first))])
        except Exception:
            return True
        return flag.read


class _Flag:
    """A value for ``is_greedy``, false, that records that it was read."""

    read = False

    def __int__(self) -> int:
        self.read = True
        return 0

    __index__ = __int__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(int(self))

    def __float__(self) -> float:
        return float(int(self))

    def __eq__(self, other: object) -> bool:
        return int(self) == other


def refuse_unbounded(built: dict[str, Any]) -> None:
    """Raise UsageError for what an evaluation cannot stop at an interval of: a group, whose tasks would have other
    weights, and a score that is computed from all documents together (BLEU, F1)."""
    from lm_eval.api.registry import aggregation_registry

    if groups := list(built.get("groups", {})):
        raise UsageError(f"--until-halfwidth: {groups[0]!r} is a group of tasks; name those of its tasks that may stop")
    whole = {compute for name, compute in aggregation_registry.items() if name not in ("mean", "nanmean")}
    for name, task in built["tasks"].items():
        scores = task.aggregation()
        if all(compute in whole for compute in scores.values()):
            raise UsageError(
                f"--until-halfwidth: {', '.join(scores)} of task {name!r} is computed from all documents together, not"
                " a mean of scores of documents; leave the task out"
            )


def without_tasks(built: dict[str, Any], dropped: Collection[str]) -> dict[str, Any]:
    """lm-eval's ``TaskDict`` without some tasks, also in its groups; the given groups are not changed."""
    if not dropped:
        return built
    tasks = {name: task for name, task in built["tasks"].items() if name not in dropped}
    groups = _without(built.get("groups", {}), dropped)
    return {"tasks": tasks, "groups": groups, "group_map": {name: group.child_names for name, group in groups.items()}}


def _without(members: Mapping[str, Any], dropped: Collection[str]) -> dict[str, Any]:
    """Tasks and groups, without the dropped tasks and without groups that are then empty."""
    remaining = {}
    for name, member in members.items():
        if hasattr(member, "_children"):
            member = copy.copy(member)
            member._children = _without(member._children, dropped)
            if len(member):
                remaining[name] = member
        elif name not in dropped:
            remaining[name] = member
    return remaining
