"""LLaDA2.0, 2.1 and 2.2: decoding fields by the names of their generate, special ids, chat template.

2.0 and 2.1 have one configuration and one network. 2.1 also edits: it replaces tokens it has written (token-to-token).
Editing is on in the family ``llada2.1``, or when an editing field is given. 2.2 has another router, and also deletes
tokens and inserts masks in the family ``llada2.2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.family import Family, SamplerFields
from dare_bench.model_adapters.family_rules import EDIT_IDS
from dare_bench.model_adapters.fields import MAX_COUNT, Count, NaturalNumber, Probability, TopP
from dare_bench.model_adapters.llada2.edit import Edit
from dare_bench.model_adapters.llada2.levenshtein import ALTERNATIVES, Levenshtein
from dare_bench.model_adapters.llada2.network import LLaDA2MoeModelLM
from dare_bench.model_adapters.llada2.template import CHAT_TEMPLATE
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import Dynamic
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import Decoding, ModelSpec

EDITING = {"editing_threshold": 0.9, "max_post_steps": 16, "num_to_transfer": 1}
"""The fields of editing, and their defaults where it is on."""


class LLaDA2Decoding(SamplerFields):
    """LLaDA2's sampler. ``block_length`` is the checkpoint's and ``steps`` equals it unless given; ``steps`` and
    ``minimal_topk`` have no effect with editing (as published).

    ``cache="none"`` computes the whole prefix again in every forward, as the published code does: the same tokens.
    """

    edits: ClassVar[bool] = False
    own_strategy = frozenset({"steps", "threshold", "minimal_topk", "editing", *EDITING})

    block_length: Count
    steps: Count = Field(default_factory=lambda fields: fields["block_length"])
    threshold: Probability = 0.95
    minimal_topk: Count = 1
    top_p: TopP | None = None
    top_k: NaturalNumber | None = None
    eos_early_stop: bool = False
    editing: bool | None = None
    editing_threshold: Probability | None = None
    max_post_steps: NaturalNumber | None = None
    num_to_transfer: Count | None = None
    cache: Literal["exact", "none"] = "exact"

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        values = dict(values)
        given = [name for name in EDITING if values.get(name) is not None]
        if values.get("editing") is None:
            values["editing"] = bool(given) or cls.edits
        if values["editing"]:
            for name, value in EDITING.items():
                if values.get(name) is None:
                    values[name] = value
        elif given:
            raise ValueError(f"{given[0]}={values[given[0]]} needs editing, but editing=False; give one or the other")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> LLaDA2Decoding:
        if self.minimal_topk > self.gen_length:
            raise ValueError(f"minimal_topk={self.minimal_topk} must be at most gen_length={self.gen_length}")
        if self.eos_early_stop and self.early_stop is False:
            raise ValueError("eos_early_stop=True with early_stop=False contradict each other; give one of them")
        return self

    @property
    def rewriting(self) -> tuple[str, str] | None:
        return ("editing", "give --rollout editing=false") if self.editing else None


class LLaDA21Decoding(LLaDA2Decoding):
    """LLaDA2.1's sampler: LLaDA2's with editing. Quality mode is threshold 0.7, editing_threshold 0.5; speed mode 0.5
    and 0.0."""

    edits = True


class LLaDA22Decoding(SamplerFields):
    """LLaDA2.2's sampler. ``steps`` and ``block_length`` as in LLaDA2; ``delete_token_id`` and ``split_token_id`` are
    the checkpoint's. It is approximate: a state of a block that repeats is left by a rule and not at random, and at a
    temperature what replaces a last edit is not drawn."""

    own_strategy = frozenset(
        {"steps", "threshold", "editing_threshold", "max_post_steps", "max_steps_per_block", *EDIT_IDS}
    )
    id_fields: ClassVar[tuple[str, ...]] = (*SamplerFields.id_fields, *EDIT_IDS)
    editing: ClassVar[bool] = True

    block_length: Count
    steps: Count = Field(default_factory=lambda fields: fields["block_length"])
    threshold: Probability = 0.5
    editing_threshold: Probability = 0.0
    max_post_steps: NaturalNumber = 16
    max_steps_per_block: Annotated[int, Field(ge=2, le=MAX_COUNT), BeforeValidator(Decoding._whole)] = 1000
    delete_token_id: NaturalNumber | None = None
    split_token_id: NaturalNumber | None = None
    top_p: TopP | None = None
    top_k: NaturalNumber | None = None
    eos_early_stop: bool = False
    cache: Literal["exact", "none"] = "exact"

    @property
    def rewriting(self) -> tuple[str, str] | None:
        return "editing", 'open it with family="llada2"'


class LLaDA2(Family):
    """inclusionAI/LLaDA2.0-mini, -flash, their CAP versions; LLaDA2.1-mini and -flash with editing fields."""

    name = "llada2"
    sft = {"noise": "band", "weight": "plain", "normalize": "mask"}  # noqa: RUF012
    network = LLaDA2MoeModelLM
    decoding: type[SamplerFields] = LLaDA2Decoding
    chat_template = CHAT_TEMPLATE
    mask_texts = ("<|mask|>",)
    approximate = False
    alternatives = 0
    """The number of most probable tokens of each position that the strategy sees."""

    def sampler(self, decoding: LLaDA2Decoding | LLaDA22Decoding, spec: ModelSpec) -> Sampler:
        d = decoding
        return self.compose(
            d,
            spec,
            d.strategy or self._strategy(d, spec),
            d.block_length,
            ReferencePolicy(noise="block"),
            # 2.0 always stops behind a block with EOS, 2.1 and 2.2 on request; later blocks change no earlier tokens.
            early_stop=not d.editing or d.eos_early_stop,
            approximate=self.approximate,
            stopping={"stop_in_block": d.eos_early_stop and not d.editing, "cut_at_eos": d.text_after_eos == "cut"},
            tokens=TokenPolicy(
                temperature=d.temperature,
                top_k=(d.top_k or 0) if d.temperature > 0 else 0,
                top_p=1.0 if d.top_p is None or d.temperature == 0 else d.top_p,
                confidence_of="kept",
                alternatives=self.alternatives,
            ),
            attention=AttentionPolicy(causal=True, cache=CACHES[d.cache]),
        )

    def _strategy(self, d: Any, spec: ModelSpec) -> Strategy:
        steps = min(d.steps, d.gen_length // d.minimal_topk)
        if d.editing_threshold is None:
            return Dynamic(steps=steps, threshold=d.threshold)
        return Edit(
            steps=steps,
            threshold=d.threshold,
            edit_threshold=d.editing_threshold,
            max_post_steps=d.max_post_steps or 0,
            min_transfer=d.num_to_transfer or 1,
        )


class LLaDA21(LLaDA2):
    """LLaDA2.1-mini and -flash opened with ``family="llada2.1"``: editing is on."""

    name = "llada2.1"
    decoding = LLaDA21Decoding


class LLaDA22(LLaDA2):
    """inclusionAI/LLaDA2.2-mini and -flash opened with ``family="llada2.2"``: tokens are also deleted and inserted."""

    name = "llada2.2"
    decoding = LLaDA22Decoding
    eos_from_generation = True
    approximate = True  # the published code leaves a repeated state at random
    alternatives = ALTERNATIVES

    def defaults(self, spec: ModelSpec) -> dict[str, Any]:
        return super().defaults(spec) | dict(zip(EDIT_IDS, spec.edit_ids, strict=False))

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        decoding = super().resolve(fields, spec)
        missing = [name for name in EDIT_IDS if getattr(decoding, name) is None]
        if missing and getattr(decoding, "strategy", None) is None:
            raise DecodingError(
                f"config.json names no {missing[0]}, so this checkpoint cannot delete and insert; give "
                f'{missing[0]}=, or open it with family="llada2.1"'
            )
        return decoding

    def _strategy(self, d: Any, spec: ModelSpec) -> Strategy:
        assert d.delete_token_id is not None and d.split_token_id is not None
        return Levenshtein(
            steps=d.steps,
            threshold=d.threshold,
            edit_threshold=d.editing_threshold,
            max_post_steps=d.max_post_steps,
            max_steps=d.max_steps_per_block,
            mask_id=spec.mask,
            delete_id=d.delete_token_id,
            split_id=d.split_token_id,
        )


FAMILY = LLaDA2()
FAMILY_21 = LLaDA21()
FAMILY_22 = LLaDA22()
