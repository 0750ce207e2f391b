"""The rows of a training: their number, and the mean length of some of them. No torch at import."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from dare_bench import recipes
from dare_bench.costs.recipe import TEMPLATE_TOKENS
from dare_bench.registry import registry
from dare_bench.training.data import hub_data, read_data
from dare_bench.training.rows import Kind, PreferencePair, TokenRow, Tokens
from dare_bench.training.sources import find_files
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenize
from dare_bench.types import RewardPrompt

SAMPLED_ROWS = 256
CHARACTERS = 3.5
"""Characters per token if there is no tokenizer: English text and code in current vocabularies."""
UNKNOWN_TOKENS, UNKNOWN_ROWS = 256, 10_000


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
    known, name, canvas, records = hub_data(spec.task), "", None, tuple[RewardPrompt, ...]()
    if known is None and (spec.task is not None or find_files(str(spec.data), spec.split)):
        few = spec.model_copy(update={"rows": min(spec.rows or SAMPLED_ROWS, SAMPLED_ROWS)})
        data = read_data(spec if spec.max_steps is None else few, kind)
        count, data = len(data.rows), replace(data, rows=data.rows[:SAMPLED_ROWS])
        if model.tokenizer is not None:
            some = tokenize(data, model, spec)  # which drops rows that are too long, as the training does
            return SampledRows(round(count * len(some.items) / len(data.rows)), some, "its tokenizer")
        name, canvas, records = data.name, data.canvas, tuple(r for r in data.rows if isinstance(r, RewardPrompt))
        prompt, answer = (mean(sizes) / CHARACTERS for sizes in zip(*map(_characters, data.rows), strict=True))
        source = f"characters / {CHARACTERS:g}"
    else:
        hub, count = (spec.data, UNKNOWN_ROWS) if known is None else (known.data, known.count)
        count, prompt, answer, source = spec.rows or count, UNKNOWN_TOKENS, UNKNOWN_TOKENS, "assumed: not a local file"
        for test_set in recipes.test_sets():
            if test_set.id.partition(",")[0].replace(" ", ":") == hub and test_set.prompt_tokens is not None:
                prompt, answer = test_set.prompt_tokens + TEMPLATE_TOKENS, test_set.answer_tokens or answer
                source = f"the mean lengths of {test_set.id}, {TEMPLATE_TOKENS} for a chat template"
        if kind == "prompts" and spec.task in registry().names("reward"):  # the rows name the task's own reward
            records = (RewardPrompt("", "0", str(spec.task), str(spec.task)),)
    limit = spec.max_length or 10**9
    kept = min(round(prompt), limit - 1)
    row = TokenRow((0,) * kept, (0,) * (0 if kind == "prompts" else min(round(answer), limit - kept)), "", 0)
    items = ((row,) * (2 if kind == "pairs" else 1),)
    return SampledRows(count, Tokens(kind, items, "", name, canvas, records, spec.max_length), source)


def _characters(row: Any) -> tuple[float, float]:
    """Those of a prompt, with its chat template, and of an answer."""
    is_chat = not isinstance(row.prompt, str)
    prompt = "".join(turn["content"] for turn in row.prompt) if is_chat else row.prompt
    answer = max(row.chosen, row.rejected, key=len) if isinstance(row, PreferencePair) else getattr(row, "answer", "")
    return len(prompt) + CHARACTERS * TEMPLATE_TOKENS * is_chat, len(answer)
