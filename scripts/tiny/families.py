"""What differs between the families when a tiny checkpoint is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import configs
import tokenizer

from dare_bench.model_adapters.dream.network import DreamModel
from dare_bench.model_adapters.llada.network import LLaDAModelLM
from dare_bench.model_adapters.llada2.network import LLaDA2MoeModelLM
from dare_bench.model_adapters.sdar.network import SDARForCausalLM


@dataclass(frozen=True)
class TinyFamily:
    """``article``, ``owner``, ``sampler`` and ``objective`` are words for the card; ``decoding`` is that sampler.
    ``bos`` and ``stop`` are the tokens of a published generation_config.json, where generation reads one."""

    article: str
    owner: str
    special: tokenizer.Special
    config: Callable[..., Any]
    network: type[Any]
    sampler: str
    objective: tuple[str, ...]
    decoding: dict[str, Any] = field(default_factory=dict)
    bos: str = ""
    stop: tuple[str, ...] = ()


LEVEL = "a noise level t uniform on (0.001, 1) for each row; response tokens masked with probability t; "
TWO_COPIES = (
    "Every row stands twice, noisy and clean: a noisy block sees itself and the clean blocks before it. Blocks of 4 "
    "tokens, counted from the first token of the prompt; the last block of a canvas is filled with EOS as well."
)

FAMILIES = {
    "llada": TinyFamily(
        article="A LLaDA",
        owner="LLaDA's",
        special=tokenizer.LLADA,
        config=configs.llada,
        network=LLaDAModelLM,
        sampler="the deterministic low-confidence sampler",
        objective=(f"LLaDA's supervised loss: {LEVEL}cross-entropy divided by t and by the length of the response.",),
    ),
    "dream": TinyFamily(
        article="A Dream",
        owner="Dream's",
        special=tokenizer.DREAM,
        config=configs.dream,
        network=DreamModel,
        decoding={"alg": "maskgit_plus"},
        sampler="the most probable token first (`alg=maskgit_plus`), temperature 0",
        objective=(
            f"Dream's supervised loss, without its optional context weights: {LEVEL}cross-entropy divided by t and by "
            "the length of the response.",
            "The head is shifted, as in every Dream: the state at the token before predicts a token.",
        ),
    ),
    "sdar": TinyFamily(
        article="An SDAR",
        owner="SDAR's",
        special=tokenizer.SDAR,
        config=configs.sdar,
        network=SDARForCausalLM,
        decoding={"remasking_strategy": "low_confidence_static"},
        sampler="blocks of 4, the most probable token first (`low_confidence_static`), temperature 0",
        objective=(
            f"SDAR's supervised loss: {LEVEL}cross-entropy divided by t and by the response tokens of the batch.",
            TWO_COPIES,
        ),
        bos=tokenizer.EOS,
        stop=("<|im_end|>", tokenizer.EOS),
    ),
    "llada2": TinyFamily(
        article="A LLaDA2",
        owner="LLaDA2's",
        special=tokenizer.LLADA2,
        config=configs.llada2,
        network=LLaDA2MoeModelLM,
        decoding={"threshold": 1.0},
        sampler="blocks of 4, the most probable token first (`threshold=1`), temperature 0",
        objective=(
            "LLaDA2's supervised loss: a noise level t uniform on (0.3, 0.8) for each row; response tokens masked with "
            "probability t; the plain mean of the cross-entropy over masked tokens.",
            TWO_COPIES,
        ),
    ),
}
