"""What rewards share: their options, and the parts of an answer that they read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dare_bench.config import one_line
from dare_bench.errors import UsageError
from dare_bench.types import Prompt, Reward

MAX_TEXT = 50_000
"""Characters of an answer that rewards read. It bounds the time for hostile text."""
OPEN, CLOSE = "<answer>", "</answer>"


class RewardOptions(BaseModel):
    """Options of a reward; subclasses add fields. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PartialCredit(RewardOptions):
    """``format_weight``: the value of a wrong answer whose format is right (0: none)."""

    format_weight: float = Field(0.0, ge=0, lt=1)

    def reward(self, correct: float, partial: float, name: str = "format") -> Reward:
        """1 for a right answer, else the weight times ``partial`` (from 0 to 1), a term of that name."""
        value = 1.0 if correct else self.format_weight * partial
        return Reward(value, float(correct), {"correctness": float(correct), name: float(partial)})


Options = TypeVar("Options", bound=RewardOptions)


def read_options(kind: type[Options], options: Mapping[str, Any], reward: str) -> Options:
    """The validated options of a reward.

    Raises:
        UsageError: an unknown name or an invalid value; the message lists the names.
    """
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        names = ", ".join([*kind.model_fields, "random"])
        raise UsageError(f"{one_line(error, f'the reward {reward!r}')}; its options are {names}") from error


def tagged(text: str) -> str | None:
    """The text of the last ``<answer>...</answer>``; None if there is none."""
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, max(end, 0))
    return None if start < 0 else text[start + len(OPEN) : end].strip()


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` (or ``\fbox{...}``, or ``\boxed 5``); None if there is none, or if it is
    not closed."""
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix(r"\boxed").removeprefix(r"\fbox")
    if not rest.startswith("{"):
        word = re.match(r" ?([^\s${}]+)", rest)
        return word[1] if word else None
    depth = 0
    for i, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:i].strip()
    return None


def question(prompt: Prompt) -> str:
    """The text of a prompt, or of its last message; empty for token ids."""
    if isinstance(prompt, str):
        return prompt
    last: Any = prompt[-1] if isinstance(prompt, Sequence) and prompt else None
    return str(last["content"]) if isinstance(last, Mapping) else ""
