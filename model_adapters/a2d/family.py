"""A2D: decoding fields by the names of dLLM's samplers (core/samplers/mdlm.py and bd3lm.py), special ids.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dare_bench.errors import CheckpointError, DecodingError
from dare_bench.model_adapters.a2d.linear_quota import LinearQuota
from dare_bench.model_adapters.a2d.network import BLOCK_LENGTH, MASK, network_of
from dare_bench.model_adapters.backbone import DiffusionNetwork
from dare_bench.model_adapters.family import Family, SamplerFields, SpecialIds
from dare_bench.model_adapters.family_rules import special_from_tokenizer
from dare_bench.model_adapters.fields import Count, idle_steps
from dare_bench.model_adapters.replay.published import PublishedTies
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import Decoding, ModelSpec

EOT_TEXTS = ("<|im_end|>", "<|eot_id|>")
"""What ends a turn: Qwen's, Llama's."""


class A2DDecoding(SamplerFields):
    """What both samplers have. ``steps`` equals ``gen_length`` unless given; neither steps nor blocks have to divide.

    ``max_length``: tokens of prompt and answer, instead of ``gen_length``. ``right_shift_logits``: a state predicts the
    next token; unless given, what the checkpoint's config.json says, by which it is trained and scored, too.
    """

    own_strategy: ClassVar[frozenset[str]] = frozenset({"steps", "remasking"})
    aliases: ClassVar[dict[str, str]] = {**SamplerFields.aliases, "block_size": "block_length"}
    token_lists: ClassVar[tuple[str, ...]] = ("cfg_keep_tokens",)
    """Fields that hold token ids, of which any are allowed."""

    max_length: Count | None = None
    steps: Count = Field(default_factory=lambda fields: fields["gen_length"])
    block_length: Count = Field(default_factory=lambda fields: fields["gen_length"])
    cfg_scale: float = Field(default=0.0, ge=0)
    cfg_keep_tokens: tuple[int, ...] = ()
    """Ids of the prompt that the unconditional half of guidance is shown, too."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    right_shift_logits: bool = False

    @field_validator("cfg_keep_tokens", mode="before", json_schema_input_type=int | Sequence[int] | None)
    @classmethod
    def _ids(cls, value: Any) -> Any:
        return cls._several(value) or ()

    @model_validator(mode="after")
    def _one_length(self) -> A2DDecoding:
        if self.max_length is not None and "gen_length" in self.model_fields_set:
            raise ValueError(
                f"gen_length={self.gen_length} and max_length={self.max_length} exclude each other; give one"
            )
        return self

    @property
    def deterministic(self) -> bool:
        return super().deterministic and self.remasking != "random"

    @property
    def remark(self) -> str:
        return idle_steps(self.steps_of_block, min(self.block_length, self.gen_length))

    @property
    def steps_of_block(self) -> int:
        """Steps of one block."""
        return ceil(self.steps / ceil(self.gen_length / self.block_length))


class MDLMDecoding(A2DDecoding):
    """The fields of dLLM's MDLM sampler."""

    token_lists = (*A2DDecoding.token_lists, "suppress_tokens", "begin_suppress_tokens")

    suppress_tokens: tuple[int, ...] = ()
    """Ids that are never predicted."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Ids that are predicted, but with confidence 0, at every step."""

    @field_validator(
        "suppress_tokens", "begin_suppress_tokens", mode="before", json_schema_input_type=int | Sequence[int] | None
    )
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return cls._several(value) or ()


class BD3LMDecoding(A2DDecoding):
    """The fields of dLLM's BD3LM sampler. ``steps_per_block`` is derived from ``steps`` unless given.

    ``cache="none"`` computes the whole prefix again in every forward, as guidance always does: the same tokens, only
    slower.
    """

    own_strategy = A2DDecoding.own_strategy | {"steps_per_block"}

    block_length: Count = BLOCK_LENGTH
    steps_per_block: Count | None = None
    cache: Literal["exact", "none"] = "exact"

    @property
    def steps_of_block(self) -> int:
        return self.steps_per_block or super().steps_of_block


