"""``dare-bench generate``: answers on stdout, in place on a terminal, as a page, in a conversation."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import command
import pytest
from calls import call

import dare_bench
from dare_bench.cli.generate import Canvas
from dare_bench.types import Event

SUM = ["generate", "--model", "tiny-llada", "--gen-length", "4"]


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What standard input has; nothing unless a test says otherwise."""

    def types(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    types("")
    return types


def test_stdout_has_the_text_alone_and_stderr_the_speed() -> None:
    code, out, err = call([*SUM, "12+34="])
    answer = dare_bench.load("tiny-llada").generate(["12+34="], gen_length=4)[0]
    assert (code, out) == (0, f"{answer.text}\n") and out == "46\n"
    assert re.fullmatch(
        r"3 tokens in [\d.]+ s \([\d.]+ tokens/s\), 4 forwards, 0.75 tokens a forward, ended by EOS, exact\n",
        err,
    )


def test_the_prompt_may_come_from_standard_input(typed: Any) -> None:
    for words in ([], ["-"]):
        typed("12+34=\n")
        code, out, _ = call([*SUM, *words, "--json"])
        assert code == 0 and (json.loads(out)["prompt"], json.loads(out)["answers"][0]["text"]) == ("12+34=", "46")


@pytest.mark.parametrize("words", [[], ["-"]])
def test_no_prompt_is_refused(typed: Any, words: list[str]) -> None:
    typed("")
    code, out, err = call([*SUM, *words])
    assert (code, out) == (2, "") and err.startswith("error: no prompt; give one: dare-bench generate")


def test_steps_that_change_nothing_are_named() -> None:
    code, out, err = call([*SUM, "--steps", "9", "12+34="])
    assert (code, out) == (0, "46\n") and err.startswith("9 steps for a block of 4 tokens: each step unmasks at least")


@pytest.mark.parametrize(
    ("against", "says"),
    [
        ("threshold", 'threshold is missing; give it as JSON: {"strategy": {"name": ..., "threshold": VALUE}}'),
        ("greedy", "unknown strategy 'greedy'; known: ascending, bernoulli, "),
        ('{"strategy": {"name": "threshold", "treshold": 1}}', "strategy 'threshold' has no decoding field 'treshold'"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(against: str, says: str) -> None:
    code, out, err = call([*SUM, "--against", against, "12+34="])
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_decoding_fields_have_the_flags_of_eval() -> None:
    words = ["--steps", "2", "--gen-kwargs", "remasking=random,block_length=2", "--seed", "3", "--json"]
    code, out, _ = call([*SUM, *words, "12+34="])
    (answer,) = json.loads(out)["answers"]
    assert code == 0 and answer["nfe"] == 2
    given = {name: answer["decoding"][name] for name in ("gen_length", "steps", "block_length", "remasking")}
    assert given == {"gen_length": 4, "steps": 2, "block_length": 2, "remasking": "random"}


@pytest.mark.parametrize(
    ("strategy", "recorded"),
    [
        ("ascending", {"name": "ascending"}),
        ('{"name": "threshold", "threshold": 0.4}', {"name": "threshold", "threshold": 0.4}),
        ('{"strategy": {"name": "threshold", "threshold": 0.4}}', {"name": "threshold", "threshold": 0.4}),
    ],
)
def test_a_strategy_has_a_flag(strategy: str, recorded: dict[str, Any]) -> None:
    code, out, _ = call([*SUM, "--strategy", strategy, "--json", "12+34="])
    (answer,) = json.loads(out)["answers"]
    assert code == 0 and answer["decoding"]["strategy"].items() >= recorded.items()
    assert answer["text"] == "46" and (strategy != "ascending" or answer["nfe"] == 3)
    code, out, err = call([*SUM, "--strategy", "greedy", "12+34="])
    assert (code, out) == (2, "") and "unknown strategy 'greedy'; known: ascending, bernoulli, " in err


def test_two_strategies_answer_one_prompt() -> None:
    code, out, err = call([*SUM, "--against", "ascending", "12+34="])
    assert code == 0 and out == "gen_length=4:\n46\nascending:\n46\n"
    assert [re.search(r"(\d+) forwards", line)[1] for line in err.splitlines()] == ["4", "3"]  # type: ignore[index]


def test_a_conversation_keeps_its_messages(typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    generate = dare_bench.Model.generate

    def seen(model: dare_bench.Model, prompts: Any, **named: Any) -> Any:
        asked.extend(json.loads(json.dumps(prompts)))
        return generate(model, prompts, **named)

    monkeypatch.setattr(dare_bench.Model, "generate", seen)
    typed("first\n\nsecond\n")
    code, out, _ = call([*SUM, "--chat", "--system-instruction", "be brief", "--json"])
    turns = json.loads(out)
    assert code == 0 and [turn["prompt"] for turn in turns] == ["first", "second"]
    assert asked[0] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "first"}]
    reply = {"role": "assistant", "content": turns[0]["answers"][0]["text"]}
    assert asked[1] == [*asked[0], reply, {"role": "user", "content": "second"}]


def test_a_long_default_canvas_has_a_hint_of_a_shorter_one() -> None:
    code, _, err = call(["generate", "--model", "tiny-llada", "12+34="])
    tokens, length = map(
        int, re.findall(r"was the default, 128, and the answer has (\d+) tokens; .*-length (\d+)", err)[0]
    )
    assert code == 0 and tokens < length <= 64 and " 128 forwards" in err
    code, _, err = call(["generate", "--model", "tiny-llada", "--gen-length", str(length), "12+34="])
    assert code == 0 and f" {length} forwards" in err and "was the default" not in err


@pytest.mark.parametrize("target", ["", "file/page.html"])
def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_opened(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call(["generate", "--model", "no-model", "--html", str(tmp_path / target), "12+34="])
    assert "no-model" not in err and err.count("\n") == 1
    assert (code, "is a folder; give a file in it" in err) == ((1, False) if target else (2, True))


def test_the_page_has_both_answers_and_their_order(tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    code, _, err = call([*SUM, "--against", "ascending", "--html", str(page), "12+34="])
    text = page.read_text()
    assert code == 0 and f"wrote {page}" in err and (tmp_path / "answer_files" / "static" / "slider.js").is_file()
    assert re.findall(r'class="unmasking" data-steps="(\d)"', text) == ["4", "3"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "no model; give --model"),
        (["-m", "nowhere", "x"], "no checkpoint 'nowhere'"),
        (["-m", "tiny-llada", "--gen-kwargs", "nonsense=1", "x"], "no model family has a decoding field 'nonsense'"),
        (["-m", "tiny-llada", "--against", "nonsense=1", "x"], "no model family has a decoding field 'nonsense'"),
        (["-m", "tiny-llada", "--gen-length", "9000", "x"], "the model's context limit is 8192"),
        (["-m", "tiny-llada", "--system-instruction", "y", "x"], "--system-instruction is a chat message"),
    ],
)
def test_refusals_are_one_line(words: list[str], message: str) -> None:
    code, out, err = call(["generate", *words])
    assert code not in (0, None) and out == "" and err.count("\n") == 1 and message in err


def test_a_canvas_shows_what_the_last_forward_wrote() -> None:
    canvas = Canvas(4, "abcdefgh".__getitem__, (7,))
    events = [(0, "set", 1, 2), (0, "set", 3, 7), (1, "set", 0, 4), (2, "remask", 0, 9), (2, "set", -1, 3)]
    shown = []
    for step, op, position, token in events:
        canvas.see(Event(step, op, position, token, 0.5))  # type: ignore[arg-type]
        text = canvas.text()
        shown.append((text.plain, [text.plain[span.start] for span in text.spans if "bold" in str(span.style)]))
    assert shown == [("░c░░", ["c"]), ("░c░·", ["c"]), ("ec░·", ["e"]), ("░c░·", []), ("░c░·", [])]


def in_terminal(words: list[str], until: bytes | None = None) -> tuple[int, str]:
    """The exit code of a command in its own terminal, and what it printed; Ctrl-C when it has printed ``until``."""
    leader, follower = pty.openpty()
    terminal = os.ttyname(follower)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = command.start(words, terminal, terminal, environment)
    printed, end = b"", time.monotonic() + 240
    while time.monotonic() < end:
        alive = process.is_alive()
        if select.select([leader], [], [], 0.05)[0]:
            printed += os.read(leader, 65536)
        elif not alive:
            break
        if until is not None and until in printed:
            os.kill(process.pid or 0, signal.SIGINT)
            until = None
    process.kill()
    process.join()
    for end_of_terminal in (leader, follower):
        os.close(end_of_terminal)
    return process.exitcode or 0, printed.decode()


@pytest.mark.slow
def test_a_terminal_shows_masks_in_place_and_then_the_answer() -> None:
    code, printed = in_terminal([*SUM, "12+34="])
    assert code == 0 and "░" in printed and "\x1b[1;32m" in printed and "\x1b[2K" in printed
    last = printed.rpartition("\x1b[?25h")[2]  # from where the cursor is visible again
    assert re.search(r"46\r\n3 tokens in ", last) and "░" not in last
    lines = last.split("46\r\n")[1].splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 80 and lines[1].startswith("  ") and lines[1].endswith("exact")


@pytest.mark.slow
def test_ctrl_c_ends_it_with_the_terminal_as_it_was() -> None:
    code, printed = in_terminal(["generate", "-m", "tiny-llada", "--gen-length", "4000", "x"], until="░".encode())
    assert code == 130 and printed.count("\x1b[?25l") == printed.count("\x1b[?25h") == 1
    assert printed.endswith("interrupted\r\n") and "Traceback" not in printed
