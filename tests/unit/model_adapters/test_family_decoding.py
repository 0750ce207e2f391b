"""Each rule of the families' decoding schemas, with what it says; their users' names and defaults."""

from __future__ import annotations

import golden
import numpy as np
import pytest
import torch

from dare_bench.errors import DecodingError, PromptError

TAKES = {
    "dream": {"alg", "alg_temp", "eps", "max_new_tokens", "steps", "top_p", "top_k", "threshold", "cache"},
    "sdar": {"block_length", "denoising_steps", "remasking_strategy", "confidence_threshold", "eb_threshold"},
    "llada2": {"block_length", "steps", "threshold", "minimal_topk", "eos_early_stop", "editing_threshold"},
    "llada_moe": {"steps", "block_length", "cfg_scale", "remasking", "threshold", "factor", "cache"},
}


@pytest.mark.parametrize("family", TAKES)
def test_an_unknown_field_names_those_there_are(family):
    with pytest.raises(DecodingError, match=f"{family} has no decoding field 'alpha'; ") as seen:
        golden.model(family).generate([[1]], alpha=1)
    listed = str(seen.value).rpartition("it has ")[2].split(", ")
    assert set(listed) >= TAKES[family] | {"gen_length", "temperature", "early_stop"}
    assert listed == sorted(listed)


