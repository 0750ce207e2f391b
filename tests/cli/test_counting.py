"""Progress of counted work: a bar on a terminal, lines now and then off it, nothing where it is over at once."""

from __future__ import annotations

import io
import sys

import pytest

from dare_bench.cli import leaderboard


def test_off_a_terminal_what_is_done_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with leaderboard.counting("runs", "boards") as tell:
        tell(1, 2)
        tell(2, 2)
    result = capsys.readouterr()
    assert (result.out, result.err) == ("", "")


def test_off_a_terminal_long_work_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(leaderboard.time, "monotonic", lambda: now[0])
    with leaderboard.counting("runs", "boards") as tell:
        for done in range(1, 31):
            now[0] += 1.0
            tell(done, 30)
    result = capsys.readouterr()
    assert (result.out, result.err) == ("", "10/30 runs\n20/30 runs\n30/30 runs; boards\n")


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with leaderboard.counting("runs", "boards") as tell:
        tell(3, 4)
        tell(4, 4)
    assert "4/4" in screen.getvalue() and "boards" in screen.getvalue()
