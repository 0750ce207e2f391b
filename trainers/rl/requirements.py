"""What a rollout needs of its model and prompts, checked before a training begins, and what its completions are."""

from __future__ import annotations

from collections.abc import Mapping

from dare_bench.errors import DecodingError, UsageError
from dare_bench.log import log
from dare_bench.protocols import LoadedModel
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.trainers.rl.options import RatioOptions
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.tokens import EOS
from dare_bench.types import Decoding, ModelSpec

OWN_FIELDS: Mapping[str, str] = {
    "gen_length": "--max-completion-length",
    "max_new_tokens": "--max-completion-length",
    "temperature": "--temperature",
    "trajectory": "always on in a rollout",
    "rng": "always ours in a rollout: a completion must not depend on the other rows",
    "early_stop": "off where attention is bidirectional and on where it is block-causal: the learner sees that canvas",
    "mask_id": "that of the checkpoint, which the learner uses too",
    "eos_id": "that of the checkpoint, which the learner uses too",
    "eot_id": "that of the checkpoint, which the learner uses too",
}
"""Decoding fields that a rollout sets itself, and by what."""


UNREPLAYED: Mapping[str, str] = {
    "variable_length": "no masks stand behind a block, where the learner's canvases have them",
    "end_think_logit_boost": "tokens are drawn with a boost that the learner does not have",
}
"""Decoding fields with which the learner does not see what the sampler saw."""


def check_rollout(method: Algorithm, model: LoadedModel, data: Tokens) -> None:
    """Check that the model can answer every prompt in the way that the method needs. Raises UsageError: a model without
    a capability, or whose sampler rewrites tokens; a prompt that is too long; DecodingError: an unknown or invalid
    decoding field, or one that another setting determines."""
    for capability, meaning in method.capabilities.items():
        if not getattr(model.capabilities, capability):
            raise UsageError(
                f"{method.name} needs a model that can {meaning} (capability {capability!r}), and {model.spec.family} "
                "cannot; give a checkpoint of another family"
            )
    check_fields(method, model.spec)
    try:
        decoding = model.resolve(method.request(()))
    except DecodingError as error:
        raise DecodingError(f"the rollout of {method.name}: {error}") from error
    for name, why in UNREPLAYED.items():
        if getattr(decoding, name, None):
            raise DecodingError(f"the rollout of {method.name}: with {name}={getattr(decoding, name)} {why}; omit it")
    if not method.allows_rewriting:
        _check_tokens_stay(method, decoding)
    check_lengths(method, model.spec, data)


def log_rollout(method: Algorithm) -> None:
    """Log the decoding fields of completions that are given, published, or set by the method."""
    o = method.options
    fields = {"max_completion_length": method.completion_length, "temperature": o.temperature}
    values = {**fields, **method.rollout_fields, **method.decoding_fields}
    if first_process():
        log.info("rollout (%s): %s", o.variant, " ".join(f"{name}={value}" for name, value in values.items()))


def check_method(method: Algorithm, spec: ModelSpec) -> None:
    """Raise UsageError for options that do not belong together, or a model that the estimator is not sound for."""
    if method.reference is not None and not method.wants_reference:
        raise UsageError(f"reference={method.reference!r} is for the KL penalty, and beta is 0; give beta too")
    if method.has_ratio:
        _check_sync(method.ratio, method.wants_reference)
    if method.importance_cap is not None and not method.scores_draws:
        raise UsageError(
            f"importance_cap={method.importance_cap:g}: {method.name} does not score tokens on the canvases that "
            "they were drawn from, so that no ratio to the sampler is defined; omit it, or use cj_grpo"
        )
    if method.options.dynamic_sampling is not None and method.never_redraws:
        raise UsageError(
            f"dynamic_sampling={method.options.dynamic_sampling}: {method.name} has no groups to draw again: "
            f"{method.never_redraws}; omit it, or use another algorithm"
        )
    if method.options.rollout_engine is not None and not method.reads_tokens_only:
        raise UsageError(
            f"{method.name} reads more of a rollout than the tokens of its completions, which is all that engine "
            f"{method.options.rollout_engine} gives; omit rollout_engine, or use bgpo or ebpo"
        )
    if spec.blocks_from == "answer":
        raise UsageError(
            f"{method.name}: {spec.family} decodes blocks that are counted from the end of the prompt, and the learner "
            "replays blocks that are counted from its beginning; use sft, dpo or vrpo"
        )
    if spec.block_length is not None and spec.predicts == "next":
        raise UsageError(
            f"{method.name}: {spec.family} draws a block's first token given the finished block before it, which the "
            "learner's masked copies do not show; use sft, dpo or vrpo"
        )
    if method.families == "bidirectional" and spec.block_length is not None:
        raise UsageError(
            f"{method.name} needs fully masked completions, from which {spec.family} never decodes (it decodes block "
            "by block); use cj_grpo, just_grpo, bgpo or ebpo"
        )


