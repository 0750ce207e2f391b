"""Lineage: which checkpoint was made from which, what each training changed, and what nobody can tell."""

from __future__ import annotations

import json
import re
import statistics
from html import escape, unescape
from pathlib import Path

import pytest
from lineages import make_checkpoint, make_family, make_reinforced, make_trained, trained
from site_pages import EVIL, Page, pages, plain

from dare_bench.analysis.paired_tests import holm
from dare_bench.analysis.pairing import pair
from dare_bench.formatting import p_text, p_value
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.checkpoint_trees import CheckpointNode, edges, trees
from dare_bench.leaderboards.entries import read_entries
from dare_bench.runs.reader import Run


def roots(root: Path) -> list[CheckpointNode]:
    return trees(read_entries([root], pytest.fail))


def shape(node: CheckpointNode) -> dict[str, dict[str, list[str]]]:
    """By recipe and seed: the contents of the checkpoints by step."""
    return {
        recipe.title: {
            str(item.seed): [n.key[0].removeprefix("sha256:") for n in item.nodes] for item in recipe.trainings
        }
        for recipe in node.recipes
    }


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("family")
    make_family(root)
    return root


@pytest.fixture(scope="module")
def site(family: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build(family, out)
    return out


def row(page: str, label: str) -> str:
    """A row of a table as text, by what stands at its head."""
    result = next(part for part in page.split("<tr")[1:] if re.search(rf"<th[^>]*>(<a[^>]*>)?{label}<", part))
    return unescape(plain(result.partition(">")[2].split("</tr>")[0]))


def test_checkpoints_stand_below_what_they_were_made_from(family: Path) -> None:
    (base,) = roots(family)
    assert base.name == "tiny-base" and len(base.entries) == 1
    seeds = {str(seed): [f"sft{seed}-{step}" for step in (25, 50, 100)] for seed in range(3)}
    assert shape(base) == {"SFT": seeds, "SFT (LoRA)": {"0": ["base"]}}
    last = {node.key[0]: node for node in base.below()}["sha256:sft2-100"]
    assert shape(last) == {"MDPO": {"0": ["rl0"], "1": ["rl1"]}}


def test_a_base_that_nobody_evaluated_is_a_node_with_its_name(tmp_path: Path) -> None:
    before = {name: value for name, value in trained("first").items() if name != "parents"}
    make_checkpoint(tmp_path, "late", 0.5, trained("middle", method="mdpo", parents=(before,)))
    (first,) = roots(tmp_path)
    assert first.name == "tiny-first" and not first.entries
    assert shape(first) == {"SFT": {"0": ["middle"]}}
    assert [base for _, _, base in edges(first)] == ["tiny-middle was not evaluated"]


def test_recipes_that_differ_in_a_setting_are_told_apart(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "base", 0.2)
    for content, rate in (("low", 0.001), ("high", 0.01)):
        make_checkpoint(tmp_path, content, 0.5, trained(settings={"learning_rate": rate, "rows": 6}))
    (base,) = roots(tmp_path)
    assert sorted(recipe.detail for recipe in base.recipes) == ["learning_rate 0.001", "learning_rate 0.01"]


def test_curves_that_differ_in_their_steps_say_so(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.25)
    for steps in (60, 100):
        for step in (30, steps):
            content = f"of{steps}-{step}"
            make_checkpoint(root, content, step / 200, trained(step=step, steps=steps))
    build(root, tmp_path / "site")
    page = (tmp_path / "site/lineage/index.html").read_text()
    for kind in ("lines", "slopes"):
        figure = page.split(f'<figure class="chart {kind}"')[1].split("</figure>")[0]
        assert all(f"SFT on dare_sudoku, {steps} steps" in figure for steps in (60, 100)), kind
    assert len(re.findall(r'class="series f[01]"', page)) == 2 and "(2)" not in page


def test_lineages_that_go_round_or_tell_nonsense_harm_nothing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "hen", 0.5, trained("egg"))
    make_checkpoint(tmp_path, "egg", 0.5, trained("hen"))
    make_checkpoint(tmp_path, "self", 0.5, trained("self"))
    odd = {"parents": [{}, {}], "settings": {"a": [1]}, "seed": None, "base": None}
    make_checkpoint(tmp_path, "odder", 0.5, {**trained("base"), **odd})
    result = roots(tmp_path)
    assert sum(1 for root in result for _ in root.below()) == 2  # one of hen and egg, and the odder one
    build(tmp_path, tmp_path / "site", samples=False)


