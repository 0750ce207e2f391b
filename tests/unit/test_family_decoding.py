"""Each rule of the families' decoding schemas, with what it says; their users' names and defaults."""

from __future__ import annotations

import golden
import pytest

from dare_bench.errors import DecodingError

TAKES = {
    "dream": {"alg", "alg_temp", "eps", "max_new_tokens", "steps", "top_p", "top_k", "threshold", "cache"},
    "sdar": {"block_length", "denoising_steps", "remasking_strategy", "confidence_threshold", "eb_threshold"},
    "llada2": {"block_length", "steps", "threshold", "minimal_topk", "eos_early_stop", "editing_threshold"},
    "llada_moe": {"steps", "block_length", "cfg_scale", "remasking", "threshold", "factor", "cache"},
}


@pytest.mark.parametrize("family", TAKES)
def test_an_unknown_field_names_those_there_are(family):
    with pytest.raises(DecodingError, match=f"{family} has no decoding field 'alpha'; closest: ") as seen:
        golden.model(family).generate([[1]], alpha=1)
    listed = str(seen.value).rpartition("it has ")[2].split(", ")
    assert set(listed) >= TAKES[family] | {"gen_length", "temperature", "early_stop"}
    assert listed == sorted(listed)


REFUSED = [
    ("dream", {"remasking": "random"}, "dream has no decoding field 'remasking'"),
    (
        "dream",
        {"alg": "margin"},
        "alg='margin' cannot be: allowed are 'origin', 'maskgit_plus', 'topk_margin', 'entropy'",
    ),
    ("dream", {"steps": 0}, "steps=0 must be at least 1"),
    ("dream", {"steps": True}, "steps=True cannot be: must be a whole number"),
    ("dream", {"max_new_tokens": 0}, "gen_length=0 must be at least 1"),
    ("dream", {"max_new_tokens": 8, "gen_length": 9}, "max_new_tokens=8 and gen_length=9 are names of one field"),
    ("dream", {"alg_temp": -1}, "alg_temp=-1 cannot be"),
    ("dream", {"eps": 0}, "eps=0 cannot be"),
    ("dream", {"eps": 1}, "eps=1 cannot be"),
    ("dream", {"temperature": -0.5}, r"temperature=-0.5 must be 0 \(greedy\) or more"),
    ("dream", {"top_p": 0}, r"top_p=0.0 must be above 0 and at most 1 \(off\)"),
    ("dream", {"top_p": 1.5}, "top_p=1.5 must be above 0"),
    ("dream", {"top_k": -1}, r"top_k=-1 must be 0 \(off\) or more"),
    ("dream", {"top_k": False}, "top_k=False cannot be: must be a whole number"),
    ("dream", {"threshold": 0.5}, "threshold=0.5 belongs to alg='confidence_threshold', not to 'entropy'"),
    ("dream", {"alg": "confidence_threshold", "threshold": 2}, "threshold=2 cannot be"),
    ("dream", {"block_length": 8}, "block_length=8 belongs to cache='prefix' or 'dual'"),
    (
        "dream",
        {"alg": "confidence_threshold", "gen_length": 16, "steps": 5},
        "steps=5 must divide gen_length=16 with alg='confidence_threshold'; allowed: 1, 2, 4, 8, 16",
    ),
    ("dream", {"cache": "exact"}, "cache='exact' cannot be: allowed are 'none', 'prefix' or 'dual'"),
    ("dream", {"cache": "dual", "block_length": 0}, "block_length=0 must be at least 1"),
    (
        "dream",
        {"cache": "dual", "gen_length": 30, "block_length": 8},
        "gen_length=30 is not divisible by block_length=8",
    ),
    (
        "dream",
        {"cache": "prefix", "gen_length": 16, "block_length": 8, "steps": 9},
        "steps=9 is not divisible by the number of blocks, gen_length/block_length=2; nearest allowed: 8 or 10",
    ),
    ("dream", {"cache": "dual", "alg": "origin"}, "cache='dual' decodes by alg='entropy' or 'confidence_threshold'"),
    ("dream", {"cache": "dual", "alg_temp": 0.2}, "without alg_temp; given alg='entropy', alg_temp=0.2"),
    ("dream", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("sdar", {"steps": 4}, "sdar has no decoding field 'steps'; closest: .*denoising_steps"),
    ("sdar", {"remasking_strategy": "random"}, "allowed are 'sequential', 'low_confidence_static'"),
    ("sdar", {"block_length": 0}, "block_length=0 must be at least 1"),
    ("sdar", {"denoising_steps": 0}, "denoising_steps=0 must be at least 1"),
    ("sdar", {"block_length": True}, "block_length=True cannot be: must be a whole number"),
    ("sdar", {"gen_length": 0}, "gen_length=0 must be at least 1"),
    ("sdar", {"confidence_threshold": 1.1}, "confidence_threshold=1.1 cannot be"),
    (
        "sdar",
        {"eb_threshold": 0.2},
        "eb_threshold=0.2 belongs to remasking_strategy='entropy_bounded', not to 'low_con",
    ),
    ("sdar", {"remasking_strategy": "entropy_bounded", "eb_threshold": -1}, "eb_threshold=-1 cannot be"),
    ("sdar", {"temperature": -1}, "temperature=-1.0 must be 0"),
    ("sdar", {"top_k": -2}, "top_k=-2 must be 0"),
    ("sdar", {"top_p": 0.0}, "top_p=0.0 must be above 0"),
    ("sdar", {"cache": "prefix"}, "cache='prefix' cannot be: allowed are 'exact' or 'none'"),
    ("sdar", {"stopping_criteria_idx": "x"}, "stopping_criteria_idx='x' cannot be"),
    ("sdar", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("llada2", {"alg": "entropy"}, "llada2 has no decoding field 'alg'"),
    ("llada2", {"steps": 0}, "steps=0 must be at least 1"),
    ("llada2", {"gen_length": 0}, "gen_length=0 must be at least 1"),
    ("llada2", {"block_length": 0}, "block_length=0 must be at least 1"),
    ("llada2", {"minimal_topk": 0}, "minimal_topk=0 must be at least 1"),
    ("llada2", {"minimal_topk": 9, "gen_length": 8}, "minimal_topk=9 must be at most gen_length=8"),
    ("llada2", {"steps": True}, "steps=True cannot be: must be a whole number"),
    ("llada2", {"threshold": -0.1}, "threshold=-0.1 cannot be"),
    ("llada2", {"editing_threshold": 1.1}, "editing_threshold=1.1 cannot be"),
    ("llada2", {"editing": False, "max_post_steps": 3}, "max_post_steps=3 needs editing, but editing=False"),
    ("llada2", {"num_to_transfer": 0}, "num_to_transfer=0 must be at least 1"),
    ("llada2", {"max_post_steps": -1}, "max_post_steps=-1 must be 0 or more"),
    ("llada2", {"max_post_steps": True}, "max_post_steps=True cannot be: must be a whole number"),
    ("llada2", {"top_k": -1}, "top_k=-1 must be 0"),
    ("llada2", {"top_p": 2}, "top_p=2.0 must be above 0"),
    ("llada2", {"temperature": -1}, "temperature=-1.0 must be 0"),
    ("llada2", {"cache": "dual"}, "cache='dual' cannot be: allowed are 'exact' or 'none'"),
    ("llada2", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("llada_moe", {"gen_length": 30, "block_length": 8}, "gen_length=30 is not divisible by block_length=8"),
    ("llada_moe", {"cache": "dual", "cfg_scale": 1.0}, "is Fast-dLLM's sampler, which has no cfg_scale"),
    ("llada_moe", {"cfg_scale": -1}, r"cfg_scale=-1.0 must be 0 \(off\) or more"),
]


@pytest.mark.parametrize(
    ("family", "fields", "says"), REFUSED, ids=lambda v: str(v) if isinstance(v, dict | str) else None
)
def test_decoding_rules(family, fields, says):
    with pytest.raises(DecodingError, match=says) as seen:
        golden.model(family).loaded.resolve(fields)
    assert "\n" not in str(seen.value)


def test_users_names_and_defaults():
    dream = golden.model("dream").loaded.resolve({"max_new_tokens": 24})
    assert (dream.gen_length, dream.steps, dream.alg, dream.cache, dream.block_length) == (
        24,
        24,
        "entropy",
        "none",
        None,
    )
    cached = golden.model("dream").loaded.resolve(
        {"cache": "dual", "alg": "confidence_threshold", "max_new_tokens": 64}
    )
    assert (cached.block_length, cached.threshold) == (32, 0.9)
    sdar = golden.model("sdar").loaded.resolve({"remasking_strategy": "entropy_bounded"})
    assert (sdar.eb_threshold, sdar.confidence_threshold) == (0.35, 0.85)
    assert golden.model("sdar").loaded.resolve({}).remasking_strategy == "low_confidence_dynamic"
    none = golden.model("sdar").loaded.resolve({"block_length": None, "top_k": 3})
    assert (none.block_length, none.top_k) == (4, 3), "None means not given"
