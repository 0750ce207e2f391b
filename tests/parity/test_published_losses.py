"""Our losses against the published code of the algorithms: values and gradients on fixed log-probabilities.

``published_losses.json`` holds what the published functions returned, with repository, commit, file, function and
settings of each case. Its inputs are 2 groups of 3 completions of 6 tokens (some end early, one is empty), tables of
log-probabilities by (look, completion, position) of the policy, of the policy that sampled, and of the reference, and
advantages of both signs. ``recipes`` are settings of published scripts under our names. ``masked`` are the tokens that
each look hides (x); the published code saw the masks that our estimators draw. A gradient is with respect to the table
of the policy. ``mdpo`` and ``dtreerpo`` have inputs of their own, for the tests of these algorithms. THU-KEG/BGPO could
not be obtained: BGPO's loss is compared with DARE's code.

The published code takes means over the tokens of a micro-batch; here, it is given the whole step as one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from table_policy import EOS, MASK, SPEC
from torch import Tensor

from dare_bench.registry import registry
from dare_bench.trainers.rl.estimators import Completion
from dare_bench.trainers.rl.rollout import Rollout
from dare_bench.trainers.rl.surrogate import STD_EPS, Advantage, advantages, divergence
from dare_bench.trainers.steps import Step
from dare_bench.training.spec import train_spec

VECTORS = Path(__file__).parent / "published_losses.json"
DARE_CASES = (
    "DARE d1", "DARE coupled_grpo", "DARE cj_grpo, two", "DARE just_grpo", "DARE bgpo", "DARE ebpo", "DARE espo",
    "DARE spg",
)  # fmt: skip
PUBLISHED_CASES = (
    "d1, beta 0.04", "d1, beta 0", "coupled_grpo, beta 0.01", "coupled_grpo, beta 0", "espo, beta 0.01", "espo, beta 0",
    "cj_grpo, two", "cj_grpo, one", "spg, mix", "spg, eubo", "spg, elbo", "spg, zero", "just_grpo",
)  # fmt: skip


@cache
def vectors() -> dict[str, Any]:
    return json.loads(VECTORS.read_text())


def case_of(name: str) -> dict[str, Any]:
    (case,) = (case for case in vectors()["cases"] if case["name"] == name)
    return case


def table_of(name: str) -> Tensor:
    """Log-probabilities by look, completion and position."""
    return torch.tensor(vectors()["logprobs"][name], dtype=torch.float64)


@dataclass
class Ours:
    """What our loss returns for a case."""

    value: float
    gradient: Tensor
    clip_fraction: float
    masked: list[list[str]]


def ours(case: dict[str, Any], **options: Any) -> Ours:
    """Our loss of a case, with its settings and ``options``."""
    method = method_of(case, options)
    rollout = rollout_of(case, method)
    if case["iteration"]:
        past = method.step(rollout, 1, 1, len(rollout.completions))
        nll_N = -picked(case, table_of(case["old"]), past)
        rollout.old = [method.unit_values(rollout, past, nll_N)]
    step = method.step(rollout, 1, case["iteration"], len(rollout.completions))
    table = table_of("policy").requires_grad_()
    reference = (lambda step: -picked(case, table_of("reference"), step)) if method.beta else None
    loss, metrics = method.loss(step, -picked(case, table, step), reference)
    (gradient,) = torch.autograd.grad(loss, table)
    clipped, units = metrics.get("clip_fraction", (0.0, 1.0))
    return Ours(float(loss.detach()), gradient, clipped / units, masks_of(case, step))


def method_of(case: dict[str, Any], options: dict[str, Any]) -> Any:
    kind = registry().get("trainer", case["algorithm"]).load()
    sizes = {"num_generations": vectors()["group"], "num_iterations": 2, "max_completion_length": 6}
    method = kind(kind.settle({**sizes, **case["options"], **options}, SPEC), SPEC, 6)
    method.seed = 0
    return method


def rollout_of(case: dict[str, Any], method: Any) -> Rollout:
    data = vectors()
    rows = zip(data["answers"], data["keys"], data["written"][case["written"]], strict=True)
    completions = []
    for answer, key, set_at in rows:
        ends = EOS in answer and not getattr(method.options, "score_after_eos", True)
        scored = answer.index(EOS) + 1 if ends else len(answer)
        completions.append(Completion(tuple(data["prompt"]), tuple(answer), scored, key, tuple(set_at)))
    total = sum(completion.scored for completion in completions)
    return Rollout(0, completions, [""] * len(completions), data["rewards"], case["advantage"], total, 0)


def looks_of(case: dict[str, Any], step: Step) -> tuple[Tensor, Tensor]:
    """The completion of each look, counted in the rollout, and the table that holds its log-probabilities: the number
    of the look among those at the completion, or 0 without drawn masks, where each token is scored once."""
    units = step.extra.units
    kept = step.extra.completion_U.unique().tolist()
    sample_R = torch.tensor([kept[s] for s in units.sample_R.tolist()])
    number_R = torch.tensor([int((sample_R[:r] == s).sum()) for r, s in enumerate(sample_R.tolist())])
    return sample_R, torch.zeros_like(number_R) if case["masked"] is None else number_R


def picked(case: dict[str, Any], table: Tensor, step: Step) -> Tensor:
    """The entries of a table that a step scores, [N]."""
    looks, prompt = step.extra.units.looks, len(vectors()["prompt"])
    sample_R, number_R = looks_of(case, step)
    column_N = looks.batch.column_T[looks.at_N] - prompt
    return table[number_R[looks.look_N], sample_R[looks.look_N], column_N]


def masks_of(case: dict[str, Any], step: Step) -> list[list[str]]:
    """The hidden tokens of the completion in each look, by look and completion."""
    looks, prompt = step.extra.units.looks, len(vectors()["prompt"])
    sample_R, number_R = looks_of(case, step)
    masks = [["" for _ in vectors()["answers"]] for _ in range(int(number_R.max()) + 1)]
    for row, sample, number in zip(
        looks.seen_T.split(list(looks.batch.lengths)), sample_R.tolist(), number_R.tolist(), strict=True
    ):
        masks[number][sample] = "".join("x" if token == MASK else "." for token in row[prompt:].tolist())
    return masks


def gradient_of(case: dict[str, Any]) -> Tensor:
    """The published gradient, with zeros for the looks that the algorithm does not have."""
    gradient = torch.zeros_like(table_of("policy"))
    gradient[: len(case["gradient"])] = torch.tensor(case["gradient"], dtype=torch.float64)
    return gradient


def equal(result: Ours, case: dict[str, Any], factor: float = 1.0) -> bool:
    """Are value and gradient the published ones times ``factor``, to 1e-5?"""
    wanted = gradient_of(case) * factor
    assert float(wanted.abs().max()) > 1e-3
    same = math.isclose(result.value, case["value"] * factor, rel_tol=1e-5, abs_tol=1e-8)
    return same and torch.allclose(result.gradient, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_every_case_is_compared_and_names_its_source():
    named = {*PUBLISHED_CASES, *DARE_CASES}
    differ = {
        "cj_grpo, uneven", "DARE cj_grpo, uneven", "just_grpo, equal group", "DARE d1, dynamic batches",
        "DARE bgpo, dynamic batches", "DARE bgpo, fallen",
    }  # fmt: skip
    assert {case["name"] for case in vectors()["cases"]} == named | differ
    for case in vectors()["cases"]:
        assert len(case["commit"]) == 40 and case["repository"].count("/") == 1 and case["file"].endswith(".py")


@pytest.mark.parametrize("name", [*PUBLISHED_CASES, *DARE_CASES])
def test_value_and_gradient_are_those_of_the_published_code(name):
    case = case_of(name)
    result = ours(case)
    if case["masked"] is not None:
        assert result.masked == case["masked"], "other random numbers: these vectors were made with other masks"
    assert equal(result, case), (result.value, case["value"])
    if case["iteration"] and case["algorithm"] != "spg":
        assert 0 < result.clip_fraction < 1, "some ratios are inside the clip range, and some outside"


@pytest.mark.parametrize("name", [name for name in DARE_CASES if name != "DARE ebpo"])
def test_the_dare_variant_differs_from_the_papers(name):
    """EBPO has no code but DARE's, so that it has one variant."""
    case = case_of(name)
    result = ours(case, variant="paper")
    assert result.masked != case["masked"] or not equal(result, case)


