"""The forwards of recipes against counts by hand, and what is refused."""

from __future__ import annotations

import pytest

from dare_bench import recipes
from dare_bench.costs import trace
from dare_bench.costs.recipe import estimate
from dare_bench.engine.plan import plan
from dare_bench.errors import DecodingError, UsageError

RUNNABLE = [r for name in recipes.registry().names("recipe") for r in recipes.find(name) if r.entry.run is not None]


def one(name):
    return recipes.find(name)[0]


@pytest.fixture
def counted(monkeypatch):
    """Forwards are counted; what one costs is of no interest, and takes half a second to trace."""
    monkeypatch.setattr(trace, "traced", lambda *_, **__: trace.Trace(1.0, 1.0, 1.0))


def test_forward_passes_of_a_generation_are_counted_exactly(counted):
    """256 steps for each of 1319 questions, whatever the block."""
    built = estimate(one("llada-8b-instruct/gsm8k"))
    assert (built.documents, built.prompts) == (1319, 1319)
    assert built.forwards == 1319 * 256
    assert estimate(one("llada-8b-instruct/gsm8k"), {"limit": 10}).forwards == 10 * 256
    assert estimate(one("llada-8b-instruct/gsm8k"), {"limit": 0.5}).documents == 660
    assert estimate(one("llada-8b-instruct/gsm8k"), {"limit": 10**6}).documents == 1319


def test_a_cache_makes_passes_cheaper_not_fewer():
    plain, cached = estimate(one("llada-8b-instruct/gsm8k")), estimate(one("llada-8b-instruct/gsm8k.fast-dllm"))
    assert plain.forwards == cached.forwards
    assert cached.pflop < plain.pflop / 2 and cached.hours < plain.hours


def test_repeats_and_prompts_multiply(counted):
    eight = estimate(one("llada-8b-instruct/aime25"))
    assert eight.prompts == 240 and eight.forwards == 240 * 2048
    assert estimate(one("sdar-30b-a3b-chat/aime24")).prompts == 30


def test_likelihoods_count_draws_choices_and_guidance(counted):
    plain, guided = estimate(one("llada-8b-base/hellaswag")), estimate(one("llada-8b-base/hellaswag.cfg"))
    assert plain.forwards == 10042 * 4 * 128
    assert guided.forwards == 2 * plain.forwards
    assert estimate(one("llada-8b-base/mmlu")).forwards == 14042 * 4


def test_blockwise_decoding_counts_whole_blocks(counted):
    recipe = one("llada2.0-mini/math")
    built, prompt = estimate(recipe), recipe.entry.published.test_set.prompt_tokens
    assert 5000 * (1 + 512) <= built.forwards <= 5000 * (1 + 512 + 32) and prompt


def test_editing_counts_the_masks_and_the_passes_after_them(counted):
    built = estimate(one("llada2.1-mini/gsm8k"))
    blocks = (built.forwards / 1319 - 1) / (32 + 16)
    assert blocks == 4096 // 32 + 1, "the first block holds the end of the prompt"


def test_time_is_bound_by_arithmetic_or_by_memory():
    device = trace.GPUS["H100"]
    built = estimate(one("llada-8b-instruct/math"))
    assert built.hours == pytest.approx(built.pflop * 1e15 / (989.4e12 * 0.4) / 3600, rel=1e-3)
    faster = estimate(one("sdar-8b-chat/gsm8k"))
    assert faster.hours > 2 * faster.pflop * 1e15 / (device.tflops * 1e12 * trace.UTILIZATION) / 3600


def test_what_cannot_be_estimated_says_why(counted):
    with pytest.raises(UsageError, match="humaneval-fim cannot be run"):
        estimate(one("llada-8b-base/humaneval-fim"))
    unknown = estimate(one("llada2.0-mini/c-eval.report"))
    assert unknown.documents == 1 and "one document: the size of the test set is not recorded" in unknown.text()
    assert estimate(one("llada2.0-mini/c-eval.report"), {"limit": 0.5}) == unknown, "half of an unknown number"
    assert estimate(one("llada2.0-mini/c-eval.report"), {"limit": 7}).forwards == 7 * unknown.forwards
    assert estimate(one("llada-8b-instruct/olympiadbench")).documents == 675 + 408 + 1240 + 236 + 115


