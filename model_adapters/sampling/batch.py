"""The active rows as one pack, and one turn of the denoising loop over all of them at once.

Shape letters: T packed tokens, R rows, N open positions, V vocabulary, S steps of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.model_adapters.backbone.plan import Plan
from dare_bench.model_adapters.sampling.choose import choose, guided
from dare_bench.model_adapters.sampling.rows import Row
from dare_bench.model_adapters.sampling.rule import Rule
from dare_bench.model_adapters.sampling.select import published_choice, rank, take, zero_ties
from dare_bench.types import Event


@dataclass(frozen=True)
class Chosen:
    """What one group of rows decided at its open positions."""

    token_N: Tensor
    score_N: Tensor
    written_N: Tensor


class Batch:
    """Rows packed by length. Membership is fixed; a new batch is packed when a row comes or goes."""

    def __init__(self, rows: Sequence[Row], mask_id: int, device: torch.device) -> None:
        self.rows = sorted(rows, key=lambda row: len(row.canvas))
        self.mask_id, self.device = mask_id, device
        lengths = [len(row.canvas) for row in self.rows]
        self.plan = Plan(tuple(lengths))
        self.tokens_T = torch.cat([row.canvas for row in self.rows]).to(device)
        self.column_T = self.plan.positions(device)
        self.row_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)
        self.prompt_R = self._ints(len(row.prompt) for row in self.rows)
        self.key_R = self._ints(row.key for row in self.rows)
        self.turn_R = self._ints(row.turn for row in self.rows)
        self.step_R = self._ints(row.step for row in self.rows)
        self.begin_R = self._ints(row.begin for row in self.rows)
        self.stop_R = self._ints(row.stop for row in self.rows)
        self.bound_R = self._ints(row.bound for row in self.rows)
        steps = max(row.rule.steps_per_block for row in self.rows)
        self.quota_RS = torch.zeros((len(rows), steps), dtype=torch.long, device=device)
        for i in range(len(self.rows)):
            self._set_quota(i)
        self.until_full_R = self._bools(row.rule.how_many != "quota" for row in self.rows)
        self.fixed_R = self._bools(not row.rule.draws for row in self.rows)
        self.margin_R = torch.tensor([row.margin for row in self.rows], dtype=torch.float64, device=device)
        choices = [row.rule.choice for row in self.rows]
        self.kinds: list[Rule] = list({row.rule.choice: row.rule for row in self.rows}.values())
        kind_of = {rule.choice: i for i, rule in enumerate(self.kinds)}
        self.kind_R = self._ints(kind_of[c] for c in choices)
        self.traced = any(row.rule.record_trajectory for row in self.rows)
        self._pack_guidance()

    def _ints(self, values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=self.device)

    def _bools(self, values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.bool, device=self.device)

    def _set_quota(self, i: int) -> None:
        quota = self.rows[i].quota
        self.quota_RS[i].zero_()
        self.quota_RS[i, : len(quota)] = torch.tensor(quota, dtype=torch.long)

    def _pack_guidance(self) -> None:
        """Rows with classifier-free guidance appear a second time, their prompt masked."""
        scales = [row.rule.cfg_scale for row in self.rows]
        self.guided_T: Tensor | None = None
        self.full_plan, self.full_column_T = self.plan, self.column_T
        if not any(s > 0 for s in scales):
            return
        self.scale_R = torch.tensor(scales, dtype=torch.float32, device=self.device)
        self.guided_T = (self.scale_R > 0)[self.row_T].nonzero()[:, 0]
        twin_T = torch.full_like(self.row_T, -1)
        twin_T[self.guided_T] = len(self.tokens_T) + torch.arange(len(self.guided_T), device=self.device)
        self.twin_T = twin_T
        known = [
            torch.cat(
                [torch.tensor(list(row.prompt), dtype=torch.long) != self.mask_id, torch.zeros(n, dtype=torch.bool)]
            )
            for row in self.rows
            if (n := row.rule.gen_length)
        ]
        self.hidden_T = torch.cat(known).to(self.device)[self.guided_T]
        lengths = [n for n, s in zip(self.plan.lengths, scales, strict=True) if s > 0]
        self.full_plan = Plan(self.plan.lengths + tuple(lengths))
        self.full_column_T = torch.cat([self.column_T, self.column_T[self.guided_T]])

    def _logits(self, network: Any, at_N: Tensor) -> Tensor:
        """Logits at the open positions, [N, V], guidance applied."""
        if self.guided_T is None:
            return network(self.tokens_T, self.column_T, self.plan, logits_at=at_N).logits
        unknown = self.tokens_T[self.guided_T].masked_fill(self.hidden_T, self.mask_id)
        twins = self.twin_T[at_N]
        has_twin = twins >= 0
        logits = network(
            torch.cat([self.tokens_T, unknown]),
            self.full_column_T,
            self.full_plan,
            logits_at=torch.cat([at_N, twins[has_twin]]),
        ).logits
        cond, uncond = logits[: len(at_N)], logits[len(at_N) :]
        scale = self.scale_R[self.row_T[at_N]][has_twin][:, None]
        cond = cond.clone()
        cond[has_twin] = guided(cond[has_twin].float(), uncond.float(), scale).to(cond.dtype)
        return cond

    def turn(self, network: Any) -> list[int]:
        """One forward for all rows, and what it decides. Returns the rows whose block is finished."""
        open_T = (self.tokens_T == self.mask_id) & (self.column_T < self.stop_R[self.row_T])
        at_N = open_T.nonzero()[:, 0]
        row_N = self.row_T[at_N]
        logits_NV = self._logits(network, at_N)
        chosen = self._decide(logits_NV, at_N, row_N)
        self.tokens_T[at_N] = torch.where(chosen.written_N, chosen.token_N, self.tokens_T[at_N])
        if self.traced:
            self._record(chosen, at_N, row_N)
        return self._advance(chosen, at_N, row_N)

    def _decide(self, logits_NV: Tensor, at_N: Tensor, row_N: Tensor) -> Chosen:
        if len(self.kinds) == 1:
            return self._decide_kind(self.kinds[0], logits_NV, at_N, row_N)
        token = torch.zeros_like(at_N)
        score = torch.zeros(len(at_N), dtype=torch.float64, device=self.device)
        written = torch.zeros(len(at_N), dtype=torch.bool, device=self.device)
        for i, rule in enumerate(self.kinds):
            mine = (self.kind_R[row_N] == i).nonzero()[:, 0]
            if len(mine):
                part = self._decide_kind(rule, logits_NV[mine], at_N[mine], row_N[mine])
                token[mine], score[mine], written[mine] = part.token_N, part.score_N.double(), part.written_N
        return Chosen(token, score, written)

    def _decide_kind(self, rule: Rule, logits_NV: Tensor, at_N: Tensor, row_N: Tensor) -> Chosen:
        """Tokens, scores and what is written, for rows that decide alike."""
        key_N, step_N = self.key_R[row_N], self.turn_R[row_N]
        position_N = self.column_T[at_N] - self.prompt_R[row_N]
        noise_NV = order_N = None
        if rule.reference_draws and rule.draws:
            noise_NV, order_N = self._published_draws(at_N, row_N, logits_NV.shape[1])
        token_N, score_N, margin_N = choose(
            logits_NV, rule, key_N=key_N, step_N=step_N, position_N=position_N, uniform_NV=noise_NV
        )
        if rule.which == "random":
            score_N = order_N if order_N is not None else uniform(key_N, Draw.ORDER, step_N, position_N)
        ranked = rank(score_N, row_N, len(self.rows))
        quota_R = self.quota_RS.gather(1, self.step_R.clamp(max=self.quota_RS.shape[1] - 1)[:, None])[:, 0]
        take_R, gap_R = take(ranked, rule, quota_R)
        written_N = ranked.rank_N < take_R[row_N]
        if rule.uncounted and rule.how_many == "quota" and rule.which == "confidence":
            for i in zero_ties(ranked, take_R):
                mine_N = row_N == i
                columns = self.column_T[at_N[mine_N]]
                written_N[mine_N] = published_choice(score_N[mine_N], columns, self.plan.lengths[i], int(take_R[i]))
        if rule.record_margin:
            mine_R = ranked.count_R > 0
            self.margin_R = torch.where(mine_R, torch.minimum(self.margin_R, gap_R), self.margin_R)
            self.margin_R.scatter_reduce_(0, row_N[written_N], margin_N[written_N], "amin")
        return Chosen(token_N, score_N, written_N)

    def _published_draws(self, at_N: Tensor, row_N: Tensor, vocab: int) -> tuple[Tensor | None, Tensor | None]:
        """Each row's own stream, over its whole canvas; a loop over rows, since parity replays them one at a time."""
        tokens, orders = [], []
        for i in row_N.unique_consecutive().tolist():
            columns = self.column_T[at_N[row_N == i]].cpu()
            token, order = self.rows[i].draw_reference(vocab)
            if token is not None:
                tokens.append(token[columns])
            if order is not None:
                orders.append(order[columns])
        return (
            torch.cat(tokens).to(self.device) if tokens else None,
            torch.cat(orders).to(self.device) if orders else None,
        )

    def _record(self, chosen: Chosen, at_N: Tensor, row_N: Tensor) -> None:
        where = chosen.written_N & (chosen.token_N != self.mask_id)
        rows = row_N[where]
        columns = (self.column_T[at_N[where]] - self.prompt_R[rows]).tolist()
        items = zip(rows.tolist(), columns, chosen.token_N[where].tolist(), chosen.score_N[where].tolist(), strict=True)
        turns = self.turn_R.tolist()
        for i, column, token, score in items:
            if self.rows[i].rule.record_trajectory:
                self.rows[i].events.append(Event(turns[i], "set", column, token, round(score, 6)))

    def _advance(self, chosen: Chosen, at_N: Tensor, row_N: Tensor) -> list[int]:
        count = len(self.rows)
        self.step_R += 1
        self.turn_R += 1
        masked = self.tokens_T[at_N] == self.mask_id
        inside = masked & (self.column_T[at_N] >= self.begin_R[row_N])
        left_R = torch.bincount(row_N[inside], minlength=count)
        changed_R = torch.bincount(row_N[~masked], minlength=count)
        # Without randomness an unchanged canvas gives the same forward again, for ever.
        stuck_R = self.fixed_R & (changed_R == 0)
        done_R = (self.step_R >= self.bound_R) | (self.until_full_R & ((left_R == 0) | stuck_R))
        return done_R.nonzero()[:, 0].tolist()

    def sync(self) -> None:
        """Bring the rows' canvases and counters up to date on the host."""
        canvases = self.tokens_T.cpu().split(list(self.plan.lengths))
        counters = zip(self.step_R.tolist(), self.turn_R.tolist(), self.margin_R.tolist(), strict=True)
        for row, canvas, (step, turn, margin) in zip(self.rows, canvases, counters, strict=True):
            row.canvas, row.step, row.turn, row.margin = canvas, step, turn, margin

    def enter(self, i: int) -> None:
        """Row i has moved to another block."""
        row = self.rows[i]
        self.step_R[i], self.begin_R[i], self.stop_R[i], self.bound_R[i] = 0, row.begin, row.stop, row.bound
        self._set_quota(i)
