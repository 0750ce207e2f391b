"""Decoding fields of autoregressive models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from dare_bench.model_adapters.fields import Count, NaturalNumber, TopP, resolve_fields
from dare_bench.types import Decoding, ModelSpec

NAME = "causal"
"""Of the family."""


class CausalFields(Decoding):
    """Decoding fields, with the meanings that they have in transformers' ``generate``.

    They are applied in its order: ``repetition_penalty``, ``temperature`` (0: the most probable token), ``top_k`` (0:
    all), ``top_p``. What a checkpoint's generation_config.json says of them is not applied.
    """

    gen_length: Count = 128
    temperature: float = Field(default=0.0, ge=0)
    top_k: NaturalNumber = 0
    top_p: TopP = 1.0
    repetition_penalty: float = Field(default=1.0, gt=0)

    @property
    def deterministic(self) -> bool:
        return super().deterministic or self.top_k == 1

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.mask_id is not None:
            raise ValueError(f"mask_id={self.mask_id}: an autoregressive model has no mask; leave it out")
        if self.rng == "reference":
            raise ValueError(
                "rng='reference': the random numbers of transformers' generate depend on the batch, and are not "
                "replayed; use rng='ours'"
            )
        for name in ("trajectory", "predictions"):
            if getattr(self, name):
                raise ValueError(f"{name}=True: an autoregressive model writes from left to right; leave it out")
        if self.early_stop and self.text_after_eos == "keep":
            raise ValueError(
                "early_stop=True with text_after_eos='keep' would lose the text after EOS; use text_after_eos='cut' or "
                "early_stop=False"
            )
        return self


def resolved(fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
    """All decoding values; ``early_stop`` is on where the text is cut at EOS. Raises DecodingError."""
    stops = fields.get("text_after_eos") in (None, "cut")
    return resolve_fields(CausalFields, fields, spec, {"early_stop": stops})
