"""Charts: marks where the numbers are, words that do not collide, colors that stand out, and nothing obeys a name."""

from __future__ import annotations

import math
import re
import time
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_bench.leaderboards.charts import Base, CurvePoint, Point, Series, frontier, scatter, training_curves
from dare_bench.leaderboards.charts.axes import linear, logarithmic
from dare_bench.leaderboards.charts.frame import BOTTOM, LEFT, RIGHT, TOP
from dare_bench.leaderboards.charts.labels import HEIGHT, distinct, width


def tree(figure: str) -> ElementTree.Element:
    """The figure, read strictly: every tag closed, every attribute quoted."""
    return ElementTree.fromstring(str(figure))


def links(figure: str) -> list[ElementTree.Element]:
    return tree(figure).find("svg").findall(".//a")


def chart(points, **more) -> str:
    return scatter(points, ident="c", title="Sudoku", x_title="forward passes", y_title="exact match", **more)


def runs(count: int, families: int = 4) -> list[Point]:
    """A cloud without chance in it; scores rise with x, and some points are unranked or approximate."""
    built = []
    for at in range(count):
        x = 4 * 1.5 ** (at * 7 % 17) + at % 5
        y = round(0.1 + 0.8 * ((at * 37) % 101) / 101, 4)
        family = f"family-{at % families}"
        built.append(
            Point(f"{family}-run-{at}", x, y, f"runs/r{at}/index.html", family, y - 0.05, y + 0.05, f"gen_length {at}",
                  approximate=at % 5 == 0, ranked=at % 7 != 3, remark="limit 50" if at % 7 == 3 else "")
        )  # fmt: skip
    return built


def curve(name: str, *steps: tuple[float, float], **more) -> Series:
    return Series(name, [CurvePoint(x, y, f"{name}-{x}", y - 0.1, y + 0.1) for x, y in steps], **more)


def training(*series: Series, **more) -> str:
    return training_curves(series, ident="l", title="Training", y_title="exact match", **more)


EVIL = "</title></svg><script>alert(1)</script>\"'><img onerror=x>\u202e\x1b]0;x\x07"
TAGS = """figure figcaption a svg g path text tspan title use defs ul li small p span"""
NEVER = ("<script", "<img", "\u202e", "\x1b", "\x07", " style=")


def test_every_point_is_a_link_with_its_numbers_in_its_name():
    points = [
        Point("llada", 20, 0.524, "runs/a/index.html", "llada", 0.462, 0.586, "steps 20"),
        Point("dream", 1500, 0.25, "runs/b/index.html", "dream", approximate=True, ranked=False, remark="limit 50"),
    ]
    result = {link.get("href"): link for link in links(chart(points, x_unit="NFE"))}
    assert set(result) == {"runs/a/index.html", "runs/b/index.html"}
    assert result["runs/a/index.html"].find("title").text == "llada\n52.4% (46.2–58.6) · 20 NFE\nsteps 20"
    assert result["runs/b/index.html"].find("title").text == "dream\n25.0% · 1.5k NFE\nlimit 50"
    assert result["runs/a/index.html"].get("class").split()[1:] == ["front"]
    assert result["runs/b/index.html"].get("class").split()[1:] == ["hollow", "faint"]


def test_where_no_run_is_ranked_marks_have_the_colors_of_the_legend():
    figure = chart(
        [
            Point("a", 20, 0.5, "a", "llada", ranked=False, remark="limit 50"),
            Point("b", 9, 0.4, "b", "dream", ranked=False),
        ]
    )
    assert {link.get("class") for link in links(figure)} == {"f0", "f1"}
    assert "None of these runs is ranked" in figure and "faint" not in figure and 'class="stairs"' not in figure
    assert "limit 50" in figure


def test_of_many_lines_those_on_the_front_stand_out():
    points = [Point(f"m{at}", x, at / 20, f"{at}{x}", "llada") for at in range(15) for x in (4, 8)]
    classes = [
        group.get("class") for group in tree(chart(points, joined=True)).iter("g") if "series" in group.get("class", "")
    ]
    assert len(classes) == 15 and classes.count("series f0") == 1 and classes.count("series f0 thin") == 14
    few = tree(chart(points[:8], joined=True))
    assert not any("thin" in group.get("class", "") for group in few.iter("g"))


