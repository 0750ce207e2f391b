"""What a training records of its rollouts and costs: the ledger of sampler and learner, ``written_nll`` of what was
written, and counts in the lineage."""

from __future__ import annotations

import importlib
import json
import shutil
import sys

import pytest
import torch
from completions import completion, first_rollout, update, values
from paths import ROOT
from require import need_package
from table_policy import SPEC, Table, V

from dare_bench.diffusion.forward import inputs
from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.runs import lineage
from dare_bench.seeds import key
from dare_bench.trainers.loop import Loop
from dare_bench.trainers.objective import averages
from dare_bench.trainers.phases import Phases
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.trainers.rl.cj_grpo import CJGRPO
from dare_bench.trainers.rl.completions import Completion, recorded
from dare_bench.trainers.rl.coupled_grpo import CoupledGRPO
from dare_bench.trainers.rl.d1 import D1
from dare_bench.trainers.rl.espo import ESPO
from dare_bench.trainers.rl.estimators import trajectory
from dare_bench.trainers.rl.rollout_metrics import written_nll
from dare_bench.trainers.rl.surrogate import gap_metrics, importance, sampler_logprobs
from dare_bench.training.run import train
from dare_bench.types import Event, Generation, Request


@pytest.fixture(scope="module")
def card():
    """scripts/ledger_card.py, imported beside its neighbors."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield importlib.import_module("ledger_card")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


# Sampler against learner, on real rollouts


@pytest.mark.parametrize(
    ("model", "fields", "temperature"),
    [
        ("tiny-llada-base", {"block_length": 5, "threshold": 0.9}, 0.7),
        ("tiny-dream-base", {"alg": "confidence_threshold"}, 1.0),
        ("tiny-sdar-base", {"cache": "exact"}, 0.7),
        ("tiny-llada2-base", {"cache": "exact"}, 1.0),
    ],
)
def test_an_exact_sampler_and_the_learner_agree(card, model, fields, temperature):
    result = card.measured(card.Case(model, fields, temperature), 1)
    assert len(result.gap_A) >= 20
    assert float(result.gap_A.max()) < 1e-4


def test_the_prefix_cache_has_a_gap(card):
    case = card.Case("tiny-llada-base", {"block_length": 5, "cache": "prefix"})
    result = card.measured(case, 1)
    assert bool(torch.isfinite(result.gap_A).all())
    assert 1e-3 < float(result.gap_A.max()) < 10
    assert card.cells(case, result)[-1] == "approximate"


def test_a_cut_distribution_is_shown_as_a_difference_by_design(card):
    case = card.Case("tiny-sdar-base", {"cache": "exact", "top_k": 2}, cut=True)
    result = card.measured(case, 1)
    assert float(result.gap_A.max()) > 1e-3
    assert card.cells(case, result)[-1] == "by design"


def test_the_page_has_a_row_for_every_case(card):
    from gradient_card import between

    rows = between(card.PAGE.read_text(encoding="utf-8"), card.LEDGER).splitlines()[2:]
    assert len(rows) == len(card.CASES)
    for row, case in zip(rows, card.CASES, strict=True):
        family, others, cache, temperature, *_, verdict = [cell.strip() for cell in row.strip("|").split("|")]
        assert case.model == f"tiny-{family}-base" and cache == case.fields.get("cache", "none")
        assert float(temperature) == case.temperature
        assert all(f"{k}={v}" in others for k, v in case.fields.items() if k != "cache")
        assert verdict == ("by design" if case.cut else "approximate" if cache in ("prefix", "dual") else "exact")


# The record


def method(kind=CJGRPO, **options):
    given = {"num_generations": 2, "num_iterations": 1, "beta": 0.0, "max_completion_length": 4, **options}
    return kind(kind.settle(given, SPEC), SPEC, 4)


def answer(logprobs):
    events = [Event(n, "set", n, n, 0.5, value) for n, value in enumerate(logprobs)]
    return Generation([0, 1, 2], "", 3, "length", trajectory=events)


def test_logprobs_of_events_stand_at_their_positions():
    record = method().completion((1,), answer([-0.1, -0.2, -0.3]), 0, "")
    assert record.logprobs == (-0.1, -0.2, -0.3)
    actions = trajectory([completion((4, 4)), record], 6)
    both = [completion((4, 4)), record]
    assert sampler_logprobs(actions, both, actions.sample_A) is None  # of one, they were not recorded
    actions = trajectory([record], 6)
    assert sampler_logprobs(actions, [record], actions.sample_A).tolist() == [-0.1, -0.2, -0.3]
    assert method().completion((1,), answer([-0.1, None, -0.3]), 0, "").logprobs == ()


def test_the_mean_and_the_largest_gap():
    first = gap_metrics(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]))
    second = gap_metrics(torch.tensor([-1.0]), torch.tensor([-2.0]))
    assert averages([first, second]) == pytest.approx({"sampler_gap": 0.5, "sampler_gap_max": 1.0})
    assert gap_metrics(torch.zeros(0), torch.zeros(0)) == {}


def test_the_gap_is_observed_in_the_first_step_on_a_rollout_alone():
    table, algorithm = Table(), method(num_iterations=2)
    record = Completion((0, 3), (2, 4), 2, 0, (0, 1), "", (-0.5, -0.7))
    rollout = first_rollout([record], [1.0], 2, old=[[[-0.5, -0.7]]])
    step = algorithm.step(rollout, update(0, 0, 1))
    nll_N = table.losses(algorithm.inputs(step.copies)).detach()
    metrics = algorithm.observe(step, nll_N)
    expected = (-nll_N - torch.tensor([-0.5, -0.7])).abs()
    assert metrics["sampler_gap"] == (pytest.approx(float(expected.sum())), 2.0)
    assert metrics["sampler_gap_max"] == (pytest.approx(float(expected.max())), 1.0)
    assert algorithm.observe(algorithm.step(rollout, update(1, 1, 1)), nll_N) == {}
    other = method(D1, p_mask_prompt=0.0)
    assert other.observe(other.step(rollout, update(0, 0, 1)), nll_N) == {}


def test_draws_are_scored_at_the_temperature_of_the_rollout():
    actions = trajectory([completion((1, 2))], 6)
    assert method(temperature=0.7).inputs(actions.copies).temperature == 0.7
    assert method(D1, temperature=0.7).inputs(actions.copies).temperature == 1.0


# Importance weights


def gradients(cap):
    """For a policy and another one that samples a single token: the expectation over the sampler of the gradient of
    the method's loss, the exact gradient of the expected reward (negative), and the expectation by hand."""
    policy, sampler = Table(0), Table(1)
    algorithm = method(importance_cap=cap)
    reward_V = torch.tensor([1.0, 0.0, 0.5, 0.2, 0.0, 0.9, 0.3], dtype=torch.float64)
    log_mu_V = sampler(torch.tensor([0, 3, 6]))[2].log_softmax(-1).detach()
    log_pi_V = policy(torch.tensor([0, 3, 6]))[2].log_softmax(-1)
    assert values(trajectory([completion((4,))], 6), policy.losses).item() == pytest.approx(log_pi_V[4].item())
    baseline = float(reward_V.mean())
    expected = 0
    for token in range(V):
        record = Completion((0, 3), (token,), 1, 0, (0,), "", (float(log_mu_V[token]),))
        rollout = first_rollout([record], [float(reward_V[token]) - baseline], 1)
        step = algorithm.step(rollout, update(0, 0, 1))
        loss, _ = algorithm.loss(step, policy.losses(algorithm.inputs(step.copies)), None)
        expected = expected + log_mu_V[token].exp() * loss
    ratio_V = (log_pi_V.detach() - log_mu_V).exp().clamp(max=cap or torch.inf) if cap else torch.ones(V)
    by_hand = -(log_mu_V.exp() * ratio_V * (reward_V - baseline) * log_pi_V).sum()
    exact = -(log_pi_V.exp() * reward_V).sum()
    flat = [
        torch.cat([g.flatten() for g in torch.autograd.grad(value, list(policy.parameters()), retain_graph=True)])
        for value in (expected, exact, by_hand)
    ]
    largest = float((log_pi_V.detach() - log_mu_V).exp().max())
    return (*flat, largest)


