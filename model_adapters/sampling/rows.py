"""One row of the denoising loop: a request's canvas, and where it stands. Host side; tensors of a batch mirror it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.pages import Held
from dare_bench.model_adapters.sampling.published import Draws, draw
from dare_bench.model_adapters.sampling.rule import Rule, quota_schedule, time_schedule
from dare_bench.model_adapters.sampling.text import stop_is_final, through_eos
from dare_bench.types import Event


@dataclass(eq=False)
class Row:
    """State of one row. ``canvas`` is prompt and response, int64 [L]; columns count from the first prompt token."""

    prompt: Sequence[int]
    rule: Rule
    key: int
    mask_id: int
    tag: Any = None
    """Whatever the caller wants back with the finished row."""
    tokenizer: Any = None
    """Needed only to stop early at stop strings."""
    generator: torch.Generator | None = None
    """The published code's own stream, where it is replayed."""
    canvas: Tensor = field(init=False)
    block: int = -1
    step: int = 0
    turn: int = 0
    """Forward turns so far (a CFG pair is one)."""
    post: int = 0
    """Forwards so far on a full block (editing)."""
    done_blocks: int = 0
    extra: int = 0
    """Forwards beyond ours that the published code would have made."""
    quota: list[int] = field(default_factory=list)
    held: Held = field(default_factory=Held)
    """What stands in the cache for this row."""
    margin: float = float("inf")
    events: list[Event] = field(default_factory=list)
    stopped: bool = False
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        rule, p = self.rule, len(self.prompt)
        length = rule.gen_length
        if rule.grid == "absolute":
            length = -(-(p + length) // rule.block_length) * rule.block_length - p
        self.canvas = torch.tensor([*self.prompt, *[self.mask_id] * length], dtype=torch.long)

    @property
    def origin(self) -> int:
        """The column that block 0 starts at."""
        p, b = len(self.prompt), self.rule.block_length
        return p if self.rule.grid == "response" else p // b * b

    @property
    def begin(self) -> int:
        return self.origin + self.block * self.rule.block_length

    @property
    def stop(self) -> int:
        return self.begin + self.rule.block_length

    @property
    def bound(self) -> int:
        """Turns that the current block takes at most."""
        if self.rule.until_full or self.rule.edit_threshold is not None or self.rule.how_many == "bernoulli":
            return self.rule.step_bound
        return len(self.quota)

    def window(self) -> tuple[int, int]:
        """The columns that the next forward computes; see ``Rule.cache``."""
        cache = self.rule.cache
        if cache == "exact":
            return self.held.columns, self.stop
        if cache == "none" or self.step == 0:
            return 0, self.stop if self.rule.causal else len(self.canvas)
        return self.begin, self.stop if cache == "dual" else len(self.canvas)

    def to_cache(self) -> tuple[int, int]:
        """The columns whose keys and values the next forward stores."""
        cache = self.rule.cache
        if cache == "exact":
            return self.held.columns, self.begin
        if cache == "none" or self.step > 0:
            return 0, 0
        return 0, self.begin if cache == "prefix" else len(self.canvas)

    def reads(self) -> Tensor:
        """Cache slots that the next forward reads, int64 [E]."""
        cache = self.rule.cache
        if cache == "none" or (cache != "exact" and self.step == 0):
            return self.held.slots[:0]
        if cache == "dual":
            return torch.cat([self.held.slots[: self.begin], self.held.slots[self.stop :]])
        return self.held.slots

    def response(self) -> list[int]:
        p = len(self.prompt)
        return self.canvas[p : p + self.rule.gen_length].tolist()

    def next_block(self, vocab: int) -> bool:
        """Enter the next block that has something to do; False when the row is finished."""
        while True:
            if self.block >= 0:
                self.done_blocks += 1
                self._catch_up(vocab)
                if self._ends_here():
                    self.stopped = True
                    return False
            self.block, self.step, self.post = self.block + 1, 0, 0
            if self.begin >= len(self.canvas):
                return False
            masks = int((self.canvas[self.begin : self.stop] == self.mask_id).sum())
            self.quota = self._schedule(masks)
            if masks:
                return True

    def _schedule(self, masks: int) -> list[int]:
        """Positions to unmask in each forward of the block. Forwards that would change nothing are left out, unless the
        published draws of those steps have to be made."""
        rule = self.rule
        if rule.edit_threshold is not None:
            return [rule.min_transfer] * rule.step_bound
        if rule.how_many == "carry":
            return [masks // rule.steps_per_block] * rule.step_bound
        if rule.how_many == "bernoulli":
            return []
        if rule.schedule == "time":
            first = int(rule.commit_first)
            p = len(self.prompt)
            if rule.grid == "response" and not rule.commit_first:
                masks += int((self.canvas[:p] == self.mask_id).sum())  # Dream counts the masks of its prompt too
            quota = time_schedule(masks - first, rule.steps_per_block, rule.eps, first)
            kept = [k for k in quota if k > 0 or (rule.reference_draws and rule.draws)]
            if rule.counted == "turns":
                self.extra += len(quota) - len(kept)
            return [1] * first + kept
        total = rule.block_length if rule.schedule == "block" else masks
        return [k for k in quota_schedule(total, rule.steps_per_block) if k > 0]

    def draw_reference(self, vocab: int, window: tuple[int, int], take: int) -> Draws:
        """The published code's random numbers of one forward."""
        assert self.generator is not None
        return draw(self, self.generator, vocab, window, take)

    def _catch_up(self, vocab: int) -> None:
        """What the published sampler still does in a finished block: forwards that change nothing. They are left out,
        but their numbers are drawn and thrown away, so that a replayed stream stays in step."""
        rule = self.rule
        if rule.counted == "schedule" and rule.how_many == "quota" and rule.schedule == "even":
            wasted = rule.steps_per_block - len(self.quota)
        else:  # Fast-dLLM looks whether the block is full only after a second forward
            wasted = int(rule.cache in ("prefix", "dual") and self.step == 1 and rule.steps_per_block > 1)
            self.extra += wasted
        if rule.reference_draws and rule.draws:
            for _ in range(wasted):
                self.step = max(self.step, 1)
                self.draw_reference(vocab, self.window(), 0)

    def reference_nfe(self) -> int:
        """Forwards that the published sampler would have counted for what this row has decoded."""
        rule = self.rule
        if rule.counted == "schedule":
            turns = rule.blocks(len(self.prompt)) * rule.steps_per_block
        elif rule.counted == "commit":
            turns = self.turn + self.done_blocks + int(len(self.prompt) >= rule.block_length)
        else:
            turns = self.turn + self.extra
        return turns * rule.forwards_per_step

    def _ends_here(self) -> bool:
        """May the row stop after this finished block? Exact when nothing after the cut is ever read: the text is cut
        at the first EOS (or stop string), everything up to it is final, and no mask stands before it."""
        rule = self.rule
        if not rule.early_stop:
            return False
        p = len(self.prompt)
        done = self.canvas[p : min(self.stop, p + rule.gen_length)].tolist()
        end = through_eos(done, rule.eos_ids)
        if end is not None:
            return self.mask_id not in done[:end]
        if not rule.stop or self.tokenizer is None or self.mask_id in done:
            return False
        text = self.tokenizer.decode(done, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return stop_is_final(text, rule.stop)