def test_marks_stand_where_their_numbers_are():
    x, y = logarithmic([10, 1000], LEFT + 8, RIGHT - 8), linear([0.0, 1.0], BOTTOM, TOP, share=True)
    shown = chart([Point("a", 10, 0.0, "a"), Point("b", 100, 0.5, "b"), Point("c", 1000, 1.0, "c", "", 0.8, 1.0)])
    places = {
        item.get("href"): (float(item.find("use").get("x")), float(item.find("use").get("y"))) for item in links(shown)
    }
    assert places["a"] == pytest.approx((x(10), BOTTOM), abs=0.06)
    assert places["b"] == pytest.approx(((x(10) + x(1000)) / 2, (TOP + BOTTOM) / 2), abs=0.06)
    assert places["c"] == pytest.approx((x(1000), TOP), abs=0.06)
    whisker = next(item for item in links(shown) if item.get("href") == "c").find("path").get("d")
    assert whisker == f"M{x(1000):.1f} {y(0.8):.1f}V{TOP}".replace(".0 ", " ").replace(".0V", "V")


@pytest.mark.parametrize("better", ["left", "right"])
@pytest.mark.parametrize("higher", [True, False])
def test_the_line_of_the_front_goes_through_its_members_and_has_no_ranked_mark_beyond(better, higher):
    points = runs(60)
    figure = chart(points, better=better, higher_is_better=higher)
    path = next(p for p in tree(figure).iter("path") if p.get("class") == "stairs" and "L" in p.get("d"))
    corners = [tuple(map(float, corner.split())) for corner in path.get("d")[1:].split("L")]
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))
    assert corners[-1][0] == (RIGHT if better == "left" else LEFT)
    members = {p.href for p in frontier([p for p in points if p.ranked], better, "up" if higher else "down")}
    sign_x, sign_y = (1 if better == "left" else -1), (1 if higher else -1)
    reached = [
        (float(link.find("use").get("x")), float(link.find("use").get("y")))
        for link in links(figure)
        if "front" in link.get("class").split()
    ]
    for a, b in corners:  # the line promises nothing that no member has
        assert any(sign_x * x <= sign_x * a and sign_y * y <= sign_y * b for x, y in reached)
    for link in links(figure):
        x, y = float(link.find("use").get("x")), float(link.find("use").get("y"))
        kinds = link.get("class").split()
        assert ("front" in kinds) == (link.get("href") in members)
        if "front" in kinds:
            assert (x, y) in corners
        elif "faint" not in kinds:  # some corner of the front is at least as good in both
            assert any(sign_x * a <= sign_x * x and sign_y * b <= sign_y * y for a, b in corners)


def test_an_unranked_point_is_on_no_front_however_good():
    points = [Point("fair", 20, 0.5, "fair"), Point("limited", 1, 1.0, "limited", ranked=False)]
    shown = chart(points)
    assert [link.get("href") for link in links(shown) if "front" in link.get("class").split()] == ["fair"]
    assert "stairs" in shown and "stairs" not in chart([points[1]])


def test_what_cannot_be_drawn_is_left_out_and_counted():
    bad = [Point("z", 0, 0.5, "z"), Point("n", None, 0.5, "n"), Point("m", -3, 0.5, "m"), Point("q", 9, math.nan, "q")]
    figure = chart([Point("a", 10, 0.5, "a"), *bad])
    assert [link.get("href") for link in links(figure)] == ["a"]
    assert "4 runs are not drawn" in figure
    assert "No run has both numbers" in chart(bad) and tree(chart(bad)).find("svg") is None
    assert "No run has both numbers" in chart([])