def test_differences_are_those_of_the_paired_documents(family: Path, site: Path) -> None:
    page = (site / "lineage/index.html").read_text()
    for label, first, second in (("seed 1, step 100", "base", "sft1-100"), ("seed 1, step 60", "sft2-100", "rl1")):
        built = pair(Run(family / first), Run(family / second), "dare_sudoku").difference()
        assert built.lo is not None and built.hi is not None and built.p is not None
        reported = row(page, label)
        assert f"{100 * built.value:+.1f} {100 * built.lo:+.1f} to {100 * built.hi:+.1f}" in reported
        assert reported.endswith(" 40")  # documents


def test_a_difference_shows_the_same_under_lineage_and_under_compare(tmp_path: Path) -> None:
    """Alone the p of one of them would be below 5%; among all that are told on the site it is not."""
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.25)
    for seed, share in enumerate((0.25, 0.3, 0.4, 0.75)):
        make_checkpoint(root, f"sft{seed}", share, trained(seed=seed))
    alone = [pair(Run(root / "base"), Run(root / f"sft{s}"), "dare_sudoku").difference().p for s in range(4)]
    family = holm(alone)
    assert any(p <= 0.05 < adjusted for p, adjusted in zip(alone, family, strict=True))
    build(root, tmp_path / "site")
    lineage, index = ((tmp_path / "site" / name).read_text() for name in ("lineage/index.html", "compare.html"))
    steps = index.split('id="steps"')[1]
    for seed, p in enumerate(family):
        reported = next(part for part in lineage.split("<tr")[1:] if f">seed {seed}, step 100<" in part)
        under = next(part for part in steps.split("<tr")[1:] if f"seed {seed}, step 100" in part)
        kind = {"better": "up", "worse": "down"}.get(re.findall('class="shown (.*?)"', under)[0], "none")
        assert f'class="delta {kind}"' in reported and kind == ("up" if p <= 0.05 else "none")
        assert f'<td class="num">{escape(p_value(p))}</td>' in reported and f"{escape(p_text(p))}<" in under


def test_seeds_stand_together_with_their_mean_and_spread(site: Path) -> None:
    page = (site / "lineage/index.html").read_text()
    reported = row(page, "mean of 3 seeds")
    shares = [0.70, 0.75, 0.80]
    assert (
        reported.startswith("mean of 3 seeds 75.0% lowest to highest 70.0–80.0, SD")
        and f"{100 * statistics.stdev(shares):.1f}" in reported
    )
    assert "+50.0" in reported and "mean of 2 seeds" in page
    drawn = page.split("mean of 3 seeds")[1].split("</tr>")[0]
    assert drawn.count('<path d=""/>') == 1  # no bar, which would look like an interval
    assert page.index("6 earlier checkpoints") < page.index("seed 0, step 25")
    folded = page.split('<details class="earlier">')[1].split("</details>")[0]
    assert folded.count("<tr>") == 7 and "step 100" not in folded  # two steps of three seeds, and the head


def test_every_evaluated_step_is_in_the_chart_beside_the_base(site: Path) -> None:
    figures = (site / "lineage/index.html").read_text().split('<figure class="chart lines"')[1:]
    assert len(figures) == 1, "reinforcement learning has a single step"
    links = [set(re.findall(r'href="../runs/([^/]+)/', figure.split("</figure>")[0])) for figure in figures]
    assert links[0] == {"base", "lora", *(f"sft{seed}-{step}" for seed in range(3) for step in (25, 50, 100))}
    assert "step 25" in figures[0] and "before training" in figures[0]


