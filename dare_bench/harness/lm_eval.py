"""lm-eval's tasks as a task source. lm-eval builds the prompts and scores the answers; we only answer.

lm-eval runs twice over the same task objects: once up to its first question to the model, which yields all requests of
all tasks at once, and, when everything is answered, once more to score. Documents without an answer are left out of the
second pass, so a failed request is never scored as a wrong answer. lm-eval itself is imported when requests are built.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dare_bench.config import RunSpec
from dare_bench.errors import DareError, DataError, UsageError, unknown
from dare_bench.harness.code_tasks import refuse_code_tasks
from dare_bench.harness.data import LocalData
from dare_bench.harness.documents import Documents, without_tasks
from dare_bench.harness.fingerprints import documents as documents_hash
from dare_bench.harness.punkt import ensure_punkt, needs_punkt
from dare_bench.harness.requests import RequestBuilder
from dare_bench.harness.result import HarnessResult
from dare_bench.harness.task_index import TaskIndex
from dare_bench.protocols import Answer, LoadedModel
from dare_bench.types import Request, Sample

if TYPE_CHECKING:
    from dare_bench.harness.base_lm import BaseLM

BOOTSTRAP = 1000
"""Draws for the standard errors that lm-eval bootstraps (those of means are in closed form). lm-eval's own 100,000 take
minutes for a corpus metric and change the error's third digit."""
SEED_NAMES = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")


