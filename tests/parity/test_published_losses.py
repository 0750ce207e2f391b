"""Our losses against the published code of the algorithms: values and gradients on fixed log-probabilities.

``published_losses.json`` holds what the published functions returned, with repository, commit, file, function and
settings of each case (see ``published_losses.py``); its ``recipes`` are settings of published scripts under our names.
THU-KEG/BGPO could not be obtained: BGPO's loss is compared with DARE's code.

The published code takes means over the tokens of a micro-batch; here, it is given the whole step as one.
"""

from __future__ import annotations

import math
from functools import cache
from typing import get_args

import pytest
import torch
from completions import update
from published_losses import (
    case_of,
    equal,
    gradient_of,
    hidden,
    masks_of,
    method_of,
    ours,
    rollout_of,
    table_of,
    tree_case,
    vectors,
)
from torch import Tensor

from dare_bench.diffusion.chunked import linear_nll
from dare_bench.loading import load
from dare_bench.registry import registry
from dare_bench.trainers.rl.mdpo import chosen_steps, step_advantages, step_scores
from dare_bench.trainers.rl.options import Advantage
from dare_bench.trainers.rl.surrogate import STD_EPS, Divergence, advantages, clipped, divergence
from dare_bench.trainers.rl.tree import local_advantages, node_values
from dare_bench.training.spec import train_spec

DARE_CASES = (
    "DARE d1", "DARE coupled_grpo", "DARE cj_grpo, two", "DARE just_grpo", "DARE bgpo", "DARE ebpo", "DARE espo",
    "DARE spg", "DARE mdpo", "DARE mdpo, beta 0.02",
)  # fmt: skip
PUBLISHED_CASES = (
    "d1, beta 0.04", "d1, beta 0", "coupled_grpo, beta 0.01", "coupled_grpo, beta 0", "espo, beta 0.01", "espo, beta 0",
    "cj_grpo, two", "cj_grpo, one", "spg, mix", "spg, eubo", "spg, elbo", "spg, zero", "just_grpo",
)  # fmt: skip
MDPO_CASES = ("mdpo, beta 0", "mdpo, beta 0.02", "mdpo, confidence")
VERL_CASES = (
    "verl vanilla, token-mean", "verl vanilla, seq-mean-token-mean", "verl vanilla, seq-mean-token-sum",
    "verl vanilla, seq-mean-token-sum-norm",
)  # fmt: skip
TREE_CASES = (
    "dtreerpo", "dtreerpo, beta 0", "dtreerpo, no distillation", "DARE dtreerpo", "DARE dtreerpo, no distillation",
)  # fmt: skip


def test_every_case_is_compared_and_names_its_source():
    named = {*PUBLISHED_CASES, *DARE_CASES, *MDPO_CASES, *VERL_CASES}
    differ = {
        "cj_grpo, uneven", "DARE cj_grpo, uneven", "just_grpo, equal group", "DARE d1, dynamic batches",
        "DARE bgpo, dynamic batches", "DARE bgpo, fallen", "DARE mdpo, uneven",
    }  # fmt: skip
    assert {case["name"] for case in vectors()["cases"]} == named | differ
    of_mdpo, of_trees = vectors()["mdpo"], vectors()["dtreerpo"]
    assert {case["name"] for case in of_trees["cases"]} == {*TREE_CASES, "DARE dtreerpo, micro-batches of one"}
    others = [
        *of_mdpo["advantages"], of_mdpo["chosen_steps"], of_mdpo["temperature"],
        *of_trees["cases"], of_trees["local_advantages"], *vectors()["verl"]["kl"].values(), vectors()["verl"]["gspo"],
    ]  # fmt: skip
    for case in [*vectors()["cases"], *others]:
        assert len(case["commit"]) == 40 and case["repository"].count("/") == 1 and case["file"].endswith(".py")