def test_seeds_are_the_band_of_their_recipe(site: Path) -> None:
    """At step 100 the seeds have 70, 75 and 80 percent: the line ends at their mean, the band at both ends."""
    figure = (site / "lineage/index.html").read_text().split('<figure class="chart lines"')[1].split("</figure>")[0]
    (line,) = re.findall(r'class="line" d="M([^"]+)"', figure)
    (band,) = re.findall(r'class="band" d="M([^"]+)z"', figure)
    last = re.findall(
        r'<title>SFT on dare_sudoku\n(\S+)% [^\n]*step 100\n[^<]*</title><path d="M[\d.]+ ([\d.]+)m', figure
    )
    at = {share: float(height) for share, height in last}
    points = [point.split() for point in band.split("L")]
    assert line.count("L") == 2 and len(points) == 6 and sorted(at) == ["70.0", "75.0", "80.0"]
    assert float(line.split("L")[-1].split()[1]) == pytest.approx(at["75.0"], abs=0.11)
    assert [float(points[2][1]), float(points[3][1])] == pytest.approx([at["80.0"], at["70.0"]], abs=0.11)
    assert "A line is the mean of its recipe" in figure


def test_a_training_with_random_rewards_is_the_control(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.25)
    for name, rewards, final in (("real", {"exact": 1.0}, 0.7), ("none", {"random": 1.0}, 0.2)):
        for step, share in ((50, 0.3), (100, final)):
            built = trained(method="cj_grpo", step=step, options={"reward": rewards})
            make_checkpoint(root, f"{name}{step}", share, built, created=f"2026-11-22T00:{step % 60}:00")
    build(root, tmp_path / "site")
    page = (tmp_path / "site/lineage/index.html").read_text()
    assert "CJ-GRPO, control with random rewards on dare_sudoku" in plain(page) and "reward random" not in plain(page)
    curves, slopes = (
        page.split(f'<figure class="chart {kind}"')[1].split("</figure>")[0] for kind in ("lines", "slopes")
    )
    assert len(re.findall(r'<g class="series f\d control">', curves)) == 1 and "family f1 control" in curves
    assert '<g class="slope up">' in slopes
    assert '<g class="slope">' in slopes and "slope down" not in slopes, "it is no loss of the method"


def test_each_recipe_is_a_row_from_the_base_to_its_result_with_its_seeds(site: Path) -> None:
    figures = (site / "lineage/index.html").read_text().split('<figure class="chart slopes"')[1:]
    assert len(figures) == 2, "from the base, and from the fine-tuned checkpoint"
    rows = figures[0].split("</svg>")[0].split('<g class="slope up">')[1:]
    assert [plain(row) for row in rows] == ["SFT on dare_sudoku: 75.0%", "SFT (LoRA) on dare_sudoku: 60.0%"]
    assert [row.count('class="seed"') for row in rows] == [3, 1]
    lines = [re.search(r'class="line" d="M([\d.]+) [\d.]+H([\d.]+)"', row) for row in rows]
    starts, ends = zip(*([float(end) for end in line.groups()] for line in lines if line), strict=True)
    assert len(set(starts)) == 1 and ends[0] > ends[1] > starts[0]


def test_what_cannot_be_paired_says_why(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.2)
    make_checkpoint(root, "more", 0.5, trained(), tasks={"dare_sudoku": 0.5, "choice_x": 0.4})
    make_checkpoint(root, "changed", 0.5, trained(seed=1), fingerprint="v2")
    build(root, tmp_path / "site")
    text = Page(tmp_path / "site/lineage/index.html").words
    assert "tiny-base was not evaluated on choice_x" in text
    assert "not comparable: the task's prompts, filters or scorer changed" in text