# Advantages


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mean", "mean"), ("leave_one_out", "leave_one_out"), ("leave_one_out, DARE", "leave_one_out"),
     ("standardized", "standardized")],
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


# Settings


@pytest.mark.parametrize("number", range(len(vectors()["recipes"])))
def test_defaults_are_those_of_the_published_recipes(number):
    recipe = vectors()["recipes"][number]
    kind = registry().get("trainer", recipe["algorithm"]).load()
    options = kind.settle({"variant": recipe["variant"]}, SPEC)
    assert {name: getattr(options, name) for name in recipe["options"]} == recipe["options"], recipe["file"]
    spec = train_spec(method=recipe["algorithm"], model="m", task="dare_sort", output_path="out", peft="lora")
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
    even_S = gradient_of({**case_of(name.replace("uneven", "two"))})[0].abs().sum(1)
    assert not torch.allclose(weight_S, even_S, rtol=1e-2)


def test_completions_without_an_advantage_count_in_the_mean():
    """JustGRPO divides by the number of completions that have an advantage; we divide by all completions, so that a
    group with equal rewards does not enlarge the step of the others. Its ratio is always 1."""
    case = case_of("just_grpo, equal group")
    valid = sum(advantage != 0 for advantage in case["advantage"])
    assert valid == 3
    assert not equal(ours(case), case)
    assert equal(ours(case), case, factor=valid / len(case["advantage"]))


# Defects of the published code


@pytest.mark.parametrize("name", ["DARE d1", "DARE bgpo"])
def test_the_weight_of_a_micro_batch_is_its_share_of_completions(name):
    """With use_dynamic_bsz, as in its recipes, DARE multiplies the loss of a micro-batch by the number of fields of its
    batch (10) instead of the number of completions (6), divided by the completions of the step."""
    case = case_of(f"{name}, dynamic batches")
    assert case["settings"]["use_dynamic_bsz"] and case["settings"]["ppo_mini_batch_size"] == 6
    assert not equal(ours(case), case)
    assert equal(ours(case), case, factor=6 / 10)


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
    ours_N = [method.units(completions, 0, rollout).coefficient_N.unique() for rollout in range(3)]
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
