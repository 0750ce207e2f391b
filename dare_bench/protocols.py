"""The four seams. Everything on one side of a seam knows nothing else of the other side. No torch at import."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dare_bench.types import Capabilities, Decoding, LoopStats, ModelSpec, Prompt, Request, Sample


@dataclass(frozen=True)
class AdapterSettings:
    """A LoRA adapter (arXiv 2106.09685): rank, scale alpha / r, dropout before it, what it adapts, how it starts.

    ``targets`` are groups (attention, mlp, router, experts, head) or module names, each of which must be there.
    """

    r: int = 32
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("attention", "mlp")
    seed: int = 0


@runtime_checkable
class LoadedModel(Protocol):
    """Everything the rest of the program may know of a model.

    Requests are *pulled* from the iterable as slots fall free, and samples come back as each finishes, in any order.
    A request that cannot be answered (a prompt over the context limit, say) comes back as a sample with ``error``;
    what concerns all of them (NaN logits, no memory for a single row) is raised.
    """

    spec: ModelSpec
    capabilities: Capabilities
    tokenizer: Any | None
    network: Any | None

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: raw text as it is, messages through the chat template, ids unchanged."""
        ...

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        """All decoding values that hold when ``decoding`` is asked for; raises DecodingError."""
        ...

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """All likelihood settings that hold when ``fields`` are asked for; raises DecodingError."""
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
        """Upper bound of the forward passes that a request takes, for estimates; costs nothing."""
        ...

    def save(self, path: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        """Write the published layout, so that the original code loads it; of a model with an adapter, the adapter alone
        as peft lays it out. ``state_dict``: the network's whole state, where each process holds a part (FSDP).

        Raises SaveError.
        """
        ...

    def is_as_opened(self) -> bool:
        """Are weights and tokenizer what the folders hold that the model was opened from? It may read them again."""
        ...

    def read_weights(self, path: str | Path) -> None:
        """Put the weights of a folder that ``save`` wrote back into the open network, in place and exactly; raises
        CheckpointError. For a network that is whole in this process, before it is sharded."""
        ...

    def add_adapter(self, settings: AdapterSettings) -> None:
        """Put a new LoRA adapter on the network. From then on only the adapter's weights want gradients.

        Raises UsageError: a target that matches nothing, an adapter that is there already.
        """
        ...

    def merge_adapter(self) -> None:
        """Add the adapter's update to the weights and take it off; raises UsageError where there is none."""
        ...

    def without_adapter(self) -> AbstractContextManager[None]:
        """Inside, the network is the base bit for bit: a reference policy at no cost.

        Raises UsageError for a model without adapter: it is no reference for itself.
        """
        ...


Answer = Callable[[Sequence[Request]], Sequence[Sample]]
"""How a task source gets its requests answered: one sample for each request, in the order given."""


class TaskSource(Protocol):
    """A harness that owns prompts and scoring. ``run`` builds requests, has them answered, and scores them."""

    name: str

    def requests(self) -> Sequence[Request]:
        """All requests, without answering any."""
        ...

    def run(self, answer: Answer) -> Any:
        """Have all requests answered and return the harness's own results."""
        ...


class Services(Protocol):
    """What the engine does for a trainer."""

    def open(self, checkpoint: str | None) -> LoadedModel:
        """Open a model beside the one in training, as that was opened: a checkpoint, or (None) what training starts
        from, its adapter included. Called by every process."""
        ...

    def evaluate(self, checkpoint: Path, step: int) -> None:
        """Evaluate a saved checkpoint as was asked for; its runs lie in ``OUT/runs``. Called by one process alone."""
        ...

    def lineage(self, folder: Path, step: int, steps: int) -> None:
        """Write where the checkpoint in ``folder`` comes from (``lineage.json``), after ``step`` of ``steps``; it is
        whole from then on."""
        ...


class Trainer(Protocol):
    """Turns a checkpoint into a better one."""

    def fit(self, spec: Any, model: LoadedModel, data: Any, out: Path, services: Services) -> Path:
        """Train; return the folder of the final checkpoint (``out`` itself)."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work for an executor: ``payload`` (picklable) for its function, once the jobs ``after`` are done."""

    name: str
    payload: Any = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a job. ``value`` is little (a path, counts): what is big goes into files."""

    name: str
    value: Any = None
    error: Exception | None = None
    """Why it failed; the exception itself where it can cross processes."""
    skipped: str | None = None
    """The job before it that failed or was skipped: this one was not run."""
    seconds: float = 0.0
    where: str = ""
    """Host, process and device, for people."""
    traceback: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None and self.skipped is None


class Executor(Protocol):
    """Where work runs: in process, one worker a device, or a cluster. Neither engine nor sweep knows which.

    Implementations are made by ``dare_bench.executors.executor`` with the keywords ``workers`` (jobs at a time),
    ``device`` (``cpu``: none needs a GPU) and ``address`` (of a cluster); each may ignore what means nothing to it.
    """

    name: str
    workers: int
    """Jobs that run at a time."""

    def run(self, function: Callable[[Any], Any], jobs: Sequence[Job]) -> Generator[Done, None, None]:
        """Run ``function(job.payload)`` for every job, each after those it names; results come as each finishes.

        ``function`` is one that other processes can import. A job that raises or whose worker dies fails alone: the
        jobs behind it come back as skipped, the others go on. Ctrl-C ends the work, and so does closing the generator,
        which the caller sees to (``contextlib.closing``).

        Raises:
            ValueError: two jobs of one name, a job after one that does not exist, a cycle.
        """
        ...
