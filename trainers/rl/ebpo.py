"""EBPO (LLaDA2.1 report, arXiv 2602.08676): one ratio a sequence, from ELBO estimates of all its blocks.

    log ratio = mean over draws of the sum over blocks of (ELBO of the block - old ELBO),    not divided by the length

All blocks of a draw are seen in one forward, each with different masks; the levels of (draw, block) cells lie on one
grid. Models without blocks (LLaDA, Dream) take the whole completion as one. The report has no code and no settings:
these are DARE's. Its clip in the logarithm equals the clip of the ratio. Source: equations 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dare_bench.trainers.rl.algorithm_options import EBPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, elbo
from dare_bench.trainers.rl.options import DARE_ROLLOUT, DARE_TRAINING
from dare_bench.trainers.rl.policy_gradient import PolicyGradient, counts_of


class EBPO(PolicyGradient):
    """EBPO."""

    name = "ebpo"
    estimator = "ELBO, all blocks in one forward"
    action = "sequence"
    kl = "k2"
    reads_tokens_only = True
    paper, code = "arXiv 2602.08676", "yjyddq/DARE"
    Options = EBPOOptions
    options: EBPOOptions
    families = "any"
    learning_rate = lora_learning_rate = 5e-7
    training_defaults: ClassVar = DARE_TRAINING
    rollouts: ClassVar = {"paper": DARE_ROLLOUT}

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        schedule = counts_of(self.spec, self.options.num_mc)
        return elbo(completions, self.spec.mask, iteration, schedule, normalized=False)
