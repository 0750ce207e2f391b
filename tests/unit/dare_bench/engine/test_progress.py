"""Progress displays and cost sums."""

from __future__ import annotations

import io

import pytest

from dare_bench.engine import progress
from dare_bench.engine.codec import to_record
from dare_bench.engine.meters import Meter, decoded_tokens, last_costs, peak_memory_mb
from dare_bench.engine.progress import Bar, Lines, Progress, progress_display
from dare_bench.engine.result_files import answer_line
from dare_bench.types import Event, Generation, Likelihood, Request


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_lines_are_few_and_tell_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = Lines(stream)
    lines.start(total=1100, served=100, total_work=11000, served_work=1000)
    for _ in range(1000):
        clock.now += 0.06  # 60 seconds in all
        lines.advance(1, 10, 0)
    lines.advance(0, 0, 0)  # the queue's last count may be empty
    assert [line.partition(" of the forward passes, ")[::2] for line in stream.getvalue().splitlines()] == [
        ("answering 1000 requests", ""),
        (" 16%", "184/1100 answers, 55s left"),
        (" 31%", "351/1100 answers, 45s left"),
        (" 62%", "685/1100 answers, 25s left"),
        ("100%", "1100/1100 answers"),
    ]


def test_a_day_is_told_every_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = Lines(stream)
    lines.start(86_400, 0, 86_400, 0)
    for _ in range(86_400):
        clock.now += 1
        lines.advance(1, 1, 0)
    assert 24 * 6 <= len(stream.getvalue().splitlines()) <= 24 * 6 + 10


def test_forward_passes_move_the_display_before_a_sample_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = Lines(stream)
    lines.start(10, 0, 1000, 0)
    for _ in range(60):
        clock.now += 1
        lines.forward(10)
    assert stream.getvalue().splitlines()[1] == "  5% of the forward passes, 0/10 answers"
    assert lines.text() == "of the forward passes, 0/10 answers, 40s left"
    lines.advance(1, 100, 0)
    assert lines.share == 0.6, "its forward passes were counted as they were done"
    lines.advance(7, 700, 0)
    assert lines.share == 0.8, "rows that stopped early are done with all their work"


def test_a_line_tells_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = Lines(stream)
    lines.start(10, 0, 1000, 0)
    for _ in range(100):
        clock.now += 1
        lines.forward(0)
    assert stream.getvalue().splitlines() == ["answering 10 requests"]
    lines.forward(10)
    assert stream.getvalue().splitlines()[1:] == ["  1% of the forward passes, 0/10 answers"]


def test_lines_tell_failures_and_slow_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = Lines(stream)
    lines.start(100000, 0, 100000, 0)
    for _ in range(4):
        clock.now += 4
        lines.advance(1, 1, 1)
    assert [line.split(",")[2].strip() for line in stream.getvalue().splitlines()[1:]] == ["2 failed"]


def test_the_time_left_is_not_guessed_from_the_first_of_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    counts = Progress()
    for total, enough in ((1000, 32), (30, 3)):
        counts.start(total, 0, total, 0)
        clock.now += 10
        for done in range(1, enough + 1):
            assert counts.left is None, done
            counts.advance(1, 1, 0)
        assert counts.left == pytest.approx(10 * (total - enough) / enough)


@pytest.mark.parametrize("done", [0, 1, 49])
def test_a_missing_answer_is_never_hundred_percent(done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    lines = Lines(stream)
    lines.start(50, 0, 1000, 0)
    for rows, answers in ((996, 0), (4, done)):
        clock.now += 20
        lines.forward(rows)
        lines.advance(answers, 20 * answers, 0)
    shown = stream.getvalue().splitlines()
    assert shown[-1].startswith(" 99% of the forward passes, ") and not any("100%" in line for line in shown)
    assert lines.left is None, "no time is left to tell, and answers are missing"
    lines.advance(50 - done, 1000 - 20 * done, 0)
    assert stream.getvalue().splitlines()[-1] == "100% of the forward passes, 50/50 answers"


def test_nothing_to_do_says_nothing() -> None:
    stream = io.StringIO()
    Lines(stream).start(5, 5, 5, 5)
    assert not stream.getvalue()


def test_the_bar_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.start(2, 0, 20, 0)
    bar.advance(1, 10, 0)
    assert bar.share == 0.5 and bar.percent == "50%" and "1/2 answers" in bar.text()
    bar.close()
    assert not capsys.readouterr().out
    assert type(progress_display(False)) is Progress
    assert isinstance(progress_display(True), Lines)


def test_sums() -> None:
    events = [
        Event(0, "set", 0, 5, 1.0),
        Event(1, "remask", 0, 9, 1.0),
        Event(2, "set", 0, 6, 1.0),
        Event(2, "set", 7, 2, 1.0),
    ]
    written, scored = Request("t/0/0/0/ab", "generate", "?"), Request("t/0/1/0/ab", "score", "?")
    records = [
        to_record(written, Generation([5, 6], "x", 10, "eos", tokens_to_eos=2, tier="E0", trajectory=events)),
        to_record(written, Generation([5, 6, 7, 8], "x", 30, "length", tokens_to_eos=4, residual_masks=1, tier="E2")),
        to_record(scored, Likelihood(-1.0, 0.1, None, 60)),
    ]
    meter = Meter().add(map(answer_line, records))
    sessions = [
        {"session": 0, "seconds": 1.0, "forwards": 10, "row_forwards": 20, "slot_forwards": 40},
        {"session": 0, "seconds": 2.0, "forwards": 20, "row_forwards": 40, "slot_forwards": 80},
        {"session": 1, "seconds": 1.0, "forwards": 5, "row_forwards": 20, "slot_forwards": 20},
    ]
    for session, generating, peak in zip(sessions, (1.0, 1.5, 0.5), (900.0, 12.5, 7.0), strict=True):
        session |= {"generate_seconds": generating, "peak_memory_mb": peak}
    cost = meter.cost(last_costs(sessions))
    assert (cost.requests, cost.nfe, cost.forwards, cost.seconds) == (3, 100, 25, 3.0)
    assert (cost.tokens, cost.tokens_to_eos, cost.decoded_tokens) == (6, 6, 2 + 3)
    assert cost.generate_seconds == 2.0 and cost.tokens_per_s == 3.0, "likelihoods write no tokens"
    assert cost.tpf == 6 / 40 and cost.occupancy == 0.6
    assert cost.peak_memory_mb == 12.5, "the largest of all sessions, from each one's last record"
    assert meter.tiers == {"E0", "E1", "E2"}
    empty = Meter().cost([])
    assert empty.tokens_per_s is None and empty.tpf is None and empty.occupancy is None


def test_decoded_tokens_count_what_lies_behind_the_end() -> None:
    assert decoded_tokens(Generation([1], "", 1, "eos", trajectory=[Event(0, "set", i, 1, 1.0) for i in range(8)])) == 8


def test_peak_memory_is_that_of_this_process() -> None:
    assert 5 < peak_memory_mb() < 1e6
