"""Field types of a run's files: names and texts have a maximum length, counts a range, numbers are finite. Runs are
shared between people, so a file may be malicious."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dare_bench.config import one_line

MAX_TASKS = 1000
"""Maximum number of tasks of a run, and of groups; all groups together have at most twice as many parts."""
MAX_METRICS = 500
"""Maximum number of entries in the scores of one task."""
LARGEST = 1e100
"""Maximum absolute value of a number: squares and sums of larger ones overflow."""

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Text = Annotated[str, Field(max_length=1_000_000)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


def _rate(value: float) -> float:
    if 0 < value < 1e-12:
        raise ValueError("expected 0, or at least 1e-12")
    return value


Rate = Annotated[float, Field(ge=0, le=1e12), AfterValidator(_rate)]
"""Tokens per second or forward pass. Ratios of two rates are finite."""


def _moment(text: str) -> str:
    if not 1970 <= datetime.fromisoformat(text).year < 3000:
        raise ValueError("expected a date from 1970 to 2999")
    return text


Moment = Annotated[str, Field(max_length=40, description="ISO 8601"), AfterValidator(_moment)]


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class OpenModel(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=(), allow_inf_nan=False)


DocId = Annotated[int, Field(strict=True, ge=-(10**18), le=10**18)] | Name
MetricKey = Annotated[str, Field(max_length=1000)]
Key = Annotated[str, Field(max_length=5000, pattern=r"/\d{1,9}/\d{1,9}/[^/]*$")]
"""Of a request: ``<task>/<document>/<index>/<repeat>/<hash>``."""


def _folder(text: str) -> str:
    try:
        place = Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("it is in the home folder of an unknown user") from error
    if "\0" in text or any(len(os.fsencode(part)) > 255 for part in place.parts):
        raise ValueError("it is not a valid path")
    return text


Folder = Annotated[str, Field(max_length=4000), AfterValidator(_folder)]


class LineModel(BaseModel):
    """A part of a line; values are not converted."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False, strict=True)


Model = TypeVar("Model", bound=BaseModel)


def check(model: type[BaseModel], raw: Any) -> None:
    """Raise ValueError, in one line, unless ``raw`` fits the model."""
    try:
        read(model, raw)
    except ValidationError as error:
        raise ValueError(one_line(error, "it")) from None


def read(model: type[Model], raw: Any) -> Model:
    """``raw`` as an instance of the model; raises ValidationError. Lone surrogates (broken model output), which
    pydantic refuses, become question marks."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        if not any(item["type"] == "string_unicode" for item in error.errors(include_url=False)):
            raise
    return model.model_validate(json.loads(json.dumps(raw, ensure_ascii=False).encode("utf-8", "replace")))
