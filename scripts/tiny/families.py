"""What differs between the families when a tiny checkpoint is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import configs
import loss
import tokenizer
from score import Decode, decode, decode_blocks, decode_dream

from dare_bench.model_adapters.dream.network import DreamModel
from dare_bench.model_adapters.llada.network import LLaDAModelLM
from dare_bench.model_adapters.llada2.network import LLaDA2MoeModelLM
from dare_bench.model_adapters.sdar.network import SDARForCausalLM


@dataclass(frozen=True)
class Family:
    """``article``, ``owner``, ``sampler`` and ``objective`` are words for the card. ``stop`` are the tokens of a
    published generation_config.json, where generation reads one."""

    article: str
    owner: str
    special: tokenizer.Special
    config: Callable[..., Any]
    network: type[Any]
    loss: Callable[..., Any]
    decode: Decode
    sampler: str
    objective: tuple[str, ...]
    stop: tuple[str, ...] = ()


LEVEL = (
    "noise level t uniform on (0.001, 1), spread evenly over each batch; response tokens masked with probability t; "
    "cross-entropy divided by t and by the length of the response."
)
TWO_COPIES = (
    "Every row stands twice, noisy and clean: a noisy block sees itself and the clean blocks before it. Blocks of 4 "
    "tokens, counted from the first token of the prompt; the last block of a canvas is filled with EOS as well."
)

FAMILIES = {
    "llada": Family(
        article="A LLaDA",
        owner="LLaDA's",
        special=tokenizer.LLADA,
        config=configs.llada,
        network=LLaDAModelLM,
        loss=loss.masked,
        decode=decode,
        sampler="the deterministic low-confidence sampler",
        objective=(f"LLaDA's supervised loss: {LEVEL}",),
    ),
    "dream": Family(
        article="A Dream",
        owner="Dream's",
        special=tokenizer.DREAM,
        config=configs.dream,
        network=DreamModel,
        loss=loss.shifted,
        decode=decode_dream,
        sampler="the most probable token first (`alg=maskgit_plus`), temperature 0",
        objective=(
            f"Dream's supervised loss, without its optional context weights: {LEVEL}",
            "The head is shifted, as in every Dream: the state at the token before predicts a token.",
        ),
    ),
    "sdar": Family(
        article="An SDAR",
        owner="SDAR's",
        special=tokenizer.SDAR,
        config=configs.sdar,
        network=SDARForCausalLM,
        loss=loss.block_elbo,
        decode=decode_blocks,
        sampler="blocks of 4, the most probable token first (`low_confidence_static`), temperature 0",
        objective=(f"SDAR's supervised loss: {LEVEL}", TWO_COPIES),
        stop=("<|im_end|>", tokenizer.EOS),
    ),
    "llada2": Family(
        article="A LLaDA2",
        owner="LLaDA2's",
        special=tokenizer.LLADA2,
        config=configs.llada2,
        network=LLaDA2MoeModelLM,
        loss=loss.block_mean,
        decode=decode_blocks,
        sampler="blocks of 4, the most probable token first (`threshold=1`), temperature 0",
        objective=(
            "LLaDA2's supervised loss: noise level t uniform on (0.3, 0.8), spread evenly over each batch; response "
            "tokens masked with probability t; the plain mean of the cross-entropy over masked tokens.",
            TWO_COPIES,
        ),
    ),
}
