"""What a family defines: network, decoding fields, special ids and chat template. ``family.py`` opens it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork
from dare_bench.model_adapters.configs import check_types, describing
from dare_bench.model_adapters.fields import Count, NaturalNumber, resolve_fields
from dare_bench.model_adapters.quiet import quiet_transformers
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.stopping import StoppingPolicy
from dare_bench.model_adapters.sampling.strategies import Strategy, strategy_of
from dare_bench.model_adapters.sampling.strategies.quota import BlockQuota, Quota
from dare_bench.model_adapters.sampling.strategies.wrapped import FirstToken, WrappedStrategy
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.model_adapters.scoring.likelihood_estimators import Blockwise, LikelihoodEstimator, WholeTarget
from dare_bench.types import Decoding, ModelSpec, Tier


@dataclass(frozen=True)
class SpecialIds:
    """Special token ids. ``mask`` is None if the checkpoint does not name it; then it must be given at opening."""

    mask: int | None
    eos: tuple[int, ...]
    eot: int | None
    pad: int | None
    edit: tuple[int, ...] = ()
    """The tokens that delete a token and insert a mask before it, where the checkpoint has them."""
    bos: int | None = None
    """What stands in the place of an empty prompt, where the published sampler needs a token there."""
    mask_from: str = "no file"
    """What names the mask id."""
    end_think: tuple[int, ...] = ()
    """Of the text that ends thoughts, where the sampler makes it likelier (iLLaDA)."""


class SamplerFields(Decoding):
    """Decoding fields of a family that the denoising loop samples.

    ``strategy``: a registered strategy instead of the family's own, by name or as ``{"name": NAME, field: value}`` (see
    ``dare-bench ls strategies``). The fields in ``own_strategy`` configure the family's own strategies: together
    with ``strategy`` they are refused, and they are not recorded.
    """

    own_strategy: ClassVar[frozenset[str]] = frozenset()

    gen_length: Count = 128
    temperature: float = Field(default=0.0, ge=0)
    strategy: Any = None
    draft_steps: NaturalNumber = 0
    """Steps that a forward may verify besides its own: the same answers in fewer forwards."""

    @property
    def deterministic(self) -> bool:
        return super().deterministic and not (self.strategy and self.strategy.score.random)

    @field_validator("strategy", mode="before")
    @classmethod
    def _strategy(cls, value: Any) -> Any:
        return value if value is None else strategy_of(value)

    @model_validator(mode="after")
    def _keeps_text(self) -> Self:
        for name in ("early_stop", "eos_early_stop"):
            if getattr(self, name, None) and self.text_after_eos == "keep":
                raise ValueError(
                    f"{name}=True with text_after_eos='keep' would lose the text after EOS; "
                    f"use text_after_eos='cut' or {name}=False"
                )
        return self

    @model_serializer(mode="wrap")
    def _recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        if not self.draft_steps:
            del values["draft_steps"]
        if self.strategy is None:
            values.pop("strategy", None)
            return values
        values["strategy"] = self.strategy.recorded()
        dropped = self.own_strategy - self.strategy.keeps
        return {name: value for name, value in values.items() if name not in dropped}


PUBLISHED = "the published code of the family"
"""What names the mask id of families whose files do not."""
EDIT_IDS = ("delete_token_id", "split_token_id")


class FamilyRules(ABC):
    """The rules of one family, which an opened model asks."""

    name: str
    network: type[DiffusionNetwork]
    decoding: type[Decoding]
    chat_template: str | None = None
    has_cfg_likelihood: bool = False
    predicts: Literal["same", "next"] = "same"
    """Does the state at a position predict its own token or the next one? (:meth:`predicts_of` may know more.)"""
    blocks_from: Literal["start", "answer"] = "start"
    """Are the blocks of decoding counted from the first token, or from the end of the prompt?"""
    whole_blocks: bool = True
    """Does the sampler finish the last block, also beyond the tokens that were asked for?"""
    noise: Literal["absorbing", "uniform"] = "absorbing"
    """Are unknown tokens masks, or random tokens?"""

    def prompting(self, template: str) -> str:
        """A checkpoint's chat template, with what the published evaluation changes about its messages."""
        return template

    def network_of(self, raw: dict[str, Any]) -> type[DiffusionNetwork]:
        """The network class of a config.json; a family with several published classes chooses here."""
        return self.network

    def arch_of(self, raw: dict[str, Any]) -> tuple[Any, Arch]:
        """A config.json as the network's configuration, and the network that it describes; raises CheckpointError."""
        network = self.network_of(raw)
        check_types(network.config_class, raw)
        with describing(), quiet_transformers():
            config = network.config_class.from_dict(raw)
            return config, network.arch_of(config)

    sft: ClassVar[Mapping[str, Any]] = {}
    """Settings of the method ``sft`` with which the authors fine-tune, where they differ from the defaults."""
    mask_texts: tuple[str, ...] = ()
    """The texts of the mask token in published tokenizers."""
    published_mask: int | None = None
    """The mask id of published checkpoints whose files do not name it."""
    eot_text: str | None = None
    eos_from_generation: bool = False
    """generation_config.json names the stop ids, config.json only one of them."""

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        """Special ids as config, generation config and tokenizer name them; never constants."""
        mask, mask_from = self._mask(config, tokenizer)
        pad = getattr(config, "pad_token_id", None)
        places = [generation.get("eos_token_id"), getattr(config, "eos_token_id", None)]
        ids = [*(places if self.eos_from_generation else places[::-1]), getattr(tokenizer, "eos_token_id", None), pad]
        eos = next((value for value in ids if value is not None), ())
        return SpecialIds(
            mask=mask,
            mask_from=mask_from,
            eos=tuple(eos) if isinstance(eos, list | tuple) else (eos,),
            eot=special_from_tokenizer(tokenizer, self.eot_text) if self.eot_text else None,
            pad=pad,
            edit=tuple(token for name in EDIT_IDS if (token := getattr(config, name, None)) is not None),
        )

    def _mask(self, config: Any, tokenizer: Any | None) -> tuple[int | None, str]:
        """The mask id, and what names it: config.json, the tokenizer, or the family's published code."""
        if (mask := getattr(config, "mask_token_id", None)) is not None:
            return mask, "mask_token_id in config.json"
        for text in self.mask_texts:
            if (token := special_from_tokenizer(tokenizer, text)) is not None:
                return token, f"the tokenizer's token {text!r}"
        if self.published_mask is None:
            return None, "no file"
        return self.published_mask, PUBLISHED

    def predicts_of(self, config: Any) -> Literal["same", "next"]:
        """What the states of a checkpoint predict, where its config.json says so."""
        return self.predicts

    def check_prompt(self, tokens: Sequence[int], config: Any) -> None:
        """Raise PromptError for token ids that the network cannot read."""
        return

    def defaults(self, spec: ModelSpec) -> dict[str, Any]:
        """Decoding values that the checkpoint determines (its block length)."""
        return {} if spec.block_length is None else {"block_length": spec.block_length}

    @abstractmethod
    def sampler(self, decoding: Any, spec: ModelSpec) -> Sampler:
        """The sampler of resolved decoding fields; most families return :meth:`compose`."""

    def compose(
        self,
        decoding: SamplerFields,
        spec: ModelSpec,
        strategy: Strategy,
        block_length: int,
        reference: ReferencePolicy,
        *,
        around: type[WrappedStrategy] | None = None,
        early_stop: bool = False,
        approximate: bool = False,
        stopping: Mapping[str, Any] | None = None,
        **pieces: Any,
    ) -> Sampler:
        """The sampler of these pieces and of the fields that mean the same in every family.

        A strategy that the user names replaces the family's own, and has no published sampler. ``around`` wraps either
        of them. ``early_stop``: does the published sampler stop after a block with an EOS? The user's field wins.

        Raises:
            DecodingError: an editing strategy in a wrapper that does not support it.
        """
        chosen = decoding.strategy
        if around is not None and chosen is not None and (chosen.edits or chosen.whole or chosen.has_state):
            does = "writes over tokens" if chosen.edits else "sees the whole answer or remembers what it did"
            raise DecodingError(
                f"strategy {chosen.name!r} {does}; {self.name} cannot do so with a cache, or where a block's first "
                "token is predicted before the block"
            )
        stops = early_stop if decoding.early_stop is None else decoding.early_stop
        cut = decoding.text_after_eos == "cut"
        ends = {"eos_ids": spec.eos_ids, **(stopping or {})}
        if chosen is not None:
            if chosen.greedy and decoding.temperature:
                raise DecodingError(
                    f"strategy {chosen.name!r} is defined at temperature 0 alone, not with "
                    f"temperature={decoding.temperature:g}; leave it out"
                )
            strategy, pieces = _in_place_of(strategy, chosen, pieces)
        inner = strategy.for_model(ends["eos_ids"], block_length, decoding.gen_length)
        sampler = Sampler(
            decoding.gen_length,
            decoding.gen_length if inner.whole else block_length,
            inner if around is None else around(inner=inner),
            reference=replace(
                reference, replay=decoding.rng == "reference", count="forwards" if chosen else reference.count
            ),
            whole_blocks=self.whole_blocks,
            approximate=approximate or chosen is not None,
            draft_steps=decoding.draft_steps,
            record_trajectory=decoding.trajectory,
            record_predictions=decoding.predictions,
            record_near_tie=decoding.near_tie,
            stopping=StoppingPolicy(
                early_stop=stops and cut,
                keep_text_after_eos=not cut,
                stop=decoding.stop,
                **ends,
            ),
            **pieces,
        )
        if decoding.draft_steps and (reason := _undraftable(sampler)):
            raise DecodingError(f"draft_steps={decoding.draft_steps}: {reason}; use draft_steps=0")
        return sampler

    def likelihood_estimator(self, spec: ModelSpec) -> LikelihoodEstimator:
        """How log-likelihoods are estimated: over the whole target, or block by block where attention has blocks."""
        return WholeTarget(self.has_cfg_likelihood) if spec.block_length is None else Blockwise()

    def likelihood_settings(self, fields: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
        """All resolved likelihood settings; raises DecodingError."""
        settings = self.likelihood_estimator(spec).settings(fields, spec)
        _check_routing(settings.get("block_length"), spec)
        return settings

    def greedy_sampler(self, n: int, spec: ModelSpec, cfg_scale: float = 0.0) -> Sampler:
        """The sampler behind ``is_greedy``, for n tokens: the most confident one at a time, on the family's grid."""
        shifted = spec.predicts == "next"
        if spec.block_length is None:
            return Sampler(n, n, Quota(), attention=AttentionPolicy(predicts_next=shifted, cfg_scale=cfg_scale))
        attention = AttentionPolicy(causal=True, predicts_next=shifted, cache=CACHES["exact"], cfg_scale=cfg_scale)
        strategy = FirstToken(inner=BlockQuota()) if shifted else BlockQuota()
        return Sampler(n, spec.block_length, strategy, attention=attention)

    def tier(self, sampler: Sampler) -> Tier:
        """The exactness tier of a sampler against the published one of the family."""
        if sampler.approximate:
            return "A"
        return "E2" if sampler.draws and not sampler.replays else "E1"

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        """Validated decoding with every value resolved, including the special ids.

        Raises:
            DecodingError: a field that the family does not have, or an invalid value.
        """
        decoding = resolve_fields(self.decoding, fields, spec, self.defaults(spec))
        _check_routing(getattr(decoding, "block_length", None), spec)
        if getattr(decoding, "draft_steps", 0) or getattr(decoding, "strategy", None):
            self.sampler(decoding, self.with_ids(spec, decoding))  # which some ways of decoding refuse
        return decoding

    def fitted(self, decoding: Any, prompt: Callable[[], Sequence[int]]) -> Any:
        """The resolved decoding for one prompt, where fields depend on its length; raises DecodingError."""
        return decoding

    def with_ids(self, spec: ModelSpec, decoding: Decoding) -> ModelSpec:
        """The spec with the special ids of one call."""
        return replace(spec, mask_id=decoding.mask_id, eos_ids=decoding.eos_id or (), eot_id=decoding.eot_id)


def _check_routing(block_length: int | None, spec: ModelSpec) -> None:
    """Raise DecodingError for blocks that cut through those whose tokens choose experts together."""
    if block_length and spec.routing_block and block_length % spec.routing_block:
        raise DecodingError(
            f"block_length={block_length} must be a multiple of {spec.routing_block}, the block of tokens that choose "
            "their experts together (block_size in config.json)"
        )


def special_from_tokenizer(tokenizer: Any | None, text: str) -> int | None:
    """The id of a special token by its text; None if the tokenizer does not have it."""
    if tokenizer is None:
        return None
    token = tokenizer.get_vocab().get(text)
    return None if token is None else int(token)


def _in_place_of(own: Strategy, chosen: Strategy, pieces: Mapping[str, Any]) -> tuple[Strategy, dict[str, Any]]:
    """The strategy that a user names in place of a family's own, and the sampler's pieces as it needs them.

    Raises:
        DecodingError: it cannot decode with these pieces.
    """
    attention: AttentionPolicy = pieces.get("attention", AttentionPolicy())
    if chosen.whole and (attention.causal or attention.cache.used):
        how = "block after block" if attention.causal else "with a cache"
        raise DecodingError(
            f"strategy {chosen.name!r} sees the whole answer, which is decoded {how} here; use a family with "
            "bidirectional attention (llada, dream, a2d_mdlm, ...) and no cache"
        )
    if chosen.shadows and (attention.causal or attention.cache.used or attention.predicts_next or attention.cfg_scale):
        raise DecodingError(
            f"strategy {chosen.name!r} needs bidirectional attention without a shift, a cache or guidance; use it with "
            "llada, a2d_mdlm or illada, cache='none' and cfg_scale=0"
        )
    if chosen.steps is None and "steps" in chosen.keeps:
        chosen = chosen.model_copy(update={"steps": own.steps})
    tokens: TokenPolicy = pieces.get("tokens", TokenPolicy())
    tokens = replace(
        tokens,
        confidence_float64=tokens.confidence_float64 or chosen.float64,
        alternatives=max(tokens.alternatives, chosen.alternatives),
    )
    return chosen, {**pieces, "tokens": tokens}


def _undraftable(sampler: Sampler) -> str | None:
    """Why no steps of a sampler can be drafted; None: they can."""
    strategy = sampler.strategy
    if strategy.edits or strategy.has_state:
        return f"strategy {strategy.name!r} writes over tokens or remembers what it did, which cannot be drafted"
    if sampler.replays or sampler.inputs is not None:
        return "random numbers of rng='reference' are drawn as the published code makes forwards, without drafts"
    if sampler.attention.cache.follows_canvas or sampler.reference.count == "carry":
        return "each forward of this sampler depends on what the one before has left open"
    return None
