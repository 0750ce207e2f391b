"""Validation of the texts and chat turns of a row."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.errors import brief
from dare_bench.types import Message, Prompt

ROLES = ("system", "user", "assistant")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""Names of roles in ShareGPT's files, besides ``system``, ``user`` and ``assistant``."""
CALLS = ("tool_calls", "function_call", "reasoning_content")
"""Parts of a turn that no chat template here renders: they would be lost."""


class Malformed(ValueError):
    """An invalid row; the message has the value seen and the value expected."""


def column(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or that of a column's field (``column.field``); raises Malformed where the row lacks it or
    holds null."""
    value: Any = row
    seen = ""
    for part in name.split("."):
        value = fields(value, seen) if seen else value
        seen, shown = (f"{seen}.{part}", f"{seen}.{part}") if seen else (part, repr(part))
        if part not in value:
            raise Malformed(f"no {shown}; expected it, as in the file's first row (it has {brief(list(value))})")
        if (value := value[part]) is None:
            raise Malformed(f"{seen} is null; expected a value")
    return value


def fields(value: Any, name: str) -> Mapping[str, Any]:
    """``value``, the column ``name``, as an object of fields; raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"{name} is {brief(value)}; expected an object of fields")
    return value


def text(value: Any, what: str, empty: bool = False) -> str:
    """``value`` as text, which must not be blank unless ``empty``; raises Malformed."""
    if not isinstance(value, str):
        raise Malformed(f"{what} is {brief(value)}, a {type(value).__name__}; expected text")
    if not empty and not value.strip():
        raise Malformed(f"{what} is empty ({brief(value)}); expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Malformed(f"{what} is not Unicode text (half a surrogate pair at character {error.start})") from error
    return value


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def messages(value: Any, what: str) -> list[Message]:
    """Chat messages with ``role`` and ``content``; raises Malformed."""
    return [_message(item, f"{what}[{i}]", "role", "content") for i, item in enumerate(_listed(value, what))]


def sharegpt(value: Any, what: str) -> list[Message]:
    """ShareGPT's messages (``from``, ``value``) with standard role names; ``role`` and ``content`` are accepted."""
    items = _listed(value, what)
    if isinstance(items[0], dict) and "role" in items[0]:
        return messages(value, what)
    return [_message(item, f"{what}[{i}]", "from", "value") for i, item in enumerate(items)]


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{what} is {brief(value)}, a {type(value).__name__}; expected a list of chat messages")
    if not value:
        raise Malformed(f"{what} is an empty list; expected chat messages")
    return value


def _message(item: Any, what: str, role_name: str, content_name: str) -> Message:
    if not isinstance(item, dict) or item.get(role_name) is None or content_name not in item:
        raise Malformed(f"{what} is {brief(item)}; expected an object with {role_name!r} and {content_name!r}")
    role = item[role_name]
    role = SHAREGPT_ROLES.get(role, role) if role_name == "from" and isinstance(role, str) else role
    if role not in ROLES:
        raise Malformed(f"{what} has {role_name} {brief(role)}; allowed: {', '.join(ROLES)}")
    for name in CALLS:
        if item.get(name):
            raise Malformed(f"{what} has {name!r}, which chat templates here do not render; expected text alone")
    return {"role": role, "content": text(item[content_name], f"{what}.{content_name}", empty=role == "system")}


def check_order(messages: Sequence[Message], what: str, last: str) -> None:
    """Raise Malformed unless user and assistant alternate after an optional system turn, with ``last`` at the end."""
    roles = [message["role"] for message in messages]
    start = 1 if roles[0] == "system" else 0
    for i, role in enumerate(roles[start:], start):
        expected = "assistant" if (i - start) % 2 else "user"
        if role != expected:
            raise Malformed(f"{what}[{i}] is a turn of {role!r}; expected {expected!r} (roles: {brief(roles)})")
    if roles[-1] != last:
        raise Malformed(f"{what} ends with a turn of {roles[-1]!r}; expected {last!r}")


def prompt(value: Any, what: str) -> Prompt:
    """A prompt: text, or messages that end with a user turn; raises Malformed."""
    if isinstance(value, str):
        return text(value, what)
    question = messages(value, what)
    check_order(question, what, last="user")
    return tuple(question)


def prompt_and_answers(
    row: Mapping[str, Any], prompt_name: str | None, answer_names: Sequence[str]
) -> tuple[Prompt, tuple[str, ...]]:
    """The prompt and the answers of a row. Answers that are messages may begin with those of the prompt; without a
    prompt, their common beginning is the prompt (TRL, ``extract_prompt``). A text prompt is the last user turn. Text
    answers stay raw."""
    given = None if prompt_name is None else column(row, prompt_name)
    answers = {name: column(row, name) for name in answer_names}
    if all(isinstance(answer, str) for answer in answers.values()):
        texts = tuple(text(answer, name) for name, answer in answers.items())
        return _split_text(*texts) if given is None else (prompt(given, str(prompt_name)), texts)
    conversations = {name: messages(answer, name) for name, answer in answers.items()}
    before = _shared_messages(given, prompt_name, max(conversations.values(), key=len)[:-1])
    final = []
    for name, conversation in conversations.items():
        full = [*before, *conversation] if len(conversation) == 1 else conversation
        if full[:-1] != before:
            raise Malformed(f"{name} is not the prompt followed by one answer; expected one assistant turn")
        check_order(full, name, last="assistant")
        final.append(full[-1]["content"])
    return tuple(before), tuple(final)


def _shared_messages(given: Any, name: str | None, before_answer: list[Message]) -> list[Message]:
    """The messages of the prompt: from the prompt column, else those before the last turn of a conversation."""
    if given is None:
        if not before_answer:
            raise Malformed("no prompt: the answers are single turns; expected a 'prompt' column")
        return before_answer
    if isinstance(given, str):
        question = text(given, str(name))
        if before_answer and before_answer[-1]["content"].strip() != question.strip():
            raise Malformed(
                f"{name} is {brief(question)}, but the answers' last question is "
                f"{brief(before_answer[-1]['content'])}; expected the same"
            )
        return before_answer or [user(question)]
    return list(prompt(given, str(name)))  # type: ignore[arg-type]


def _split_text(chosen: str, rejected: str) -> tuple[str, tuple[str, ...]]:
    """The common beginning of two texts, up to its last word break, and the rest of each."""
    common = os.path.commonprefix([chosen, rejected])  # noqa: RUF071 - of characters
    breaks = [match.start() for match in re.finditer(r"\s+", common) if match.start() > 0]
    if not breaks:
        raise Malformed("chosen and rejected have no common beginning; expected a 'prompt' column")
    cut = breaks[-1]
    return chosen[:cut], (text(chosen[cut:], "chosen"), text(rejected[cut:], "rejected"))
