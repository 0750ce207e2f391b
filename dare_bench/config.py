"""The settings of a run: one validated record, from flags, a YAML file (``-C run.yaml``) or Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from dare_bench import reading
from dare_bench.errors import UsageError, closest
from dare_bench.keywords import DecodingKeywords
from dare_bench.types import CheckpointSettings

DEFAULT_SEEDS = (0, 1234, 1234, 1234)
MAX_REPEATS = 10_000
"""Maximum number of answers to one prompt."""


class RunSpec(CheckpointSettings):
    """One evaluation. Names are lm-eval's where lm-eval has them; descriptions are the help of ``dare-bench eval``.

    The third of ``seeds`` keys the sampler's counter-based randomness. ``decoding`` and ``likelihood`` have only the
    requested fields; the model resolves the others and the run records all. ``recipe``: the published score that the
    run is compared with; ``part_of``: the suite that it belongs to. ``engine_url``, ``devices``, ``executor``
    and ``ray_address`` are not part of the run's identity, and neither is what ``engine_args`` says besides the
    tokenizer.
    """

    model: str = Field(description="Checkpoint: a folder, a hub id or a bundled name.")
    model_args: dict[str, Any] = Field(
        default_factory=dict, description="k=v,k=v for loading the model (mask_id, eos_id, ...)."
    )
    engine: str = Field("native", description="What computes: native, lmdeploy, sglang or openai (docs/engines.md).")
    engine_url: str | None = Field(None, description="Address of the server of engine sglang or openai.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="k=v,k=v for the engine (timeout, retries, tokenizer, tp, ...)."
    )
    harness: str = Field("lm-eval", description="Evaluation harness: lm-eval or opencompass.")
    tasks: tuple[str, ...] = Field(
        description="Names, groups, globs or suites (dare, dare-smoke), separated by commas."
    )
    num_fewshot: int | None = Field(None, ge=0, description="Number of few-shot examples in the prompt.")
    decoding: dict[str, Any] = Field(
        default_factory=dict, description="k=v,k=v: any decoding field of the family (docs/python.md)."
    )
    likelihood: dict[str, Any] = Field(
        default_factory=dict, description="k=v,k=v: log-likelihood settings (mc_num, estimator, ...)."
    )
    limit: int | float | None = Field(None, description="First N documents of each task, or a fraction of them (0.1).")
    until_halfwidth: float | None = Field(
        None,
        description="Answer documents in a random order until the 95% interval of each score is at most ±N points wide"
        " (docs/evaluate.md); --limit is then the most of each task.",
    )
    samples: dict[str, list[int]] | None = Field(
        None, description='Document indices, as JSON or a JSON file: {"task": [0, 5]}.'
    )
    seeds: tuple[int, int, int, int] = Field(
        DEFAULT_SEEDS, description="One seed, or four: python,numpy,torch,fewshot. (default: 0,1234,1234,1234)"
    )
    repeats: int = Field(
        1, ge=1, le=MAX_REPEATS, description="Samples per prompt (at most 10,000); reports their mean and pass@k."
    )
    apply_chat_template: bool | str = Field(
        False, description="Apply the chat template, or the template NAME (disable: --no-apply-chat-template)."
    )
    fewshot_as_multiturn: bool = Field(True, description="Few-shot examples as chat turns.")
    system_instruction: str | None = Field(None, description="System message for every prompt.")
    include_path: tuple[str, ...] = Field((), description="Folders with additional task files, separated by commas.")
    data_dir: str | None = Field(None, description="Folder of local data sets, with a manifest.json (docs/data.md).")
    max_rows: int | None = Field(
        None, ge=1, description="Maximum batch size; changes results by floating-point rounding at most."
    )
    devices: int = Field(1, ge=1, description="Number of worker processes, one per GPU (or on CPU). (default: 1)")
    executor: str | None = Field(None, description="Where shards run: devices or ray (docs/scale.md).")
    ray_address: str | None = Field(
        None, description="Ray cluster, host:port. (default: RAY_ADDRESS, or a new local one)"
    )
    output_path: str = Field("out", description="Folder for runs. (default: out)")
    fresh: bool = Field(False, description="Start a new run next to an existing one.")
    log_samples: bool = Field(True, description="Write samples and unmasking traces. (default: on)")
    unsafe_no_sandbox: bool = Field(
        False, description="Run generated code even if no sandbox works; the result records it."
    )
    recipe: str | None = Field(
        None,
        description="Settings of a published score: checkpoint/entry, separated by commas (dare-bench ls recipes).",
    )
    part_of: str | None = None

    @field_validator("tasks", "include_path", mode="before", json_schema_input_type=str | Sequence[str])
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("seeds", mode="before", json_schema_input_type=int | str | Sequence[int])
    @classmethod
    def _four_seeds(cls, value: Any) -> Any:
        parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
        try:
            seeds = [int(part) if isinstance(part, str) else part for part in parts]
            if None in seeds:
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(
                "expected one whole number, or four: python,numpy,torch,fewshot"
                " (lm-eval's None is not accepted: every run is seeded)"
            ) from None
        return tuple(seeds * 4 if len(seeds) == 1 else seeds)

    @field_validator("limit", mode="before")
    @classmethod
    def _count_or_fraction(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):
            raise ValueError(
                "must be a number of documents (50) or a fraction of them (0.1), above 0; omit it to use all documents"
            )
        return value

    @field_validator("until_halfwidth")
    @classmethod
    def _in_points(cls, value: float | None) -> float | None:
        if value is not None and not 0 < value < 50:
            raise ValueError("must be a number of points above 0 and below 50, such as 2; omit it to use all documents")
        return value

    @field_validator("tasks")
    @classmethod
    def _at_least_one(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("no task given")
        return value

    @property
    def sampling_seed(self) -> int:
        return self.seeds[2]


_MAX_ERRORS = 3
"""Maximum number of errors in one message."""


def one_line(error: ValidationError, noun: str) -> str:
    """A pydantic error as one line: field of ``noun``, value seen, what is allowed."""
    parts = []
    for item in error.errors()[:_MAX_ERRORS]:
        # pydantic adds the tried type of a union to the path: "list[...]", "function-after[...]".
        name = _short(".".join(str(p) for p in item["loc"] if "[" not in str(p)))[1:-1] or noun
        if item["type"] == "extra_forbidden":
            parts.append(f"{name!r} is not a field of {noun}")
        elif item["type"] == "missing":
            parts.append(f"{name!r} is missing")
        elif not item["loc"]:  # an error in a combination of fields; the message names them
            parts.append(f"{noun}: {item['msg'].removeprefix('Value error, ')}")
        else:
            parts.append(f"{name}={_short(item['input'])}: {reason(item)}")
    if (more := error.error_count() - len(parts)) > 0:
        parts.append(f"and {more} more")
    return "; ".join(parts)


_WORDS = {
    "valid integer": "whole number",
    "valid number": "number",
    "valid string": "text",
    "valid boolean": "true or false",
    "a true or false": "true or false",
    "valid dictionary": "mapping",
    "valid tuple": "list",
    "valid list": "list",
}


def reason(item: Mapping[str, Any]) -> str:
    """What is allowed, from one of pydantic's errors."""
    text = str(item["msg"]).removeprefix("Value error, ")
    if not text.startswith("Input should be"):
        return text
    text = text.replace("Input should be", "must be").split(", unable to")[0].split(", got a number")[0]
    text = text.split(" or instance of ")[0]  # of a class, which a file cannot hold
    for old, new in _WORDS.items():
        text = text.replace(old, new)
    return text