def test_importance_weights_make_the_expected_gradient_exact():
    expected, exact, by_hand, largest = gradients(1e6)
    assert largest > 1.5
    torch.testing.assert_close(expected, by_hand, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(expected, exact, rtol=1e-9, atol=1e-12)


def test_a_cap_truncates_and_no_weights_leave_the_bias():
    for cap in (1.2, None):
        expected, exact, by_hand, _ = gradients(cap)
        torch.testing.assert_close(expected, by_hand, rtol=1e-9, atol=1e-12)
        assert float((expected - exact).norm()) > 0.01 * float(exact.norm())


def test_weights_are_capped_and_counted():
    weight_A, capped = importance(torch.tensor([-1.0, -1.0, 500.0]), torch.tensor([-1.0, -3.0, 0.0]), 2.0)
    assert weight_A.tolist() == [1.0, 2.0, 2.0] and capped == (2.0, 3.0)


@pytest.mark.parametrize("kind", [D1, CoupledGRPO, ESPO])
def test_methods_that_do_not_score_draws_refuse_importance_weights(kind):
    with pytest.raises(UsageError, match=r"importance_cap=2: .* omit it, or use cj_grpo"):
        method(kind, importance_cap=2.0)


need_package("accelerate")


def counts(folder):
    return lineage.counts(json.loads((folder / "lineage.json").read_text()))


@pytest.fixture
def sampled(monkeypatch):
    """The samples of all rollouts, and the numbers of copies of all updates."""
    samples, copies = [], []
    generate, update = PolicyInTraining.generate, Loop.training_step
    monkeypatch.setattr(PolicyInTraining, "generate", lambda *a: samples.extend(made := generate(*a)) or made)
    monkeypatch.setattr(
        Loop,
        "training_step",
        lambda self, model, step, n=None: copies.append(len(step.copies)) or update(self, model, step),
    )
    return samples, copies


def trained(folder, **options):
    return train(
        method="cj_grpo", model="tiny-llada-base", task="dare_arithmetic", rows=64, output_path=str(folder),
        per_device_train_batch_size=8, max_steps=3, save_steps=1, logging_steps=2, report_to=(), learning_rate=3e-4,
        options={"num_generations": 4, "num_iterations": 2, "beta": 0.04, **options},
    )  # fmt: skip


def test_counts_are_those_of_the_sampler_and_survive_a_resume(sampled, tmp_path):
    """The third step begins the second rollout; the log is written, and its counters reset, after the second."""
    samples, copies = sampled
    trained(tmp_path / "whole")
    assert len(samples) == 16 and len(copies) == 3
    steps = [counts(tmp_path / "whole" / name)["forwards"] for name in ("checkpoint-1", "checkpoint-2", "")]
    nfe = [sum(s.answer.nfe for s in part) for part in (samples[:8], samples)]
    assert [step["rollout"] for step in steps] == [nfe[0], nfe[0], nfe[1]]
    assert [step["update"] for step in steps] == [copies[0], sum(copies[:2]), sum(copies)]
    # Without gradients: old values of the second iteration of both rollouts, and the reference in each step.
    assert [step["score"] for step in steps] == [2 * copies[0], 2 * copies[0] + copies[1], 2 * sum(copies) - copies[1]]
    tokens = counts(tmp_path / "whole")["tokens"]
    assert all(tokens[phase] > count for phase, count in steps[-1].items()) and tokens.keys() == steps[-1].keys()

    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "whole" / "checkpoint-1", resumed / "checkpoint-1")
    record = json.loads((tmp_path / "whole" / "train.json").read_text())
    (resumed / "train.json").write_text(json.dumps({**record, "status": "running"}))
    trained(resumed)
    assert len(samples) == 24, "the rollout in use is in the checkpoint"
    assert counts(resumed) == counts(tmp_path / "whole")


