"""As many positions in every forward as the linear schedule of dLLM says."""

from __future__ import annotations

import torch

from dare_bench.model_adapters.sampling.strategies.quota import Quota


def linear_schedule(count: int, steps: int, first: int = 0) -> list[int]:
    """The number of ``count`` positions that each forward unmasks from step ``first`` of ``steps`` on, by the linear
    schedule: the rounded share of those that are left. Steps that unmask nothing are left out.

    Float32 times and float64 shares on purpose: other arithmetic rounds to other integers.
    Source: ZHZisZZ/dllm, core/samplers/utils.py, get_num_transfer_tokens.
    """
    schedule, left = [], count
    for i in range(first, steps):
        alpha_s, alpha_t = (1 - torch.tensor(left_over / steps) for left_over in (steps - i - 1, steps - i))
        share = 1 - ((1 - alpha_s) / (1 - alpha_t)).double()
        schedule.append(min(left, round(float(left * share))))
        left -= schedule[-1]
    return [due for due in schedule if due]


class LinearQuota(Quota):
    """Each forward unmasks the rounded share of the masks left that the linear schedule says (MDLM and BD3LM of dLLM;
    exact). Steps that unmask nothing make no forward."""

    name = "linear_quota"
    source = "A2D, ZHZisZZ/dllm core/samplers/mdlm.py and bd3lm.py"
    rule = "a rounded share of the masks left"
    exact = "dLLM"

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        return linear_schedule(masks, max(first + 1, self.planned(length)), first)