@pytest.mark.parametrize("name", [*PUBLISHED_CASES, *DARE_CASES, *VERL_CASES])
def test_value_and_gradient_are_those_of_the_published_code(name):
    case = case_of(name)
    result = ours(case)
    if case["masked"] is not None:
        learned = [name != "spg, zero" or advantage > 0 for advantage in case["advantage"]]  # the others have no copy
        wanted = [[row if own else "" for row, own in zip(rows, learned, strict=True)] for rows in case["masked"]]
        masks = masks_of(case, result.step)
        assert masks == wanted, "other random numbers: these vectors were made with other masks"
    assert equal(result, case), (result.value, case["value"])
    if case["iteration"] and case["algorithm"] != "spg":
        assert 0 < result.clip_fraction < 1, "some ratios are inside the clip range, and some outside"


@pytest.mark.parametrize("name", [name for name in DARE_CASES if name != "DARE ebpo"])
def test_the_dare_variant_differs_from_the_papers(name):
    """EBPO has no code but DARE's, so that it has one variant."""
    case = case_of(name)
    result = ours(case, variant="paper")
    assert masks_of(case, result.step) != case["masked"] or not equal(result, case)


# Advantages


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mean", "mean"), ("leave_one_out", "leave_one_out"), ("leave_one_out, DARE", "leave_one_out"),
     ("standardized", "standardized"), ("mean, verl", "mean"), ("leave_one_out, verl", "leave_one_out"),
     ("standardized, verl", "standardized")],
)  # fmt: skip
def test_advantages_are_those_of_the_published_code(name: str, kind: Advantage):
    rewards = torch.tensor(vectors()["rewards"], dtype=torch.float64)
    result = advantages(rewards, vectors()["group"], kind)
    wanted = torch.tensor(vectors()["advantages"][name]["value"], dtype=torch.float64)
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-8)


