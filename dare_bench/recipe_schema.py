"""Recipe files: published scores with their sources and settings.

``tasks/recipes/<checkpoint>.yaml`` has a checkpoint's scores; what several files share (sources, test sets, a task's
metric, notes) is defined once in ``tasks/recipes/shared/*.yaml``. The models here describe a *resolved* file: defaults
filled in, ``like`` followed, names replaced by their definitions. ``dare-bench ls recipes --json`` prints it and
docs/recipes.schema.json describes it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

Recorded = Literal["recorded", "partly", "unrecorded"]


OneOrMore = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""A single name may be given without brackets."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Source(Strict):
    """Where a value was published: a paper's number, or a repository's file at a commit."""

    title: str = Field(min_length=1)
    paper: str | None = Field(default=None, description="arXiv number")
    table: str | None = Field(default=None, description="table, row or column as the source names it")
    repo: str | None = Field(default=None, description="owner/name")
    commit: str | None = None
    file: str | None = None
    seen: Literal["source", "quoted"] = Field(
        default="source", description="source: the value was read there; quoted: in another text that cites it"
    )

    def text(self) -> str:
        """The source on one line."""
        parts = [self.title, f"arXiv {self.paper}" if self.paper else None, self.table]
        if self.repo:
            where = f"{self.repo} {self.file}" if self.file else self.repo
            parts.append(f"{where} at {self.commit[:10]}" if self.commit else where)
        if self.seen == "quoted":
            parts.append("value read where another text cites it")
        return ", ".join(part for part in parts if part)


class TestSet(Strict):
    """The documents of a score. Only the cost model uses token counts."""

    __test__ = False  # not a pytest class

    id: str = Field(min_length=1, description="hub id, configuration, split; or what the source says")
    documents: int | None = Field(default=None, ge=1, description="null: not recorded")
    prompt_tokens: int | None = Field(default=None, ge=1, description="mean of the question alone")
    answer_tokens: int | None = Field(default=None, ge=1, description="mean of a reference answer or choice")
    choices: int | None = Field(default=None, ge=2, description="answers to score, where likelihoods are compared")
    tokens: Literal["data", "assumed"] = Field(
        default="data", description="data: means over the data, by Qwen's vocabulary; assumed: it was not at hand"
    )


class PublishedScore(Strict):
    """A score as it was published."""

    value: float
    unit: Literal["percent", "fraction"]
    metric: str = Field(min_length=1, description="name in the source")
    measures: str = Field(min_length=1, description="what is counted: accuracy, mean reward with partial credit, ...")
    mean_over: Literal["documents", "subsets", "unknown"] = Field(
        description="subsets: the unweighted mean of several data sets' scores"
    )
    test_set: TestSet
    source: Source
    cache: Literal["none", "prefix", "dual", "exact", "unknown"]
    repeats: int | None = Field(default=1, ge=1, description="answers to each prompt; null: not recorded")
    hardware: str | None = Field(default=None, description="null: not recorded")

    @model_validator(mode="after")
    def _in_range(self) -> PublishedScore:
        most = 100 if self.unit == "percent" else 1
        if not 0 <= self.value <= most:
            raise ValueError(f"value={self.value} must lie between 0 and {most} in unit {self.unit!r}")
        return self

    @property
    def fraction(self) -> float:
        return self.value / 100 if self.unit == "percent" else self.value


class RecipeRun(Strict):
    """The evaluation that reproduces the score: RunSpec fields, and what the cost model needs to know of the task."""

    harness: str = Field(min_length=1)
    tasks: Annotated[tuple[str, ...], OneOrMore] = Field(min_length=1)
    kind: Literal["generate", "likelihood"] = "generate"
    num_fewshot: int | None = Field(default=None, ge=0)
    shots: int = Field(default=0, ge=0, description="examples in each prompt, including those that the task adds")
    prompts: int = Field(default=1, ge=1, description="prompts that the task itself makes from each document")
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool | None = None
    system_instruction: str | None = None
    dtype: str | None = None
    engine: str | None = Field(default=None, description="--engine; null: dare-bench computes the answers itself")
    repeats: int = Field(default=1, ge=1)
    decoding: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] = Field(default_factory=dict)

    @field_validator("decoding", "likelihood", mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """A null removes an inherited value."""
        if isinstance(value, dict):
            return {name: item for name, item in value.items() if item is not None}
        return {} if value is None else value


class RecipeScore(Strict):
    """The score of the run that is compared with the published one: results[task]["metric,filter"]."""

    task: str = Field(min_length=1)
    metric: str = Field(min_length=1)
    filter: str = "none"


class RecipeEntry(Strict):
    """One published score. Without ``run`` it cannot be run; the first of ``doubts`` is then the reason."""

    published: PublishedScore
    run: RecipeRun | None = None
    score: RecipeScore | None = None
    settings: Recorded
    missing: tuple[str, ...] = Field(default=(), description="settings that are not recorded anywhere")
    doubts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> RecipeEntry:
        if (self.settings == "recorded") == bool(self.missing):
            raise ValueError(f"settings={self.settings!r} with {len(self.missing)} missing; only 'recorded' has none")
        if self.run is None and not self.doubts:
            raise ValueError("without 'run', 'doubts' must give the reason")
        if (self.run is None) != (self.score is None):
            raise ValueError("'run' and 'score' belong together: the score names a task, metric and filter of the run")
        return self


class LeftOut(Strict):
    """Scores of a published table without a recipe: ``rows`` of it, each in this number of ``columns``."""

    why: str = Field(min_length=1)
    rows: tuple[str, ...] = Field(min_length=1)
    columns: int = Field(default=1, ge=1)

    @property
    def scores(self) -> int:
        return len(self.rows) * self.columns


class Table(Strict):
    """The number of scores of supported checkpoints in a source; null: the table itself was not read."""

    scores: int | None = Field(ge=1)
    left_out: tuple[LeftOut, ...] = ()


class RecipeFile(Strict):
    """All published scores of one checkpoint. ``checkpoint`` is the file's stem and the first half of recipe names."""

    checkpoint: str = Field(min_length=1)
    model: str = Field(min_length=1, description="hub id, or the reason why there is none")
    family: str = Field(min_length=1)
    about: str = ""
    config: dict[str, Any] = Field(description="of the published config.json what describes the network, for estimates")
    scores: dict[str, RecipeEntry] = Field(min_length=1)
