"""Where a row starts (at its first block, or from a canvas that the request gives) and where it ends."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.errors import DecodingError, PromptError, brief
from dare_bench.model_adapters.encoding import as_id, encode_canvas
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.types import ModelSpec, Request


@dataclass(frozen=True)
class Start:
    """``given`` response tokens, and the forwards that the first block with masks (``step``) and the row (``forward``)
    already had."""

    given: list[int] | None = None
    step: int = 0
    forward: int = 0


def start_of(request: Request, prompt: int, spec: ModelSpec, sampler: Sampler) -> Start:
    """Where the row of a request with a prompt of that many tokens starts.

    Raises:
        PromptError: a canvas longer than the response's blocks or with ids outside the vocabulary.
        DecodingError: a step or forward that cannot be, or published random numbers, which cannot be continued.
    """
    forward = request.start_step if request.start_forward is None else request.start_forward
    for name, value in (("start_step", request.start_step), ("start_forward", forward)):
        if (as_id(value) or 0) < 0 or as_id(value) is None:
            raise DecodingError(f"{name}={brief(value)} must be a whole number of at least 0")
        if value and request.canvas is None:
            raise DecodingError(f"{name}={value} goes on from a given canvas; give the request a canvas, too")
    if request.canvas is None:
        return Start()
    if sampler.inputs is not None:
        raise DecodingError(
            "a given canvas: this model's forwards are conditioned on what the one before predicted, which a canvas "
            "does not hold; leave out canvas"
        )
    given = encode_canvas(request.canvas, spec)
    if len(given) > (most := sampler.canvas_length(prompt) - prompt):
        raise PromptError(
            f"a canvas of {len(given)} tokens with gen_length={sampler.gen_length}: at most {most}, all tokens of the "
            "response's blocks; shorten the canvas or raise gen_length"
        )
    if sampler.replays and (prompt or request.start_step or forward):
        raise DecodingError(
            "a given canvas with rng='reference': published random numbers cannot start in the middle; use rng='ours'"
        )
    _check_step(request.start_step, given, prompt, spec, sampler)
    return Start(given, request.start_step, forward)


def end_of(request: Request, start: Start, sampler: Sampler) -> int | None:
    """The forward of the row after which a request ends it; None: the row is finished first.

    Raises:
        DecodingError: a forward that cannot be, or a way of decoding that cannot be continued from the canvas.
    """
    forward = request.end_forward
    if forward is None:
        return None
    if as_id(forward) is None or forward <= start.forward:
        raise DecodingError(f"end_forward={brief(forward)} must be a whole number above start_forward={start.forward}")
    if sampler.inputs is not None:
        raise DecodingError(
            f"end_forward={forward}: this model's forwards are conditioned on what the one before predicted, which no "
            "canvas holds; leave out end_forward"
        )
    if sampler.replays or sampler.strategy.edits or sampler.strategy.has_state:
        reason = (
            "rng='reference', whose random numbers cannot be continued; use rng='ours'"
            if sampler.replays
            else "a strategy that edits or goes by earlier forwards: a canvas does not say what it knows; use another"
        )
        raise DecodingError(f"end_forward={forward} with {reason}")
    return forward


def _check_step(step: int, given: list[int], prompt: int, spec: ModelSpec, sampler: Sampler) -> None:
    """Raise DecodingError for a step that the block does not have."""
    strategy, length = sampler.strategy, sampler.block_length
    limit = strategy.limit(length, strategy.schedule(length, 0, length))
    if step >= max(limit, 1):
        raise DecodingError(f"start_step={step} must be less than the {limit} forwards of a block")
    if step and strategy.has_state:
        raise DecodingError(
            f"start_step={step} with strategy {strategy.name!r}, which goes by earlier forwards, "
            "which a canvas does not hold; use start_step=0, and the given tokens stay unless they are edited"
        )
    first = next((i for i, token in enumerate(given) if token == spec.mask_id), len(given))
    attention = sampler.attention
    column = prompt + first - sampler.origin(prompt)
    if step and attention.predicts_next and (attention.causal or attention.cache.approximate) and column % length == 0:
        other = "" if attention.causal else " or cache='none'"
        raise DecodingError(
            f"start_step={step} in a block whose first token is open: the first forward of a block writes that token; "
            f"use start_step=0{other}"
        )