def not_valid(name: str, value: Any, allowed: str) -> str:
    """An invalid value of a setting as a sentence; ``allowed``: from :func:`reason`."""
    return f"{name}={_short(value)} is not valid: {'it ' if allowed.startswith('must ') else ''}{allowed}"


def _short(value: Any) -> str:
    """``repr`` of a value, at most 200 characters long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


ALIASES = {
    "gen_kwargs": "decoding",
    "likelihood_args": "likelihood",
    "seed": "seeds",
    "batch_size": "max_rows",
    "pretrained": "model",
    "suite": "tasks",
}
"""Other names of RunSpec fields, in flags, files and other programs."""


def check_names(fields: Mapping[str, Any]) -> None:
    """Raise UsageError, with a suggestion, for a field that RunSpec does not have."""
    for name, value in fields.items():
        if name in RunSpec.model_fields:
            continue
        text, decoding = f"unknown run setting {name!r}", DecodingKeywords.__annotations__
        if meant := {**ALIASES, "task": "tasks"}.get(name):
            raise UsageError(f"{text}; give {meant}={_short(value)}")
        if name in decoding:
            raise UsageError(f"{text}: it is a decoding field; give decoding={_short({name: value})}")
        spelled = {field: f"decoding={{'{field}': ...}}" for field in decoding} | {f: f for f in RunSpec.model_fields}
        near = ", ".join(spelled[match] for match in closest(name, spelled))
        raise UsageError(text + (f"; closest: {near}" if near else "; docs/python.md lists them"))


def run_spec(**fields: Any) -> RunSpec:
    """A RunSpec from plain values; raises UsageError in one line."""
    check_names(fields)
    try:
        return RunSpec(**fields)
    except ValidationError as error:
        raise UsageError(one_line(error, "the run")) from error


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML mapping of settings, with hyphens in names as underscores; raises UsageError naming file and line."""
    value = reading.read_yaml(path, UsageError)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a mapping of settings, found {type(value).__name__}")
    return {str(k).replace("-", "_"): v for k, v in value.items()}


def parse_pairs(text: Any) -> dict[str, Any]:
    """``k=v,k=v`` (or space separated, or JSON) as lm-eval writes arguments; values become numbers, booleans, None."""
    if text is None or isinstance(text, dict):
        return {str(name): value for name, value in (text or {}).items()}
    if not isinstance(text, str):
        raise UsageError(f"expected settings as a mapping or as name=value,name=value; found {_short(text)}")
    text = text.strip()
    if text.startswith("{"):
        value = _value(text, text)
        if not isinstance(value, dict):
            raise UsageError(f"expected a JSON object, found {_short(text)}")
        return {str(name).replace("-", "_"): item for name, item in value.items()}
    pairs: dict[str, Any] = {}
    for part in text.replace(" ", ",").split(","):
        if not part:
            continue
        name, sign, raw = part.partition("=")
        if not sign:
            also = "" if part == text else f" in {_short(text)}"
            raise UsageError(f"{_short(part)}{also} has no value; give {part}=VALUE (several: name=value,name=value)")
        pairs[name.strip().replace("-", "_")] = {"None": None, "True": True, "False": False}.get(
            raw, _value(raw, part) if raw else ""
        )
    return pairs


def _value(raw: str, shown: str) -> Any:
    """A value as YAML reads it; raises UsageError naming ``shown``."""
    try:
        return reading.parse_yaml(raw)
    except ValueError as error:
        hint = "text with special characters needs quotation marks"
        raise UsageError(f"cannot read {_short(shown)}: {error}; {hint}") from error
