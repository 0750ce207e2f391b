"""Training rows: a prompt, an answer, and the supervised EOS tokens after it, packed into batches.

LLaDA decodes on a canvas of fixed length, so it must be trained to fill the rest of the canvas with EOS.
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
    """Rows of one batch, packed. T tokens, B rows.

    ``row_T`` is each token's row, ``column_T`` its position in the row, ``response_T`` is True where a token may be
    masked and is learned, ``lengths`` are the rows' lengths.
    """

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
