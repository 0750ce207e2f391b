"""Rows as token ids, as they are trained on, and how long they are. No torch here."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench import chat, seeds
from dare_bench.errors import DareError, DataError, UsageError
from dare_bench.protocols import LoadedModel
from dare_bench.training.files import reason
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Data, Example, Item, PreferencePair, TokenRow, Tokens, content, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Prompt

log = logging.getLogger("dare_bench")
EOS = 1
"""Tokens behind an answer that every row must have room for."""


def tokenise(data: Data, model: LoadedModel, spec: TrainSpec) -> Tokens:
    """Data as token ids, by the model's tokenizer.

    Messages go through the chat template with the assistant's header behind them, and the answer to them ends as the
    template ends a turn (:func:`turn_end`); raw text stays as it is. EOS is not added here: what stands behind an
    answer is a setting of the method. A row is its prompt, its answer and one EOS; those longer than ``max_length`` are
    an error, dropped or cut, as ``overlong`` says, and counted.

    Raises:
        UsageError: max_length beyond the model's context.
        DataError: a row that is too long, that cannot be encoded, or that contains the mask token.
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
        said = content(row)
        token_rows = encoder.rows(row, seeds.key("training row", said, repeats[said]))
        repeats[said] += 1
        over = [r for r in token_rows if _length(r) > limit]
        if over:
            long.append(f"{row.where} ({max(map(_length, over))} tokens)")
            if spec.overlong == "drop":
                continue
            if spec.overlong == "truncate":
                token_rows = _distinct(tuple(_cut(r, limit) for r in token_rows))
        items.append(token_rows)
        kept.append(row)
    _settle(long, len(data.rows), limit, spec.overlong)
    if not items:
        raise DataError(f"{data.name}: no row is within {limit} tokens; give a larger max_length or shorter rows")
    hash_ = data.hash if len(kept) == len(data.rows) else digest(kept)
    return Tokens(data.kind, tuple(items), hash_, data.name, data.canvas)


def _length(row: TokenRow) -> int:
    return len(row.prompt) + len(row.answer) + EOS


def _cut(row: TokenRow, limit: int) -> TokenRow:
    """The row with its answer cut to fit; raises DataError where the prompt leaves no room."""
    room = limit - EOS - len(row.prompt)
    if room < 1:
        raise DataError(
            f"{row.where}: its prompt of {len(row.prompt)} tokens leaves no room for an answer within {limit}; "
            "give overlong=drop or a larger max_length"
        )
    return row if len(row.answer) <= room else TokenRow(row.prompt, row.answer[:room], row.where, row.key, cut=True)


def _distinct(token_rows: tuple[TokenRow, ...]) -> tuple[TokenRow, ...]:
    if len(token_rows) == 2 and token_rows[0].answer == token_rows[1].answer:
        raise DataError(
            f"{token_rows[0].where}: cut to fit, both answers are the same; give overlong=drop or more length"
        )
    return token_rows


def _settle(long: list[str], total: int, limit: int, overlong: str) -> None:
    """Say what was done with rows beyond the limit; raises DataError where that is an error."""
    if not long:
        return
    first = f"{len(long)} of {total} rows are longer than {limit} tokens, the first is {long[0]}"
    if overlong == "error":
        raise DataError(f"{first}; give a larger max_length, or overlong=drop or truncate")
    if first_process():
        log.warning("%s: %s", first, "left out" if overlong == "drop" else "their answers are cut")


class _Encoder:
    """Encodes rows with one model; keeps what a turn of its template ends with."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self._end: tuple[int, ...] | None = None

    @property
    def end(self) -> tuple[int, ...]:
        if self._end is None:
            self._end = turn_end(self.model.tokenizer, self.model.spec.eos_ids[:1])
        return self._end

    def rows(self, row: Item, key: int) -> tuple[TokenRow, ...]:
        """The row's token rows: one, or a pair's two, or a question's prompt alone."""
        prompt = self._ids(row.prompt, row.where)
        answers: tuple[str, ...] = ()
        if isinstance(row, Example):
            answers = (row.answer,)
        elif isinstance(row, PreferencePair):
            answers = (row.chosen, row.rejected)
        if not answers:
            return (TokenRow(prompt, (), row.where, key),)
        end = self.end if _is_chat(row.prompt) else ()
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
                f"{where}: its text contains the mask token (id {self.model.spec.mask_id}), which stands for a token "
                "to be learned; remove it"
            )
        return ids


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def turn_end(tokenizer: Any, added: Sequence[int]) -> tuple[int, ...]:
    """Token ids that a chat template puts behind an assistant's turn, through the first special token: ``<|eot_id|>``
    of LLaDA, ``<|im_end|>`` of Dream and SDAR, ``<|role_end|>`` of LLaDA2. What follows that token opens the next turn
    (a line break, or the header that LLaDA's template always appends) and is not the assistant's to say.

    Args:
        added: the EOS that training puts behind an answer by itself (the first of the model's).

    Returns:
        The ids; none where that token is among ``added`` (SDAR, whose first EOS is ``<|im_end|>``), and where no
        special token ends a turn.

    Raises:
        DataError: the template takes no assistant turn.
    """
    said = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    try:
        text = chat.render(said, tokenizer, add_generation_prompt=False)
    except Exception as error:  # templates raise what they like
        raise DataError(f"the chat template does not take an assistant's turn ({reason(error)})") from error
    tail = text.rpartition("answer")[2]
    ids = list(tokenizer(tail, add_special_tokens=False)["input_ids"]) if tail.strip() else []
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()} if ids else set()
    at = next((i for i, token in enumerate(ids) if token in special), None)
    if at is None or ids[at] in added:
        return ()
    return tuple(ids[: at + 1])


# -- how long rows are -------------------------------------------------------------------------------------------------

BINS = 10
BAR = 40
"""Bars of the histogram, and characters of the longest."""


def histogram(tokens: Tokens) -> str:
    """Token lengths as text: mean and percentiles of each part, bars of whole rows (without EOS), the longest row."""
    rows = [row for item in tokens.items for row in item]
    names = {"pairs": ("chosen", "rejected")}.get(tokens.kind, ("answer",))
    parts = {"prompt": [len(item[0].prompt) for item in tokens.items]}
    for side, name in enumerate(names):
        parts[name] = [len(item[side].answer) for item in tokens.items]
    parts["row"] = [len(row.prompt) + len(row.answer) for row in rows]
    lines = [f"{tokens.name}: {len(tokens.items):,} {tokens.kind}, {sum(parts['row']):,} tokens"]
    lines.append(f"{'tokens of':>10}{'mean':>9}" + "".join(f"{p}%".rjust(8) for p in (5, 50, 95, 99)) + f"{'most':>8}")
    for name, lengths in parts.items():
        ranks = "".join(f"{percentile(lengths, p):>8,}" for p in (5, 50, 95, 99, 100))
        lines.append(f"{name:>10}{sum(lengths) / len(lengths):>9,.1f}{ranks}")
    longest = max(rows, key=_length)
    lines += _bars(parts["row"])
    lines.append(f"longest: {longest.where} ({len(longest.prompt)} + {len(longest.answer)} tokens)")
    return "\n".join(lines)


def percentile(values: Sequence[int], share: int) -> int:
    """The smallest value that ``share`` percent of the values do not exceed (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(-(-share * len(ranked) // 100), 1) - 1]


def _bars(lengths: Sequence[int]) -> list[str]:
    """Counts of lengths in at most ``BINS`` bins of equal width."""
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
