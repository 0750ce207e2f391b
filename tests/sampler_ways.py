"""Ways of decoding of every family: each strategy, temperature and cache once, and prompts of mixed lengths."""

from __future__ import annotations

import random
from functools import cache

import golden

FAST = {"gen_length": 12, "block_length": 6}
LLADA = {
    "low_confidence": FAST,
    "random": {**FAST, "remasking": "random", "temperature": 0.7},
    "threshold": {**FAST, "threshold": 0.5},
    "cfg": {**FAST, "cfg_scale": 0.5, "steps": 8},
    "dual": {**FAST, "cache": "dual", "threshold": 0.5, "temperature": 0.5},
    "prefix by factor": {"gen_length": 12, "block_length": 4, "cache": "prefix", "factor": 1.0},
}
NEW = {"max_new_tokens": 12}
DREAM = {
    "origin": {**NEW, "alg": "origin", "steps": 6, "temperature": 0.4, "top_p": 0.9},
    "topk_margin": {**NEW, "alg": "topk_margin", "temperature": 0.3, "top_k": 5},
    "entropy": {**NEW, "alg": "entropy", "steps": 16},
    "entropy after top-p": {**NEW, "alg": "entropy", "steps": 8, "temperature": 0.2, "top_p": 0.95},
    "confidence_threshold": {**NEW, "alg": "confidence_threshold", "threshold": 0.4, "steps": 6},
    "alg_temp": {**NEW, "alg": "maskgit_plus", "alg_temp": 0.3, "temperature": 0.5, "steps": 8},
    "prefix": {**NEW, "cache": "prefix", "block_length": 6, "alg": "confidence_threshold", "threshold": 0.5},
    "dual": {**NEW, "cache": "dual", "block_length": 6, "steps": 8, "temperature": 0.4},
}
GRIDS = {"4 T=0.0": (4, 4, 0.0), "4 T=0.8": (4, 4, 0.8), "6 T=0.8": (6, 3, 0.8)}
SDAR = {
    f"{strategy} {grid}": {
        "gen_length": 9,
        "block_length": GRIDS[grid][0],
        "remasking_strategy": strategy,
        "denoising_steps": GRIDS[grid][1],
        "temperature": GRIDS[grid][2],
        **({"eb_threshold": 2.0} if strategy == "entropy_bounded" else {"confidence_threshold": 0.5}),
        **({"top_k": 20, "top_p": 0.95} if GRIDS[grid][2] else {}),
    }
    for strategy, grids in {
        "sequential": ("6 T=0.8",),
        "low_confidence_static": ("4 T=0.8",),
        "low_confidence_dynamic": ("4 T=0.8",),
        "entropy_bounded": ("4 T=0.0",),
    }.items()
    for grid in grids
}
"""Each strategy, each grid and each temperature; the reference vectors have them in every combination."""
LLADA2 = {
    "top-p": {"gen_length": 12, "block_length": 8, "threshold": 0.6, "temperature": 0.7, "top_p": 0.9, "steps": 3},
    "block 32": {"gen_length": 16, "threshold": 0.5},
    "eos_early_stop": {"gen_length": 12, "block_length": 8, "threshold": 0.5, "eos_early_stop": True},
    "editing": {"gen_length": 12, "block_length": 8, "threshold": 0.7, "editing_threshold": 0.5, "max_post_steps": 3},
    "editing at temperature": {
        "gen_length": 12,
        "block_length": 8,
        "threshold": 0.5,
        "editing_threshold": 0.0,
        "max_post_steps": 2,
        "temperature": 0.6,
    },
}
FAST_DLLM_V2 = {
    "one a step": {"gen_length": 12, "block_length": 8, "threshold": 1.0, "small_block_size": 4},
    "block 32": {"gen_length": 16, "threshold": 0.4},
    "top-p": {"gen_length": 12, "block_length": 8, "threshold": 0.5, "small_block_size": 2, "temperature": 0.7},
    "sub_block": {
        "gen_length": 12,
        "block_length": 8,
        "threshold": 0.4,
        "small_block_size": 4,
        "temperature": 0.6,
        "cache": "sub_block",
        "eos_id": [],
    },
}
WAYS = {
    "llada": LLADA,
    "llada_moe": {way: LLADA[way] for way in ("random", "dual")},
    "dream": DREAM,
    "sdar": SDAR,
    "sdar_moe": {way: SDAR[way] for way in SDAR if way.startswith(("low_confidence_dynamic", "entropy_bounded"))},
    "llada2": LLADA2,
    "fast_dllm_v2": FAST_DLLM_V2,
    "llada21": {way: LLADA2[way] for way in ("eos_early_stop", "editing at temperature")},
}
MORE_WAYS = {
    **WAYS,
    "llada": {
        **LLADA,
        "rcr": {"gen_length": 12, "block_length": 6, "strategy": {"name": "rcr", "steps": 4}},
        "p2": {"gen_length": 12, "block_length": 6, "strategy": {"name": "p2", "steps": 4}},
        "p2 at temperature": {**FAST, "strategy": "p2", "temperature": 0.7},
        "rcr at temperature": {**FAST, "strategy": "rcr", "temperature": 0.7, "cache": "dual"},
    },
}
"""With a strategy that masks tokens again, which does not go on from a canvas alone."""


@cache
def prompts(family):
    """Shorter than a block, on and off the grid, twice the same, and long ones that begin alike."""
    vocab, rng = golden.cases(family)["meta"]["prompt_vocab"], random.Random(5)
    few_shot, item, two, seventeen, nine = ([rng.randrange(vocab) for _ in range(n)] for n in (16, 1, 2, 17, 9))
    return [item, nine, few_shot + two, few_shot, nine, seventeen]
