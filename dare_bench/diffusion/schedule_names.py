"""Names and numbers of noise schedules (``schedules.py``). No torch, so that settings can be checked without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

ScheduleName = Literal["uniform", "even", "counts", "coupled", "blocks", "band"]
Unbiased = Literal["uniform", "even", "counts", "coupled", "blocks"]
"""The noise schedules whose weighted losses are an ELBO in expectation (not ``band``)."""
Weighting = Literal["elbo", "plain", "cart"]
EPS = 1e-3
"""Lowest noise level: the loss is divided by it (ML-GSAI/LLaDA GUIDELINES.md, forward_process)."""
CART_Q = 0.3
"""Dream's geometric rate (arXiv 2508.15487, section 4.2)."""


def _parts(value: Any) -> Any:
    return tuple(part for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Range = Annotated[tuple[float, float], BeforeValidator(_parts, json_schema_input_type=tuple[float, float] | str)]
"""Of a setting: low,high."""
