"""The estimated GPU cost of a recipe, from its config and settings, without weights, data or a GPU: its forwards, times
a traced one (``trace.py``). No torch at import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from dare_bench.costs.checkpoint import Network, published
from dare_bench.costs.gpus import Gpu, gpu_named
from dare_bench.errors import UsageError
from dare_bench.recipe_schema import TestSet
from dare_bench.recipes import Recipe
from dare_bench.suites import merged
from dare_bench.types import Request

ROWS = 16
"""Assumed number of rows per forward pass."""
TEMPLATE_TOKENS = 30
"""Assumed number of tokens of the task's text and the chat template in a prompt."""


class SizeUnknownError(UsageError):
    """The test set of a recipe has no recorded size, and no limit is given."""


@dataclass(frozen=True)
class Pass:
    """``count`` forwards of one row over ``tokens`` that attend to ``context``, with logits at ``logits`` positions."""

    count: float
    tokens: float
    context: float
    logits: float

    def sizes(self, logits: int = 1) -> tuple[int, int, int]:
        """Whole numbers of tokens, of those that they attend to, and of positions with ``logits`` times as many."""
        return ceil(self.tokens), ceil(self.context), ceil(logits * self.logits)


@dataclass(frozen=True)
class RecipeEstimate:
    """What a run takes at most: every response has its full length, and every block all forwards that its strategy may
    take. ``forwards``: passes, counted per row (NFE); ``pflop``: 1e15 operations; ``hours``: GPU hours."""

    recipe: str
    gpu: str
    documents: int
    prompts: int
    forwards: int
    pflop: float
    hours: float
    assumptions: list[str]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """The estimate in a few lines."""
        hours = f"{self.hours:,.1f} GPU hours" if self.hours >= 1 else f"{self.hours * 60:.0f} GPU minutes"
        lines = [
            f"{self.recipe}: estimate for one {self.gpu}, not a measurement",
            f"  {self.prompts:,} prompts ({self.documents:,} documents)",
            f"  at most {self.forwards:,} forward passes, {self.pflop:,.0f} PFLOP, {hours}",
        ]
        return "\n".join([*lines, *(f"  assumed: {text}" for text in self.assumptions)])


@dataclass(frozen=True)
class UnknownCost:
    """What stands for the estimate of a recipe that runs, but has none."""

    recipe: str
    cost: str

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        return f"{self.recipe}: {self.cost}"


def estimate(recipe: Recipe, overrides: Mapping[str, Any] | None = None, gpu: str = "H100") -> RecipeEstimate:
    """Forward passes and GPU hours of a recipe. ``overrides``: RunSpec fields that replace those of the recipe.

    Raises:
        UsageError: an unknown GPU, or a recipe that cannot be run.
        SizeUnknownError: all settings are valid, but the size of the test set is not recorded.
        DecodingError: decoding or likelihood settings that the family does not have or allow.
    """
    device, run, test_set = gpu_named(gpu), recipe.entry.run, recipe.entry.published.test_set
    fields = merged(recipe.fields(), {name: value for name, value in (overrides or {}).items() if value is not None})
    assert run is not None  # otherwise ``fields`` raises
    network = published(recipe.file.checkpoint, fields["family"])
    model = network.model
    prompt, note = _prompt(run.shots if fields.get("num_fewshot") is None else fields["num_fewshot"], test_set)
    notes = [note, f"{device.text}, {ROWS} rows to a forward pass; loading and scoring take no time"]
    if fields["model"] != recipe.file.model:
        notes.append(f"a network of {recipe.file.model}'s shape; the shape of {fields['model']} is not known here")
    if run.kind == "likelihood":
        each = fields["repeats"] * (test_set.choices or 2)
        tokens = prompt + (target := test_set.answer_tokens or 1)  # of a choice and its context
        request = Request("", "score", [0] * prompt, [0] * target, fields["likelihood"])
        passes = [Pass(model.forwards(request), tokens, tokens, target / 2)]
    else:
        each = fields["repeats"] * run.prompts
        sampler = model.family.sampler(model.resolve(fields["decoding"]), model.spec)
        steps = sampler.strategy.most_forwards(sampler.block_length)
        length = f"full length of {sampler.gen_length} in blocks of {sampler.block_length}, of at most {steps} steps"
        notes.insert(1, f"every response has its {length}")
        passes = list(decoding(sampler, prompt))
    documents = _documents(test_set, fields)
    cost = _cost(passes, network, device, documents * each)
    return RecipeEstimate(recipe.name, device.name, documents, documents * each, *cost, notes)


def _documents(test_set: TestSet, fields: Mapping[str, Any]) -> int:
    samples, limit, count = fields.get("samples"), fields.get("limit"), test_set.documents
    if samples:
        return sum(map(len, samples.values()))
    if count is None and (limit is None or limit < 1):
        raise SizeUnknownError(f"the size of its test set is not recorded ({test_set.id}); --limit N gives one")
    asked = count if limit is None else int(limit) if limit >= 1 else ceil(limit * (count or 0))
    return min(asked or 0, count or asked or 0)


def _prompt(shots: int, test_set: TestSet) -> tuple[int, str]:
    """Mean number of prompt tokens: the question, few-shot examples with their answers, the template."""
    is_known = test_set.prompt_tokens is not None and test_set.tokens == "data"
    question = test_set.prompt_tokens or 200
    total = question * (1 + shots) + (test_set.answer_tokens or 0) * shots + TEMPLATE_TOKENS
    source = "the mean of the data" if is_known else "unknown, assumed"
    return total, f"prompts of {total} tokens: a question of {question} ({source}), {shots} worked examples"


def decoding(sampler: Any, prompt: int) -> Iterator[Pass]:
    """The forwards that a response takes at most by a family's sampler (``sampling.sampler.Sampler``)."""
    block, cache, blocks = sampler.block_length, sampler.attention.cache, sampler.blocks(prompt)
    each, total = sampler.most_forwards(prompt) / blocks, sampler.canvas_length(prompt)
    if sampler.attention.causal:  # a finished block is committed in the first forward of the next one
        middle = prompt + (blocks + 1) / 2 * block
        if cache.used:
            yield Pass(1, prompt, prompt, 0)
        yield Pass(blocks * each, block if cache.used else middle, middle, block / 2)
    elif not cache.used:
        yield Pass(blocks * each, total, total, block / 2)
    else:
        yield Pass(blocks, total, total, block / 2)
        rest = block if cache.block_alone else total - prompt - (blocks - 1) / 2 * block
        yield Pass(blocks * (each - 1), rest, total, block / 2)


def _cost(passes: Sequence[Pass], network: Network, gpu: Gpu, requests: int) -> tuple[int, float, float]:
    """Forwards, 1e15 operations, and hours."""
    from torch import bfloat16

    from dare_bench.costs.trace import answering

    traced = [(requests * part.count / ROWS, answering(network, bfloat16, ROWS, *part.sizes())) for part in passes]
    seconds = sum(times * gpu.seconds(one.flop, one.moved) for times, one in traced)
    forwards = round(requests * sum(part.count for part in passes))
    return forwards, sum(times * one.flop for times, one in traced) / 1e15, seconds / 3600
