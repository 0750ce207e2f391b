"""The cost model against counts by hand, against figures worked out independently, and its plain errors."""

from __future__ import annotations

import re

import pytest

from dare_bench import recipes
from dare_bench.costs import recipe as recipe_costs
from dare_bench.costs.recipe import Pass, estimate
from dare_bench.errors import DecodingError, UnknownNameError, UsageError

RUNNABLE = [r for name in recipes.registry().names("recipe") for r in recipes.find(name) if r.entry.run is not None]


def one(name):
    return recipes.find(name)[0]


def shape_of(checkpoint):
    return recipe_costs.network_shape(recipes.load(checkpoint).facts, [])


@pytest.mark.parametrize(
    ("checkpoint", "body", "total"),
    [
        # LLaDA-8B: 6.98e9 in the body and 0.52e9 in the head (shared with nothing), embeddings not counted
        ("llada-8b-instruct", 6.98e9, 7.50e9),
        ("dream-7b-instruct", 6.53e9, 7.07e9),
        ("sdar-8b-chat", 6.95e9, 7.57e9),
        # mixtures: 3.3e9 of 30.5e9 and 1.43e9 of 16.3e9 parameters are active; embedding and head taken off
        ("sdar-30b-a3b-chat", 3.3e9 - 2 * 151936 * 2048, 30.5e9 - 151936 * 2048),
        ("llada2.0-mini", 1.43e9 - 2 * 157184 * 2048, 16.3e9 - 157184 * 2048),
    ],
)
def test_parameters_are_those_of_the_published_shapes(checkpoint, body, total):
    shape = shape_of(checkpoint)
    assert shape.body == pytest.approx(body, rel=0.03)
    assert shape.weights + shape.experts == pytest.approx(total, rel=0.02)


def test_a_forward_pass_of_llada_is_the_known_number_of_operations():
    """2 x 6.98e9 x q + 4 x 32 x 4096 x q x c + 2 x 0.518e9 x h for q = c = 556 tokens and 16 projected ones."""
    by_hand = 2 * 6.98e9 * 556 + 4 * 32 * 4096 * 556**2 + 2 * 0.518e9 * 16
    built = recipe_costs.flops(Pass(1, 556, 556, 16), shape_of("llada-8b-instruct"))
    assert built == pytest.approx(by_hand, rel=1e-3)
    # 790 TFLOP/s then write 100 tokens a second, one a pass: the published floor of 102 leaves out parts of a layer
    assert 790e12 / built == pytest.approx(100, rel=0.03)


def test_forward_passes_of_a_generation_are_counted_exactly():
    """256 steps for each of 1319 questions, whatever the block."""
    built = estimate(one("llada-8b-instruct/gsm8k"))
    assert (built.documents, built.prompts) == (1319, 1319)
    assert built.at_most.forwards == 1319 * 256 == built.expected.forwards
    assert estimate(one("llada-8b-instruct/gsm8k"), {"limit": 10}).at_most.forwards == 10 * 256
    assert estimate(one("llada-8b-instruct/gsm8k"), {"limit": 0.5}).documents == 660
    assert estimate(one("llada-8b-instruct/gsm8k"), {"limit": 10**6}).documents == 1319


def test_a_cache_makes_passes_cheaper_not_fewer():
    plain, cached = estimate(one("llada-8b-instruct/gsm8k")), estimate(one("llada-8b-instruct/gsm8k.fast-dllm"))
    assert plain.at_most.forwards == cached.at_most.forwards
    assert cached.at_most.pflop < plain.at_most.pflop / 2 and cached.at_most.hours < plain.at_most.hours


def test_repeats_and_prompts_multiply():
    eight = estimate(one("llada-8b-instruct/aime25"))
    assert eight.prompts == 240 and eight.at_most.forwards == 240 * 2048
    assert estimate(one("sdar-30b-a3b-chat/aime24")).prompts == 30


def test_likelihoods_count_draws_choices_and_guidance():
    plain, guided = estimate(one("llada-8b-base/hellaswag")), estimate(one("llada-8b-base/hellaswag.cfg"))
    assert plain.at_most.forwards == 10042 * 4 * 128
    assert guided.at_most.forwards == 2 * plain.at_most.forwards
    assert estimate(one("llada-8b-base/mmlu")).at_most.forwards == 14042 * 4


def test_a_likelihood_item_costs_what_was_worked_out_for_it():
    """128 draws x 4 choices x 120 tokens x 15 GFLOP = 0.92 PFLOP; the head runs at the targets alone here."""
    item = 4 * 128 * recipe_costs.flops(Pass(1, 120, 120, 15), shape_of("llada-8b-base"))
    assert item / 1e15 == pytest.approx(0.92, rel=0.1)


def test_blockwise_decoding_stops_at_the_answers_end():
    built = estimate(one("llada2.0-mini/math"))
    blocks = 512 // 32
    assert built.at_most.forwards == 5000 * (1 + blocks * 32)
    # answers of 215 tokens and their end fill 7 blocks of 32, 2.6 tokens a pass
    assert built.expected.forwards == pytest.approx(5000 * (1 + 7 * 32 / 2.6), rel=1e-6)
    static = estimate(one("sdar-8b-chat/gsm8k"))
    assert static.expected.forwards == 1319 * (1 + 32 * 4)  # 126 tokens: 32 blocks of 4, 4 steps each


