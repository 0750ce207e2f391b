"""Texts and chat turns inside a row, checked: what a prompt and an answer may be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.training.files import shown
from dare_bench.types import Message, Prompt

ROLES = ("system", "user", "assistant")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""Other names of the roles in ShareGPT's files; ``system``, ``user`` and ``assistant`` stand there as well."""
CALLS = ("tool_calls", "function_call", "reasoning_content")
"""Parts of a turn that no template here renders: a turn that has them would lose them."""


class Malformed(ValueError):
    """A row that cannot be learned from; the message says what is there and what is expected."""


def column(row: Mapping[str, Any], name: str, shown_as: str | None = None) -> Any:
    """A column's value; raises Malformed where the row lacks it or holds null."""
    if name not in row:
        raise Malformed(f"no {shown_as or name!r}; expected it, as in the file's first row (it has {shown(list(row))})")
    if row[name] is None:
        raise Malformed(f"{shown_as or name} is null; expected a value")
    return row[name]


def text(value: Any, what: str, empty: bool = False) -> str:
    """``value`` as text that says something; raises Malformed."""
    if not isinstance(value, str):
        raise Malformed(f"{what} is {shown(value)}, a {type(value).__name__}; expected text")
    if not empty and not value.strip():
        raise Malformed(f"{what} is empty ({shown(value)}); expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Malformed(f"{what} is no Unicode text (half a surrogate pair at character {error.start})") from error
    return value


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def messages(value: Any, what: str) -> list[Message]:
    """Chat messages with ``role`` and ``content``; raises Malformed."""
    return [_message(item, f"{what}[{i}]", "role", "content") for i, item in enumerate(_listed(value, what))]


def sharegpt(value: Any, what: str) -> list[Message]:
    """ShareGPT's messages (``from``, ``value``), by our role names; ``role`` and ``content`` are taken too."""
    items = _listed(value, what)
    if items and isinstance(items[0], dict) and "role" in items[0]:
        return messages(value, what)
    return [_message(item, f"{what}[{i}]", "from", "value") for i, item in enumerate(items)]


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{what} is {shown(value)}, a {type(value).__name__}; expected a list of chat messages")
    if not value:
        raise Malformed(f"{what} is an empty list; expected chat messages")
    return value


def _message(item: Any, what: str, role_name: str, content_name: str) -> Message:
    if not isinstance(item, dict) or item.get(role_name) is None or content_name not in item:
        raise Malformed(f"{what} is {shown(item)}; expected an object with {role_name!r} and {content_name!r}")
    role = item[role_name]
    role = SHAREGPT_ROLES.get(role, role) if role_name == "from" and isinstance(role, str) else role
    if role not in ROLES:
        raise Malformed(f"{what} has {role_name} {shown(role)}; allowed are {', '.join(ROLES)}")
    for name in CALLS:
        if item.get(name):
            raise Malformed(f"{what} has {name!r}, which chat templates here do not render; expected text alone")
    return {"role": role, "content": text(item[content_name], f"{what}.{content_name}", empty=role == "system")}


def ordered(said: Sequence[Message], what: str, last: str) -> None:
    """Raise Malformed unless there is perhaps a system turn, then user and assistant by turns, ``last`` at the end."""
    roles = [message["role"] for message in said]
    start = 1 if roles[0] == "system" else 0
    for i, role in enumerate(roles[start:], start):
        wanted = "assistant" if (i - start) % 2 else "user"
        if role != wanted:
            raise Malformed(f"{what}[{i}] is a turn of {role!r}; expected {wanted!r} (roles: {shown(roles)})")
    if roles[-1] != last:
        raise Malformed(f"{what} ends with a turn of {roles[-1]!r}; expected {last!r}")


def prompt(value: Any, what: str) -> Prompt:
    """A prompt: text, or messages that end with a user turn; raises Malformed."""
    if isinstance(value, str):
        return text(value, what)
    said = messages(value, what)
    ordered(said, what, last="user")
    return tuple(said)


def prompt_and_answers(
    row: Mapping[str, Any], prompt_name: str | None, answer_names: Sequence[str]
) -> tuple[Prompt, tuple[str, ...]]:
    """The prompt and the answers of a row: all text, or answers as messages.

    Answers as messages may begin with the prompt's own messages, and without a prompt their shared beginning is the
    prompt (TRL, ``extract_prompt``). A text prompt beside them is the last user turn. Text stays raw.
    """
    given = None if prompt_name is None else column(row, prompt_name)
    answers = [column(row, name) for name in answer_names]
    if all(isinstance(answer, str) for answer in answers):
        if given is None:
            return _split_text([text(answer, name) for answer, name in zip(answers, answer_names, strict=True)])
        told = prompt(given, str(prompt_name))
        return told, tuple(text(answer, name) for answer, name in zip(answers, answer_names, strict=True))
    said = [messages(answer, name) for answer, name in zip(answers, answer_names, strict=True)]
    before = _beginning(given, prompt_name, said)
    full = [[*before, *answer] if len(answer) == 1 else answer for answer in said]
    for turns, name in zip(full, answer_names, strict=True):
        if turns[:-1] != before:
            raise Malformed(f"{name} is not the prompt and one answer behind it; expected one assistant turn")
        ordered(turns, name, last="assistant")
    return tuple(before), tuple(turns[-1]["content"] for turns in full)


def _beginning(given: Any, name: str | None, said: list[list[Message]]) -> list[Message]:
    """The prompt's messages, from the prompt column or from what whole conversations share."""
    whole = max(said, key=len)[:-1]
    if given is None:
        if not whole:
            raise Malformed("no prompt: the answers are single turns; expected a 'prompt' beside them")
        return whole
    if isinstance(given, str):
        asked = text(given, str(name))
        if whole and whole[-1]["content"].strip() != asked.strip():
            raise Malformed(
                f"{name} is {shown(asked)}, but the answers' last question is {shown(whole[-1]['content'])}; "
                "expected the same"
            )
        return whole or [user(asked)]
    told = messages(given, str(name))
    ordered(told, str(name), last="user")
    return told


def _split_text(answers: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The shared beginning of two texts, up to the last word break in it, and what follows in each."""
    first, second = answers
    same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, answers)))
    breaks = [found.start() for found in re.finditer(r"\s+", first[:same]) if found.start() > 0]
    if not breaks:
        raise Malformed("chosen and rejected share no beginning; expected a 'prompt' beside them")
    cut = breaks[-1]
    return first[:cut], (text(first[cut:], "chosen"), text(second[cut:], "rejected"))
