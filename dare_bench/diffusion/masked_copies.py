"""What a loss reads of rows. A *masked copy* is one view of a row by the network: the tokens as seen (some masked), the
positions that are scored, and a target for each. What is hidden, what belongs to the response, and what is scored are
independent: an estimator may hide prompt tokens without scoring them, or give one position several targets.

Shape letters: R copies, T packed tokens of them, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from dare_bench.errors import UsageError


@dataclass(frozen=True)
class Batch:
    """Rows of one batch, packed. T tokens, B rows. ``row_T`` is each token's row, ``column_T`` its position in the row,
    ``response_T`` is True where a token may be masked and is learned, ``lengths`` are the rows' lengths."""

    tokens_T: Tensor
    row_T: Tensor
    column_T: Tensor
    response_T: Tensor
    lengths: tuple[int, ...]

    @property
    def response_lengths_B(self) -> Tensor:
        """Supervised tokens of each row."""
        return torch.bincount(self.row_T[self.response_T], minlength=len(self.lengths))


def pack(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Rows of (prompt, response) as one batch; raises UsageError for a row without a response."""
    for i, (_, answer) in enumerate(rows):
        if not len(answer):
            raise UsageError(f"row {i} has no response token to learn from; give an answer or a longer canvas")
    lengths = [len(prompt) + len(answer) for prompt, answer in rows]
    length_B = torch.tensor(lengths)
    row_T = torch.repeat_interleave(torch.arange(len(rows)), length_B)
    column_T = torch.arange(sum(lengths)) - (length_B.cumsum(0) - length_B)[row_T]
    prompt_B = torch.tensor([len(prompt) for prompt, _ in rows])
    return Batch(
        torch.tensor([t for prompt, answer in rows for t in (*prompt, *answer)]),
        row_T,
        column_T,
        column_T >= prompt_B[row_T],
        tuple(lengths),
    )


def select(batch: Batch, rows: Sequence[int]) -> tuple[Batch, Tensor]:
    """Some rows of a batch, in the order given, and the packed indices of their tokens: int64 [T]."""
    starts = [0, *accumulate(batch.lengths)]
    lengths = tuple(batch.lengths[r] for r in rows)
    at_T = torch.cat([torch.arange(starts[r], starts[r + 1]) for r in rows])
    row_T = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
    return Batch(batch.tokens_T[at_T], row_T, batch.column_T[at_T], batch.response_T[at_T], lengths), at_T


@dataclass(frozen=True)
class MaskedCopies:
    """Packed copies. ``batch`` holds the rows without noise, one for each copy: the second copy of block-causal
    training. ``seen_T`` is what the network reads; ``at_N`` are packed indices of the scored positions, sorted (equal
    indices: several targets of one position); ``target_N`` their targets."""

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