def test_one_point_and_equal_points_are_drawn_inside_the_plot():
    for points in ([Point("a", 20, 0.6, "a")], [Point(str(at), 20, 1.0, str(at)) for at in range(5)]):
        for link in links(chart(points)):
            x, y = float(link.find("use").get("x")), float(link.find("use").get("y"))
            assert LEFT < x < RIGHT and TOP <= y <= BOTTOM


def boxes(figure: str) -> list[tuple[float, float, float, float]]:
    """Where the names of the front stand, by their anchors and their estimated widths."""
    result = []
    for text in tree(figure).findall("svg/g[@class='names']/text"):
        x, y, wide = float(text.get("x")), float(text.get("y")), width(text.text)
        left = x - {"start": 0, "mid": wide / 2, "end": wide}[text.get("class")]
        result.append((left, y - HEIGHT / 2, left + wide, y + HEIGHT / 2))
    return result


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 100)), min_size=1, max_size=60), st.booleans())
def test_names_touch_neither_marks_nor_each_other(places, left):
    points = [Point(f"some-model-{at}", x, y / 100, f"r{at}") for at, (x, y) in enumerate(places)]
    figure = chart(points, better="left" if left else "right")
    names = boxes(figure)
    for at, (a, b, c, d) in enumerate(names):
        assert a >= LEFT and c <= RIGHT and d <= BOTTOM
        assert not any(a < r - 0.2 and c > p + 0.2 and b < s - 0.2 and d > q + 0.2 for p, q, r, s in names[:at])
        for link in links(figure):
            x, y = float(link.find("use").get("x")), float(link.find("use").get("y"))
            assert not (a + 0.2 < x + 5 and c - 0.2 > x - 5 and b + 0.2 < y + 5 and d - 0.2 > y - 5)


def test_a_front_with_room_is_named():
    figure = chart([Point("quick", 4, 0.3, "a"), Point("middling", 40, 0.6, "b"), Point("thorough", 400, 0.9, "c")])
    assert {text.text for text in tree(figure).findall("svg/g[@class='names']/text")} == {
        "quick",
        "middling",
        "thorough",
    }


def test_names_of_one_checkpoint_say_what_varies():
    points = [
        Point("tiny-llada", 4 * 2**at, 0.2 + at / 5, f"r{at}", settings=f"llada, float32, steps {steps}, lm-eval")
        for at, steps in enumerate((8, 16, 128))
    ]
    names = [text.text for text in tree(chart(points)).findall("svg/g[@class='names']/text")]
    assert sorted(names) == ["tiny-llada, steps 128", "tiny-llada, steps 16", "tiny-llada, steps 8"]
    assert distinct(["a", "a", "b"], ["same", "same", "other"]) == ["a", "a (2)", "b"]


def test_lines_of_recipes_with_one_title_are_named_by_what_varies():
    lines = [
        curve(f"grpo on sudoku, rank {rank}, seed 1", (0, 0.2 * rank), (9, 0.3 * rank), label="grpo, seed 1")
        for rank in (1, 2)
    ]
    texts = [text.text for text in tree(training(*lines)).findall("svg/g[@class='names']/text")]
    assert texts == ["grpo, seed 1, rank 1", "grpo, seed 1, rank 2"]


def test_a_line_goes_through_its_checkpoints_by_step():
    shown = training(curve("a", (200, 0.8), (100, 0.5)), base=Base("start", 0.3, "start"))
    path = next(p.get("d") for p in tree(shown).iter("path") if p.get("class") == "line")
    places = [tuple(map(float, corner.split())) for corner in path[1:].split("L")]
    assert places[0][0] < places[1][0] and places[0][1] > places[1][1]  # rightwards and up
    assert [link.get("href") for link in links(shown)] == ["start", "a-100", "a-200"]
    assert links(shown)[1].find("title").text == "a\n50.0% (40.0–60.0) · step 100"
    for link, place in zip(links(shown)[1:], places, strict=True):
        mark = link.findall("path")[-1].get("d")
        assert mark.startswith(f"M{place[0]:g} {place[1]:g}m")
    start = tree(shown).find("svg/a[@class='start']")
    assert "before training" in start.find("title").text
    heights = {float(d) for d in re.findall(r"M46 ([\d.]+)H", start.findall("path")[0].get("d"))}
    assert heights.pop() > places[0][1]  # lower on the page than what came of it


