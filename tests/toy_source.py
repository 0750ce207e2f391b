"""A task source without lm-eval: documents are numbers, scores are simple. For tests of the engine.

Tasks: ``toygen`` (40 documents to answer) and ``toychoice`` (12 documents, three choices each). Use ``register()``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench import seeds
from dare_bench.config import RunSpec
from dare_bench.errors import UsageError, unknown
from dare_bench.protocols import Answer, HarnessResult, LoadedModel, TaskSource
from dare_bench.registry import registry
from dare_bench.types import Generation, Likelihood, Request, Sample

SIZES = {"toygen": 40, "toychoice": 12}
CHOICES = 3


class ToySource(TaskSource):
    """Numbers as documents. ``version`` stands for the text of the task files."""

    version = "1"
    made = 0

    @staticmethod
    def check(spec: RunSpec) -> None:
        for task in spec.tasks:
            if task == "toycode":
                raise UsageError("toycode would run code")
            if task not in SIZES:
                raise unknown("task", task, SIZES)

    def __init__(self, spec: RunSpec, model: LoadedModel) -> None:
        super().__init__(spec, model)
        type(self).made += 1

    def documents(self, task: str) -> list[int]:
        if self.spec.samples is not None and task in self.spec.samples:
            return self.spec.samples[task]
        limit = self.spec.limit
        if limit is None:
            return list(range(SIZES[task]))
        return list(range(SIZES[task]))[: math.ceil(limit * SIZES[task]) if limit < 1 else int(limit)]

    def requests(self) -> list[Request]:
        return [r for task in self.spec.tasks for doc in self.documents(task) for r in self._of(task, doc)]

    def _of(self, task: str, doc: int) -> list[Request]:
        seed = seeds.sample_key(self.spec.sampling_seed, task, doc, 0)
        if task == "toychoice":
            return [
                Request(
                    f"{task}/{doc}/{i}/0/v{self.version}", "score", f"question {doc}", f"choice {i}",
                    self.spec.likelihood, seed, task, doc,
                )
                for i in range(CHOICES)
            ]  # fmt: skip
        decoding = {"gen_length": 32, **self.spec.decoding}
        key = f"{task}/{doc}/0/0/v{self.version}"
        return [Request(key, "generate", f"question {doc} " + "x" * (doc % 7), None, decoding, seed, task, doc)]

    def run(self, answer: Answer, *, only: Mapping[str, Sequence[int]] | None = None) -> HarnessResult:
        by_task: dict[str, dict[int, list[Sample]]] = {task: {} for task in self.spec.tasks}
        for sample in answer(self.requests()):
            by_task[sample.request.task].setdefault(int(sample.request.doc_id), []).append(sample)
        built = HarnessResult({"results": {}, "n-samples": {}, "higher_is_better": {}, "group_subtasks": {}}, {}, {})
        for task, documents in by_task.items():
            lines = []
            for doc, samples in documents.items():
                failed = [s.error for s in samples if s.error]
                if failed:
                    built.failures.append({"task": task, "doc_id": doc, "error": failed[0]})
                else:
                    lines.append(self._line(doc, samples))
            built.samples[task] = lines
            values = [line["acc"] for line in lines]
            mean = sum(values) / len(values) if values else 0.0
            built.results["results"][task] = {"alias": task, "acc,none": mean, "acc_stderr,none": 0.0}
            built.results["n-samples"][task] = {"original": SIZES[task], "effective": len(lines)}
            built.results["higher_is_better"][task] = {"acc": True}
            built.results["group_subtasks"][task] = []
            built.fingerprints[task] = f"toy-{task}-{self.version}"
        return built

    def _line(self, doc: int, samples: list[Sample]) -> dict[str, Any]:
        first = samples[0].answer
        if isinstance(first, Generation):
            assert first.trajectory is None, "events are for the run's files, not for scorers"
            responses: list[Any] = [[first.text]]
            right = float((first.text or "")[-1:] in "02468")
        else:
            values = [s.answer.value for s in samples if isinstance(s.answer, Likelihood)]
            responses = [[[v, False]] for v in values]
            right = float(values.index(max(values)) == 0)
        return {
            "doc_id": doc,
            "doc": {"number": doc},
            "target": str(doc),
            "arguments": {
                f"gen_args_{at}": {"arg_0": s.request.prompt, "arg_1": s.request.target or {}}
                for at, s in enumerate(samples)
            },
            "resps": responses,
            "filtered_resps": [r[0] for r in responses],
            "filter": "none",
            "metrics": ["acc"],
            "doc_hash": "d",
            "prompt_hash": "p",
            "target_hash": "t",
            "acc": right,
        }


def register() -> None:
    """Make ``--harness toy`` known to this process."""
    if "toy" not in registry().names("harness"):
        registry().add("harness", "toy", "toy_source:ToySource", origin="tests")