def test_other_settings_are_compared_with_the_same_or_named(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_checkpoint(root, "base", 0.2)
    make_checkpoint(root, "base", 0.1, run_id="base-8", decoding={"steps": 8}, created="2026-11-23T00:00:00")
    make_checkpoint(root, "sft", 0.5, trained())
    make_checkpoint(root, "quick", 0.5, trained(seed=1), decoding={"steps": 4})
    (base,) = roots(root)
    compared = [(own.entry, parent) for _, own, parent in edges(base)]
    against = {entry.checkpoint.content: parent.entry.run_id for entry, parent in compared}
    assert against["sha256:sft"] == "base"  # the newer run of the base has other settings
    build(root, tmp_path / "site")
    page = (tmp_path / "site/lineage/index.html").read_text()
    assert "other settings" in row(page, "seed 1, step 100") and "other settings" not in row(page, "seed 0, step 100")


def test_without_samples_differences_are_unpaired(family: Path, tmp_path: Path) -> None:
    build(family, tmp_path / "site", samples=False)
    page = Page(tmp_path / "site/lineage/index.html")
    assert "are unpaired, from both intervals, since sample lines are absent" in page.words and "75.0%" in page.text
    assert "../compare.html?a=base&b=sft0-100" in page.links


def compared_pairs(out: Path) -> dict[str, str]:
    """The key of each pair whose documents were compared."""
    parts = json.loads((out / "data/files.json").read_text())["parts"]
    return {name: part["key"] for name, part in parts.items() if name.startswith("pair ")}


def test_a_new_checkpoint_is_paired_and_no_other_again(family: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "site"
    make_checkpoint(root, "base", 0.2)
    make_checkpoint(root, "one", 0.5, trained())
    build(root, out)
    before = compared_pairs(out)
    make_checkpoint(root, "two", 0.6, trained(seed=1), created="2026-11-23T00:00:00")
    build(root, out)
    after = compared_pairs(out)
    assert after.keys() - before.keys() == {"pair base two", "pair one two"}
    assert after["pair base one"] == before["pair base one"]
    assert "mean of 2 seeds" in (out / "lineage/index.html").read_text()
    assert build(root, out).parts_written == 0


def test_several_bases_have_a_page_each(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for base in ("index", "other"):
        make_checkpoint(root, base, 0.2)
        make_checkpoint(root, f"{base}-sft", 0.5, trained(base))
    build(root, tmp_path / "site")
    places = {path.name for path in (tmp_path / "site/lineage").iterdir()}
    assert places == {"index.html", "from-tiny-index.html", "from-tiny-other.html"}
    index = Page(tmp_path / "site/lineage/index.html")
    assert (
        re.search(r"tiny-other\s*dare_sudoku\s*20.0%", index.text) and "../lineage/from-tiny-other.html" in index.links
    )


def test_hostile_names_are_text(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    evil = {**trained(), "method": EVIL, "data": EVIL, "base": EVIL, "settings": {EVIL: EVIL}}
    make_checkpoint(root, "made", 0.5, evil)
    make_checkpoint(root, "base", 0.2)
    make_checkpoint(root, "made2", 0.5, {**evil, "settings": {EVIL: 1}})
    build(root, tmp_path / "site")
    seen = [page for folder in ("lineage", "speed", "checkpoints") for page in pages(tmp_path / "site" / folder)]
    assert any("<script>alert(1)" in page.text for page in seen)
    for page in seen:
        html = page.path.read_text()
        assert "<script>alert" not in html and "<img" not in html and "\u202e" not in html, page.path
        assert "␇49" not in page.text, page.path
    assert any("␇{{ 7*7 }}" in page.text for page in seen)


def test_the_runs_of_docs_trained_tell_what_its_table_tells(tmp_path: Path) -> None:
    runs = make_trained(tmp_path / "runs", "tiny-llada-base-vrpo", "tiny-llada-base-dare_sudoku")
    build(runs, tmp_path / "site")
    page = (tmp_path / "site/lineage/index.html").read_text()
    seeds = [row(page, f"seed {seed}, step 100") for seed in range(3)]
    assert [re.findall(r"[\d.]+(?=%)", reported)[0] for reported in seeds] == ["45.2", "42.0", "36.0"]
    assert max(float(reported.split()[-2]) for reported in seeds) > 0.5 and all(
        reported.endswith(" 250") for reported in seeds
    )
    facts = json.loads((tmp_path / "site/data/files.json").read_text())["parts"]
    assert sum(name.startswith("pair ") for name in facts) == 6  # with its base, and the four rows with each other


def test_what_is_gray_in_the_table_is_gray_in_the_card(tmp_path: Path) -> None:
    """A gain of one document of forty cannot be told from none, one of thirty can."""
    make_checkpoint(tmp_path / "runs", "base", 0.25)
    make_checkpoint(tmp_path / "runs", "little", 0.275, trained(method="dpo"))
    make_checkpoint(tmp_path / "runs", "much", 0.95, trained(method="sft"))
    build(tmp_path / "runs", tmp_path / "site")
    page = (tmp_path / "site/lineage/index.html").read_text()
    assert re.findall(r'class="gain([a-z ]*)">([^<]+)<', page) == [(" none", "+2.5"), ("", "+70.0")]
    assert [look for look, _ in re.findall(r'class="delta (\w+)"[^>]*>([^<]+)<', page)] == ["none", "up"]


def test_more_runs_of_a_checkpoint_are_counted_whatever_differs(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "runs", "base", 0.25)
    for name in ("first", "again", "third"):
        make_checkpoint(tmp_path / "runs", "tuned", 0.5, trained(), run_id=name)
    build(tmp_path / "runs", tmp_path / "site")
    page = (tmp_path / "site/lineage/index.html").read_text()
    (place,) = re.findall(r'href="\.\./(checkpoints/[^"]+)">and 2 more runs<', page)
    assert "first" in (tmp_path / "site" / place).read_text()


def test_scores_stand_against_the_forwards_of_their_training(tmp_path: Path) -> None:
    make_reinforced(tmp_path / "runs")
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = (tmp_path / "site/lineage/index.html").read_text()
    figure = page.partition('id="forwards-1"')[2].partition("</figure>")[0]
    assert figure.count('class="line"') == figure.count('class="band"') == 2, "a line for each recipe"
    assert figure.count("<title>") == 1 + 11, "a base and eleven checkpoints"
    assert "· 28,800 forward passes, step 100\nrollout 12,800, score 8,000, update 8,000\n" in figure
    assert "step 25" in page.partition('id="steps-1"')[2].partition("</figure>")[0]
    table = page.partition('class="scroll by-forwards"')[2].partition("</div>")[0]
    rows = [plain(part).split() for part in table.split("<tbody>")[1].split("<tr>")[1:]]
    espo = next(row for row in rows if "ESPO" in row)
    assert len(rows) == 11 and espo[:4] == ["seed", "0,", "step", "25"]
    assert espo[4:] == ["ESPO", "on", "dare_sudoku", "35.0%", "22.1–50.5", "5,200", "3,200", "1,000", "1,000"]
    assert "Forward passes were not recorded for 1 more checkpoint." in page


def test_without_recorded_forwards_there_is_no_such_chart(site: Path, tmp_path: Path) -> None:
    assert "orward passes" not in (site / "lineage/index.html").read_text()
    make_checkpoint(tmp_path / "runs", "base", 0.25)
    counts = {"rollout": 10, "update": 5}
    make_checkpoint(tmp_path / "runs", "once", 0.5, trained(forwards=counts, tokens=counts))
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    assert "by-forwards" not in (tmp_path / "site/lineage/index.html").read_text(), "one point is no curve"


def test_counts_do_not_tell_trainings_apart(tmp_path: Path) -> None:
    """Seeds of one recipe differ in what their answers cost."""
    make_checkpoint(tmp_path, "base", 0.25)
    for seed in range(2):
        counts = {"rollout": 100 + seed}
        make_checkpoint(tmp_path, f"seed{seed}", 0.5, trained(seed=seed, forwards=counts, tokens=counts))
    (root,) = roots(tmp_path)
    (recipe,) = root.recipes
    assert [training.seed for training in recipe.trainings] == [0, 1] and recipe.detail == ""


def test_a_long_list_of_effects_unfolds(site: Path) -> None:
    page = (site / "compare.html").read_text().split('<h2 id="steps">')[1].split("</section>")[0]
    shown, rest = page.split('<details class="more"><summary>')
    count = int(rest.split(" more checkpoints")[0])
    assert shown.count('<tr><th scope="row">') == 8 and rest.count('<tr><th scope="row">') == count > 0
