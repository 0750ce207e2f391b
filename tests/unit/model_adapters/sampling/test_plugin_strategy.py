"""A strategy that a plugin brings: the file below is all that is written, and it works everywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import command
import golden
import pytest

from dare_bench.analysis.run_finder import find_runs
from dare_bench.errors import DareError, DecodingError
from dare_bench.loading import load
from dare_bench.registry import load_plugins, registry

PLUGIN = '''
"""Growing step sizes: 1, 2, 4, ... positions a forward, the most confident first."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.records import Positions


class Growing(Strategy):
    """Step i writes ``first * growth ** i`` positions, until the block is full."""

    name = "growing"
    source = "this test"

    first: int = Field(default=1, ge=1)
    growth: float = Field(default=2.0, ge=1)

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        due: list[int] = []
        while sum(due) < masks:
            due.append(min(masks - sum(due), int(self.first * self.growth ** (first + len(due)))))
        return due

    def most_forwards(self, length: int) -> int:
        return len(self.schedule(length, 0, length))

    def count(self, ranked: Ranked, at: Positions) -> Tensor:
        return torch.minimum(at.quota_R, ranked.count_R)


def register(registry):
    registry.add("strategy", "growing", "growing_plugin:Growing", origin="growing-plugin")
'''
INFO = "Metadata-Version: 2.1\nName: growing-plugin\nVersion: 0.1\n"
GROWING = '{"strategy": {"name": "growing", "growth": 3}, "gen_length": 16, "block_length": 8}'
EVAL = ("--model", "tiny-llada", "--tasks", "dare_arithmetic", "--limit", "2", "--gen-kwargs", GROWING)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the plugin installed: its module, and the entry point that names ``register``."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "growing_plugin.py").write_text(PLUGIN)
    about = folder / "growing_plugin-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(INFO)
    (about / "entry_points.txt").write_text("[dare_bench.plugins]\ngrowing = growing_plugin:register\n")
    return folder


@pytest.fixture
def plugin(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin in this process."""
    monkeypatch.setenv("DARE_BENCH_PLUGINS", "growing")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(registry(), "_entries", dict(registry()._entries))
    load_plugins(registry())


def run(site: Path, *words: str) -> str:
    done = command.run(*words, env={**os.environ, "PYTHONPATH": str(site), "DARE_BENCH_PLUGINS": "growing"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_previewed_evaluated_and_on_the_board(site: Path, tmp_path: Path) -> None:
    listed = {row["name"]: row for row in json.loads(run(site, "ls", "strategies", "--json"))}
    assert listed["growing"]["fields"] == {"steps": None, "first": 1, "growth": 2.0}
    assert listed["growing"]["source"] == "this test" and "threshold" in listed

    preview = json.loads(run(site, "eval", *EVAL, "-o", str(tmp_path / "runs"), "--dry-run", "--json"))
    assert preview["forwards"] == 2 * 2 * 3, "2 documents of 2 blocks, each of 1 + 3 + 4 positions"

    run(site, "eval", *EVAL, "-o", str(tmp_path / "runs"))
    (done,) = find_runs(tmp_path / "runs")
    assert done.run_id == preview["run_id"] and done.status == "complete"
    decoding = done.block.tasks["dare_arithmetic"].decoding
    assert decoding["strategy"] == {"name": "growing", "steps": None, "first": 1, "growth": 3.0}
    assert not {"steps", "remasking", "threshold", "factor"} & decoding.keys()
    samples = list(done.samples("dare_arithmetic"))
    assert len(samples) == 2
    assert all(cost["nfe"] <= 6 and cost["tier"] == "A" for sample in samples for cost in sample["dare_bench"])

    run(site, "leaderboard", "build", str(tmp_path / "runs"), "-o", str(tmp_path / "site"))
    page = "".join(file.read_text() for file in (tmp_path / "site").rglob("*.html"))
    assert "growing" in page


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_every_family_decodes_by_it(plugin: None, family: str) -> None:
    model = golden.model(family)
    answer = model.generate([[5, 6, 7]], gen_length=8, strategy="growing")[0]
    assert answer.residual_masks == 0 and answer.tier == "A"
    batch = model.generate([[5, 6, 7], [1] * 9, [3, 4]], gen_length=8, strategy="growing", max_rows=2)
    assert batch[0].tokens == answer.tokens


def test_our_own_strategies_are_selected_by_name_too() -> None:
    model = golden.model()
    by_name = model.generate([[5, 6, 7]], gen_length=8, strategy={"name": "threshold", "threshold": 0.02})[0]
    by_field = model.generate([[5, 6, 7]], gen_length=8, threshold=0.02)[0]
    assert (by_name.tokens, by_name.nfe) == (by_field.tokens, by_field.nfe)


def test_registered_names_are_the_classes_own_and_sources_are_given() -> None:
    entries = registry().entries("strategy")
    assert len(entries) >= 11
    for entry in entries:
        kind = entry.load()
        assert kind.name == entry.name and kind.source and kind.__doc__


def test_random_order_of_a_strategy_is_not_deterministic() -> None:
    loaded = golden.model().loaded
    for rank_by, deterministic in (("confidence", True), ("random", False)):
        decoding = loaded.resolve({"strategy": {"name": "quota", "rank_by": rank_by}})
        assert decoding.deterministic is deterministic
        assert loaded.family.tier(loaded.family.sampler(decoding, loaded.spec)) == "A"


def test_what_is_recorded_without_it_is_what_always_was() -> None:
    for family in golden.FAMILIES:
        assert "strategy" not in golden.model(family).loaded.resolve({}).model_dump()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"strategy": "thresold"}, "unknown strategy 'thresold'; closest: threshold"),
        ({"strategy": {"name": "threshold", "threshold": 3}}, "strategy 'threshold': threshold=3 is not valid"),
        ({"strategy": {"name": "quota", "tau": 1}}, "strategy 'quota' has no decoding field 'tau'; it has rank_by"),
        ({"strategy": 3}, "strategy=3: expected a name"),
        ({"strategy": "quota", "threshold": 0.5}, "threshold=0.5 belongs to llada's own strategies"),
    ],
)
def test_wrong_strategies_are_one_line(fields: dict, says: str) -> None:
    with pytest.raises(DecodingError if "unknown" not in says else Exception, match=says):
        load("tiny-llada", device="cpu").loaded.resolve(fields)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_dream_with_a_cache_opens_each_block_by_its_first_token(cache: str) -> None:
    """Later forwards of a cached block cannot see what predicts its first token, whatever the strategy is."""
    settings = {"gen_length": 8, "block_length": 4, "cache": cache, "trajectory": True}
    answer = golden.model("dream").generate([[5, 6, 7]], strategy={"name": "quota", "rank_by": "random"}, **settings)[0]
    by_step: dict[int, list[int]] = {}
    for event in answer.trajectory:
        by_step.setdefault(event.step, []).append(event.position)
    written = [by_step[step] for step in sorted(by_step)]
    assert written[0] == [0] and written[4] == [4], "a block of 4 takes 4 forwards"
    with pytest.raises(DareError, match="writes over tokens"):
        edit = {"name": "edit", "threshold": 0.5, "edit_threshold": 0.5}
        golden.model("dream").generate([[5, 6, 7]], strategy=edit, **settings)
