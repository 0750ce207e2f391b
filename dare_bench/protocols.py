"""The four seams. Everything on one side of a seam knows nothing else of the other side. No torch at import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dare_bench.types import Capabilities, Decoding, LoopStats, ModelSpec, Prompt, Request, Sample


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

    def save(self, path: str | Path) -> None:
        """Write the published layout, so that the original code loads it."""
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


class Trainer(Protocol):
    """Turns a checkpoint into a better one; ``services`` are the engine's generate, score and evaluate."""

    def fit(self, spec: Any, model: LoadedModel, data: Any, out: Path, services: Any) -> Path:
        """Train; return the folder of the final checkpoint (``out`` itself)."""
        ...


class Executor(Protocol):
    """Where work runs: in process, one worker a device, or a cluster. Neither engine nor sweep knows which."""

    def map(self, job: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Run ``job`` on every item; results come as each finishes."""
        ...
