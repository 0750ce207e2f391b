"""``dare-bench generate``: ask a model, and see its answer while it is unmasked."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import typer

from dare_bench.cli.eval import setting
from dare_bench.cli.flags import parameter, switch, takes
from dare_bench.cli.live import Canvas, drawn, facts, shown, table
from dare_bench.cli.plain import echo, echo_error, echo_json, log_to_stderr, plain_console
from dare_bench.config import parse_pairs, run_spec
from dare_bench.errors import PromptError, UsageError
from dare_bench.run_fields import DECODING, run_fields
from dare_bench.types import CheckpointSettings, Generation, Message, Prompt

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
            from dare_bench.leaderboards.answer_page import write_answers

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
                echo_error((f"{canvas.title}: " if several else "") + facts(canvas.answer))

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
    from dare_bench.engine.opener import Opener, split_adapter

    model = Opener().model(split_adapter(run_spec(**{"tasks": ("-",), **fields})))
    for way in ways:
        model.loaded.resolve(way.fields)
    return model


def _texts(prompt: str | None, chat: bool) -> Iterator[str]:
    """The prompts: the argument, or all of standard input; in a chat, then one for each line.

    Raises:
        UsageError: there is none.
    """
    typed = sys.stdin.isatty()
    if prompt in (None, "-") and not chat:
        if typed:
            raise UsageError('no prompt; give one: dare-bench generate --model MODEL "PROMPT", or --chat')
        return iter([sys.stdin.read().removesuffix("\n")])
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