def test_few_lines_have_bands_many_have_whiskers():
    def kinds(figure: str) -> tuple[int, int]:
        bands = sum(path.get("class") == "band" for path in tree(figure).iter("path"))
        return bands, sum(len(link.findall("path")) == 2 for link in links(figure))

    few, many = ([curve(f"s{at}", (1, 0.4), (2, 0.5)) for at in range(count)] for count in (2, 6))
    assert kinds(training(*few)) == (2, 0)
    assert kinds(training(*many)) == (0, 12)
    assert kinds(training(curve("one", (100, 0.5)))) == (0, 1)  # a band needs two


def test_seeds_of_one_recipe_share_a_color_and_an_entry():
    shown = tree(
        training(*(curve(f"sft-{seed}", (1, 0.4), (2, 0.5), group="sft") for seed in range(3)), curve("b", (1, 0)))
    )
    assert len(shown.findall("svg/g[@class='series f1']")) == 3
    assert [entry.get("class") for entry in shown.findall("ul/li")] == ["family f0", "family f1"]


def test_checkpoints_without_a_score_are_left_out_and_counted():
    shown = training(Series("a", [CurvePoint(1, math.nan, "x"), CurvePoint(2, 0.5, "y")]), Series("b", []))
    assert [link.get("href") for link in links(shown)] == ["y"] and "1 without a finite score" in shown
    assert "No checkpoint has a score" in training() and "No checkpoint" in training(Series("b", []))


def test_hostile_names_are_text_everywhere():
    place = 'runs/"><script>&x=1'  # a page's place is made by slug(), which leaves nothing of this
    point = Point(EVIL, 10, 0.5, place, EVIL, 0.4, 0.6, EVIL, remark=EVIL)
    flat = scatter([point, Point("b", 20, 0.1, "b")], ident="c", title=EVIL, x_title=EVIL, y_title=EVIL, x_unit=EVIL)
    built = Series(EVIL, [CurvePoint(1, 0.5, place, settings=EVIL), CurvePoint(2, 0.5, "x")], group=EVIL, label=EVIL)
    drawn = training_curves(
        [built, curve("b", (1, 0.2))], ident="l", title=EVIL, y_title=EVIL, x_title=EVIL, base=Base(EVIL, 0.4, "b")
    )
    nothing = scatter([], ident="n", title=EVIL, x_title="", y_title="")
    for figure in (flat, drawn, nothing):
        root = tree(figure)
        known = set(TAGS.split())
        assert {element.tag for element in root.iter()} <= known
        assert [word for word in NEVER if word in figure] == []
        assert not any(name.startswith("on") or name == "style" for e in root.iter() for name in e.attrib)


def test_every_reference_inside_a_figure_leads_somewhere():
    for figure in (chart(runs(60, families=11)), training(curve("a", (1, 0.4), (2, 0.5)))):
        root = tree(figure)
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        wanted = {e.get("href")[1:] for e in root.iter() if (e.get("href") or "").startswith("#")}
        wanted |= {e.get("aria-labelledby") for e in root.iter() if e.get("aria-labelledby")}
        assert wanted <= set(ids)


def test_three_hundred_runs_are_light_and_quick():
    points = [
        Point(f"GSAI-ML/LLaDA-8B-Instruct-{at}", p.x, p.y, f"../runs/LLaDA-8B-Instruct-gsm8k-{at}a6f3/index.html",
              p.family, p.lo, p.hi, "gen_length 256, block_length 32, steps 128", p.approximate, p.ranked)
        for at, p in enumerate(runs(300, families=8))
    ]  # fmt: skip
    assert len(chart(points, x_unit="NFE").encode()) < 65_000  # 80 bytes a mark beside its words
    times = []
    for _ in range(5):
        started = time.process_time()
        chart(points)
        times.append(time.process_time() - started)
    assert min(times) < 0.1  # of this process's own time; some 6 ms