def test_a_checkpoint_without_counts_leaves_them_unknown():
    assert lineage.counts({"step": 4}) is None
    assert lineage.counts({"forwards": {"rollout": -1}, "tokens": {}}) is None
    phases = Phases(None)
    with phases.measure("update") as cost:
        cost.forwards += 3
    assert phases.totals(lambda value: [value]) is None


def test_processes_are_added_and_what_came_before_counts_once():
    phases = Phases({"forwards": {"rollout": 5, "update": 7}, "tokens": {"rollout": 50, "update": 70}})
    for _ in range(2):
        with phases.measure("update") as cost:
            cost.forwards, cost.tokens = cost.forwards + 3, cost.tokens + 30
        phases.steps += 1
        phases.take(2)
    assert phases.totals(lambda value: [value, value]) == {
        "forwards": {"rollout": 5, "update": 19},
        "tokens": {"rollout": 50, "update": 190},
    }


CANVAS, COUNT = 8, 96


@pytest.mark.parametrize(("strategy", "unbiased"), [("sequential", True), (None, False)], ids=["sequential", "default"])
def test_it_is_the_entropy_only_where_the_order_does_not_follow_the_draws(strategy, unbiased):
    """The exact entropy at the same positions: the mean of -log p is within its standard error of it left to right, and
    far below it in the order of confidence."""
    loaded = load("tiny-llada-sort-base", device="cpu").loaded
    decoding = {"gen_length": CANVAS, "temperature": 1.5, "trajectory": True, "early_stop": False}
    decoding |= {"strategy": strategy} if strategy else {"steps": CANVAS, "block_length": CANVAS}
    prompts = [loaded.encode(f"sort {key('digits', i) % 10**6:06d}=") for i in range(COUNT)]
    requests = [Request(str(i), "generate", ids, decoding=decoding, seed=i) for i, ids in enumerate(prompts)]
    samples = {sample.request.key: sample for sample in loaded.generate(requests)}
    completions, answers = [], []
    for request in requests:
        answer = samples[request.key].answer
        assert isinstance(answer, Generation)
        answers.append(answer)
        completions.append(recorded(request.prompt, answer, loaded.spec.mask, 0, ""))
    actions = trajectory(completions, loaded.spec.mask)
    given = inputs(actions.copies, loaded.spec)
    with torch.no_grad():
        output = loaded.network(
            input_ids=given.tokens_U, positions=given.positions_U, plan=given.plan, logits_at=given.at_N
        )
    law_NV = (output.logits.double() / 1.5).log_softmax(-1)
    drawn_N = -law_NV.gather(1, given.targets_N[:, None])[:, 0]
    entropy_N = torch.special.entr(law_NV.exp()).sum(-1)
    total, count = written_nll(completions, answers)
    assert count == len(drawn_N) == COUNT * CANVAS
    assert total == pytest.approx(float(drawn_N.sum()), rel=1e-4)
    gap_N = drawn_N - entropy_N
    error = float(gap_N.std()) / count**0.5
    if unbiased:
        assert abs(float(gap_N.mean())) < 4 * error
    else:
        assert float(gap_N.mean()) < -8 * error and total / count < 0.8 * float(entropy_N.mean())
