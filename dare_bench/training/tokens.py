"""Training rows as token ids, and the distribution of their lengths. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dare_bench import chat, seeds
from dare_bench.errors import DareError, DataError, UsageError
from dare_bench.log import log
from dare_bench.protocols import LoadedModel
from dare_bench.training.files import reason
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Data, Example, Item, PreferencePair, TokenRow, Tokens, content, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Prompt, RewardPrompt

EOS = 1
"""Tokens after an answer that count toward the length of a row."""


def tokenize(data: Data, model: LoadedModel, spec: TrainSpec) -> Tokens:
    """Data as token ids, by the model's tokenizer.

    Messages are rendered by the chat template with the assistant's header, and the answer to them ends as the template
    ends a turn (:func:`turn_end`); raw text is unchanged. EOS is not added here: it is a setting of the method. The
    length of a row is that of its prompt, its answer and one EOS; rows longer than ``max_length`` are an error, dropped
    or truncated, by ``overlong``. Raises UsageError: max_length beyond the model's context; DataError: a row that is
    too long, that cannot be encoded, or that contains the mask token.
    """
    limit = spec.max_length or model.spec.context_limit
    if limit > model.spec.context_limit:
        raise UsageError(f"max_length={limit}: the model's context is {model.spec.context_limit} tokens; give less")
    encoder = _Encoder(model)
    kept: list[Item] = []
    items: list[tuple[TokenRow, ...]] = []
    long: list[str] = []
    repeats: Counter[str] = Counter()
    for row in data.rows:
        text = content(row)
        token_rows = encoder.rows(row, seeds.key("training row", text, repeats[text]))
        repeats[text] += 1
        if (length := max(map(_length, token_rows))) > limit:
            long.append(f"{row.where} ({length} tokens)")
            if spec.overlong == "drop":
                continue
            if spec.overlong == "truncate":
                token_rows = _truncate(token_rows, limit)
        items.append(token_rows)
        kept.append(row)
    _report_overlong(long, len(data.rows), limit, spec.overlong)
    if not items:
        raise DataError(f"{data.name}: no row is within {limit} tokens; give a larger max_length or shorter rows")
    hash_ = data.hash if len(kept) == len(data.rows) else digest(kept)
    records = tuple(row for row in kept if isinstance(row, RewardPrompt))
    return Tokens(data.kind, tuple(items), hash_, data.name, data.canvas, records, limit)


def _length(row: TokenRow) -> int:
    return len(row.prompt) + len(row.answer) + EOS


def _truncate(token_rows: tuple[TokenRow, ...], limit: int) -> tuple[TokenRow, ...]:
    """The rows of an item with truncated answers; raises DataError if nothing or no difference is left of them."""
    first = token_rows[0]
    room = limit - EOS - len(first.prompt)
    if room < 1:
        raise DataError(
            f"{first.where}: its prompt of {len(first.prompt)} tokens leaves no room for an answer within {limit}; "
            "give overlong=drop or a larger max_length"
        )
    truncated = tuple(replace(r, answer=r.answer[:room], cut=True) if len(r.answer) > room else r for r in token_rows)
    if len({row.answer for row in truncated}) < len(truncated):
        raise DataError(
            f"{first.where}: truncated, both answers are the same; give overlong=drop or a larger max_length"
        )
    return truncated


def _report_overlong(long: list[str], total: int, limit: int, overlong: str) -> None:
    """Warn of rows that were dropped or truncated; raises DataError if they are an error."""
    if not long:
        return
    first = f"{len(long)} of {total} rows are longer than {limit} tokens, the first is {long[0]}"
    if overlong == "error":
        raise DataError(f"{first}; give a larger max_length, or overlong=drop or truncate")
    if first_process():
        log.warning("%s: %s", first, "dropped" if overlong == "drop" else "their answers are truncated")


class _Encoder:
    def __init__(self, model: LoadedModel) -> None:
        self.model = model

    @cached_property
    def end(self) -> tuple[int, ...]:
        return turn_end(self.model.tokenizer, self.model.spec.eos_ids[:1])

    def rows(self, row: Item, key: int) -> tuple[TokenRow, ...]:
        """One token row for each answer; only the prompt if there is none."""
        prompt = self._ids(row.prompt, row.where)
        answers: tuple[str, ...] = ()
        if isinstance(row, Example):
            answers = (row.answer,)
        elif isinstance(row, PreferencePair):
            answers = (row.chosen, row.rejected)
        if not answers:
            return (TokenRow(prompt, (), row.where, key),)
        is_chat = len(row.prompt) > 0 and isinstance(row.prompt[0], Mapping)
        end = self.end if is_chat and self.model.tokenizer is not None else ()
        return tuple(
            TokenRow(prompt, (*self._ids(answer, row.where), *end), row.where, seeds.key(key, side) if side else key)
            for side, answer in enumerate(answers)
        )

    def _ids(self, prompt: Prompt, where: str) -> tuple[int, ...]:
        try:
            ids = tuple(self.model.encode(prompt))
        except DareError as error:
            raise DataError(f"{where}: {error}") from error
        if self.model.spec.mask_id in ids:
            raise DataError(
                f"{where}: its text contains the mask token (id {self.model.spec.mask_id}), which marks tokens to "
                "predict; remove it"
            )
        return ids


def turn_end(tokenizer: Any, added: Sequence[int]) -> tuple[int, ...]:
    """Token ids that a chat template appends to an assistant's turn, up to the first special token: ``<|eot_id|>`` of
    LLaDA, ``<|im_end|>`` of Dream and SDAR, ``<|role_end|>`` of LLaDA2. What follows belongs to the next turn.

    None if no special token ends a turn, or if it is in ``added``, the EOS that training appends (SDAR). Raises
    DataError: the template does not accept an assistant turn.
    """
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    try:
        text = chat.render(turns, tokenizer, add_generation_prompt=False)
    except Exception as error:  # templates raise any exception
        raise DataError(f"the chat template does not accept an assistant's turn ({reason(error)})") from error
    tail = text.rpartition("answer")[2]
    ids = list(tokenizer(tail, add_special_tokens=False)["input_ids"]) if tail.strip() else []
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()} if ids else set()
    at = next((i for i, token in enumerate(ids) if token in special), None)
    if at is None or ids[at] in added:
        return ()
    return tuple(ids[: at + 1])


# -- lengths of rows ---------------------------------------------------------------------------------------------------


BINS, BAR = 10, 40
"""Maximum number of bars of the histogram, and the length of the longest in characters."""


def histogram(tokens: Tokens) -> str:
    """Token lengths as text: mean and percentiles of each part, a histogram of rows (without EOS), the longest row."""
    rows = [row for item in tokens.items for row in item]
    parts = {"prompt": [len(item[0].prompt) for item in tokens.items]}
    sides = {"pairs": ("chosen", "rejected"), "prompts": ()}.get(tokens.kind, ("answer",))
    for side, name in enumerate(sides):
        parts[name] = [len(item[side].answer) for item in tokens.items]
    lengths = [len(row.prompt) + len(row.answer) for row in rows]
    if sides:
        parts["row"] = lengths
    lines = [f"{tokens.name}: {len(tokens.items):,} {tokens.kind}, {sum(lengths):,} tokens"]
    lines.append(f"{'tokens of':>10}{'mean':>9}" + "".join(f"{p}%".rjust(8) for p in (5, 50, 95, 99)) + f"{'most':>8}")
    for name, part in parts.items():
        ranks = "".join(f"{percentile(part, p):>8,}" for p in (5, 50, 95, 99, 100))
        lines.append(f"{name:>10}{sum(part) / len(part):>9,.1f}{ranks}")
    longest = max(rows, key=_length)
    lines += _bars(lengths)
    of_answer = f" + {len(longest.answer)}" if sides else ""
    lines.append(f"longest: {longest.where} ({len(longest.prompt)}{of_answer} tokens)")
    return "\n".join(lines)


def percentile(values: Sequence[int], share: int) -> int:
    """Nearest-rank percentile: the smallest value that ``share`` percent of the values do not exceed."""
    return sorted(values)[max(-(-share * len(values) // 100), 1) - 1]


def _bars(lengths: Sequence[int]) -> list[str]:
    """A text histogram with at most ``BINS`` bins of equal width."""
    low, high = min(lengths), max(lengths)
    width = -(-(high - low + 1) // BINS)
    counts = Counter((n - low) // width for n in lengths)
    most = max(counts.values())
    lines = []
    for i in range((high - low) // width + 1):
        start = low + i * width
        span = f"{start:,}" if width == 1 else f"{start:,}-{min(start + width - 1, high):,}"
        bar = "#" * -(-BAR * counts[i] // most)
        lines.append(f"{span:>17} {bar:<{BAR}} {counts[i]:,}")
    return lines
