"""MDPO: what it scores, its gradient, and that nothing but the rewards of predictions decides about it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from itertools import product
from threading import Barrier
from typing import get_args

import pytest
import torch
from completions import ScriptedPolicy, first_rollout, prompts, update, values
from table_policy import (
    EOS,
    MASK,
    SHIFTED,
    SPEC,
    Table,
    V,
    check_divisions,
    divided,
    gradient_of,
    loss_of,
    moved,
)

from dare_bench.errors import TrainingError, UsageError
from dare_bench.trainers.rl.completions import Completion, Prediction
from dare_bench.trainers.rl.estimators import predicted
from dare_bench.trainers.rl.mdpo import MDPO, step_advantages, step_scores
from dare_bench.trainers.rl.options import Aggregation
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.rollout_file import write_rollout
from dare_bench.trainers.steps import StepShape
from dare_bench.types import Event, Generation, ModelSpec, Reward, Sample

LENGTH = 4
BLOCKS = ModelSpec("toy", MASK, (EOS,), None, None, V, 64, attention="block-causal", block_length=4)


def answered(seed):
    """An answer in five forwards, whose second one masks the token of the first one again."""
    rng, canvas, events, predictions = random.Random(seed), [MASK] * LENGTH, [], []
    order = rng.sample(range(LENGTH), LENGTH)
    for step, places in enumerate((order[:1], order[1:2], order[2:3], order[:1], order[3:])):
        proposed = [rng.randrange(MASK) if token == MASK else token for token in canvas]
        predictions.append(list(proposed))
        for place in places:
            canvas[place] = proposed[place]
            events.append(Event(step, "set", place, canvas[place], 0.5, -0.7))
        if step == 1:
            canvas[order[0]] = MASK
            events.append(Event(step, "remask", order[0], MASK, 0.5, 0.0))
    texts = [" ".join(map(str, p)) for p in predictions]
    return Generation(canvas, texts[-1], 5, "length", tokens_to_eos=LENGTH, trajectory=events,
                      predictions=predictions, prediction_texts=texts)  # fmt: skip


def reward_of(text):
    return random.Random(text).choice([0.0, 0.5, 1.0])


class Predicting(ScriptedPolicy):
    """Answers with predictions; the reward is a function of the text."""

    def __init__(self, table, method, reward=reward_of):
        super().__init__(table, method, ())
        self.reward, self.asked = reward, 0

    def generate(self, requests):
        self.asked += 1
        assert all(request.decoding["predictions"] and request.decoding["trajectory"] for request in requests)
        return [Sample(request, answered(request.seed)) for request in requests]

    def rewards(self, prompts, texts):
        return [Reward(value := self.reward(text), float(value == 1.0)) for text in texts]


def method(spec=SPEC, **options):
    given = {"num_generations": 3, "num_iterations": 3, "beta": 0.0, "temperature": 1.0, "sample_train_steps": 3,
             "max_completion_length": LENGTH, **options}  # fmt: skip
    return MDPO(MDPO.settle(given, spec), spec, LENGTH)


def rollouts(algorithm, table, reward=reward_of) -> Rollouts:
    source = algorithm.source(prompts(2), StepShape(6), 0)
    source.attach(Predicting(table, algorithm, reward))
    return source


# What is scored


def canvas_before(answer, step):
    canvas = [MASK] * LENGTH
    for event in answer.trajectory:
        if event.step < step:
            canvas[event.position] = event.token
    return canvas


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_copies_are_the_canvases_before_the_chosen_forwards_with_what_they_predicted(count):
    """Against the record of the sampler, forward by forward; the masks are all scored, written or not."""
    algorithm = method(sample_train_steps=count)
    source = rollouts(algorithm, Table())
    step = source.step(0)
    answers = [answered(request.seed) for _, request in source.requests(0)]
    score_BT = step_scores(torch.tensor([[reward_of(text) for text in a.prediction_texts] for a in answers]))
    advantage_BT = step_advantages(score_BT, 3)
    size_PT = advantage_BT.abs().view(2, 3, 5).sum(1)
    wanted = []
    for number, answer in enumerate(answers):
        largest = sorted(range(5), key=lambda t, p=number // 3: (-float(size_PT[p, t]), t))[:count]
        for t in sorted(largest):
            canvas = canvas_before(answer, t)
            masked = [i for i in range(LENGTH) if canvas[i] == MASK]
            targets = [answer.predictions[t][i] for i in masked]
            worth = float(advantage_BT[number, t]) * LENGTH / len(masked)
            wanted.append((number, canvas, masked, targets, worth, 1 / (6 * min(count, 5) * len(masked))))
    actions, copies, surrogate = step.surrogate.actions, step.copies, step.surrogate
    rows = copies.seen_T.split(list(copies.batch.lengths))
    assert len(rows) == len(wanted) == 6 * min(count, 5)
    for r, (number, canvas, masked, targets, worth, weight) in enumerate(wanted):
        prompt = len(rows[r]) - LENGTH
        of_copy = copies.copy_N == r
        assert int(actions.sample_R[r]) == number and rows[r][prompt:].tolist() == canvas
        assert (copies.batch.column_T[copies.at_N[of_copy]] - prompt).tolist() == masked
        assert copies.target_N[of_copy].tolist() == targets
        assert surrogate.advantage_A[of_copy].tolist() == pytest.approx([worth] * len(masked))
        assert surrogate.weight_A[of_copy].tolist() == pytest.approx([weight] * len(masked))


def test_the_weights_of_a_forward_sum_to_length_over_masks():
    """Without confidences and at ratio 1: the sum over the masks of a forward of lambda / masks is L / masks."""
    completion = Completion((0, 3), (1, 2, 3, 4), 4, 0, (0, 1, 2, 3), predictions=(
        Prediction((1, 2, 3, 4), (0, 1, 2, 3), 4, 1.0), Prediction((1, 2, 0, 4), (2, 3), 4, 1.0),
        Prediction((1, 2, 3, 4), (1,), 4, 1.0)))  # fmt: skip
    rollout = first_rollout([completion], [1.0], 7)
    surrogate = method().step(rollout, update(0, 0, 1)).surrogate
    products_A = surrogate.weight_A * surrogate.advantage_A * 3  # the mean over three forwards
    sums = [float(products_A[surrogate.actions.transition_A == t].sum()) for t in range(3)]
    assert sums == pytest.approx([1.0, 2.0, 4.0])
    assert float(surrogate.weight_A.sum()) == pytest.approx(1.0)


def test_tokens_behind_the_eos_of_a_prediction_may_be_left_out():
    forward = Prediction((1, EOS, 3, 4), (0, 2), 2, 1.0)
    completion = Completion((0,), (1, 2, 3, 4), 4, 0, (0,) * 4, predictions=(forward,))
    assert completion.scored_tokens == 1
    actions = predicted([completion], MASK)
    assert actions.copies.target_N.tolist() == [1] and actions.copies.seen_T.tolist() == [0, MASK, EOS, MASK, 4]
    assert method(score_after_eos=False).scored([1, EOS, 3]) == 2 and method().scored([1, EOS, 3]) == 3


# The gradient of the first step


@pytest.mark.parametrize("spec", [SPEC, SHIFTED])
@pytest.mark.parametrize("kind", ["standardized", "mean"])
def test_at_ratio_one_the_gradient_is_reinforce_on_the_estimate(kind, spec):
    """- mean over completions and forwards of A L / masks times the gradient of the mean of log p at the masks."""
    table, algorithm = Table(), method(spec, advantage=kind)
    source = rollouts(algorithm, table)
    loss, result, metrics = divided(algorithm, table, source.step(0), 1)
    wanted, total = torch.zeros_like(result), 0.0
    for record in source.rollout.completions:
        for forward in record.predictions:
            actions = predicted([replace(record, predictions=(forward,))], MASK)
            worth = forward.advantage * LENGTH / len(forward.masked) / (6 * len(record.predictions))
            wanted -= worth * gradient_of(table, values(actions, table.losses, spec).mean())
            total += worth
    torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-12)
    assert float(wanted.norm()) > 1e-3 and loss == pytest.approx(-total) and metrics["clip_fraction"][0] == 0


def test_with_one_forward_the_expected_gradient_is_that_of_the_reward():
    """All answers of two tokens enumerated: the score is 2 r + 1, and the loss a mean over two tokens."""
    table, algorithm = Table(), method(max_completion_length=2)
    prompt = (0, 3)
    answers = list(product(range(V - 1), repeat=2))

    def log_LV():
        return table(torch.tensor([*prompt, MASK, MASK]))[2:].log_softmax(-1)

    keep_LV = log_LV()[:, : V - 1].log_softmax(-1)
    rewards = torch.tensor([reward_of(str(answer)) for answer in answers], dtype=torch.float64)
    chance_A = torch.stack([keep_LV[0, a] + keep_LV[1, b] for a, b in answers]).exp()
    exact, chance_A = gradient_of(table, chance_A @ rewards), chance_A.detach()
    score_A = step_scores(rewards[:, None])[:, 0]
    centered_A = score_A - chance_A @ score_A
    records = [
        Completion(prompt, answer, 2, i, (0, 0), predictions=(Prediction(answer, (0, 1), 2, float(p * a)),))
        for i, (answer, p, a) in enumerate(zip(answers, chance_A, centered_A, strict=True))
    ]
    rollout = first_rollout(records, [0.0] * len(records), 0)
    step = algorithm.step(rollout, update(0, 0, len(records)))
    actions, surrogate = step.surrogate.actions, step.surrogate
    # The policy draws no masks: its log-probability is normalized over the other tokens.
    none_L = log_LV()[:, : V - 1].logsumexp(-1)
    values_A = values(actions, table.losses) - none_L[torch.arange(2).repeat(len(records))]
    loss = -(values_A * surrogate.weight_A * surrogate.advantage_A).sum() * len(records)
    torch.testing.assert_close(-gradient_of(table, loss), exact, rtol=1e-8, atol=1e-10)  # 2 (score) x 1/2 (mean)
    assert float(exact.norm()) > 1e-3


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_equal_rewards_have_no_gradient(beta):
    table, algorithm = Table(), method(beta=beta)
    step = rollouts(algorithm, table, lambda text: 0.3).step(0)
    start = table.losses(algorithm.inputs(step.copies)).detach()
    loss, result, _ = divided(algorithm, table, step, 2, (lambda step: start) if beta else None)
    assert abs(loss) < 1e-25 and float(result.abs().max()) < 1e-12
    assert len(step.items) == (6 if beta else 1), "without a penalty, one completion stands for all"


def test_equal_final_rewards_still_teach_by_what_was_predicted_before():
    """The last forward of all answers is right, and earlier ones are not."""
    finals = {answered(request.seed).text for _, request in rollouts(method(), Table()).requests(0)}
    source = rollouts(algorithm := method(), table := Table(), lambda t: 1.0 if t in finals else reward_of(t))
    _, result, _ = divided(algorithm, table, source.step(0), 1)
    assert source.rollout.rewards == [1.0] * 6 and source.rollout.advantage == [0.0] * 6
    assert float(result.norm()) > 1e-3 and source.rollout.metrics["informative_groups"] == (6.0, 6.0)


def test_over_denoising_counts_answers_that_were_right_before():
    source = rollouts(method(), Table())
    source.step(0)
    texts = [answered(request.seed).prediction_texts for _, request in source.requests(0)]
    lost = sum(reward_of(of[-1]) < 1 and any(reward_of(text) == 1 for text in of) for of in texts)
    assert lost > 0 and source.rollout.metrics["over_denoising"] == (lost, 6.0)


# Later steps, weights, penalty


def test_old_values_are_those_of_the_sampling_policy():
    table, algorithm = Table(), method()
    source = rollouts(algorithm, table)
    source.step(0)
    policy = moved(table, 0.5)
    for iteration in (1, 2):
        step = source.step(iteration)
        before, now = (values(step.surrogate.actions, model.losses).detach() for model in (table, policy))
        torch.testing.assert_close(step.surrogate.old_A, before, rtol=1e-5, atol=1e-5)
        ratio_A, a_A = (now - before).exp(), step.surrogate.advantage_A
        by_hand = -torch.minimum(a_A * ratio_A, a_A * ratio_A.clamp(0.8, 1.2)) @ step.surrogate.weight_A
        loss, metrics = loss_of(algorithm, step, policy.losses)
        assert float(loss.detach()) == pytest.approx(float(by_hand), rel=1e-4, abs=1e-5)
        assert metrics["clip_fraction"][0] > 0


@pytest.mark.parametrize("iteration", [0, 1])
def test_confidences_multiply_the_loss_of_each_token(iteration):
    """By its probability under the policy that sampled, also after the policy has moved."""
    table, algorithm = Table(), method(confidence_weights=True)
    source = rollouts(algorithm, table)
    source.step(0)
    step, policy = source.step(iteration), moved(table) if iteration else table
    assert algorithm.needs_values(step) and (iteration or not method().needs_values(step))
    before, now = (values(step.surrogate.actions, model.losses).detach() for model in (table, policy))
    ratio_A, a_A = (now - before).exp(), step.surrogate.advantage_A
    by_hand = -torch.minimum(a_A * ratio_A, a_A * ratio_A.clamp(0.8, 1.2)) @ (step.surrogate.weight_A * before.exp())
    loss, _ = loss_of(algorithm, step, policy.losses)
    assert float(loss.detach()) == pytest.approx(float(by_hand), rel=1e-4, abs=1e-6)
    plain, _ = loss_of(method(), step, policy.losses)
    assert float(plain.detach()) != pytest.approx(float(loss.detach()), rel=1e-2)


def test_the_penalty_is_k2_and_does_not_depend_on_the_number_of_masks():
    table, start, algorithm = Table(), moved(Table()), method(beta=0.5)
    step = rollouts(algorithm, table, lambda text: 0.3).step(0)
    reference = start.losses(algorithm.inputs(step.copies)).detach()
    loss, _, metrics = divided(algorithm, table, step, 1, lambda step: reference)
    actions = step.surrogate.actions
    lr_A = (values(actions, table.losses) - values(actions, start.losses)).detach()
    means = [
        (lr_A[(actions.transition_A == r)] ** 2 / 2).mean() for r in range(len(step.copies))
    ]  # of a forward; then forwards and completions
    wanted = float(torch.stack(means).mean())
    assert loss == pytest.approx(0.5 * wanted, rel=1e-6) and wanted > 1e-6
    assert metrics["kl"][0] / metrics["kl"][1] == pytest.approx(wanted, rel=1e-6)


def test_the_learner_divides_logits_by_the_temperature():
    algorithm = method(temperature=0.4)
    step = rollouts(algorithm, Table()).step(0)
    assert algorithm.inputs(step.copies).temperature == 0.4


# Division


@pytest.mark.parametrize("options", [{}, {"beta": 0.1}, {"confidence_weights": True}])
@pytest.mark.parametrize("iteration", [0, 1])
def test_the_division_into_forwards_does_not_change_the_gradient(iteration, options):
    table, start = Table(), Table(2)
    algorithm = method(**options)
    source = rollouts(algorithm, table)
    source.step(0)
    step, policy = source.step(iteration), moved(table) if iteration else table
    fixed = start.losses(algorithm.inputs(step.copies)).detach()
    reference = (lambda step: fixed) if options.get("beta") else None
    check_divisions(algorithm, policy, step, reference)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_the_division_among_processes_does_not_change_the_gradient(aggregation):
    table, algorithm = Table(), method(aggregation=aggregation)
    source = rollouts(algorithm, table)
    step = source.step(0)
    whole, rollout = divided(algorithm, table, step, 1)[1], source.rollout
    total = torch.zeros_like(whole)
    for part in (slice(0, 2), slice(2, 6)):
        mine = deepcopy(rollout)
        mine.completions, mine.advantage = rollout.completions[part], rollout.advantage[part]
        total += divided(algorithm, table, algorithm.step(mine, update(0, 0, 6)), 1)[1]
    torch.testing.assert_close(total, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["sequence", "token", "transition"])
def test_the_weights_of_a_mean_sum_to_one(aggregation):
    step = rollouts(method(aggregation=aggregation, beta=0.1), Table()).step(0)
    assert float(step.surrogate.weight_A.sum()) == pytest.approx(1.0)


def test_a_group_may_span_processes():
    """Each of two processes knows its three answers; what it chooses is what one process chooses for all."""
    table, algorithm = Table(), method(num_generations=6)
    alone = algorithm.source(prompts(1), StepShape(6), 0)
    alone.attach(Predicting(table, algorithm))
    alone.step(0)
    parts = [algorithm.source(prompts(1), StepShape(3, processes=2), 0, process) for process in (0, 1)]
    barrier, given = Barrier(2), {}

    def run(process):
        def gather(value):
            given[process] = value
            barrier.wait(timeout=60)
            both = [given[0], given[1]]
            barrier.wait(timeout=60)
            return both

        policy = Predicting(table, algorithm)
        policy.gather = gather
        parts[process].attach(policy)
        parts[process].step(0)
        return parts[process].rollout

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, (0, 1))
    assert [*first.completions, *second.completions] == alone.rollout.completions
    assert first.scored_total == second.scored_total == alone.rollout.scored_total


# Checkpoints


def test_a_saved_rollout_is_read_again(tmp_path):
    table, algorithm = Table(), method()
    source = rollouts(algorithm, table)
    source.step(0)
    source.save(tmp_path)
    other = rollouts(algorithm, moved(table))
    other.load(tmp_path)
    assert other.rollout == replace(source.rollout, metrics={})
    assert all(len(c.predictions) == 3 for c in other.rollout.completions)
    one, two = source.step(1), other.step(1)
    assert other.policy.asked == 0 and torch.equal(one.copies.seen_T, two.copies.seen_T)
    assert torch.equal(one.surrogate.advantage_A, two.surrogate.advantage_A)
    assert torch.equal(one.surrogate.old_A, two.surrogate.old_A)


# Refusals


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        (BLOCKS, {}, r"mdpo needs fully masked completions, from which toy never decodes .*; use cj_grpo"),
        (SPEC, {"importance_cap": 2.0}, r"importance_cap=2: mdpo also scores tokens that were predicted and not writt"),
        (SPEC, {"sample_train_steps": 0}, r"sample_train_steps=0"),
    ],
)
def test_what_is_not_defined_is_refused(spec, options, said):
    with pytest.raises(UsageError, match=said) as caught:
        method(spec, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["[]", "[0, 2]", "[-1]", '{"a": 1}', "[1", None])
def test_damaged_prompts_of_a_checkpoint_are_named(tmp_path, damage):
    """Of two prompts, of which 0 and 1 are the numbers."""
    source = method(prompt_filter="over_denoising").source(prompts(2), StepShape(6), 0)
    (tmp_path / "prompts.json").write_text("[1]")
    source.load(tmp_path)
    assert source.drawn(0) == [(0, 1), (1, 1)], "a prompt is drawn again in the next epoch"
    (tmp_path / "prompts.json").unlink()
    if damage is not None:
        (tmp_path / "prompts.json").write_text(damage)
    with pytest.raises(TrainingError, match=r"prompts\.json"):
        source.load(tmp_path)


def test_the_largest_rollout_that_is_written_is_read(tmp_path):
    length, count = 128, 200
    options = {"num_generations": 2, "num_iterations": 3, "sample_train_steps": count, "max_completion_length": length}
    spec = replace(SPEC, vocab_size=200_000, context_limit=length + 1)
    source = MDPO(MDPO.Options(**options), spec, None).source(prompts(1), StepShape(2), 0)
    ids = (spec.vocab_size - 1,) * length
    forward = Prediction(ids, tuple(range(length)), length, -1e-5 / 3)
    whole = Completion((0,), ids, length, 0, (0,) * length, "row", (), (forward,) * count)
    old = [[[-1e-5 / 3] * (length * count)] * 2] * 2
    rollout = first_rollout([whole] * 2, [0.0] * 2, 2 * length * count, old=old)
    write_rollout([rollout.saved()], tmp_path)
    assert source.read(tmp_path) == rollout