class LmEvalSource:
    """The tasks of a run, from lm-eval. Implements :class:`dare_bench.protocols.TaskSource`.

    Raises:
        UsageError: what :meth:`check` raises; a decoding field that the model's family lacks (DecodingError).
        DataError: ``data_dir`` has no readable manifest.
    """

    name = "lm-eval"

    @staticmethod
    def check(spec: RunSpec) -> None:
        """Refuse what can be refused before a model is opened.

        Raises:
            UnknownNameError: a task nobody knows; the message names the three closest.
            CodeTaskError: a task that runs generated code.
            UsageError: ``limit`` and ``samples`` together.
            DataError: an include path or data folder that is not there.
        """
        if spec.limit is not None and spec.samples is not None:
            raise UsageError("--limit and --samples exclude each other: the one counts documents, the other names them")
        refuse_code_tasks(spec.tasks, index=TaskIndex(spec.include_path))
        LocalData.find(spec.data_dir)

    def __init__(self, spec: RunSpec, model: LoadedModel) -> None:
        self.check(spec)
        self.version = importlib.metadata.version("lm_eval")
        self.spec, self.model = spec, model
        self._index = TaskIndex(spec.include_path)
        self._names = self._index.match(spec.tasks)
        leaves = self._index.leaves(self._names)
        self.notes = [self._index.replaced[entry.name] for entry in leaves if entry.name in self._index.replaced]
        self._builder = RequestBuilder(model, spec.decoding, spec.likelihood, spec.sampling_seed)
        self._data = LocalData.find(spec.data_dir)
        self._needs_punkt = needs_punkt(leaves)
        self._tasks: Any = None
        self._documents: dict[str, Documents] = {}
        self._requests: list[Request] | None = None

    def requests(self) -> list[Request]:
        """All requests of all tasks, without answering any.

        Raises:
            DataError: a task or its data cannot be loaded.
            UsageError: a task asks for what the model cannot give, or ``samples`` names what is not there.
            DecodingError: a task's settings and the user's together cannot be.
        """
        if self._requests is None:
            self._collect()
            self._requests = [
                self._builder.build(instance, doc_id=doc_id, want_greedy=documents.wants_greedy)
                for documents in self._documents.values()
                for doc_id, instance in documents.asked()
            ]
        return self._requests

    def run(self, answer: Answer, *, only: Mapping[str, Sequence[int]] | None = None) -> HarnessResult:
        """Have all requests answered by one call of ``answer``, and score them.

        Args:
            only: documents to ask and score, by task; tasks that it does not name are left whole.
        """
        requests = [r for r in self.requests() if only is None or r.task not in only or r.doc_id in only[r.task]]
        samples = list(answer(requests))
        if len(samples) != len(requests):
            raise DareError(f"{len(requests)} requests got {len(samples)} samples; one each is needed")
        failures: dict[tuple[str, Any], str] = {}
        for request, sample in zip(requests, samples, strict=True):
            if sample.error is not None or sample.answer is None:
                failures.setdefault((request.task, request.doc_id), sample.error or "no answer")
        kept = {task: documents.kept(only, failures) for task, documents in self._documents.items()}
        found = self._score(kept, _by_place(requests, samples))
        asked = {task: documents.kept(only, {}) for task, documents in self._documents.items()}
        return self._result(found, kept, asked, failures)

    def _collect(self) -> None:
        from dare_bench.harness.quiet import quiet
        from dare_bench.harness.replay import Asker, Collected
        from dare_bench.harness.tasks import Tasks

        with quiet(self.notes):
            stand_in = ensure_punkt() if self._needs_punkt else None
            self.notes += [stand_in] if stand_in else []
            self._tasks = Tasks(self._index, self._data, ["punkt stand-in"] if stand_in else [])
            loaded = self._tasks.load(self._names)["tasks"]
            wanted = self.spec.samples or {}
            for name in wanted:
                if name not in loaded:
                    raise unknown("task in --samples", name, loaded)
            self._documents = {name: Documents(task, wanted.get(name)) for name, task in loaded.items()}
            asker = Asker(self.model, self.spec.apply_chat_template)
            with contextlib.suppress(Collected):
                self._lm_eval(asker, self.spec.limit, self._wanted())
            self.notes += asker.notes

    def _wanted(self) -> dict[str, Any] | None:
        """``--samples`` as lm-eval takes it."""
        return {name: d.wanted for name, d in self._documents.items() if d.wanted is not None} or None

    def _score(self, kept: Mapping[str, list[int] | None], samples: Mapping[Any, Sample]) -> dict[str, Any]:
        from dare_bench.harness.quiet import quiet
        from dare_bench.harness.replay import Replayer

        dropped = [task for task, documents in kept.items() if documents == []]
        everything = self._tasks.load(self._names)
        if all(documents is None for documents in kept.values()):
            limit, chosen = self.spec.limit, self._wanted()  # nothing is left out: lm-eval is asked what the user asked
        else:
            limit, chosen = None, {task: self._documents[task].select(d) for task, d in kept.items() if d != []}
        try:
            self._tasks.show(without_tasks(everything, dropped))
            with quiet(self.notes):
                return self._lm_eval(Replayer(self.model, self.spec.apply_chat_template, samples), limit, chosen)
        finally:
            self._tasks.show(everything)
            for documents in self._documents.values():
                documents.select(None)

    def _lm_eval(self, lm: BaseLM, limit: int | float | None, samples: Mapping[str, Any] | None) -> dict[str, Any]:
        from lm_eval import simple_evaluate

        from dare_bench.harness.replay import Collected

        spec = self.spec
        try:
            return simple_evaluate(
                model=lm,
                tasks=list(self._names),
                num_fewshot=spec.num_fewshot,
                limit=limit,
                samples=samples,
                bootstrap_iters=BOOTSTRAP,
                log_samples=True,
                system_instruction=spec.system_instruction,
                apply_chat_template=spec.apply_chat_template,
                fewshot_as_multiturn=spec.fewshot_as_multiturn,
                gen_kwargs=dict(spec.decoding) or None,
                task_manager=self._tasks,
                **dict(zip(SEED_NAMES, spec.seeds, strict=True)),
            )
        except (DareError, Collected):
            raise
        except Exception as error:
            first = str(error).strip().split("\n")[0][:300]
            raise DataError(f"lm-eval stopped at {', '.join(self._names)}: {type(error).__name__}: {first}") from error

    def _result(
        self,
        found: dict[str, Any],
        kept: Mapping[str, list[int] | None],
        asked: Mapping[str, list[int] | None],
        failures: Mapping[tuple[str, Any], str],
    ) -> HarnessResult:
        from dare_bench.harness.quiet import quiet
        from dare_bench.harness.replay import Asker

        spec = self.spec
        template = Asker(self.model).chat_template(spec.apply_chat_template)
        results = _plain_json(found)
        samples = results.pop("samples", {})
        results["config"] |= {
            "model": "dare",
            "model_args": {"pretrained": spec.model, **spec.model_args},
            "device": self.model.spec.device,
            "batch_size": spec.max_rows or "auto",
            "limit": spec.limit,
        }
        results |= {
            "system_instruction": spec.system_instruction,
            "fewshot_as_multiturn": spec.fewshot_as_multiturn,
            "chat_template": template,
        }
        with quiet(self.notes):
            prints = {  # over all that was asked: a document without an answer does not make it another task
                task: f"{self._tasks.definitions[task]}:{documents_hash(documents.rows(asked[task]))}"
                for task, documents in self._documents.items()
            }
        notes = [*self.notes, *self._builder.notes, *(self._data.notes if self._data else [])]
        notes += [f"task {t!r} has no score: none of its documents was answered" for t, d in kept.items() if d == []]
        return HarnessResult(
            results=results,
            samples=samples,
            fingerprints=prints,
            notes=list(dict.fromkeys(notes)),
            failures=[{"task": task, "doc_id": doc, "error": error} for (task, doc), error in failures.items()],
        )


def _by_place(requests: Sequence[Request], samples: Sequence[Sample]) -> dict[Any, Sample]:
    """Samples by (task, document, index, repeat); the index is read from the request's key."""
    places = ((r.task, r.doc_id, int(r.key.rsplit("/", 3)[1]), r.repeat) for r in requests)
    return dict(zip(places, samples, strict=True))


def _plain_json(value: Any) -> Any:
    """As lm-eval's files hold it. A function's address says nothing and would make equal runs differ."""
    from lm_eval.utils import handle_non_serializable

    text = json.dumps(value, default=handle_non_serializable, ensure_ascii=False)
    return json.loads(_ADDRESS.sub("", text))
