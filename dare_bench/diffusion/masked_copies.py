"""MaskedCopies: what a loss reads of rows, as tokens that the network sees and positions that are scored.

A *masked copy* is one view of a row by the network: the tokens as seen (some masked), the positions that are scored,
and a target for each of them. What is hidden, what belongs to the response, and what is scored are independent: an
estimator may hide prompt tokens without scoring them, score a part of the masks, score tokens other than the row's own,
or give one position several targets.

Shape letters: R copies, T packed tokens of them, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from dare_bench.diffusion.canvas import Batch, select


@dataclass(frozen=True)
class MaskedCopies:
    """Packed copies.

    ``batch`` holds the rows without noise, one for each copy: the second copy of block-causal training. ``seen_T`` is
    what the network reads; ``at_N`` are packed indices of the scored positions, sorted (equal indices: several targets
    of one position); ``target_N`` their targets.
    """

    batch: Batch
    seen_T: Tensor
    at_N: Tensor
    target_N: Tensor

    def __len__(self) -> int:
        return len(self.batch.lengths)

    @property
    def copy_N(self) -> Tensor:
        """The copy of each scored token."""
        return self.batch.row_T[self.at_N]

    def take(self, places: Sequence[int]) -> tuple[MaskedCopies, Tensor]:
        """Some of the copies, in the order given, and the indices of their scored tokens: int64 [N of them]."""
        batch, from_T = select(self.batch, places)
        length_R, kept = torch.tensor(self.batch.lengths), torch.tensor(places)
        end_R = length_R.cumsum(0)
        start_R = end_R - length_R
        first_R, last_R = torch.searchsorted(self.at_N, start_R), torch.searchsorted(self.at_N, end_R)
        index_N = torch.cat([torch.arange(int(first_R[r]), int(last_R[r])) for r in places])
        moved_R = length_R[kept].cumsum(0) - end_R[kept]
        at_N = self.at_N[index_N] + moved_R.repeat_interleave(last_R[kept] - first_R[kept])
        return MaskedCopies(batch, self.seen_T[from_T], at_N, self.target_N[index_N]), index_N


def masked_copies(batch: Batch, masked_T: Tensor, mask_id: int) -> MaskedCopies:
    """One masked copy of each row: the masked tokens are hidden, and all of them are scored."""
    at_N = masked_T.nonzero()[:, 0]
    return MaskedCopies(batch, torch.where(masked_T, mask_id, batch.tokens_T), at_N, batch.tokens_T[at_N])


def concatenated(parts: Sequence[MaskedCopies]) -> MaskedCopies:
    """Several packs of copies as one, in order."""
    token_offsets = accumulate((len(part.seen_T) for part in parts[:-1]), initial=0)
    row_offsets = accumulate((len(part) for part in parts[:-1]), initial=0)
    batch = Batch(
        torch.cat([part.batch.tokens_T for part in parts]),
        torch.cat([part.batch.row_T + offset for part, offset in zip(parts, row_offsets, strict=True)]),
        torch.cat([part.batch.column_T for part in parts]),
        torch.cat([part.batch.response_T for part in parts]),
        tuple(length for part in parts for length in part.batch.lengths),
    )
    return MaskedCopies(
        batch,
        torch.cat([part.seen_T for part in parts]),
        torch.cat([part.at_N + offset for part, offset in zip(parts, token_offsets, strict=True)]),
        torch.cat([part.target_N for part in parts]),
    )