class A2D(Family):
    """dllm-hub/Qwen3-0.6B-diffusion-*, Qwen2.5-Coder-0.5B-Instruct-diffusion-*, and A2D-Llama."""

    block_length: int | None = None
    whole_blocks = False
    mask_texts = (MASK,)

    def prompting(self, template: str) -> str:
        """As dLLM's evaluation: answers have no thoughts unless ``enable_thinking`` says otherwise."""
        return "{%- if enable_thinking is not defined %}{%- set enable_thinking = false %}{%- endif %}" + template

    def network_of(self, raw: dict[str, Any]) -> type[DiffusionNetwork]:
        return network_of(raw.get("model_type"), self.block_length)

    def predicts_of(self, config: Any) -> Literal["same", "next"]:
        return "next" if config.right_shift_logits else "same"

    def defaults(self, spec: ModelSpec) -> dict[str, Any]:
        return {**super().defaults(spec), "right_shift_logits": spec.predicts == "next"}

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        """As dLLM's loader finds them: it adds a mask token that the tokenizer lacks at the first free id, ends at the
        tokenizer's EOS and at the end of a turn, and pads with EOS if nothing else is named."""
        ids = super().special_ids(config, tokenizer, generation)
        eot = next((i for i in (special_from_tokenizer(tokenizer, text) for text in EOT_TEXTS) if i is not None), None)
        own = getattr(tokenizer, "eos_token_id", None)
        ends = dict.fromkeys([*([own] if own is not None else ids.eos), *([eot] if eot is not None else [])])
        pad = getattr(tokenizer, "pad_token_id", None)
        if ids.mask is None and tokenizer is not None:
            mask = _added_mask(tokenizer, config.vocab_size)
            ids = replace(ids, mask=mask, mask_from=f"the first free id of the tokenizer, where {MASK} is added")
        first = next(iter(ends), None)
        pad = next((i for i in (pad, ids.pad, first) if i is not None), None)
        places = getattr(tokenizer, "bos_token_id", None), getattr(config, "bos_token_id", None), pad
        bos = next((i for i in places if i is not None), None)
        return replace(ids, eos=tuple(ends), eot=eot, pad=pad, bos=bos)

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        decoding = super().resolve(fields, spec)
        for name in decoding.token_lists:  # type: ignore[attr-defined]
            for token in getattr(decoding, name):
                if not 0 <= token < spec.vocab_size:
                    raise DecodingError(
                        f"{name}={token} is outside the vocabulary; allowed: 0 to {spec.vocab_size - 1}"
                    )
        return decoding

    def fitted(self, decoding: A2DDecoding, prompt: Callable[[], Sequence[int]]) -> A2DDecoding:
        if decoding.max_length is None:
            return decoding
        left = decoding.max_length - len(prompt())
        if left < 1:
            raise DecodingError(
                f"max_length={decoding.max_length} leaves no token for an answer after a prompt of "
                f"{decoding.max_length - left} tokens; raise it, or give gen_length"
            )
        return decoding.model_copy(update={"gen_length": left})

    @staticmethod
    def lead(d: A2DDecoding, spec: ModelSpec) -> tuple[int, ...]:
        """The published samplers put BOS in the place of an empty prompt if states predict the next token."""
        return (spec.bos_id,) if d.right_shift_logits and spec.bos_id is not None else ()

    @staticmethod
    def strategy(d: A2DDecoding) -> Strategy:
        return LinearQuota(steps=d.steps_of_block, rank_by="random" if d.remasking == "random" else "confidence")


class A2DMDLM(A2D):
    """The masked diffusion models, which decode bidirectionally."""

    name = "a2d_mdlm"
    decoding = MDLMDecoding
    has_cfg_likelihood = True

    @staticmethod
    def convert(source: Path, target: Path, *, shift: bool = False) -> int:
        """Make an A2D checkpoint of an autoregressive one (see ``convert.py``)."""
        from dare_bench.model_adapters.a2d.convert import convert

        return convert(source, target, shift=shift)

    def sampler(self, decoding: MDLMDecoding, spec: ModelSpec) -> Sampler:
        d, strategy = decoding, self.strategy(decoding)
        if d.begin_suppress_tokens and d.remasking == "low_confidence":
            strategy = PublishedTies(inner=strategy, tie_score=0.0)
        return self.compose(
            d,
            spec,
            strategy,
            d.block_length,
            ReferencePolicy(noise="gumbel", count="forwards"),
            lead=self.lead(d, spec),
            tokens=TokenPolicy(
                temperature=d.temperature, suppressed=d.suppress_tokens, uncounted=d.begin_suppress_tokens
            ),
            attention=AttentionPolicy(
                predicts_next=d.right_shift_logits,
                cfg_scale=d.cfg_scale,
                guide_keeps=d.cfg_keep_tokens,
                guides_canvas=True,
            ),
        )


class A2DBD3LM(A2D):
    """The block diffusion models, which decode block by block after a prefix that no longer changes."""

    name = "a2d_bd3lm"
    decoding = BD3LMDecoding
    block_length = BLOCK_LENGTH
    blocks_from = "answer"

    def sampler(self, decoding: BD3LMDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        cached = d.cache == "exact" and d.cfg_scale == 0
        skips = cached and not d.right_shift_logits and spec.pad_id not in spec.eos_ids
        return self.compose(
            d,
            spec,
            self.strategy(d),
            d.block_length,
            ReferencePolicy(noise="gumbel", count="prefix"),
            early_stop=True,
            lead=self.lead(d, spec),
            tokens=TokenPolicy(temperature=d.temperature),
            attention=AttentionPolicy(
                causal=True,
                from_prompt=True,
                predicts_next=d.right_shift_logits,
                first_any_time=d.right_shift_logits,
                cache=CACHES["exact" if cached else "none"],
                cfg_scale=d.cfg_scale,
                guide_keeps=d.cfg_keep_tokens,
                unseen=(spec.pad_id,) if skips and spec.pad_id is not None else (),
            ),
        )


def _added_mask(tokenizer: Any, rows: int) -> int:
    """The id of the mask token, which is added to the tokenizer; raises CheckpointError if no embedding is left."""
    token = len(tokenizer)
    if token >= rows:
        raise CheckpointError(
            f"the tokenizer has no mask token {MASK!r}, and the embedding has no row left to add it ({rows} rows, "
            f"{token} tokens): not an A2D checkpoint, or files of another tokenizer"
        )
    tokenizer.add_special_tokens({"mask_token": MASK})
    return int(tokenizer.convert_tokens_to_ids(MASK))


MDLM, BD3LM = A2DMDLM(), A2DBD3LM()
