"""Reports as text: what a model wrote is never markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dare_bench.formatting import bounds, percent
from dare_bench.reports.elements import Bullets, Heading, Paragraph, ReportTable, Verbatim, markdown, narrowing, show

NASTY = "| a | <b> [x](y) `code` *bold* \x1b[31mred\nnext"


def test_numbers() -> None:
    assert (percent(0.7968), percent(None), percent(-0.01, "+"), percent(0.1, "+")) == ("79.68", "—", "-1.00", "+10.00")
    assert (bounds(0.1, 0.25), bounds(None, 1.0), bounds(-0.1, 0.2, sign="+")) == (
        "10.00 to 25.00",
        "—",
        "-10.00 to +20.00",
    )


def test_words_in_a_table_cannot_break_it() -> None:
    lines = markdown([ReportTable(("name", "value"), [(NASTY, "1")])]).splitlines()
    assert len(lines) == 3
    assert lines[2].replace("\\|", "").count("|") == 3, "the cell's own bars are escaped"
    assert "\x1b" not in lines[2] and "<b>" not in lines[2].replace("\\<", "")


def test_words_in_lines_stay_on_them() -> None:
    text = markdown([Heading("# two\nlines"), Paragraph("- no list\nhere"), Bullets(["a\nb"])])
    assert text.split("\n\n") == ["## # two lines", "- no list here", "- a b\n"]


def test_a_models_text_is_fenced_by_more_than_it_can_close() -> None:
    text = markdown([Verbatim("answer", "```\n# not a heading\n`````\n\x1b]0;title\x07")])
    assert text.startswith("answer\n\n``````text\n") and text.endswith("\n``````\n")
    assert "\x1b" not in text and "# not a heading" in text


def test_the_terminal_gets_the_same_words_and_no_commands() -> None:
    out = io.StringIO()
    pieces = [
        Heading("head"), Paragraph("line [red]x[/red]"), Bullets(["item"]), ReportTable(("a", "b"), [("1", NASTY)]),
        Verbatim("said", NASTY),
    ]  # fmt: skip
    show(pieces, Console(file=out, width=120, markup=False, highlight=False))
    text = out.getvalue()
    for words in ("head", "line [red]x[/red]", "- item", "said:", "␛[31mred", "next"):
        assert words in text, words
    assert "\x1b" not in text


ROWS = [
    ("oc", "lukaemon_mmlu_world_religions", "accuracy", "0.00 to 79.35", "1 of 171"),
    ("lm-eval", "hellaswag", "exact_match,strict-match", "-79.68 (-81.76 to -30.64)", "2 of 10042"),
]


def _shown(width: int) -> list[str]:
    out = io.StringIO()
    table = ReportTable(("harness", "task", "metric", "95%", "n"), ROWS)
    show([table], Console(file=out, width=width, markup=False, highlight=False))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [120, 90, 80, 60, 40, 31])
def test_a_narrow_table_cuts_no_word(width: int) -> None:
    lines = _shown(width)
    assert max(len(line.rstrip()) for line in lines) <= width
    text = " ".join(lines)
    for word in ("religions", "hellaswag", "accuracy", "lm-eval", "-81.76", "79.35", "10042"):
        assert word in text, word


def test_what_a_narrow_table_turns_into() -> None:
    assert len(_shown(120)) == 4, "side by side"
    for width in (80, 40):
        lines = _shown(width)
        assert lines[:4] == ["", "harness: oc", "task: lukaemon_mmlu_world_religions", "metric: accuracy"]
        assert len([line for line in lines if not line]) == 2, "a list for each row"


def test_a_narrow_terminal_has_the_widest_form_that_fits() -> None:
    table = narrowing(("task", "metric", "n"), [("a" * 20, "b" * 20, "c" * 20)], ("n", "metric"))
    for width, columns in ((64, "abc"), (63, "ab"), (41, "a")):
        out = io.StringIO()
        show([table], Console(file=out, width=width, markup=False, highlight=False))
        assert out.getvalue().splitlines()[-1].split() == [letter * 20 for letter in columns]


def test_a_terminal_may_show_less_than_the_file() -> None:
    out = io.StringIO()
    show([Bullets(["long. Very long."], ["long."])], Console(file=out, width=80, markup=False, highlight=False))
    assert out.getvalue().strip() == "- long." and markdown([Bullets(["a", "b"], ["c"])]) == "- a\n- b\n"
