"""The interfaces between the parts: model, task source, services of a trainer, executor. No torch at import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dare_bench.errors import UsageError
from dare_bench.types import Capabilities, Decoding, LoopStats, ModelSpec, Prompt, Request, Reward, RewardPrompt, Sample

if TYPE_CHECKING:
    from dare_bench.config import RunSpec


@dataclass(frozen=True)
class AdapterSettings:
    """A LoRA adapter (arXiv 2106.09685): rank, scale alpha / r, dropout, targets, and seed of its initialization.

    ``targets`` are groups (attention, mlp, router, experts, head) or names of modules, each of which must exist.
    """

    r: int = 32
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("attention", "mlp")
    seed: int = 0


@runtime_checkable
class LoadedModel(Protocol):
    """The interface of a model.

    Requests are *pulled* from the iterable as slots become free; samples are returned as each finishes, in any order. A
    request that cannot be answered (such as a prompt over the context limit) becomes a sample with ``error``; errors
    that concern all requests (NaN logits, no memory for a single row) are raised.
    """

    spec: ModelSpec
    capabilities: Capabilities
    tokenizer: Any | None
    network: Any | None
    weights_version: int
    """Which weights the network holds: whoever changes them counts this up, and answers record it."""

    @property
    def default_rows(self) -> int:
        """Maximum number of rows that ``generate`` answers at a time if ``max_rows`` is not given."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: raw text as it is, messages through the chat template, ids unchanged."""
        ...

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        """All decoding values for the requested ones; raises DecodingError."""
        ...

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """All likelihood settings for the requested ones; raises DecodingError."""
        ...

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer generate requests."""
        ...

    def score(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer score requests: log-likelihoods of targets."""
        ...

    def logits(self, ids: Sequence[int], block_length: int | None = None) -> Any:
        """float32 [L, V]; row i scores token i."""
        ...

    def forwards(self, request: Request) -> int:
        """Upper bound of the forward passes of a request, computed without running the model."""
        ...

    def pretrained(self) -> Any | None:
        """The network for training libraries: from now on a ``PreTrainedModel``, or a PeftModel, with the same weights;
        None for a served engine."""
        ...

    def save(self, path: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the published layout, so that the original code loads it; of a model with an adapter, only the adapter,
        in peft's layout. ``state_dict``: the network's full state if it is sharded (FSDP).

        Raises SaveError.
        """
        ...

    def is_as_opened(self) -> bool:
        """Are weights and tokenizer equal to those in the folders it was opened from? May read them again."""
        ...

    def read_weights(self, path: str | Path) -> None:
        """Load the weights of a folder that ``save`` wrote into the open network, in place and exactly; raises
        CheckpointError. Only for a network that is not sharded."""
        ...

    def add_adapter(self, settings: AdapterSettings) -> None:
        """Add a new LoRA adapter to the network; from then on only the adapter's weights require gradients.

        Raises UsageError: a target that matches nothing, or an existing adapter.
        """
        ...

    def merge_adapter(self) -> None:
        """Add the adapter's update to the weights and remove the adapter; raises UsageError if there is none."""
        ...

    def without_adapter(self) -> AbstractContextManager[None]:
        """A context in which the network is bitwise the base model: a reference policy at no cost.

        Raises UsageError for a model without adapter.
        """
        ...


Answer = Callable[[Sequence[Request]], Sequence[Sample]]
"""Answers the requests of a task source: one sample for each request, in the order given."""


@dataclass
class HarnessResult:
    """What a harness returns: scores and samples, in the harness's names and keys; all of it is plain JSON.

    ``results``: lm-eval's dictionary without ``samples``. ``samples``: per task, lm-eval's logged samples, one per
    document and filter; ``doc_id`` is the document's index in the whole data set. In a row, ``_answers`` lists what is
    known of each of the document's answers (``extraction``, ``extracted``, ``verdict``).
    ``fingerprints``: per task, ``<definition>:<documents>``, two hashes. The first is that of prompt templates, filters
    and scorer source, and does not depend on which documents were requested. The second is that of the rendered prompts
    and targets of all requested documents, answered or not.
    ``extraction``: per task and filter, how many answers were ``matched``, ``no_match``, ``ambiguous``, ``truncated``.
    ``execution``: how generated code was run: ``level``, ``unsafe``, ``statuses`` with their counts; None if none was.
    ``data``: per task, where its documents came from (``hub ID@REVISION``, files), if that is known.
    ``failures``: documents left out of the scores because one of their requests got no answer: task, doc_id, error.
    """

    results: dict[str, Any]
    samples: dict[str, list[dict[str, Any]]]
    fingerprints: dict[str, str]
    notes: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    extraction: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    execution: dict[str, Any] | None = None
    data: dict[str, str] = field(default_factory=dict)


class TaskSource(ABC):
    """The base class of a harness, which owns prompts and scoring: its tasks, for one run.

    A subclass defines :meth:`requests` and :meth:`run`; everything else has a default. The static methods are called
    before a model is opened.

    Args:
        spec: the settings of the run.
        model: the open model, whose description, tokenizer and decoding fields the requests may depend on. A run that
            is scored again has a model with only its recorded description and chat template, which answers nothing.
    """

    def __init__(self, spec: RunSpec, model: LoadedModel) -> None:
        self.spec, self.model = spec, model

    @staticmethod
    def check(spec: RunSpec) -> None:
        """Refuse settings that the harness cannot run. The default accepts all.

        Raises:
            UnknownNameError: an unknown task; the engine adds suites and other harnesses that have a task of that name.
            UsageError: any other setting. DataError: data that is missing.
        """
        return

    @staticmethod
    def knows(task: str, spec: RunSpec) -> bool:
        """Is there a task of that name? The engine asks when the harness of ``spec``, another one, does not know the
        name, to suggest this harness. The default is no."""
        return False

    @staticmethod
    def paths(spec: RunSpec) -> list[str]:
        """The entries of ``spec.tasks`` that are files or folders to load code from, not names: a run that came from
        them is not scored again unless the user names a folder. The default is none."""
        return []

    @abstractmethod
    def requests(self) -> Sequence[Request]:
        """All requests, without answering any. Keys are unique in a run, and the same in every process."""

    def metrics(self) -> Mapping[str, bool | None] | None:
        """The scores of the tasks as ``TASK/METRIC``, with ``,FILTER`` unless it is ``none``, after :meth:`requests`,
        and whether a greater one is better (None: unknown). None instead of them: they are known only after the
        evaluation, which is the default."""
        return None

    def narrow(self, documents: Mapping[str, Sequence[int]]) -> None:
        """Let :meth:`requests` and :meth:`run` from now on be those of these documents by task, with the prompts that
        they have among all documents. Called between the rounds of an evaluation that may stop. The default refuses.

        Raises:
            UsageError: the harness, or the score of a task, does not allow it.
        """
        raise UsageError(f"--until-halfwidth: harness {self.spec.harness!r} has no rounds of documents; leave it out")

    def watch(self, sample: Sample) -> None:
        """Called during :meth:`run` with each generated sample as soon as it exists, so that scoring can begin early.
        Must neither wait nor raise. The default does nothing."""
        return

    @abstractmethod
    def run(self, answer: Answer) -> HarnessResult:
        """Have all requests answered by one call of ``answer``, score the samples, and return the result. Called once,
        or once after each :meth:`narrow`.

        A sample whose ``answer`` is None is a failure of its document, which gets no score.
        """


class Services(Protocol):
    """What the engine provides to a trainer."""

    def open(self, checkpoint: str | None) -> LoadedModel:
        """Open another model with the settings of the one in training: a checkpoint, or (None) the initial model with
        its adapter. Called by every process."""
        ...

    def rewards(
        self, prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]
    ) -> list[Reward]:
        """One reward for each answer to a prompt."""
        ...

    def evaluate(self, checkpoint: Path, step: int) -> Mapping[str, float]:
        """Evaluate the saved checkpoint of a step as requested; its runs are in ``OUT/runs``. Called by one process
        only. Returns the scores as ``TASK/METRIC``."""
        ...

    def lineage(
        self,
        folder: Path,
        step: int,
        steps: int,
        counts: Mapping[str, Mapping[str, int]] | None = None,
        canvas_lengths: tuple[int, int] | None = None,
    ) -> None:
        """Write ``lineage.json`` of the checkpoint in ``folder``, after ``step`` of ``steps``; it marks the checkpoint
        as complete. ``counts``: the ``forwards`` and ``tokens`` of the training so far, by phase; None: not known.
        ``canvas_lengths``: shortest and longest response that was learned, in tokens, if decoding depends on them."""
        ...

    def counts(self, folder: Path) -> Mapping[str, Mapping[str, int]] | None:
        """What :meth:`lineage` wrote as ``counts`` of a checkpoint of this training."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A unit of work for an executor: the argument (picklable) of its function, and the names of its predecessors."""

    name: str
    payload: Any = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a job. ``value`` is small (a path, counts): large results go into files."""

    name: str
    value: Any = None
    error: Exception | None = None
    """Why it failed; the original exception if it can be pickled."""
    skipped: str | None = None
    """The failed or skipped predecessor because of which this job was not run."""
    seconds: float = 0.0
    where: str = ""
    """Host, process and device, for messages."""

    @property
    def ok(self) -> bool:
        return self.error is None and self.skipped is None


class Executor(Protocol):
    """Where work runs: in this process, in one worker for each device, or on a cluster.

    ``dare_bench.executors.executor`` creates them with the keywords ``workers`` (concurrent jobs), ``device``
    (``cpu``: no job needs a GPU) and ``address`` (of a cluster); each may ignore those that do not apply to it.
    """

    workers: int
    """Maximum number of concurrent jobs."""

    def run(self, function: Callable[[Any], Any], jobs: Sequence[Job]) -> Generator[Done, None, None]:
        """Run ``function(job.payload)`` for every job after its predecessors; yields results as jobs finish.

        Other processes must be able to import ``function``. If a job raises or its worker dies, the jobs after it are
        skipped and the others continue. Ctrl-C ends the work, and so does closing the generator, for which the caller
        is responsible (``contextlib.closing``).

        Raises:
            ValueError: duplicate job names, an unknown predecessor, a cycle.
        """
        ...
