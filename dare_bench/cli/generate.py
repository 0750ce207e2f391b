"""``dare-bench generate``: ask a model, and see its answer while it is unmasked; two strategies stand side by side."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.eval import setting
from dare_bench.cli.flags import parameter, switch, takes
from dare_bench.cli.plain import echo, echo_error, echo_json, log_to_stderr, plain_console, wrapped
from dare_bench.config import parse_pairs, run_spec
from dare_bench.errors import PromptError, UsageError
from dare_bench.run_fields import DECODING, run_fields
from dare_bench.runs.text import counted, visible
from dare_bench.runs.writer import refuse_target
from dare_bench.types import CheckpointSettings, Event, Generation, Message, Prompt, Tier

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_MODEL = ["model", "adapter", "model_args", *(name for name in CheckpointSettings.model_fields if name != "adapter")]
_PANELS: Mapping[str | None, Sequence[str]] = {
    None: _MODEL,
    "Engine": ("engine", "engine_url", "engine_args"),
    "Decoding (defaults come from the family)": ("decoding", *DECODING),
}
_PROMPT = typer.Argument(
    metavar="PROMPT",
    help="The prompt; left out or -: all of standard input, without its last line break.",
    show_default=False,
)

MASK, END = "░", "·"
"""What stands for a mask, and for a token that ends the answer."""
PER_SECOND = 12
"""How often the terminal is drawn."""
PLAYED = 1.5
"""Seconds in which an answer that took less than one is shown again, forward by forward."""


@dataclass
class Variant:
    """A way of decoding: its name, and the decoding fields that were given."""

    title: str
    fields: dict[str, Any]


@dataclass
class Conversation:
    """A model and what it is asked.

    ``template``: prompts are chat messages. ``turns`` is the record of all answers, which ``html`` shows.
    """

    model: Any
    ways: Sequence[Variant]
    seed: int
    template: bool
    html: str | None
    json: bool
    messages: list[Message]
    turns: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str) -> None:
        """Answer a prompt in every way, print the answers, and write the page; in a chat, the first answer is the one
        that the conversation goes on with."""
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        answers = self._answers(messages if self.template else text)
        self.messages = [*messages, {"role": "assistant", "content": shown(answers[0])}]
        self.turns.append(self._record(text, answers))
        if self.html is not None:
            from dare_bench.leaderboards.answer_pages import write_answers

            page = write_answers({"model": self.model.name, "turns": self.turns}, self.html)
            echo_error(f"wrote {page}")

    def _answers(self, prompt: Prompt) -> list[Generation]:
        from dare_bench.engine.codec import piece_of

        tty = sys.stdout.isatty() and not self.json
        traced = self.model.loaded.capabilities.trajectory and (tty or self.html is not None)
        piece, canvases = piece_of(self.model.tokenizer), []
        for way in self.ways:
            decoding = self.model.loaded.resolve(way.fields)
            canvases.append(Canvas(decoding.gen_length, piece, decoding.eos_id or (), way.title))
        console = plain_console()
        with drawn(console, partial(table, canvases)) if tty else nullcontext(lambda: None) as draw:
            for way, canvas in zip(self.ways, canvases, strict=True):
                see: Callable[..., None] = lambda _, event, canvas=canvas: canvas.see(event)  # noqa: E731
                recorded = {"trajectory": True, "watch": see} if traced else {}
                answer = self.model.generate([prompt], seed=self.seed, **{**way.fields, **recorded})[0]
                if tty:
                    canvas.play(answer, draw)
                canvas.answer = answer
        if not self.json:
            self._print(canvases, console if tty else None)
        return [canvas.answer for canvas in canvases if canvas.answer is not None]

    def _print(self, canvases: Sequence[Canvas], terminal: Any) -> None:
        """The finished answers. Off a terminal, stdout has the texts alone."""
        several = len(canvases) > 1
        if terminal is not None:
            terminal.print(table(canvases), soft_wrap=not several)
        for canvas in canvases:
            assert canvas.answer is not None
            if terminal is None:
                echo(f"{canvas.title}:\n{shown(canvas.answer)}" if several else shown(canvas.answer))
            if terminal is None or not several:
                self._say((f"{canvas.title}: " if several else "") + facts(canvas.answer), terminal)
        if not self.turns:
            self._hint(canvases, terminal)

    def _hint(self, canvases: Sequence[Canvas], terminal: Console | None) -> None:
        """Say that most of a canvas was not needed, where nobody has chosen its length."""
        for way, canvas in zip(self.ways, canvases, strict=True):
            tokens, length = canvas.answer.tokens_to_eos if canvas.answer else 0, canvas.length
            fits = 2 ** (tokens + 1).bit_length()
            if "gen_length" not in way.fields and 2 * fits <= length:
                used = counted(tokens, "token")
                self._say(
                    f"gen_length was the default, {length}, and the answer has {used}; a shorter canvas, as"
                    f" --gen-length {fits}, takes fewer forwards, and may give another answer",
                    terminal,
                )
                return

    def _say(self, line: str, terminal: Console | None) -> None:
        for part in [line] if terminal is None else wrapped(line, terminal.width).splitlines():
            echo_error(part)

    def _record(self, prompt: str, answers: Sequence[Generation]) -> dict[str, Any]:
        """A turn as plain JSON."""
        from dare_bench.engine.codec import piece_of, trace_of

        names = ("nfe", "tokens_to_eos", "seconds", "finish_reason", "tier")
        record = []
        for way, answer in zip(self.ways, answers, strict=True):
            trace = None if answer.trajectory is None else trace_of(answer, piece_of(self.model.tokenizer))
            settings = self.model.loaded.resolve(way.fields).model_dump(exclude_none=True)
            record.append(
                {"title": way.title, "text": shown(answer), **{name: getattr(answer, name) for name in names}}
                | {"facts": facts(answer), "decoding": settings, "tokens": answer.tokens, "trace": trace}
            )
        return {"prompt": prompt, "answers": record}


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
    return ", ".join([*parts, ended[answer.finish_reason], exactness(answer.tier)])


def exactness(tier: Tier | None) -> str:
    """How the sampler relates to the published one, in a few words."""
    if tier is None:
        return "of unknown exactness"
    return {"E0": "exact", "E1": "exact", "E2": "exact in distribution", "A": "approximate"}[tier]


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


def generate(**options: Any) -> None:
    """Ask a model, and see its answer while it is unmasked.

    On a terminal the answer appears in place: ░ is a mask, what the last forward pass wrote is green. Elsewhere, stdout
    has the text alone. Below it: speed, forward passes, tokens a forward pass. The prompt is raw text, as base models
    expect it; --chat and --apply-chat-template make it a chat message.

    Example: dare-bench generate --model tiny-llada --gen-length 4 "12+34="
    """
    prompt, chat, against, seed = (options.pop(name) for name in ("prompt", "chat", "against", "seed"))
    html, json, template = (options.pop(name) for name in ("html", "json", "apply_chat_template"))
    system = options.pop("system_instruction")
    fields = run_fields(None, options)
    if "model" not in fields:
        raise UsageError("no model; give --model: a bundled name (dare-bench ls models), a folder or a hub id")
    if system is not None and not (chat or template):
        raise UsageError("--system-instruction is a chat message; give --chat or --apply-chat-template with it")
    given = {name: value for name, value in fields.pop("decoding").items() if value is not None}
    ways = [Variant(_title(given), given)]
    if against is not None:
        other = parse_pairs(against if "=" in against or against.lstrip().startswith("{") else f"strategy={against}")
        ways.append(Variant(against, {**given, **other}))
    texts = _texts(prompt, chat)
    if html is not None:
        refuse_target(html, "--html")
    log_to_stderr()
    conversation = Conversation(
        _open(fields, ways), ways, seed or 0, chat or template, html, json,
        [] if system is None else [{"role": "system", "content": system}],
    )  # fmt: skip
    if conversation.template and not conversation.model.loaded.capabilities.messages:
        conversation.model.loaded.encode([{"role": "user", "content": "a"}])  # refused without a chat template
    for text in texts:
        try:
            conversation.ask(text)
        except PromptError as error:
            if not chat:
                raise
            echo_error(f"error: {error}")
    if json:
        echo_json(conversation.turns if chat else conversation.turns[0])


def _title(given: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items()) or "default"


def _open(fields: Mapping[str, Any], ways: Sequence[Variant]) -> Any:
    """The opened model, which has all decoding fields of ``ways``; raises DareError."""
    # Before torch is imported: threads that wait for each other asleep. On a machine with other work, busy waiting was
    # fifteen to forty times as slow, with a tiny network.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from dare_bench.engine.hints import refuse_unknown_fields
    from dare_bench.engine.opener import Opener, split_adapter

    for way in ways:
        refuse_unknown_fields(way.fields, recorded=True)
    given = {"tasks": ("-",), **fields}
    if fields.get("engine", "native") == "native" and "dtype" not in fields.get("model_args", {}):
        given.setdefault("dtype", "auto")
    model = Opener().model(split_adapter(run_spec(**given)))
    for way in ways:  # as in evaluations, an answer stops where its text is cut
        resolved = model.loaded.resolve(way.fields)
        if way.fields.get("early_stop") is None:
            way.fields["early_stop"] = resolved.text_after_eos == "cut"
        if resolved.remark:
            echo_error(resolved.remark)
    return model


def _texts(prompt: str | None, chat: bool) -> Iterator[str]:
    """The prompts: the argument, or all of standard input; in a chat, then one for each line. Raises UsageError: there
    is none."""
    typed = sys.stdin.isatty()
    if prompt in (None, "-") and not chat:
        text = "" if typed else sys.stdin.read().removesuffix("\n")
        if not text:
            raise UsageError('no prompt; give one: dare-bench generate --model MODEL "PROMPT", or --chat')
        return iter([text])
    first = [] if prompt is None else [prompt]
    return _lines(first, typed) if chat else iter(first)


def _lines(first: Sequence[str], typed: bool) -> Iterator[str]:
    """``first``, then the lines of standard input that are not empty, until its end."""
    yield from first
    if typed:
        import readline  # noqa: F401  (lines can be edited)

        echo_error("Ctrl-D ends the conversation.")
    while True:
        try:
            line = input("> ") if typed else input()
        except EOFError:
            if typed:
                echo_error("")
            return
        if line.strip():
            yield line


def _parameters() -> Iterator[inspect.Parameter]:
    """The options of the command, in the order of its help."""
    yield inspect.Parameter(
        "prompt", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, _PROMPT]
    )
    for panel, names in _PANELS.items():
        for name in names:
            yield setting(name, panel)
        if panel is None:
            yield switch("chat", "Keep a conversation: each line of standard input is the next message.")
            yield switch("apply_chat_template", "Make the prompt a chat message.")
            yield setting("system_instruction", None)
            text = "A second strategy, side by side: its name, or decoding fields that replace given ones (k=v,k=v)."
            yield parameter("against", str, text)
            yield parameter("html", str, "Also write the answer as a page with the unmasking slider.", metavar="FILE")
            yield switch("json", "Print one JSON object instead of text.")
            yield parameter("seed", int, "Seed of drawn tokens. (default: 0)")


takes(generate, _parameters())