REFUSED = [
    ("dream", {"remasking": "random"}, "dream has no decoding field 'remasking'"),
    (
        "dream",
        {"alg": "margin"},
        "alg='margin' is not valid: it must be 'origin', 'maskgit_plus', 'topk_margin', 'entropy'",
    ),
    ("dream", {"steps": 0}, "steps=0 is not valid: it must be .* 1"),
    ("dream", {"steps": True}, "steps=True is not valid: it must be a whole number"),
    ("dream", {"max_new_tokens": 0}, "gen_length=0 is not valid: it must be .* 1"),
    ("dream", {"max_new_tokens": 8, "gen_length": 9}, "max_new_tokens=8 and gen_length=9 are names of one field"),
    ("dream", {"alg_temp": -1}, "alg_temp=-1 is not valid"),
    ("dream", {"eps": 0}, "eps=0 is not valid"),
    ("dream", {"eps": 1}, "eps=1 is not valid"),
    ("dream", {"temperature": -0.5}, "temperature=-0.5 is not valid: it must be .* 0"),
    ("dream", {"top_p": 0}, "top_p=0.*is not valid: it must be .* 0"),
    ("dream", {"top_p": 1.5}, "top_p=1.5 is not valid: it must be .* [01]"),
    ("dream", {"top_k": -1}, "top_k=-1 is not valid: it must be .* 0"),
    ("dream", {"top_k": False}, "top_k=False is not valid: it must be a whole number"),
    ("dream", {"alg": "origin", "alg_temp": 0.3}, "alg_temp=0.3 does nothing with alg='origin'"),
    (
        "dream",
        {"alg": "confidence_threshold", "alg_temp": 1},
        "alg_temp=1.0 does nothing with alg='confidence_threshold'",
    ),
    ("dream", {"threshold": 0.5}, "threshold=0.5 belongs to alg='confidence_threshold', not to 'entropy'"),
    ("dream", {"alg": "confidence_threshold", "threshold": 2}, "threshold=2 is not valid"),
    ("dream", {"block_length": 8}, "block_length=8 belongs to cache='prefix' or 'dual'"),
    (
        "dream",
        {"alg": "confidence_threshold", "gen_length": 16, "steps": 5},
        "steps=5 must divide gen_length=16 with alg='confidence_threshold'; allowed: 1, 2, 4, 8, 16",
    ),
    ("dream", {"cache": "exact"}, "cache='exact' is not valid: it must be 'none', 'prefix' or 'dual'"),
    ("dream", {"cache": "dual", "block_length": 0}, "block_length=0 is not valid: it must be .* 1"),
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
    ("sdar", {"remasking_strategy": "random"}, "must be 'sequential', 'low_confidence_static'"),
    ("sdar", {"block_length": 0}, "block_length=0 is not valid: it must be .* 1"),
    ("sdar", {"denoising_steps": 0}, "denoising_steps=0 is not valid: it must be .* 1"),
    ("sdar", {"block_length": True}, "block_length=True is not valid: it must be a whole number"),
    ("sdar", {"gen_length": 0}, "gen_length=0 is not valid: it must be .* 1"),
    ("sdar", {"confidence_threshold": 1.1}, "confidence_threshold=1.1 is not valid"),
    (
        "sdar",
        {"eb_threshold": 0.2},
        "eb_threshold=0.2 belongs to remasking_strategy='entropy_bounded', not to 'low_con",
    ),
    ("sdar", {"remasking_strategy": "entropy_bounded", "eb_threshold": -1}, "eb_threshold=-1 is not valid"),
    ("sdar", {"temperature": -1}, "temperature=-1 is not valid: it must be .* 0"),
    ("sdar", {"top_k": -2}, "top_k=-2 is not valid: it must be .* 0"),
    ("sdar", {"top_p": 0.0}, "top_p=0.*is not valid: it must be .* 0"),
    ("sdar", {"cache": "prefix"}, "cache='prefix' is not valid: it must be 'exact' or 'none'"),
    ("sdar", {"stopping_criteria_idx": "x"}, "stopping_criteria_idx='x' is not valid"),
    ("sdar", {"stopping_criteria_idx": True}, "stopping_criteria_idx=True is not valid: it must be a whole number"),
    ("sdar", {"stopping_criteria_idx": [3, False]}, "is not valid: it must be a whole number"),
    ("sdar", {"stopping_criteria_idx": 9999}, "stopping_criteria_idx=9999 is outside the vocabulary; allowed: 0 to"),
    ("sdar", {"stopping_criteria_idx": [3, -1]}, "stopping_criteria_idx=-1 is outside the vocabulary"),
    (
        "sdar",
        {"stopping_criteria_idx": [3], "eos_id": 4},
        r"stopping_criteria_idx=\[3\] and eos_id=4 are names of one thing; give one of them",
    ),
    ("sdar", {"eos_id": True}, "eos_id=True is not valid: it must be a whole number"),
    ("dream", {"eos_id": [2, True]}, "is not valid: it must be a whole number"),
    ("dream", {"mask_id": False}, "mask_id=False is not valid: it must be a whole number"),
    ("sdar", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    ("llada2", {"alg": "entropy"}, "llada2 has no decoding field 'alg'"),
    ("llada2", {"steps": 0}, "steps=0 is not valid: it must be .* 1"),
    ("llada2", {"gen_length": 0}, "gen_length=0 is not valid: it must be .* 1"),
    ("llada2", {"block_length": 0}, "block_length=0 is not valid: it must be .* 1"),
    ("llada2", {"minimal_topk": 0}, "minimal_topk=0 is not valid: it must be .* 1"),
    ("llada2", {"minimal_topk": 9, "gen_length": 8}, "minimal_topk=9 must be at most gen_length=8"),
    ("llada2", {"steps": True}, "steps=True is not valid: it must be a whole number"),
    ("llada2", {"threshold": -0.1}, "threshold=-0.1 is not valid"),
    ("llada2", {"editing_threshold": 1.1}, "editing_threshold=1.1 is not valid"),
    ("llada2", {"editing": False, "max_post_steps": 3}, "max_post_steps=3 needs editing, but editing=False"),
    ("llada2", {"num_to_transfer": 0}, "num_to_transfer=0 is not valid: it must be .* 1"),
    ("llada2", {"max_post_steps": -1}, "max_post_steps=-1 is not valid: it must be .* 0"),
    ("llada2", {"max_post_steps": True}, "max_post_steps=True is not valid: it must be a whole number"),
    ("llada2", {"top_k": -1}, "top_k=-1 is not valid: it must be .* 0"),
    ("llada2", {"top_p": 2}, "top_p=2 is not valid: it must be .* [01]"),
    ("llada2", {"temperature": -1}, "temperature=-1 is not valid: it must be .* 0"),
    ("llada2", {"cache": "dual"}, "cache='dual' is not valid: it must be 'exact' or 'none'"),
    ("llada2", {"early_stop": True, "text_after_eos": "keep"}, "would lose the text after EOS"),
    (
        "llada2",
        {"eos_early_stop": True, "early_stop": False},
        "eos_early_stop=True with early_stop=False contradict each other",
    ),
    (
        "llada2",
        {"eos_early_stop": True, "text_after_eos": "keep"},
        "eos_early_stop=True with text_after_eos='keep' would lose the text after EOS",
    ),
    ("llada_moe", {"gen_length": 30, "block_length": 8}, "gen_length=30 is not divisible by block_length=8"),
    ("llada_moe", {"cache": "dual", "cfg_scale": 1.0}, "is Fast-dLLM's sampler, which has no cfg_scale"),
    ("llada_moe", {"cfg_scale": -1}, "cfg_scale=-1 is not valid: it must be .* 0"),
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


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_the_mask_ends_no_answer(family):
    loaded = golden.model(family).loaded
    mask = loaded.spec.mask_id
    with pytest.raises(DecodingError, match=f"eos_id={mask} is the mask id, which cannot end an answer"):
        loaded.resolve({"eos_id": [mask - 1, mask]})
    with pytest.raises(DecodingError, match="is the mask id"):
        loaded.resolve({"eos_id": 5, "mask_id": 5})
    assert loaded.resolve({"eos_id": mask, "mask_id": mask - 1}).eos_id == (mask,)
    if loaded.spec.family == "sdar":
        with pytest.raises(DecodingError, match=f"stopping_criteria_idx={mask} is the mask id"):
            loaded.resolve({"stopping_criteria_idx": mask})


SDAR = {"gen_length": 24, "block_length": 4}


def test_sdars_stop_ids_end_an_answer():
    model = golden.model("sdar")
    full = model.generate([[1, 2, 3]], **SDAR, early_stop=False, eos_id=())[0].tokens
    stop = full[2]  # in an early block, so that a row which stops there is much shorter
    end = full.index(stop) + 1
    assert len(full) == 24 and end <= 3
    several, item = (model.generate([[1, 2, 3]], **SDAR, stopping_criteria_idx=ids)[0] for ids in ([stop], stop))
    assert (several.tokens, several.nfe, several.finish_reason) == (full[:end], item.nfe, "eos")
    assert item.tokens == several.tokens
    kept = model.generate([[1, 2, 3]], **SDAR, stopping_criteria_idx=[stop], text_after_eos="keep")[0]
    assert kept.tokens == full and kept.nfe > item.nfe
    assert kept.tokens_to_eos == end
    long = model.generate([[1, 2, 3]], **SDAR, stopping_criteria_idx=[stop], early_stop=False)[0]
    assert long.tokens == full


def test_off_values_contradict_nothing():
    assert golden.model("dream").loaded.resolve({"alg": "origin", "alg_temp": 0.0}).alg == "origin"
    llada2 = golden.model("llada2").loaded
    assert llada2.resolve({"eos_early_stop": True, "early_stop": True}).eos_early_stop
    assert not llada2.resolve({"early_stop": False, "text_after_eos": "keep"}).eos_early_stop
    assert golden.model("sdar").loaded.resolve({"stopping_criteria_idx": 5}).stopping_criteria_idx == (5,)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_what_every_family_means_alike(family):
    """Each shared field reaches the sampler, in every family."""
    loaded = golden.model(family).loaded
    fields = {"rng": "reference", "text_after_eos": "keep", "stop": "end", "trajectory": True, "near_tie": True}
    for given in ({}, fields):
        decoding = loaded.resolve(given)
        sampler = loaded.family.sampler(decoding, loaded.family.with_ids(loaded.spec, decoding))
        on, stopping = bool(given), sampler.stopping
        assert (sampler.reference.replay, stopping.keep_text_after_eos) == (on, on)
        assert (stopping.stop, stopping.eos_ids) == (("end",) if on else (), loaded.spec.eos_ids)
        assert (sampler.record_trajectory, sampler.record_near_tie) == (on, on)
        assert decoding.deterministic == (not sampler.draws)


@pytest.mark.parametrize("steps", [1, 8])
def test_random_remasking_takes_a_threshold(steps):
    """Fast-dLLM holds its random numbers against the threshold too, so the pair is no contradiction: at 0 all is
    written at once, at 1 one token a forward."""
    model = golden.model("llada")
    fields = {"remasking": "random", "gen_length": 8, "block_length": 8, "steps": steps}
    assert [model.generate([[1, 2]], **fields, threshold=t)[0].nfe for t in (0.0, 1.0)] == [1, 8]


# -- ids and block lengths that are none ---------


@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True, [4]])
def test_logits_refuse_other_block_lengths(value):
    with pytest.raises(DecodingError, match=r"block_length=.* must be a whole number of at least 1") as seen:
        golden.model("sdar").logits([1, 2, 3], block_length=value)
    assert repr(value) in str(seen.value)


@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(2, 3, dtype=torch.long),
        torch.zeros(3, 1, dtype=torch.long),
        torch.zeros(1, 2, 2, dtype=torch.long),
        torch.zeros(3),
        torch.ones(3, dtype=torch.bool),
        torch.tensor(4),
        [1, 2.5],
        [1, [2]],
        [True],
        5,
    ],
    ids=str,
)
def test_ids_that_are_none(ids):
    loaded = golden.model("dream").loaded
    for ask in (loaded.encode, loaded.logits):
        with pytest.raises(PromptError, match=r"is not a (token id|sequence); give text, a list of ids") as seen:
            ask(ids)
        assert "\n" not in str(seen.value)


def test_ids_of_other_libraries():
    loaded = golden.model("dream").loaded
    assert loaded.encode(torch.tensor([1, 2])) == loaded.encode((1, 2)) == loaded.encode(np.array([1, 2])) == [1, 2]
    assert torch.equal(loaded.logits(torch.tensor([1, 2, 3]), np.int64(2)), loaded.logits([1, 2, 3], 2))
    with pytest.raises(PromptError, match="logits of text 'ab': give token ids"):
        loaded.logits("ab")
