"""An answer on the terminal while it is unmasked, in place; several strategies stand side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dare_bench.runs.text import counted, visible
from dare_bench.types import Event, Generation

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

MASK, END = "░", "·"
"""What stands for a mask, and for a token that ends the answer."""
PER_SECOND = 12
"""How often the terminal is drawn."""
PLAYED = 1.5
"""Seconds in which an answer that took less than one is shown again, forward by forward."""


@dataclass
class Canvas:
    """One answer: the token at each position (None: a mask), and the positions that the last forward wrote."""

    length: int
    piece: Callable[[int], str]
    """The text of a token."""
    ends: Collection[int]
    """The tokens that end an answer."""
    title: str = ""
    tokens: list[int | None] = field(init=False)
    step: int = -1
    fresh: set[int] = field(default_factory=set)
    answer: Generation | None = None
    """When it is finished."""

    def __post_init__(self) -> None:
        self.tokens = [None] * self.length

    def see(self, event: Event) -> None:
        """Apply an event. Masks inside the prompt, and moved tokens (LLaDA2.2), are not shown."""
        if event.step != self.step:
            self.step, self.fresh = event.step, set()
        if 0 <= event.position < self.length and event.op in ("set", "remask"):
            self.tokens[event.position] = event.token if event.op == "set" else None
            self.fresh.add(event.position)

    def play(self, answer: Generation, draw: Callable[[], None]) -> None:
        """Finish with ``answer``. One that was too quick to be seen is shown again first, by ``draw`` after each
        forward."""
        if answer.trajectory and answer.seconds < 1:
            self.tokens, self.step = [None] * self.length, -1
            forwards = [list(events) for _, events in groupby(answer.trajectory, key=lambda event: event.step)]
            for events in forwards:
                for event in events:
                    self.see(event)
                draw()
                time.sleep(PLAYED / len(forwards))
        self.answer = answer
        draw()

    def text(self) -> Text:
        """The answer as it is now; what the last forward wrote is bold and green, a mask that it opened again red."""
        from rich.text import Text

        if self.answer is not None:
            return Text(visible(shown(self.answer)))
        text = Text()
        last = max((i for i, token in enumerate(self.tokens) if token is not None), default=-1)
        for at, token in enumerate(self.tokens[: last + 1]):
            new = at in self.fresh
            if token is None:
                text.append(MASK, "red" if new else "dim")
            elif token in self.ends:
                text.append(END, "green" if new else "dim")
            else:
                text.append(visible(self.piece(token)), "bold green" if new else "")
        left = self.length - last - 1
        return text.append(MASK * left if left <= 64 else f"{MASK * 64} and {left - 64} more", "dim")


def shown(answer: Generation) -> str:
    """The text of an answer; its token ids where the checkpoint has no tokenizer."""
    return " ".join(map(str, answer.tokens)) if answer.text is None else answer.text


def facts(answer: Generation) -> str:
    """Length, speed and forward passes of an answer, in one line."""
    tokens = answer.tokens_to_eos
    parts = [f"{counted(tokens, 'token')} in {answer.seconds:.2f} s"]
    if answer.seconds > 0:
        parts[0] += f" ({tokens / answer.seconds:.1f} tokens/s)"
    if answer.nfe:
        parts += [counted(answer.nfe, "forward"), f"{tokens / answer.nfe:.2f} tokens a forward"]
    ended = {"eos": "ended by EOS", "stop": "ended by a stop string", "length": "as long as gen_length"}
    return ", ".join([*parts, ended[answer.finish_reason], f"tier {answer.tier or 'unknown'}"])


def table(canvases: Sequence[Canvas]) -> RenderableType:
    """One answer, or several side by side under their titles."""
    from rich.table import Table
    from rich.text import Text

    if len(canvases) == 1:
        return canvases[0].text()
    grid = Table.grid(expand=True, padding=(0, 2))
    for _ in canvases:
        grid.add_column(ratio=1, overflow="fold")
    grid.add_row(*(Text(visible(canvas.title), style="bold") for canvas in canvases))
    grid.add_row(*(canvas.text() for canvas in canvases))
    done = (canvas.answer for canvas in canvases)
    grid.add_row(*(Text("" if answer is None else facts(answer), style="dim") for answer in done))
    return grid


@contextmanager
def drawn(console: Console, inner: Callable[[], RenderableType]) -> Iterator[Callable[[], None]]:
    """Draw in place what ``inner`` returns, as long as the context lasts, and at each call of what it yields; then it
    is gone, after an interrupt too."""
    from rich.live import Live

    screen = Live(_Bottom(inner), console=console, refresh_per_second=PER_SECOND, transient=True)
    try:
        screen.start()  # inside: an interrupt may come while it draws
        yield screen.refresh
    finally:
        screen.stop()


class _Bottom:
    """The last lines of something that may be higher than the terminal, so that it can be drawn in place."""

    def __init__(self, inner: Callable[[], RenderableType]) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: Any) -> Any:
        from rich.segment import Segment

        lines = console.render_lines(self.inner(), options, pad=False)
        for number, line in enumerate(lines[-max(1, console.height - 1) :]):
            if number:
                yield Segment.line()
            yield from line
