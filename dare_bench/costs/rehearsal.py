"""What an optimizer step reads: some rows of the training, and the forwards that the method's source of steps makes of
rows of their mean length. A source that samples completions is given those of a policy without a network, which writes
tokens from left to right in as many forwards as its sampler may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dare_bench.costs.recipe import TEMPLATE_TOKENS
from dare_bench.errors import UsageError
from dare_bench.training.data import hub_data, read_data
from dare_bench.training.rows import Kind, TokenRow, Tokens
from dare_bench.training.sources import find_files
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenize
from dare_bench.types import Event, Generation, Request, Reward, RewardPrompt, Sample

SAMPLED_ROWS = 256
CHARACTERS = 3.5
"""Characters per token if there is no tokenizer: English text and code in current vocabularies."""


@dataclass(frozen=True)
class SampledRows:
    """``count`` items of an epoch; ``some`` of them, which a training's checks read; and how tokens were counted."""

    count: int
    some: Tokens
    source: str

    def alike(self, count: int, token: int) -> Tokens:
        """So many items of the mean length, of one token."""
        every = [row for item in self.some.items for row in item]
        prompt, answer = round(mean(len(r.prompt) for r in every)), round(mean(len(r.answer) for r in every))
        item = tuple(TokenRow((token,) * prompt, (token,) * answer, "", i) for i in range(len(self.some.items[0])))
        records = tuple(RewardPrompt("", "0", "", "") for _ in range(count if self.some.kind == "prompts" else 0))
        return replace(self.some, items=(item,) * count, records=records)


def rows_of(spec: TrainSpec, kind: Kind, model: Any) -> SampledRows:
    """The rows of a training, tokenized as in it if the checkpoint is on this machine. Raises UsageError, DataError:
    the training would refuse them."""
    known, source = hub_data(spec.task), "its tokenizer"
    if known is not None and kind != "pairs":
        records = (RewardPrompt("", "0", str(spec.task), ""),) if kind == "prompts" else ()
        answer = () if records else (-1,) * known.answer_tokens
        row = TokenRow((-1,) * (known.prompt_tokens + TEMPLATE_TOKENS), answer, "", 0)
        some = Tokens(kind, ((row,),), "", known.data, records=records)
        source = f"the mean lengths of {known.data}, {TEMPLATE_TOKENS} for a chat template"
        return SampledRows(spec.rows or known.count, some, source)
    if known is not None or (spec.task is None and not find_files(str(spec.data), spec.split)):
        raise UsageError(
            f"the lengths of the rows of {spec.task or spec.data} are unknown: they are not on this machine, and no "
            "task has their mean; give a local file (--data FILE)"
        )
    if model.tokenizer is None:
        model = SimpleNamespace(tokenizer=None, spec=model.spec, encode=_by_length)
        source = f"characters / {CHARACTERS:g}"
    few = spec.model_copy(update={"rows": min(spec.rows or SAMPLED_ROWS, SAMPLED_ROWS)})
    data = read_data(spec if spec.max_steps is None else few, kind)
    some = tokenize(replace(data, rows=data.rows[:SAMPLED_ROWS]), model, spec)  # drops what the training drops
    return SampledRows(round(len(data.rows) * len(some.items) / min(len(data.rows), SAMPLED_ROWS)), some, source)


def _by_length(prompt: Any) -> list[int]:
    """As many ids as a text, or chat turns with their template, have on average."""
    if isinstance(prompt, str):
        return [-1] * round(len(prompt) / CHARACTERS)
    return [-1] * round(sum(len(turn["content"]) for turn in prompt) / CHARACTERS + TEMPLATE_TOKENS)


class RehearsedPolicy:
    """What a source of completions asks of the model in training; counts forwards of single rows."""

    reference, version, has_dropout = None, 0, False

    def __init__(self, model: Any, groups: int, steps: int) -> None:
        self.model, self.groups, self.steps = model, groups, steps
        self.sampled = self.scored = 0
        self.request: Request | None = None
        special = (model.spec.mask_id, *model.spec.eos_ids, model.spec.eot_id, model.spec.pad_id)
        self.token = next(token for token in range(model.spec.vocab_size) if token not in special)

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.groups

    def write_lines(self, name: str, lines: Sequence[str]) -> None:
        """Nothing."""

    def forwards(self, request: Request) -> int:
        return int(self.model.forwards(request))

    def losses(self, step: Any) -> Tensor:
        self.scored += len(step.copies)
        return torch.zeros(len(step.copies.at_N))

    def rewards(self, prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Reward]:
        """Every other answer is right, so that all have an advantage."""
        return [Reward(float(i % 2), float(i % 2)) for i in range(len(prompts))]

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        self.request = self.request or requests[0]
        return [Sample(request, self._answer(request)) for request in requests]

    def _answer(self, request: Request) -> Generation:
        """Each token is written after its share of the forwards."""
        sampler, prompt, most = self.model.sampler(request)[1], len(request.prompt), self.forwards(request)
        first, length = prompt - sampler.origin(prompt), sampler.canvas_length(prompt) - sampler.origin(prompt)
        set_at = [i * most // length for i in range(first, length)]
        start, end = request.start_forward or 0, most if request.end_forward is None else request.end_forward
        self.sampled += end - start
        written = [(i, at) for i, at in enumerate(set_at) if start <= at < end]
        return Generation(
            tokens=[self.token if at < end else self.model.spec.mask for at in set_at], text="", nfe=end - start,
            finish_reason="length", trajectory=[Event(at, "set", i, self.token, 1.0, 0.0) for i, at in written],
            predictions=[[self.token] * len(set_at)] * most if request.decoding.get("predictions") else None,
        )  # fmt: skip
