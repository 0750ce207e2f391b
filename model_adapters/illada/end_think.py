"""The end of thinking is made likelier as the answer grows (iLLaDA).

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dare_bench.model_adapters.sampling.attention import Row
from dare_bench.model_adapters.sampling.records import Positions


@dataclass(frozen=True)
class EndThink:
    """Until the answer contains ``tokens``, ``boost * progress ** power`` is added to the logit of the next one of them
    at the first mask of the block: the one that continues what stands directly before it. ``progress`` is the share of
    the answer's length up to that mask. Source: ML-GSAI/LLaDA generate.py, apply_end_think_logit_boost."""

    tokens: tuple[int, ...]
    boost: float
    power: float

    def changed(self, logits_NV: Tensor, positions: Positions, canvas_T: Tensor, rows: Sequence[Row]) -> Tensor:
        """The logits with the boost. ``canvas_T``: the concatenated canvases of ``rows``."""
        logits_NV = logits_NV.clone()
        canvases = canvas_T[: sum(positions.lengths)].cpu().split(list(positions.lengths))
        first_N = positions.masked_N & (positions.column_N >= positions.begin_R[positions.row_N])
        seen: set[int] = set()
        at_masks = first_N.nonzero()[:, 0].tolist()
        for at, r in zip(at_masks, positions.row_N[first_N].tolist(), strict=True):
            if r in seen:
                continue
            seen.add(r)
            answer, place = canvases[r][len(rows[r].prompt) :].tolist(), int(positions.position_N[at])
            if not self._ended(answer):
                progress = min((place + 1) / rows[r].sampler.gen_length, 1.0)
                logits_NV[at, self._next(answer[:place])] += self.boost * progress**self.power
        return logits_NV

    def _ended(self, answer: Sequence[int]) -> bool:
        size = len(self.tokens)
        return any(tuple(answer[i : i + size]) == self.tokens for i in range(len(answer) - size + 1))

    def _next(self, before: Sequence[int]) -> int:
        """The token that continues the longest beginning of the sequence which ``before`` ends with."""
        for count in range(min(len(self.tokens) - 1, len(before)), 0, -1):
            if tuple(before[-count:]) == self.tokens[:count]:
                return self.tokens[count]
        return self.tokens[0]