def test_every_recipe_that_runs_is_planned(counted):
    for recipe in RUNNABLE:
        (run,) = plan({"recipe": recipe.name})
        assert run.recipe == recipe and run.fields["model"], recipe.name
        assert estimate(recipe, run.fields).forwards > 0, recipe.name
        assert estimate(recipe, {**run.fields, "limit": 3}).documents == 3, recipe.name


GSM8K = "llada-8b-instruct/gsm8k"


@pytest.mark.parametrize(
    ("name", "given", "forwards"),
    [
        (GSM8K, {"decoding": {"gen_length": 32, "steps": 32}, "repeats": 4}, 1319 * 4 * 32),
        (GSM8K, {"decoding": {"max_new_tokens": 32, "steps": 32}}, 1319 * 32),
        (GSM8K, {"decoding": {"gen_length": 32}}, 1319 * 32),  # of 256 steps, those that write a token
        (GSM8K, {"decoding": {"gen_length": 32, "steps": None, "block_length": None}}, 1319 * 32),  # LLaDA's rule
        (GSM8K, {"decoding": {"cfg_scale": 0.5}}, 1319 * 256 * 2),
        (GSM8K, {"samples": {"gsm8k": [0, 5, 9]}}, 3 * 256),
        ("dream-7b-instruct/gsm8k", {"decoding": {"gen_length": 32, "steps": None}}, 1319 * 32),
        ("llada-8b-base/hellaswag", {"likelihood": {"mc_num": 16}, "limit": 5}, 5 * 4 * 16),
    ],
)
def test_settings_given_beside_the_recipe_count(counted, name, given, forwards):
    assert estimate(one(name), given).forwards == forwards


def test_a_finished_runspecs_fields_are_the_recipe_itself(counted):
    recipe = one(GSM8K)
    assert estimate(recipe, {**recipe.fields(), "limit": None, "num_fewshot": None}) == estimate(recipe)


def test_worked_examples_given_or_taken_away_change_the_prompt():
    three, none = (estimate(one("llada-8b-base/bbh"), {"num_fewshot": n}) for n in (3, 0))
    assert three == estimate(one("llada-8b-base/bbh")) and none.pflop < three.pflop
    assert "0 worked examples" in none.text() and "3 worked examples" in three.text()
    assert "0 worked examples" in estimate(one("llada-8b-instruct/mmlu-pro")).text()


def test_what_was_not_given_is_told(counted):
    reported = estimate(one(GSM8K), {"decoding": {"gen_length": 32, "block_length": None}}).text()
    assert "each takes 32 forwards, the most that its settings allow" in reported
    other = estimate(one(GSM8K), {"model": "org/another"}).text()
    assert "a network of GSAI-ML/LLaDA-8B-Instruct's shape; the shape of org/another is not known" in other
    assert "not known here" not in estimate(one(GSM8K)).text()


def test_settings_that_a_run_would_refuse_are_refused(counted):
    with pytest.raises(DecodingError, match="gen_length=32 is not divisible by block_length=5"):
        estimate(one(GSM8K), {"decoding": {"gen_length": 32, "block_length": 5}})
    with pytest.raises(DecodingError, match="no decoding field 'stepps'; closest: steps"):
        estimate(one(GSM8K), {"decoding": {"stepps": 5}})
    with pytest.raises(DecodingError, match="likelihood field 'draws' is not known"):
        estimate(one("llada-8b-base/hellaswag"), {"likelihood": {"draws": 5}})


def test_the_text_says_that_it_is_an_estimate_and_on_what_it_stands(counted):
    text = estimate(one("llada-moe-7b-a1b-instruct/gsm8k")).text()
    assert "estimate for one H100 SXM, not a measurement" in text
    assert "989.4 TFLOP/s" in text and "40%" in text


def test_every_family_has_an_estimate_and_every_checkpoint_a_network():
    first = {recipe.file.family: recipe for recipe in RUNNABLE}
    for recipe in first.values():
        built = estimate(recipe, {} if recipe.entry.published.test_set.documents else {"limit": 100})
        assert built.forwards > 0 and 0 < built.hours < 5000, recipe.name
    assert len(first) > 8 and built.plain()["assumptions"]
    for model in {recipe.file.model for recipe in RUNNABLE}:
        arch = trace.find(model).network.arch
        assert trace.depths(arch)[-1] <= arch.layers, model
