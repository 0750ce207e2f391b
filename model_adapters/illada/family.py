"""iLLaDA: LLaDA's sampler with answers of variable length and an end of thinking that becomes likelier.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from dare_bench.model_adapters.family import SpecialIds
from dare_bench.model_adapters.fields import NaturalNumber
from dare_bench.model_adapters.illada.end_think import EndThink
from dare_bench.model_adapters.illada.likelihood import ILLaDAEstimator
from dare_bench.model_adapters.illada.network import ILLaDAForCausalLM
from dare_bench.model_adapters.llada.family import LLaDA, LLaDADecoding
from dare_bench.model_adapters.sampling.attention import CachePolicy, Row
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.types import ModelSpec

END_THINK = "</think>"
REFUSES_SYSTEM = "System role not supported"
"""What a chat template says that takes no system message."""
SYSTEM_IN_USER = """\
{%- set of = namespace(system=[], others=[]) -%}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}
        {%- set of.system = of.system + [message['content'] | string | trim] -%}
    {%- else -%}
        {%- set of.others = of.others + [message] -%}
    {%- endif -%}
{%- endfor -%}
{%- if of.system -%}
    {%- set text = of.system | join('\\n\\n') -%}
    {%- if of.others and of.others[0]['role'] == 'user' -%}
        {%- set text = text ~ '\\n\\n' ~ of.others[0]['content'] -%}
        {%- set of.others = of.others[1:] -%}
    {%- endif -%}
    {%- set messages = [{'role': 'user', 'content': text}] + of.others -%}
{%- endif -%}
"""
"""Puts system messages before the first message of the user, as ``_merge_system_into_user`` of eval_illada.py."""


class ILLaDADecoding(LLaDADecoding):
    """LLaDA's fields, and those of ``var_generate``.

    ``variable_length``: each block is decoded without masks behind it, and the answer ends with the block that has an
    EOS or a stop string. ``steps`` is then the number of each block, and equals ``block_length`` unless given.
    ``end_think_token_ids``, of ``</think>`` in the checkpoint's tokenizer unless given, are used where
    ``end_think_logit_boost`` is above 0.
    """

    variable_length: bool = False
    end_think_token_ids: tuple[NaturalNumber, ...] | None = None
    end_think_logit_boost: float = Field(default=0.0, ge=0)
    end_think_boost_power: float = Field(default=2.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _steps_of_a_block(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("variable_length") and values.get("steps") is None:
            length = values.get("block_length") or values.get("gen_length")
            values = {**values, **({} if length is None else {"steps": length})}
        return values

    @model_validator(mode="after")
    def _complete(self) -> ILLaDADecoding:
        if self.end_think_logit_boost > 0 and not self.end_think_token_ids:
            raise ValueError(
                f"end_think_logit_boost={self.end_think_logit_boost:g} needs the ids of </think>, and the checkpoint "
                "has no tokenizer: give end_think_token_ids"
            )
        if self.end_think_logit_boost > 0 and self.draft_steps:
            raise ValueError(
                f"draft_steps={self.draft_steps} with end_think_logit_boost: the boost depends on what the forward "
                "before has written; use draft_steps=0"
            )
        if self.variable_length and self.cache != "none":
            raise ValueError(
                f"variable_length=True with cache={self.cache!r}, which holds the masks behind a block; there are "
                "none: use cache='none'"
            )
        return self

    @property
    def steps_per_block(self) -> int:
        return self.steps if self.variable_length else super().steps_per_block


class GrowingCanvas(CachePolicy):
    """The masks behind the block are not there (``var_generate``), and guidance hides all that is before it."""

    def window(self, row: Row) -> tuple[int, int]:
        return 0, row.stop

    def hidden(self, row: Row) -> int:
        return row.begin


class ILLaDA(LLaDA):
    """GSAI-ML/iLLaDA-8B-Base and -Instruct."""

    name = "illada"
    network = ILLaDAForCausalLM
    decoding = ILLaDADecoding
    chat_template = None  # each checkpoint has its own
    mask_texts = ("<[MASK]>",)
    published_mask = 5
    eot_text = None

    def prompting(self, template: str) -> str:
        return SYSTEM_IN_USER + template if REFUSES_SYSTEM in template else template

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        ids = super().special_ids(config, tokenizer, generation)
        end = () if tokenizer is None else tokenizer(END_THINK, add_special_tokens=False)["input_ids"]
        return replace(ids, end_think=tuple(end))

    def defaults(self, spec: ModelSpec) -> dict[str, Any]:
        return super().defaults(spec) | {"end_think_token_ids": spec.end_think_ids or None}

    def likelihood_estimator(self, spec: ModelSpec) -> ILLaDAEstimator:
        return ILLaDAEstimator()

    def sampler(self, decoding: LLaDADecoding, spec: ModelSpec) -> Sampler:
        d, sampler = decoding, super().sampler(decoding, spec)
        assert isinstance(d, ILLaDADecoding)
        if d.end_think_logit_boost > 0 and max(d.end_think_token_ids or ()) < spec.vocab_size:
            ids = d.end_think_token_ids or ()
            sampler = replace(sampler, logits_rule=EndThink(ids, d.end_think_logit_boost, d.end_think_boost_power))
        if not d.variable_length:
            return sampler
        stops = d.early_stop is not False and d.text_after_eos == "cut"
        return replace(
            sampler,
            attention=replace(sampler.attention, cache=GrowingCanvas()),
            reference=replace(sampler.reference, count="blocks"),
            stopping=replace(sampler.stopping, early_stop=stops),
        )


FAMILY = ILLaDA()
