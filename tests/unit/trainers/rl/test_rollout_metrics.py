"""``written_nll`` against the distributions that the sampler drew from, computed again by the network."""

from __future__ import annotations

import pytest
import torch

from dare_bench.diffusion.forward import inputs
from dare_bench.loading import load
from dare_bench.seeds import key
from dare_bench.trainers.rl.completions import recorded
from dare_bench.trainers.rl.estimators import trajectory
from dare_bench.trainers.rl.rollout_metrics import written_nll
from dare_bench.types import Generation, Request

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