def _check_sync(o: RatioOptions, wants_reference: bool) -> None:
    """Raise UsageError for settings of a moving reference that have no effect."""
    if o.sync_ref_model and not wants_reference:
        raise UsageError("sync_ref_model moves the reference of the KL penalty, and beta is 0; give beta too")
    for name in () if o.sync_ref_model else ("ref_model_sync_steps", "ref_model_mixup_alpha"):
        if name in o.model_fields_set and getattr(o, name) != type(o).model_fields[name].default:
            raise UsageError(f"{name}={getattr(o, name)} is for sync_ref_model, which is off; give it too")


def check_fields(method: Algorithm, spec: ModelSpec) -> None:
    """Raise DecodingError for a decoding field of the rollout that another setting, or the model, determines."""
    for name in method.options.rollout:
        if name in OWN_FIELDS:
            by = OWN_FIELDS[name]
            remedy = f"set by {by}; give that instead" if by.startswith("--") else f"{by}; omit it"
            raise DecodingError(f"rollout {name}={method.options.rollout[name]!r}: {name} is {remedy}")
        if name in method.rollout_fields:
            fixed = ", ".join(f"{field}={value}" for field, value in method.rollout_fields.items())
            raise DecodingError(
                f"rollout {name}={method.options.rollout[name]!r}: {method.name} samples with {fixed}; omit it"
            )
    grid, own = method.options.rollout.get("block_length"), spec.block_length
    if own is not None and grid not in (None, own):
        raise DecodingError(
            f"rollout block_length={grid!r}: {spec.family} is trained on blocks of {own} tokens, in which its "
            "learner replays a completion; omit it"
        )


def _check_tokens_stay(method: Algorithm, decoding: Decoding) -> None:
    rewriting, strategy = decoding.rewriting, getattr(decoding, "strategy", None)
    if strategy is not None:  # it replaces the family's own, editing included
        named = f"strategy {strategy.name!r}", "give a strategy that writes each token once"
        rewriting = named if strategy.edits else None
    if rewriting is not None:
        raise UsageError(
            f"{method.name}: the sampler rewrites tokens ({rewriting[0]}), so that no forward of its trajectory has "
            f"written a token for good; {rewriting[1]}"
        )


def _set_by(name: str) -> str:
    by = OWN_FIELDS[name]
    return f"set by {by}; give that instead" if by.startswith("--") else f"{by}; omit it"


def check_lengths(method: Algorithm, spec: ModelSpec, data: Tokens) -> None:
    """Raise UsageError for a prompt that, with its completion, exceeds the context of what samples."""
    longest = max((item[0] for item in data.items), key=lambda row: len(row.prompt))
    limit, canvas = spec.context_limit, method.completion_length
    if len(longest.prompt) + canvas > limit:
        raise UsageError(
            f"{longest.where}: a prompt of {len(longest.prompt)} tokens and max_completion_length={canvas} exceed the "
            f"model's context of {limit}; give a shorter --max-completion-length, or drop long prompts "
            f"(--max-length {max(limit - canvas + EOS, 2)} --overlong drop)"
        )
