"""The active rows on the device, and one turn of the denoising loop over all of them at once.

Shape letters: T packed tokens, R rows, N open positions, V vocabulary, S steps of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling.decide import Chosen, Open, decide
from dare_bench.model_adapters.sampling.guidance import Twins
from dare_bench.model_adapters.sampling.pages import Pages
from dare_bench.model_adapters.sampling.rows import Row
from dare_bench.model_adapters.sampling.rule import Rule
from dare_bench.model_adapters.sampling.windows import Pack, Packer
from dare_bench.types import Event


class Batch:
    """Canvases one behind another, and each row's counters. Membership is fixed; a new batch is made when a row comes
    or goes. What a forward sees of them is a :class:`Pack`, which is made anew whenever a window moves."""

    def __init__(
        self,
        rows: Sequence[Row],
        mask_id: int,
        device: torch.device,
        store: KVStore | None = None,
        pages: Pages | None = None,
    ) -> None:
        self.rows = sorted(rows, key=lambda row: len(row.canvas))
        self.mask_id, self.device = mask_id, device
        self.lengths = [len(row.canvas) for row in self.rows]
        offsets = [0, *accumulate(self.lengths)][:-1]
        self.canvas_T = torch.cat([row.canvas for row in self.rows]).to(device)
        self.packer = Packer(self.rows, offsets, device, store, pages)
        self.pack: Pack | None = None
        self.twins: Twins | None = None
        self.tokens_done = 0
        self.prompt_R = self._ints(len(row.prompt) for row in self.rows)
        self.key_R = self._ints(row.key for row in self.rows)
        self.turn_R = self._ints(row.turn for row in self.rows)
        self.step_R = self._ints(row.step for row in self.rows)
        self.post_R = self._ints(row.post for row in self.rows)
        self.begin_R = self._ints(row.begin for row in self.rows)
        self.bound_R = self._ints(row.bound for row in self.rows)
        self.quota_RS = torch.zeros((len(rows), 1), dtype=torch.long, device=device)
        for i in range(len(self.rows)):
            self._set_quota(i)
        rules = [row.rule for row in self.rows]
        self.until_full_R = self._bools(rule.until_full for rule in rules)
        self.fixed_R = self._bools(not rule.draws for rule in rules)
        self.margin_R = torch.tensor([row.margin for row in self.rows], dtype=torch.float64, device=device)
        self.kinds: list[Rule] = list({rule.choice: rule for rule in rules}.values())
        kind_of = {rule.choice: i for i, rule in enumerate(self.kinds)}
        self.kind_R = self._ints(kind_of[rule.choice] for rule in rules)
        self.traced = any(rule.record_trajectory for rule in rules)
        self.margins = any(rule.record_margin for rule in rules)
        if self.margins:
            self._watch_ends(rules)
        self.replayed = any(rule.reference_draws and rule.draws for rule in rules)
        self.shifted = any(rule.predicts_next for rule in rules)
        self.guided = any(rule.cfg_scale > 0 for rule in rules)
        self.edits_R = self._bools(rule.edit_threshold is not None for rule in rules)
        self.edits = any(rule.edit_threshold is not None for rule in rules)
        self.post_limit_R = self._ints(rule.max_post_steps for rule in rules)
        self.carry = any(rule.how_many == "carry" for rule in rules)
        self.inside = [i for i, rule in enumerate(rules) if rule.stop_in_block and rule.eos_ids]

    def _watch_ends(self, rules: Sequence[Rule]) -> None:
        """What ``_settled`` looks at."""
        self.place_T = torch.arange(len(self.canvas_T), device=self.device)
        self.row_T = torch.repeat_interleave(self._ints(self.lengths))
        begin_R = self._ints(accumulate([0, *self.lengths[:-1]])) + self.prompt_R
        self.response_T = self.place_T >= begin_R[self.row_T]
        self.eos_V = self._ints({token for rule in rules for token in rule.eos_ids})
        self.cut_R = self._bools(rule.edit_threshold is None and (rule.early_stop or rule.cut_at_eos) for rule in rules)

    def _ints(self, values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=self.device)

    def _bools(self, values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.bool, device=self.device)

    def _set_quota(self, i: int) -> None:
        """Row i's schedule; behind its end nothing is due, in however wide a table it stands."""
        quota = [*self.rows[i].quota, 0]
        wide = len(quota) - self.quota_RS.shape[1]
        if wide > 0:
            self.quota_RS = torch.nn.functional.pad(self.quota_RS, (0, wide))
        self.quota_RS[i].zero_()
        self.quota_RS[i, : len(quota)] = torch.tensor(quota, dtype=torch.long)

    def turn(self, network: Any) -> list[int]:
        """One forward for all rows, and what it decides. Returns the rows whose block is finished."""
        if self.pack is None:
            self.pack = self.packer.pack()
            self.twins = Twins(self.rows, self.pack, self.mask_id, self.device) if self.guided else None
        pack = self.pack
        self.tokens_done = (self.twins.plan if self.twins else pack.plan).tokens
        tokens_T = self.canvas_T if pack.index_T is None else self.canvas_T[pack.index_T]
        masked_T = tokens_T == self.mask_id
        open_T = masked_T & pack.fillable_T
        if pack.editable_T is not None:
            open_T |= pack.editable_T
        at_N = open_T.nonzero()[:, 0]
        try:
            logits_NV = self._logits(network, pack, tokens_T, at_N)
        except BaseException:
            self.packer.abandoned(pack)
            self.pack = None
            raise
        self.packer.committed(pack)
        at = self._open(pack, at_N, tokens_T[at_N], masked_T[at_N])
        chosen = self._decide(logits_NV, at)
        self._write(pack, at_N, at, chosen)
        done = self._advance(at, chosen)
        if pack.fresh:
            for row in self.rows:
                row.step = max(row.step, 1)
            self.pack = None
        return done

    def _logits(self, network: Any, pack: Pack, tokens_T: Tensor, at_N: Tensor) -> Tensor:
        """Logits that predict the open positions, [N, V]."""
        source_N = at_N - pack.shift_T[at_N] if self.shifted else at_N
        if self.twins is not None:
            return self.twins.logits(network, tokens_T, source_N)
        return network(tokens_T, pack.column_T, pack.plan, logits_at=source_N).logits

    def _open(self, pack: Pack, at_N: Tensor, current_N: Tensor, masked_N: Tensor) -> Open:
        row_N, column_N = pack.row_T[at_N], pack.column_T[at_N]
        step_R = self.step_R.clamp(max=self.quota_RS.shape[1] - 1)
        return Open(
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - self.prompt_R[row_N],
            current_N=current_N,
            masked_N=masked_N,
            key_R=self.key_R,
            step_R=self.step_R,
            turn_R=self.turn_R,
            quota_R=self.quota_RS.gather(1, step_R[:, None])[:, 0],
            begin_R=self.begin_R,
        )

    def _decide(self, logits_NV: Tensor, at: Open) -> Chosen:
        if self.replayed:
            self.sync()
        if len(self.kinds) == 1:
            return decide(self.kinds[0], logits_NV, at, self.rows)
        token = torch.zeros_like(at.row_N)
        score = torch.zeros(len(token), dtype=torch.float64, device=self.device)
        written = torch.zeros(len(token), dtype=torch.bool, device=self.device)
        margin_R = torch.full((len(self.rows),), float("inf"), dtype=torch.float64, device=self.device)
        for i, rule in enumerate(self.kinds):
            mine = (self.kind_R[at.row_N] == i).nonzero()[:, 0]
            if len(mine):
                part = decide(rule, logits_NV[mine], at.only(mine), self.rows)
                token[mine], score[mine], written[mine] = part.token_N, part.score_N.double(), part.written_N
                margin_R = torch.minimum(margin_R, part.margin_R)
        return Chosen(token, score, written, margin_R)

    def _write(self, pack: Pack, at_N: Tensor, at: Open, chosen: Chosen) -> None:
        place_N = at_N if pack.index_T is None else pack.index_T[at_N]
        if self.margins:  # before the canvas changes: what has not been settled so far
            counted_R = torch.where(self._settled(), float("inf"), chosen.margin_R)
            self.margin_R = torch.minimum(self.margin_R, counted_R)
        self.canvas_T[place_N] = torch.where(chosen.written_N, chosen.token_N, at.current_N)
        if self.traced:
            self._record(at, chosen)

    def _settled(self) -> Tensor:
        """Rows whose answer ends at an EOS that has no mask before it: no later choice changes it, unless it edits."""
        never = self.canvas_T.shape[0]
        ends_T = torch.isin(self.canvas_T, self.eos_V) & self.response_T
        first_R = [
            torch.full_like(self.key_R, never).scatter_reduce_(0, self.row_T[here_T], self.place_T[here_T], "amin")
            for here_T in (ends_T, (self.canvas_T == self.mask_id) & self.response_T)
        ]
        return self.cut_R & (first_R[0] < first_R[1])

    def _record(self, at: Open, chosen: Chosen) -> None:
        where = chosen.written_N & (chosen.token_N != self.mask_id)
        rows, columns = at.row_N[where].tolist(), at.position_N[where].tolist()
        items = zip(rows, columns, chosen.token_N[where].tolist(), chosen.score_N[where].tolist(), strict=True)
        turns = self.turn_R.tolist()
        for i, column, token, score in items:
            if self.rows[i].rule.record_trajectory:
                self.rows[i].events.append(Event(turns[i], "set", column, token, round(score, 6)))

    def _advance(self, at: Open, chosen: Chosen) -> list[int]:
        """Count the step, and see which blocks it finished."""
        count = len(self.rows)
        self.step_R += 1
        self.turn_R += 1
        current_N = torch.where(chosen.written_N, chosen.token_N, at.current_N)
        masked_N = current_N == self.mask_id
        inside_N = masked_N & (at.column_N >= self.begin_R[at.row_N])
        left_R = torch.bincount(at.row_N[inside_N], minlength=count)
        changed_R = torch.bincount(at.row_N[current_N != at.current_N], minlength=count)
        # Without randomness an unchanged canvas gives the same forward again, for ever.
        still_R = changed_R == 0
        done_R = (self.step_R >= self.bound_R) | (self.until_full_R & ((left_R == 0) | (self.fixed_R & still_R)))
        if self.edits:
            done_R = torch.where(self.edits_R, self._edited(at, left_R, still_R), done_R)
        if self.carry:
            self._owe(left_R)
        done = done_R.nonzero()[:, 0].tolist()
        return sorted({*done, *self._stopped(at, chosen)}) if self.inside else done

    def _edited(self, at: Open, left_R: Tensor, still_R: Tensor) -> Tensor:
        """LLaDA2.1: a block ends when a forward on it, full, edits nothing, or after ``max_post_steps`` of them."""
        had_R = torch.bincount(at.row_N[at.masked_N], minlength=len(self.rows)) > 0
        self.post_R += (~had_R).long()
        full = (left_R == 0) & (self.post_R >= self.post_limit_R)
        return (self.step_R >= self.bound_R) | (~had_R & still_R) | full | (self.fixed_R & still_R)

    def _owe(self, left_R: Tensor) -> None:
        """Fast-dLLM's Dream adds a forward for every position that its last scheduled step rejected."""
        for i, row in enumerate(self.rows):
            if row.rule.how_many == "carry":
                step, left = int(self.step_R[i]), int(left_R[i])
                row.extra += left if step == row.rule.steps_per_block else -int(step > row.rule.steps_per_block)

    def _stopped(self, at: Open, chosen: Chosen) -> list[int]:
        """Rows that have just written an EOS with no mask before it (LLaDA2 generate, eos_early_stop)."""
        found = []
        canvases = self.canvas_T.split(self.lengths)
        for i in self.inside:
            row = self.rows[i]
            new = chosen.token_N[chosen.written_N & (at.row_N == i)].tolist()
            block = canvases[i][max(row.begin, len(row.prompt)) : row.stop].tolist()
            end = next((k for k, token in enumerate(block) if token in row.rule.eos_ids), None)
            if end is not None and set(new) & set(row.rule.eos_ids) and self.mask_id not in block[:end]:
                found.append(i)
        return found

    def sync(self) -> None:
        """Bring the rows' canvases and counters up to date on the host."""
        canvases = self.canvas_T.cpu().split(self.lengths)
        counters = zip(
            self.step_R.tolist(), self.turn_R.tolist(), self.post_R.tolist(), self.margin_R.tolist(), strict=True
        )
        for row, canvas, (step, turn, post, margin) in zip(self.rows, canvases, counters, strict=True):
            row.canvas, row.step, row.turn, row.post, row.margin = canvas, step, turn, post, margin

    def enter(self, i: int) -> None:
        """Row i has moved to another block."""
        row = self.rows[i]
        self.step_R[i] = self.post_R[i] = 0
        self.begin_R[i], self.bound_R[i] = row.begin, row.bound
        self._set_quota(i)
        self.pack = None
