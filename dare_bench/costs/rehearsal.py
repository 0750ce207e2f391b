"""What an optimizer step reads: some rows of the training, and the forwards that the method's source of steps makes of
rows of their mean length. A source that samples completions is given those of a policy without a network, which writes
tokens from left to right in as many forwards as its sampler may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dare_bench import recipes
from dare_bench.costs.recipe import TEMPLATE_TOKENS
from dare_bench.errors import UsageError
from dare_bench.training.data import hub_data, read_data
from dare_bench.training.rows import Data, Example, Kind, TokenRow, Tokens
from dare_bench.training.sources import find_files
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenize
from dare_bench.training.turns import user
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
    known, tokenizer = hub_data(spec.task), model.tokenizer
    if known is None and (spec.task is not None or find_files(str(spec.data), spec.split)):
        few = spec.model_copy(update={"rows": min(spec.rows or SAMPLED_ROWS, SAMPLED_ROWS)})
        data = read_data(spec if spec.max_steps is None else few, kind)
        count, data = len(data.rows), replace(data, rows=data.rows[:SAMPLED_ROWS])
        source = "its tokenizer" if tokenizer is not None else f"characters / {CHARACTERS:g}"
    else:
        of_hub = [t for t in recipes.test_sets() if known and t.id.partition(",")[0].replace(" ", ":") == known.data]
        if not of_hub or kind == "pairs":
            raise UsageError(
                f"the lengths of the rows of {spec.task or spec.data} are unknown: they are not on this machine, and "
                "no recipe has their mean; give a local file (--data FILE)"
            )
        prompt, answer = (
            " " * round((tokens or 0) * CHARACTERS) for tokens in (of_hub[0].prompt_tokens, of_hub[0].answer_tokens)
        )
        example = Example((user(prompt),), answer, "")
        row = RewardPrompt(example.prompt, "0", str(spec.task), "") if kind == "prompts" else example
        data, count, tokenizer = Data(kind, (row,), "", str(spec.task)), spec.rows or known.count, None
        source = f"the mean lengths of {of_hub[0].id}, {TEMPLATE_TOKENS} for a chat template"
    if tokenizer is None:
        model = SimpleNamespace(tokenizer=None, spec=model.spec, encode=_by_length)
    some = tokenize(data, model, spec)  # which drops rows that are too long, as the training does
    return SampledRows(round(count * len(some.items) / len(data.rows)), some, source)


def _by_length(prompt: Any) -> list[int]:
    """As many ids as a text, or chat turns with their template, have on average."""
    if isinstance(prompt, str):
        return [-1] * round(len(prompt) / CHARACTERS)
    return [-1] * round(sum(len(turn["content"]) for turn in prompt) / CHARACTERS + TEMPLATE_TOKENS)


class _Policy:
    """What a source of completions asks of the model in training; counts forwards of single rows."""

    reference, version, has_dropout, sampled, scored = None, 0, False, 0, 0
    request: Request | None = None

    def __init__(self, model: Any, groups: int, steps: int) -> None:
        self.model, self.groups, self.steps = model, groups, steps
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
        """Each block is written in its share of the forwards, each token of it in its share of these."""
        sampler, prompt, most = self.model.sampler(request)[1], len(request.prompt), self.forwards(request)
        block, each = sampler.block_length, most / sampler.blocks(prompt)
        columns = range(prompt - sampler.origin(prompt), sampler.canvas_length(prompt) - sampler.origin(prompt))
        set_at = [int(i // block * each + i % block * each / block) for i in columns]
        start, end = request.start_forward or 0, most if request.end_forward is None else request.end_forward
        self.sampled += end - start
        written = [(i, at) for i, at in enumerate(set_at) if start <= at < end]
        return Generation(
            tokens=[self.token if at < end else self.model.spec.mask for at in set_at], text="", nfe=end - start,
            finish_reason="length", trajectory=[Event(at, "set", i, self.token, 1.0, 0.0) for i, at in written],
            predictions=[[self.token] * len(set_at)] * most if request.decoding.get("predictions") else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Rehearsal:
    """``copies``: the masked copies of an optimizer step on a device, as its method's source gives them. Forwards of
    single rows, mean over the steps on a rollout: ``scored`` without gradients if a step is one forward,
    ``scored_apart`` if it is several, ``sampled``. ``request``: of a completion."""

    copies: Any
    scored: float
    scored_apart: float
    sampled: float
    request: Request | None

    def forwards(self, spec: TrainSpec) -> int:
        """The forwards into which a step is divided."""
        limit = spec.micro_batch_size or len(self.copies)
        return max(spec.gradient_accumulation_steps, ceil(len(self.copies) / limit))


def rehearse(method: Any, spec: TrainSpec, model: Any, rows: SampledRows, groups: int) -> Rehearsal:
    """A step of one of the ``groups`` of processes, each of which has other rows."""
    policy = _Policy(model, groups, spec.max_steps or 1)
    items = spec.rows_per_forward * spec.gradient_accumulation_steps
    shape: Any = SimpleNamespace(
        items=spec.rows_per_forward, accumulate=spec.gradient_accumulation_steps, processes=groups, sequence=1,
        items_per_step=items * groups,
    )  # fmt: skip
    source = method.source(rows.alike(items * groups, policy.token), shape, spec.seed)
    source.prompts = range(items * groups)  # instead of those that a method chooses by its first answers
    source.attach(policy)
    iterations = int(getattr(method.options, "num_iterations", 1))
    first = source.step(0)
    one = apart = float(policy.scored)
    for step, times in (first, 1), (source.step(iterations - 1), iterations - 1):
        reference = len(step.copies) * bool(method.wants_reference)
        values = len(step.copies) * (method.needs_values(step) and not method.sums_over_copies)
        one, apart = one + times * reference, apart + times * (reference + values)
    return Rehearsal(first.copies, one / iterations, apart / iterations, policy.sampled / iterations, policy.request)