def test_editing_costs_the_masks_and_the_passes_after_them():
    built = estimate(one("llada2.1-mini/gsm8k"))
    assert built.at_most.forwards == 1319 * (1 + 4096 // 32 * (32 + 16))
    assert built.expected.forwards < built.at_most.forwards


def test_a_faster_gpu_takes_less_time_for_the_same_work():
    slow, fast = (estimate(one("llada-8b-instruct/math"), gpu=gpu) for gpu in ("A100", "H200"))
    assert slow.at_most.pflop == fast.at_most.pflop
    assert slow.at_most.hours == pytest.approx(fast.at_most.hours * 989.4 / 312, rel=1e-3)  # bound by arithmetic
    slow, fast = (estimate(one("sdar-8b-chat/gsm8k"), gpu=gpu) for gpu in ("H100", "H200"))
    assert slow.expected.hours == pytest.approx(fast.expected.hours * 4.8 / 3.35, rel=0.05)  # bound by memory


def test_what_cannot_be_estimated_says_why():
    with pytest.raises(UnknownNameError, match="unknown GPU 'B200'; closest: "):
        estimate(one("llada-1.5/gsm8k"), gpu="B200")
    with pytest.raises(UsageError, match="humaneval-fim cannot be run"):
        estimate(one("llada-8b-base/humaneval-fim"))
    with pytest.raises(UsageError, match=r"size of its test set is not recorded .*; give --limit with a count"):
        estimate(one("llada2.0-mini/c-eval.report"))
    assert estimate(one("llada2.0-mini/c-eval.report"), {"limit": 7}).documents == 7
    assert estimate(one("llada-8b-instruct/olympiadbench")).documents == 675 + 408 + 1240 + 236 + 115


GSM8K = "llada-8b-instruct/gsm8k"


@pytest.mark.parametrize(
    ("name", "given", "forwards"),
    [
        (GSM8K, {"decoding": {"gen_length": 32, "steps": 32}, "repeats": 4}, 1319 * 4 * 32),
        (GSM8K, {"decoding": {"max_new_tokens": 32, "steps": 32}}, 1319 * 32),
        (GSM8K, {"decoding": {"gen_length": 32}}, 1319 * 256),  # the recipe's 256 steps stay, as they would in the run
        (GSM8K, {"decoding": {"gen_length": 32, "steps": None, "block_length": None}}, 1319 * 32),  # LLaDA's rule
        (GSM8K, {"decoding": {"cfg_scale": 0.5}}, 1319 * 256 * 2),
        (GSM8K, {"samples": {"gsm8k": [0, 5, 9]}}, 3 * 256),
        ("dream-7b-instruct/gsm8k", {"decoding": {"gen_length": 32, "steps": None}}, 1319 * 32),
        ("llada2.0-mini/math", {"decoding": {"gen_length": 64, "steps": 8}}, 5000 * (1 + 2 * 8)),
        ("sdar-8b-chat/math", {"decoding": {"gen_length": 16, "denoising_steps": None}}, 500 * (1 + 4 * 4)),
        ("llada-8b-base/hellaswag", {"likelihood": {"mc_num": 16}, "limit": 5}, 5 * 4 * 16),
    ],
)
def test_settings_given_beside_the_recipe_count(name, given, forwards):
    assert estimate(one(name), given).at_most.forwards == forwards


def test_a_finished_runspecs_fields_are_the_recipe_itself():
    recipe = one(GSM8K)
    assert estimate(recipe, {**recipe.fields(), "limit": None, "num_fewshot": None}) == estimate(recipe)


def test_worked_examples_given_or_taken_away_change_the_prompt():
    three, none = (estimate(one("llada-8b-base/bbh"), {"num_fewshot": n}) for n in (3, 0))
    assert three == estimate(one("llada-8b-base/bbh")) and none.at_most.pflop < three.at_most.pflop
    assert "0 worked examples" in none.text() and "3 worked examples" in three.text()
    assert "0 worked examples" in estimate(one("llada-8b-instruct/mmlu-pro")).text()


def test_what_was_not_given_is_told():
    reported = estimate(one(GSM8K), {"decoding": {"gen_length": 32, "block_length": None}}).text()
    assert re.search(r"gen_length=32 with the recipe's own .*steps=256", reported)
    assert "block_length=32 by llada's rule" in reported
    other = estimate(one(GSM8K), {"model": "org/another"}).text()
    assert "a network of GSAI-ML/LLaDA-8B-Instruct's shape; the shape of org/another is not known" in other
    assert "not known here" not in estimate(one(GSM8K)).text()
    assert "harness takes so many of each data set" in estimate(one(GSM8K), {"limit": 3}).text()


def test_settings_that_a_run_would_refuse_are_refused():
    with pytest.raises(DecodingError, match="gen_length=32 is not divisible by block_length=5"):
        estimate(one(GSM8K), {"decoding": {"gen_length": 32, "block_length": 5}})
    with pytest.raises(DecodingError, match="no decoding field 'stepps'; closest: steps"):
        estimate(one(GSM8K), {"decoding": {"stepps": 5}})
    with pytest.raises(DecodingError, match="likelihood field 'draws' is not known"):
        estimate(one("llada-8b-base/hellaswag"), {"likelihood": {"draws": 5}})


def test_the_text_says_that_it_is_an_estimate_and_on_what_it_stands():
    text = estimate(one("llada-moe-7b-a1b-instruct/gsm8k")).text()
    assert "estimate for one H100 SXM, not a measurement" in text
    assert "heads are not known" in text and "989.4 TFLOP/s" in text and "40%" in text


def test_every_recipe_has_an_estimate():
    for recipe in RUNNABLE:
        built = estimate(recipe, {} if recipe.entry.published.test_set.documents else {"limit": 100})
        assert 0 < built.expected.forwards <= built.at_most.forwards, recipe.name
        assert 0 < built.expected.hours <= built.at_most.hours < 500, recipe.name
    assert built.plain()["assumptions"]
