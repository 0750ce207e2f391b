"""The state of decoding a row, on the host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.pages import RowPages
from dare_bench.model_adapters.sampling.attention import CachePolicy
from dare_bench.model_adapters.sampling.draws import Draws
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies import Carried
from dare_bench.types import Event


class ReplayedDraws(Protocol):
    """The random numbers of published code for one row (``replay.published.Stream``)."""

    def mark(self) -> None:
        """Before a forward, which may fail: see :meth:`back`."""

    def back(self) -> None:
        """The forward failed: its random numbers come again."""

    def draws(self, sampler: Sampler, positions: Positions, rows: Sequence[RowState], vocab: int) -> Draws:
        """What is drawn in a forward for the rows that ``sampler`` decides, of all ``rows``."""

    def leave_block(self, row: RowState, vocab: int) -> None:
        """Draw for the forwards that the published code makes in a finished block."""

    def canvas(self, row: RowState, vocab: int) -> Tensor:
        """Random tokens for the next forward of a row, by column of the block."""


@dataclass(eq=False)
class RowState:
    """The state of a row. ``canvas`` is prompt and response, int64 [L]; columns count from the first prompt token.

    ``given`` is a request's ``canvas``; ``start_step``, ``start_forward`` and ``end_forward`` are as there.
    """

    prompt: Sequence[int]
    sampler: Sampler
    key: int
    mask_id: int
    tag: Any = None
    """Any value that the caller wants back with the finished row."""
    tokenizer: Any = None
    """Needed only to stop early at stop strings."""
    stream: ReplayedDraws | None = None
    """The published code's random numbers, where they are replayed."""
    given: Sequence[int] | None = None
    start_step: int = 0
    start_forward: int = 0
    end_forward: int | None = None
    lead: int = 0
    """Tokens of the prompt that begin the answer (``Sampler.lead``)."""
    weights_version: int = 0
    """Of the network, when the row started."""
    canvas: Tensor = field(init=False)
    block: int = -1
    begin: int = 0
    """The first column of the block."""
    step: int = 0
    forward: int = field(init=False)
    """Forwards so far (a guided pair is one), counted from ``start_forward``."""
    opened: bool = False
    """Has the block had its first forward here, which fills an approximate cache?"""
    post_steps: int = 0
    """Forwards so far on a block without masks (editing)."""
    steps: list[int] = field(default_factory=list)
    """The forwards of each finished block."""
    left_out: int = 0
    """Scheduled forwards that would have written nothing, and were not made."""
    rejected: int = 0
    """Masks that the last scheduled forwards of blocks have left, where published code adds forwards for them."""
    schedule: list[int] = field(default_factory=list)
    """Positions due in each forward of the block, as the strategy planned them."""
    dropped: list[tuple[int, int]] = field(default_factory=list)
    """Place in the answer and id of each token that was taken out of the canvas (``AttentionPolicy.unseen``)."""
    carries: Mapping[str, Carried] = field(default_factory=dict)
    """What the strategy keeps beside the tokens."""
    carried: dict[str, Tensor] = field(default_factory=dict)
    """It, [L, ...] each, on the device; empty before a new canvas had a forward."""
    memory: Any = None
    """What a strategy that remembers keeps of the block."""
    soft: Tensor | None = None
    """Where a network is conditioned on it: what the last forward predicted for the block, [block_length, D]."""
    pages: RowPages = field(default_factory=RowPages)
    """The row's slots in the cache."""
    near_tie: bool = False
    events: list[Event] = field(default_factory=list)
    predictions: list[list[int]] = field(default_factory=list)
    stopped: bool = False
    cut: bool = False
    """Has ``end_forward`` ended the row before it was finished?"""
    started: float = field(default_factory=time.perf_counter)
    saved: int = 0
    """Forwards that drafts have saved."""
    _part: tuple[tuple[int, bool, int], tuple[int, int], Tensor] | None = None

    def __post_init__(self) -> None:
        given = self.given or ()
        masks = [self.mask_id] * (self.sampler.canvas_length(len(self.prompt)) - len(self.prompt) - len(given))
        answer = [*given, *masks] if given else self.sampler.strategy.opening(masks)
        self.canvas = torch.tensor([*self.prompt, *answer], dtype=torch.long)
        self.forward = self.start_forward

    @property
    def answer_begin(self) -> int:
        """The column from which places in the answer count, as if nothing of it had been taken out before."""
        return len(self.prompt) - len(self.dropped)

    @property
    def stop(self) -> int:
        return min(self.begin + self.sampler.block_length, len(self.canvas))

    @property
    def shadows(self) -> int:
        """Second tokens at the places of the block, which forwards compute behind the row's window."""
        return self.stop - self.begin if self.sampler.strategy.shadows else 0

    @property
    def low(self) -> int:
        """The first column whose mask may be filled: masks of the prompt may, where attention is not causal."""
        return self.begin if self.sampler.attention.causal else 0

    @property
    def editable_from(self) -> int:
        """The first column of the block whose written tokens may be replaced."""
        return self.first_response if self.sampler.strategy.edits else self.stop

    @property
    def first_response(self) -> int:
        """The first column of the block after the prompt."""
        return max(self.begin, len(self.prompt))

    @property
    def opens_by_state_before(self) -> bool:
        """Does the next forward predict the block's first token, from the state before it?"""
        if self.sampler.attention.first_any_time:
            return self.begin > 0
        is_first = not self.opened and bool(self.canvas[self.begin] == self.mask_id)
        return self.sampler.attention.predicts_next and is_first

    @property
    def limit(self) -> int:
        """Maximum number of forwards of the current block."""
        return self.sampler.strategy.limit(self.sampler.block_length, self.schedule)

    @property
    def cache(self) -> CachePolicy:
        return self.sampler.attention.cache

    def part(self) -> tuple[tuple[int, int], Tensor]:
        """The row's part of a pack, which is computed when its window moves: the columns that the next forward
        computes, and those of them that may be open while the row is in its block, int64 [n]. No mask is added outside
        of the block."""
        key = self.block, self.opened, self.pages.columns
        if self._part is None or self._part[0] != key or self.cache.follows_canvas:
            low, high = self.cache.window(self)
            column = torch.arange(max(low, self.low), min(high, self.stop))
            column = column[(column >= self.begin) | (self.canvas[column] == self.mask_id)]
            self._part = key, (low, high), column
        return self._part[1:]

    def window(self) -> tuple[int, int]:
        """The columns that the next forward computes."""
        return self.part()[0]

    @property
    def forwards(self) -> int:
        """Forwards that were made here."""
        return self.forward - self.start_forward

    def least_forwards(self) -> int:
        """Forwards before which the row neither leaves its block nor ends, unless a forward changes nothing."""
        sampler = self.sampler
        in_block = sampler.stopping.stop_in_block or sampler.reference.count == "carry" or sampler.replays
        if self.end_forward is not None or in_block or self.cache.follows_canvas:
            return 1
        masks = int((self.canvas[max(self.begin, self.low) : self.stop] == self.mask_id).sum())
        return max(1, sampler.strategy.least_forwards(masks, self.schedule[self.step :]))

    def response(self) -> list[int]:
        return self.response_in(self.canvas)

    def response_in(self, canvas: Tensor) -> list[int]:
        """The ``gen_length`` tokens after the prompt, behind a ``lead``."""
        return self.behind_prompt(canvas)[: self.lead + self.sampler.gen_length]

    def behind_prompt(self, canvas: Tensor) -> list[int]:
        """All tokens after the prompt, behind a ``lead``, with those that were taken out."""
        tokens: list[int] = canvas[len(self.prompt) - self.lead :].tolist()
        for place, token in self.dropped:
            tokens.insert(self.lead + place, token)
        return tokens

    def next_block(self, vocab: int) -> bool:
        """Enter the next block that has masks; False when the row is finished."""
        sampler, p = self.sampler, len(self.prompt)
        if self.block < 0:
            self.carries = sampler.strategy.carries(vocab)
        while True:
            if self.block >= 0:
                if self._grow():
                    return True
                self.steps.append(self.step)
                if self.stream is not None:
                    self.stream.leave_block(self, vocab)
                done = self.canvas[p : min(self.stop, p + sampler.gen_length)].tolist()
                if sampler.stopping.is_final(done, self.mask_id, self.tokenizer):
                    self.stopped = True
                    return False
                self._drop_unseen()
            self.block, self.step, self.post_steps, self.opened = self.block + 1, 0, 0, False
            self.begin = sampler.origin(p) + self.block * sampler.block_length - len(self.dropped)
            self.soft = None
            if self.begin >= len(self.canvas):
                return False
            masked = self.canvas == self.mask_id
            masks, before = int(masked[self.begin : self.stop].sum()), int(masked[self.low : self.begin].sum())
            if sampler.strategy.remembers:
                self.memory = sampler.strategy.remember(masked[self.first_response : self.stop].tolist())
            if masks and self.start_step:
                self._go_on(masks, before)
                return True
            schedule = sampler.strategy.schedule(masks, before, sampler.block_length)
            self.schedule = self._scheduled(schedule)
            if masks:
                return True

    def _grow(self) -> bool:
        """Insert into the canvas what the strategy asks for, if anything. Events move with their tokens; what would
        stand behind ``gen_length`` is lost."""
        inserted = self.sampler.strategy.grown(self.carried) if self.sampler.strategy.grows else {}
        if not inserted:
            return False
        most, kept, tokens = len(self.prompt) + self.sampler.gen_length, {}, list[int]()
        for column, token in enumerate(self.canvas.tolist()):
            kept[column - len(self.prompt)] = len(tokens) - len(self.prompt)
            more = inserted.get(column, [])
            tokens += [token, *([self.mask_id] * more if isinstance(more, int) else more)]
        moved = (event._replace(position=kept[event.position]) for event in self.events)
        self.events[:] = [event for event in moved if event.position < self.sampler.gen_length]
        self.canvas, self.carried, self._part = torch.tensor(tokens[:most]), {}, None
        return True

    def _drop_unseen(self) -> None:
        """Take out of the canvas what later blocks do not see of this one."""
        if not self.sampler.attention.unseen:
            return
        gone = torch.isin(self.canvas, torch.tensor(self.sampler.attention.unseen))
        gone[: self.first_response] = gone[self.stop :] = False
        begin = self.answer_begin
        self.dropped += [(i - begin, int(self.canvas[i])) for i in gone.nonzero()[:, 0].tolist()]
        self.canvas, self.carried = self.canvas[~gone], {name: x_L[~gone] for name, x_L in self.carried.items()}

    def _scheduled(self, schedule: Sequence[int]) -> list[int]:
        """The schedule without forwards that would write nothing: trailing ones, and the others too unless their random
        numbers are replayed."""
        last = max((i for i, due in enumerate(schedule) if due), default=-1)
        forwards = [due for due in schedule[: last + 1] if due or self.sampler.replays]
        self.left_out += last + 1 - len(forwards)
        return forwards

    def _go_on(self, masks: int, before: int) -> None:
        """Enter a block after its first ``start_step`` forwards. Steps of the schedule with nothing due make no
        forward; the last one writes what the others leave."""
        strategy, length = self.sampler.strategy, self.sampler.block_length
        done, self.start_step = self.start_step, 0
        due = [i for i, n in enumerate(strategy.schedule(self.stop - self.first_response, before, length)) if n]
        first = due[done - 1] + 1 if done <= len(due) else done
        left = self._scheduled(strategy.schedule(masks, before, length, first))
        if due:
            left = left or [0]
            left[-1] += max(0, masks - sum(left))
        self.step, self.schedule = done, [*[0] * done, *left]
