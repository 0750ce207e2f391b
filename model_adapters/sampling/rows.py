"""A row: one prompt and its canvas on the way from masks to text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.rule import Rule, quota_schedule
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
    quota: list[int] = field(default_factory=list)
    margin: float = float("inf")
    events: list[Event] = field(default_factory=list)
    stopped: bool = False
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.canvas = torch.tensor([*self.prompt, *[self.mask_id] * self.rule.gen_length], dtype=torch.long)

    @property
    def begin(self) -> int:
        return len(self.prompt) + self.block * self.rule.block_length

    @property
    def stop(self) -> int:
        return self.begin + self.rule.block_length

    @property
    def bound(self) -> int:
        """Turns that the current block takes at most."""
        return len(self.quota) if self.rule.how_many == "quota" else self.rule.step_bound

    def response(self) -> list[int]:
        return self.canvas[len(self.prompt) :].tolist()

    def next_block(self, vocab: int) -> bool:
        """Enter the next block that has something to do; False when the row is finished.

        The published sampler makes all its forwards even where nothing is left to unmask; those change nothing and are
        left out, but with replayed draws their numbers are drawn and thrown away, so that the stream stays in step.
        """
        rule = self.rule
        while True:
            if self.block >= 0:
                if rule.how_many == "quota":
                    self._skip_draws(rule.steps_per_block - len(self.quota), vocab)
                if self._ends_here():
                    self.stopped = True
                    return False
            self.block, self.step = self.block + 1, 0
            if self.begin >= len(self.canvas):
                return False
            masks = int((self.canvas[self.begin : self.stop] == self.mask_id).sum())
            self.quota = [k for k in quota_schedule(masks, rule.steps_per_block) if k > 0]
            if masks:
                return True

    def draw_reference(self, vocab: int) -> tuple[Tensor | None, Tensor | None]:
        """The next forward's published draws: token uniforms float64 [L, V], then order uniforms float32 [L]."""
        length = len(self.canvas)
        token = order = None
        if self.rule.temperature > 0:
            token = torch.rand((1, length, vocab), dtype=torch.float64, generator=self.generator)[0]
        if self.rule.which == "random":
            order = torch.rand((1, length), generator=self.generator)[0]
        return token, order

    def _skip_draws(self, forwards: int, vocab: int) -> None:
        if self.rule.reference_draws and self.rule.draws:
            for _ in range(forwards):
                self.draw_reference(vocab)

    def _ends_here(self) -> bool:
        """May the row stop after this finished block? Exact when nothing after the cut is ever read: the text is cut
        at the first EOS (or stop string), everything up to it is final, and no mask stands before it."""
        rule = self.rule
        if not rule.early_stop:
            return False
        done = self.canvas[len(self.prompt) : self.stop].tolist()
        end = through_eos(done, rule.eos_ids)
        if end is not None:
            return self.mask_id not in done[:end]
        if not rule.stop or self.tokenizer is None or self.mask_id in done:
            return False
        text = self.tokenizer.decode(done, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return stop_is_final(text, rule.stop)
