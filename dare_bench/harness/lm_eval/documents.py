"""The documents of one task: which are asked, which are scored, and their true places in the data set."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from dare_bench.harness.common.answering import sample_numbers
from dare_bench.harness.common.requests import place
from dare_bench.types import Request


class Indices(list[int]):
    """A list that knows its members: lm-eval asks ``i in samples`` once for each document of the data set."""

    def __init__(self, values: Collection[int]) -> None:
        super().__init__(values)
        self._members = frozenset(values)

    def __contains__(self, value: object) -> bool:
        return value in self._members


class TaskDocuments:
    """Stands between lm-eval and a task's ``build_all_requests``: prompts are built once (few-shot examples are drawn
    in the order of the documents, so a second build over fewer documents would give other prompts), and later passes
    see the same instances, or those of chosen documents, with empty responses.

    Args:
        wanted: document numbers of ``--samples`` for this task, in any order.
        repeats: how often each of the task's own answers is asked for (``--repeats``).

    Raises:
        UsageError: a number is not in the data set.
    """

    def __init__(self, task: Any, wanted: Sequence[int] | None, repeats: int = 1) -> None:
        self.task, self._repeats = task, repeats
        self.name: str = task.task_name
        # lm-eval reads the documents in the data set's order but takes the numbers in the order given.
        self.wanted = Indices(sample_numbers(self.name, wanted, len(task.eval_docs))) if wanted is not None else None
        self._built: list[tuple[int, Any]] = []
        self._by_place: dict[tuple[int, int], Any] = {}
        self._chosen: Indices | None = None
        self._original = task.build_all_requests
        task.build_all_requests = self._build

    def _build(self, *, limit: int | None = None, samples: Sequence[int] | None = None, **named: Any) -> None:
        """lm-eval's call: build, or hand out again what was built."""
        if not self._built:
            self._original(limit=limit, samples=samples, **named)
            self._built = [(samples[i.doc_id] if samples else i.doc_id, i) for i in self.task.instances]
            self._by_place = {(doc, instance.idx): instance for doc, instance in self._built}
        ids = self._chosen if self._chosen is not None else Indices(dict.fromkeys(doc for doc, _ in self._built))
        places = {doc: place for place, doc in enumerate(ids)}
        # lm-eval numbers documents from 0 under ``samples``; elsewhere place and number are the same.
        self.task._instances = [self._fresh(i, doc, places[doc]) for doc, i in self._built if doc in places]

    def _fresh(self, instance: Any, doc_id: int, place: int) -> Any:
        new = copy.copy(instance)
        new.resps, new.filtered_resps, new.doc_id = [], {}, place
        new.true_key = (self.name, doc_id, instance.idx)
        return new

    @property
    def repeated(self) -> bool:
        """Is it asked ``repeats`` times? Only where every request is for an answer; a likelihood is asked once."""
        return self._repeats > 1 and all(i.request_type == "generate_until" for _, i in self._built)

    def asked(self) -> Iterator[tuple[int, Any]]:
        """(document, instance), as many times as it is to be answered: all of a document as often as the task itself
        wants it, then the same again for each further repeat."""
        times = self._repeats if self.repeated else 1
        for doc_id, group in itertools.groupby(self._built, key=lambda built: built[0]):
            instances = [instance for _, instance in group]
            for instance in instances * times:
                for _ in range(instance.repeats or 1):
                    yield doc_id, instance

    def of_part(self, asked: Sequence[Request], part: int) -> Sequence[Request]:
        """Those of a document's requests, in their order, that belong to one of the repeats."""
        own = len(asked) // (self._repeats if self.repeated else 1)
        return asked[part * own : (part + 1) * own]

    def instance(self, request: Request) -> Any:
        """A copy, without responses, of the instance that a request was made from."""
        _, doc_id, idx, _ = place(request)
        return self._fresh(self._by_place[doc_id, idx], doc_id, 0)

    def kept(
        self, only: Mapping[str, Sequence[int]] | None, failures: Mapping[tuple[str, Any], str]
    ) -> list[int] | None:
        """The documents to score; None if that is all that were built."""
        every = list(dict.fromkeys(doc for doc, _ in self._built))
        chosen = set(only[self.name]) if only is not None and self.name in only else None
        left = [d for d in every if (chosen is None or d in chosen) and (self.name, d) not in failures]
        return None if len(left) == len(every) else left

    def select(self, documents: Sequence[int] | None) -> Indices:
        """Hand out only these documents from now on (None: all that were built); returns their numbers."""
        self._chosen = None if documents is None else Indices(sorted(documents))
        return self._chosen or Indices(sorted({doc for doc, _ in self._built}))

    def rows(self, documents: Collection[int] | None) -> Iterator[tuple[int, str, str]]:
        """(document, prompt, target) of each instance, for the fingerprint."""
        chosen = None if documents is None else set(documents)
        for doc_id, instance in self._built:
            if chosen is None or doc_id in chosen:
                asked = instance.args[:1] if instance.request_type == "generate_until" else instance.args
                target = self.task.doc_to_target(instance.doc) if instance.idx == 0 else ""
                yield doc_id, "\x1f".join(map(str, asked)), str(target)

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
        """Does a scorer look at ``is_greedy`` of the first document's choices? Also where it fails on them."""
        first = [instance for doc, instance in self._built if doc == self._built[0][0]]
        flag = _Flag()
        try:
            scorer(first[0].doc, [(-1.0 - place, flag) for place in range(len(first))])
        except Exception:
            return True
        return flag.read


class _Flag:
    """Stands for ``is_greedy`` and notes that it was read."""

    read = False

    def __bool__(self) -> bool:
        self.read = True
        return False

    def __int__(self) -> int:
        return int(bool(self))

    __index__ = __int__

    def __float__(self) -> float:
        return float(bool(self))

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __hash__ = object.__hash__


def without_tasks(built: dict[str, Any], dropped: Collection[str]) -> dict[str, Any]:
    """lm-eval's ``TaskDict`` with some tasks left out, also out of their groups; the groups given are not changed."""
    if not dropped:
        return built
    tasks = {name: task for name, task in built["tasks"].items() if name not in dropped}
    groups = {name: _shrunk(group, set(dropped)) for name, group in built.get("groups", {}).items()}
    groups = {name: group for name, group in groups.items() if len(group)}
    return {"tasks": tasks, "groups": groups, "group_map": {name: group.child_names for name, group in groups.items()}}


def _shrunk(group: Any, dropped: set[str]) -> Any:
    new = copy.copy(group)
    new._children = {}
    for name, child in group._children.items():
        if name in dropped:
            continue
        if hasattr(child, "_children"):
            child = _shrunk(child, dropped)
            if not len(child):
                continue
        new._children[name] = child
    return new