def test_just_grpo_divides_by_a_larger_standard_deviation():
    """JustGRPO adds 1e-4 to the standard deviation of a group, where ours (and GRPO's in verl) is 1e-6."""
    rewards = torch.tensor(vectors()["rewards"], dtype=torch.float64)
    group = vectors()["group"]
    std = rewards.view(-1, group).std(1).repeat_interleave(group)
    result = advantages(rewards, group, "standardized") * (std + STD_EPS) / (std + 1e-4)
    wanted = torch.tensor(vectors()["advantages"]["standardized, 1e-4"]["value"], dtype=torch.float64)
    torch.testing.assert_close(result, wanted, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(advantages(rewards, group, "standardized"), wanted, rtol=1e-5)


# verl, whose loss "vanilla" is that of the algorithms with a ratio for each token (VERL_CASES)


@pytest.mark.parametrize("kind", get_args(Divergence))
def test_the_kl_penalties_are_verls(kind: Divergence):
    case = vectors()["verl"]["kl"][kind]
    policy = table_of("policy")[0].requires_grad_()
    value = divergence(policy - table_of("reference")[0], kind)
    (gradient,) = torch.autograd.grad(value.sum(), policy)
    torch.testing.assert_close(value.detach(), torch.tensor(case["value"], dtype=torch.float64), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(gradient, torch.tensor(case["gradient"], dtype=torch.float64), rtol=1e-7, atol=1e-9)


def test_the_clipped_ratio_of_sequences_is_that_of_verls_gspo():
    """Of the mean log-ratio of a sequence's tokens. verl multiplies its gradient into the tokens one by one."""
    case, policy = vectors()["verl"]["gspo"], table_of("policy")[0].requires_grad_()
    lengths = [method_of(case_of("d1, beta 0"), {}).scored(answer) for answer in vectors()["answers"]]
    counted_SL = torch.arange(6) < torch.tensor(lengths)[:, None]
    ratio_S = ((policy - table_of("old")[0]) * counted_SL).sum(1) / counted_SL.sum(1)
    low, high = case["settings"]["clip_ratio_low"], case["settings"]["clip_ratio_high"]
    loss_S, active_S = clipped(ratio_S, torch.tensor(case["advantage"], dtype=torch.float64), low, high)
    (gradient,) = torch.autograd.grad(loss_S.mean(), policy)
    assert 0 < int(active_S.sum()) < len(active_S)
    assert float(loss_S.detach().mean()) == pytest.approx(case["value"], rel=1e-7)
    torch.testing.assert_close(gradient, torch.tensor(case["gradient"], dtype=torch.float64), rtol=1e-7, atol=1e-9)


# MDPO: rewards of predictions, and the temperature


def test_the_learner_divides_logits_by_the_temperature_as_the_published_code_does():
    """At the temperature of its command, which is our default."""
    case = vectors()["mdpo"]["temperature"]
    logits = torch.tensor(vectors()["dtreerpo"]["logits"]["policy"], dtype=torch.float64)
    method = method_of(case_of("mdpo, beta 0"), {})
    step = method.step(rollout_of(case_of("mdpo, beta 0"), method), update(0, 0, 6))
    given = method.inputs(step.copies)
    assert given.temperature == case["temperature"] == 0.4
    logits_NV = logits.flatten(0, 1).requires_grad_()
    every_VV, target_N = torch.eye(logits.shape[-1], dtype=torch.float64), torch.tensor(case["target"]).flatten()
    nll_N = linear_nll(logits_NV, every_VV, target_N, scale=1 / given.temperature)
    (gradient,) = torch.autograd.grad(nll_N.sum(), logits_NV)
    wanted, slope = (torch.tensor(case[name], dtype=torch.float64) for name in ("value", "gradient"))
    torch.testing.assert_close(-nll_N.detach(), wanted.flatten(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(-gradient, slope.flatten(0, 1), rtol=1e-7, atol=1e-9)


def mdpo_advantages(repository: str) -> tuple[Tensor, Tensor, int]:
    """Our scores of the forwards and the published advantages, [completion, forward], and the size of a group."""
    (case,) = (case for case in vectors()["mdpo"]["advantages"] if case["repository"] == repository)
    reward_BT = torch.tensor(vectors()["mdpo"]["step_rewards"], dtype=torch.float64)
    return step_scores(reward_BT), torch.tensor(case["value"], dtype=torch.float64), case["group"]


def test_advantages_of_forwards_are_those_of_the_published_code():
    score_BT, wanted_BT, group = mdpo_advantages("yjyddq/DARE")
    torch.testing.assert_close(step_advantages(score_BT, group), wanted_BT, rtol=1e-5, atol=1e-6)


def test_mdpo_divides_by_a_larger_standard_deviation():
    """It adds 1e-4 to the standard deviation of a group, as JustGRPO does; we add 1e-6."""
    score_BT, wanted_BT, group = mdpo_advantages("autonomousvision/mdpo")
    assert group == len(score_BT), "one group"
    result_BT, std_T = step_advantages(score_BT, group), score_BT.std(0)
    torch.testing.assert_close(result_BT * (std_T + STD_EPS) / (std_T + 1e-4), wanted_BT, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(result_BT, wanted_BT, rtol=1e-5, atol=1e-6)


def test_the_chosen_forwards_are_those_of_the_published_code():
    """For the six completions of one prompt."""
    case, (score_BT, _, group) = vectors()["mdpo"]["chosen_steps"], mdpo_advantages("autonomousvision/mdpo")
    assert chosen_steps(step_advantages(score_BT, group), group, case["k"]).tolist() == [case["value"]]


def test_each_prompt_has_forwards_of_its_own():
    """MDPO's code chooses forwards for the completions of a device (one in its command), DARE's for all prompts of a
    batch; here, the completions of a prompt have the same ones, however they are distributed."""
    _, advantage_BT, group = mdpo_advantages("yjyddq/DARE")
    of_prompt, of_batch, of_one = (chosen_steps(advantage_BT, count, 2).tolist() for count in (group, 6, 1))
    assert of_prompt == [[0, 3], [0, 1]]
    assert of_batch == [[0, 1]] and len({tuple(steps) for steps in of_one[:group]}) > 1


@pytest.mark.parametrize("name", MDPO_CASES)
def test_mdpo_counts_slightly_more_masks(name):
    """The published code adds 1e-4 to both numbers of masks by which it divides: those of a completion, and those of
    all. DARE's does not, nor does ours."""
    case = case_of(name)
    masks_S = hidden(case).sum(1)
    assert masks_S.tolist() == [4] * 6
    advantage = (torch.tensor(case["advantage"], dtype=torch.float64) * masks_S / (masks_S + 1e-4)).tolist()
    result = ours({**case, "advantage": advantage})
    assert masks_of(case, result.step) == case["masked"] and 0 < result.clip_fraction < 1
    assert equal(result, case, factor=(24 + 1e-4) / 24)
    assert not equal(ours(case), case)


@pytest.mark.parametrize("name", ["mdpo, confidence", "DARE mdpo", "DARE mdpo, beta 0.02"])
def test_confidences_are_the_probabilities_of_the_policy_that_sampled(name):
    """The published functions take any confidences, and a token's gradient is proportional to its own; ours are
    computed. The paper, and our default, have none."""
    case, shown = case_of(name), hidden(case_of(name))
    old_A, given = table_of("old")[0][shown], torch.tensor(case["confidence"], dtype=torch.float64)
    computed_A = method_of(case, {}).loss_weights(torch.full_like(old_A, 0.5), old_A)
    torch.testing.assert_close(computed_A, 0.5 * old_A.exp())
    plain = ours(case, confidence_weights=False)
    assert not equal(plain, case)
    torch.testing.assert_close(plain.gradient[0] * given, gradient_of(case)[0], rtol=5e-5, atol=1e-7)


def test_completions_with_fewer_masks_weigh_as_much_in_mdpo():
    """The published code takes the mean over the masks of all completions of a micro-batch. This is our mean where all
    have as many masks before a forward, as after a fixed schedule; else ``aggregation=token`` is the published one."""
    case = case_of("DARE mdpo, uneven")
    assert not equal(ours(case), case)
    assert equal(ours(case, aggregation="token"), case)
    for name in ("DARE mdpo", "DARE mdpo, beta 0.02"):
        assert equal(ours(case_of(name), aggregation="token"), case_of(name))


# d-TreeRPO: children of canvases


def test_local_advantages_are_those_of_the_published_code():
    """Two trees of three levels."""
    case = vectors()["dtreerpo"]["local_advantages"]
    for rewards, wanted in zip(case["rewards"], case["value"], strict=True):
        levels = zip(node_values(rewards, case["branches"]), case["branches"], strict=True)
        result = [a for values, count in levels for a in local_advantages(values, count, "leave_one_out")]
        assert result == pytest.approx(wanted, abs=1e-6)
        assert 0 < sum(a == 0 for a in result) < len(result)


@pytest.mark.parametrize("name", TREE_CASES)
def test_value_and_gradient_of_a_tree_are_those_of_the_published_code(name):
    case = case_of(name)
    result = tree_case(case)
    assert equal(result, case), (result.value, case["value"])
    assert 0 < result.clip_fraction < 1
    assert (result.step.surrogate.distillation.strength > 0) == ("no distillation" not in name)


@pytest.mark.parametrize(
    ("name", "options"),
    [("dtreerpo", {"distillation": 0.0}), ("dtreerpo", {"distillation_temperature": 1.0}),
     ("dtreerpo", {"beta": 0.0}), ("dtreerpo", {"epsilon": 0.2}), ("dtreerpo", {"score_after_eos": True}),
     ("dtreerpo", {"aggregation": "token"}), ("dtreerpo, no distillation", {"aggregation": "token"})],
)  # fmt: skip
def test_each_setting_of_a_tree_matters(name, options):
    """Also the mean: over the tokens of a child, then over children, here and in the published code."""
    assert not equal(tree_case(case_of(name), **options), case_of(name))


# Settings


@cache
def tiny(family):
    return load(f"tiny-{family}-base", device="cpu").loaded


@pytest.mark.parametrize("number", range(len(vectors()["recipes"])))
def test_defaults_are_those_of_the_published_recipes(number):
    recipe = vectors()["recipes"][number]
    kind = registry().get("trainer", recipe["algorithm"]).load()
    model = tiny(recipe.get("family", "llada"))
    options = kind.settle({"variant": recipe["variant"], "max_completion_length": recipe.get("canvas")}, model.spec)
    request = kind(options, model.spec, None).request(())
    decoding = {**model.resolve(request).model_dump(), "strategy": request.get("strategy")}
    assert {name: decoding[name] for name in recipe.get("rollout", {})} == recipe.get("rollout", {}), recipe["file"]
    assert {name: getattr(options, name) for name in recipe["options"]} == recipe["options"], recipe["file"]
    peft = recipe.get("peft", "lora")
    spec = train_spec(method=recipe["algorithm"], model="m", task="dare_sort", output_path="out", peft=peft)
    resolved = spec.with_defaults(kind)
    assert {name: getattr(resolved, name) for name in recipe["training"]} == recipe["training"], recipe["file"]


# Where we differ from the published code on purpose


@pytest.mark.parametrize("name", ["d1, beta 0", "coupled_grpo, beta 0"])
def test_the_mean_over_completions_is_the_papers(name):
    """d1's and DiffuCoder's code takes the mean over all tokens of a micro-batch, so that a long answer weighs more;
    their papers, and our defaults, take the mean over completions of the mean over a completion's tokens."""
    case = case_of(name)
    assert not equal(ours(case, aggregation="sequence"), case)
    assert (
        method_of(case, {"aggregation": "sequence"}).options
        == method_of({**case, "options": {"beta": 0.0}}, {}).options
    )


def test_the_tokens_behind_the_end_are_not_scored_by_default():
    """EOSER-ASS-RL scores every written token of the canvas; our default scores those through the first EOS."""
    case = case_of("cj_grpo, two")
    result = ours(case, score_after_eos=False)
    assert not equal(result, case)
    assert result.gradient[0, 1, 2:].abs().max() == 0 < gradient_of(case)[0, 1, 2:].abs().max()


@pytest.mark.parametrize("name", ["cj_grpo, uneven", "DARE cj_grpo, uneven"])
def test_a_forward_that_writes_more_tokens_in_one_completion_does_not_weigh_more_there(name):
    """EOSER-ASS-RL and DARE take the mean over the tokens that a forward wrote in all completions of a micro-batch.
    Where completions differ in the tokens of a forward (a sampler with a confidence threshold), this is not equation 11
    of the paper, and the completions that wrote more tokens in a forward weigh more in it."""
    case = case_of(name)
    assert not equal(ours(case), case)
    weight_S = gradient_of(case)[0].abs().sum(1)
    even_S = gradient_of(case_of(name.replace("uneven", "two")))[0].abs().sum(1)
    assert not torch.allclose(weight_S, even_S, rtol=1e-2)


def test_completions_without_an_advantage_count_in_the_mean():
    """JustGRPO divides by the number of completions that have an advantage; we divide by all completions, so that a
    group with equal rewards does not enlarge the step of the others. Its ratio is always 1."""
    case = case_of("just_grpo, equal group")
    valid = sum(advantage != 0 for advantage in case["advantage"])
    assert valid == 3
    assert not equal(ours(case), case)
    assert equal(ours(case), case, factor=valid / len(case["advantage"]))


def test_the_clip_of_just_grpo_acts_in_later_steps_on_a_rollout():
    """The published ratio is of the policy to itself, so that its clip never acts. Ours is the same in the first step
    on a rollout, with any clip range; in later ones it is to the policy that sampled, as in DARE's code."""
    case = case_of("just_grpo")
    for epsilon in (1e-6, 0.2):
        result = ours(case, epsilon=epsilon)
        assert equal(result, case) and result.clip_fraction == 0
    later = ours({**case, "iteration": 1, "old": "old"})
    assert not equal(later, case) and 0 < later.clip_fraction < 1
    ratio_SL = (table_of("policy")[0] - table_of("old")[0]).exp()
    positive_S1 = torch.tensor(case["advantage"])[:, None] > 0
    active_SL = torch.where(positive_S1, ratio_SL > 1.2, ratio_SL < 0.8)
    wanted_SL = gradient_of(case)[0] * torch.where(active_SL, 0.0, ratio_SL)
    torch.testing.assert_close(later.gradient[0], wanted_SL, rtol=5e-5, atol=1e-7)


# Defects of the published code


@pytest.mark.parametrize("name", ["DARE d1", "DARE bgpo"])
def test_the_weight_of_a_micro_batch_is_its_share_of_completions(name):
    """With use_dynamic_bsz, as in its recipes, DARE multiplies the loss of a micro-batch by the number of fields of its
    batch (10) instead of the number of completions (6), divided by the completions of the step."""
    case = case_of(f"{name}, dynamic batches")
    assert case["settings"]["use_dynamic_bsz"] and case["settings"]["ppo_mini_batch_size"] == 6
    assert not equal(ours(case), case)
    assert equal(ours(case), case, factor=6 / 10)


def test_siblings_teach_each_other_however_a_step_is_divided():
    """DARE distills from the siblings that are in the same micro-batch: in its recipe batches are cut by tokens, and in
    micro-batches of one segment nothing is distilled."""
    case = case_of("DARE dtreerpo, micro-batches of one")
    assert case["settings"]["enable_self_distillation"]
    assert not equal(tree_case(case), case)
    assert equal(tree_case(case, distillation=0.0), case)


def test_the_kl_penalty_does_not_depend_on_the_advantage():
    """For positive advantages DARE puts log(1 + lr) for lr into k3, which is another value, and none for lr <= -1."""
    case = vectors()["defects"]["k3"]
    result = divergence(torch.tensor(case["log_ratio"], dtype=torch.float64), "k3")
    assert result.tolist()[:3] == result.tolist()[3:]
    assert result.tolist()[3:] == pytest.approx(case["value"][3:], rel=1e-6)
    assert case["value"][0] is None and case["value"][1:3] != pytest.approx(result.tolist()[1:3], rel=0.05)


def test_the_mask_level_of_coupled_grpo_differs_between_rollouts():
    """DARE seeds the global generator with 42 in each call, so that the level of its masks is always 0.5837."""
    levels = vectors()["defects"]["mask levels of three calls"]["value"]
    assert levels == pytest.approx([0.5837] * 3, abs=1e-4)
    method = method_of(case_of("DARE coupled_grpo"), {})
    completions = rollout_of(case_of("DARE coupled_grpo"), method).completions
    ours_N = [method.actions(completions, 0, rollout).coefficient_N.unique() for rollout in range(3)]
    assert len({tuple(coefficients.tolist()) for coefficients in ours_N}) == 3


def test_the_linear_bound_is_finite_where_its_ratio_is_negative():
    """DARE computes 1 + d as exp(log(1 + d)), which is not a number for d < -1; the bound itself is finite there."""
    case = case_of("DARE bgpo, fallen")
    assert case["value"] is None
    result = ours(case)
    assert math.isfinite(result.value) and bool(result.gradient.isfinite().all())
    past = table_of("fallen") - table_of("policy")
    assert float(past.min()) > 1, "every log-probability fell"
    pulled = torch.tensor(case["advantage"]) > 0
    assert float(result.gradient[:, pulled].max()) <= 0 > float(result.gradient[:, pulled].min())
