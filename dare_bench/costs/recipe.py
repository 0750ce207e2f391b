"""The estimated GPU cost of a recipe, from its config and settings, without weights, data or a GPU: its forwards, times
a traced one (``trace.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dare_bench.costs.trace import GPUS, answering, find
from dare_bench.harness.common.scope import Scope
from dare_bench.recipes import Recipe
from dare_bench.suites import merged
from dare_bench.types import Request

ROWS = 16
"""Assumed number of rows per forward pass."""
TEMPLATE_TOKENS = 30
"""Assumed number of tokens of the task's text and the chat template in a prompt."""


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
        return (
            f"{self.recipe}: estimate for one {self.gpu}, not a measurement\n"
            f"  {self.prompts:,} prompts ({self.documents:,} documents)\n"
            f"  at most {self.forwards:,} forward passes, {self.pflop:,.0f} PFLOP, {self.hours:,.2f} GPU hours"
        ) + "".join(f"\n  assumed: {text}" for text in self.assumptions)


def estimate(recipe: Recipe, overrides: Mapping[str, Any] | None = None) -> RecipeEstimate:
    """Forward passes and GPU hours of a recipe. ``overrides``: RunSpec fields that replace those of the recipe.

    Raises:
        UsageError: a recipe that cannot be run. DecodingError: settings that the family does not have or allow.
    """
    device, run, test_set = GPUS["H100"], recipe.entry.run, recipe.entry.published.test_set
    fields = merged(recipe.fields(), {name: value for name, value in (overrides or {}).items() if value is not None})
    assert run is not None  # otherwise ``fields`` raises
    shots = run.shots if fields.get("num_fewshot") is None else fields["num_fewshot"]
    question, answer = test_set.prompt_tokens or 200, test_set.answer_tokens or 0
    prompt = question * (1 + shots) + answer * shots + TEMPLATE_TOKENS
    request = Request("", "generate", [0] * prompt, decoding=fields["decoding"])
    if run.kind == "likelihood":
        request = Request("", "score", [0] * prompt, [0] * (answer or 1), fields["likelihood"])
    most, one = answering(find(recipe.file.model, fields["family"]), torch.bfloat16, ROWS, request)
    scope = Scope.of(fields.get("limit"), fields.get("samples"))
    first, documents = scope.first(test_set.documents), test_set.documents
    if scope.samples or first not in (None, -1):
        documents = sum(map(len, scope.samples.values())) if scope.samples else first
    each = (test_set.choices or 2) if request.kind == "score" else run.prompts
    prompts = (documents or 1) * each * fields["repeats"]
    cost = one.scaled(prompts * most / ROWS)
    source = "the mean of the data" if test_set.prompt_tokens and test_set.tokens == "data" else "unknown, assumed"
    notes = [
        f"prompts of {prompt} tokens: a question of {question} ({source}), {shots} worked examples",
        f"each takes {most:,} forwards, the most that its settings allow",
        f"{device.text}, {ROWS} rows to a forward pass; loading and scoring take no time",
    ]
    if fields["model"] != recipe.file.model:
        notes.append(f"a network of {recipe.file.model}'s shape; the shape of {fields['model']} is not known here")
    if documents is None:
        notes.append(f"one document: the size of the test set is not recorded ({test_set.id}); --limit N gives one")
    numbers = documents or 1, prompts, prompts * most, cost.flop / 1e15, device.seconds(cost) / 3600
    return RecipeEstimate(recipe.name, device.name, *numbers, notes)
