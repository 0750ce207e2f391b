"""The lines of a run's samples and traces files, as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from dare_bench.runs.field_types import Count, DocId, Key, LineModel, Name, Number, Seconds, StrictModel
from dare_bench.types import Tier

_VALUE: TypeAdapter[Any] = TypeAdapter(
    Number | bool | str | list[Number | bool | str | list[Any] | None] | dict[str, Any],
    config=ConfigDict(strict=True, allow_inf_nan=False),
)


class SandboxVerdict(StrictModel):
    """The result of running one answer's code against its tests."""

    status: Name
    level: Name
    seconds: Seconds = 0.0


class GenerateAnswer(LineModel):
    """One generated response. ``trace_ref`` is the ``key`` of its line in the traces file."""

    kind: Literal["generate"] = "generate"
    key: Key
    nfe: Count
    reference_nfe: Count = 0
    tokens: Count = Field(description="raw length of the response in tokens")
    tokens_to_eos: Count = 0
    decoded_tokens: Count | None = Field(default=None, description="tokens that the sampler wrote, after an EOS too")
    finish_reason: Literal["length", "eos", "stop"]
    seconds: Seconds = 0.0
    tokens_per_s: Number | None = Field(
        default=None, description="tokens_to_eos / seconds, of this row among those that shared its forward passes"
    )
    tpf: Number | None = Field(default=None, description="tokens_to_eos / nfe")
    seed: int = 0
    tier: Tier | None = Field(default="E1", description="null: unknown (a server's sampler)")
    near_tie: bool | None = Field(default=None, description="could rounding have changed it? null: not recorded")
    margin: Number | None = Field(default=None, description="of older runs: below 1e-4, a near tie")
    residual_masks: Count = 0
    trace_ref: Key | None = None
    repeat: Count = 0
    extraction: Name | None = Field(default=None, description="matched, no_match, ambiguous or truncated")
    extracted: str | None = Field(default=None, description="the value that the harness extracted from the answer")
    verdict: SandboxVerdict | None = None


class ScoreAnswer(LineModel):
    """One log-likelihood, in nats. ``stderr`` is its Monte Carlo standard error (0: exact)."""

    kind: Literal["score"] = "score"
    key: Key
    value: Number | None = Field(description="null: not a finite number")
    stderr: Number | None
    deviations: list[Number] = Field(
        default=[],
        description="parts of stderr (the root of their sum of squares), whose differences give the error of the"
        " difference of two choices",
    )
    is_greedy: bool | None = None
    nfe: Count
    estimator: Annotated[str, Field(max_length=1000)] = ""
    draws: Count = 0
    separated: bool | None = Field(
        default=None, description="adaptive draws: was the document's best choice known when they ended?"
    )
    seconds: Seconds = 0.0
    seed: int = 0
    tier: Tier = "E1"


SampleAnswer = Annotated[GenerateAnswer | ScoreAnswer, Field(discriminator="kind")]


class LoggedLine(LineModel):
    """One line of lm-eval's ``samples_<task>_<date>.jsonl``: a document with one filter. Each of ``metrics`` is a key
    of the line, whose value is the document's."""

    model_config = ConfigDict(extra="allow")

    doc_id: DocId
    doc: Any = None
    target: str
    arguments: dict[str, dict[str, Any]]
    resps: list[list[Any]]
    filtered_resps: Any
    filter: Name
    metrics: list[Name]
    doc_hash: str
    prompt_hash: str
    target_hash: str
    redrawn: dict[Name, Annotated[Number, Field(ge=0, le=1)]] = Field(
        default={},
        description="by metric, the expected value of this document if the errors of its drawn likelihoods were added"
        " to them once more",
    )

    @model_validator(mode="after")
    def _values(self) -> Self:
        values = self.model_extra or {}
        for metric in self.metrics:
            if (value := values.get(metric)) is not None:
                try:
                    _VALUE.validate_python(value)
                except ValidationError:
                    text = f"{value!r:.80}"
                    raise ValueError(f"{metric[:80]!r} is {text}; expected a finite number, text, or a list") from None
        return self


class SampleLine(LoggedLine):
    """A line of a run's samples file: lm-eval's, with a record of each request."""

    dare_bench: list[SampleAnswer]


TraceEvent = Annotated[
    tuple[Count, Literal["set", "remask", "insert", "delete"], int, int, Number | None], Field(strict=False)
]
"""(step from 0, op, position from the first response token, token id, confidence)."""


class TraceLine(LineModel):
    """One line of ``traces_<task>_<date>.jsonl``: the events that unmasked a response, in order."""

    key: Key
    doc_id: DocId
    repeat: Count = 0
    prompt_tokens: Count = 0
    pieces: list[str] = Field(description="text of each response token")
    events: list[TraceEvent]
    others: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], str] = Field(
        default_factory=dict,
        description="text by token id, for tokens of events that differ from the final token at their position",
    )
