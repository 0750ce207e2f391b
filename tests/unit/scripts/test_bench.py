"""The scripts behind ``make bench`` run, at their smallest, and they stop where tokens differ."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace

import pretend_device
import pytest
import torch
from paths import ROOT

import dare_bench
from dare_bench.model_adapters.sampling.packing import Packer

BENCH = ROOT / "scripts" / "bench"


@pytest.fixture
def script(monkeypatch):
    """Imports one script as it imports its neighbors; the threads it sets are set back."""
    monkeypatch.syspath_prepend(str(BENCH))
    threads = torch.get_num_threads()
    before = set(sys.modules)

    def load(name):
        monkeypatch.setattr(sys, "argv", [name, "--quick", "--threads", str(threads)])
        return importlib.import_module(name)

    yield load
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_exact_sampler_is_compared_with_the_plain_one(script, monkeypatch, capsys):
    sampler = script("sampler")
    monkeypatch.setattr(sampler, "GEN", sampler.BLOCK)
    sampler.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum("useful tokens/s" in line for line in lines) == 3


def test_caches_are_compared_with_computing_again(script, capsys):
    script("cached").main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [row[0] for row in rows] == ["exact", "dual"]
    assert rows[0][-1] == "100.0%"


def test_a_packed_update_is_compared_with_the_padded_one(script, capsys):
    script("update").main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    models = ["tiny-llada,", "tiny-dream,", "tiny-llada,"]
    assert [line[0] for line in lines] == [word for model in models for word in (model, "time", "logits", "apart")]
    assert all(float(line[1].removesuffix("x")) >= 4 for line in lines if line[0] == "logits")
    assert all(float(line[1]) <= 1e-6 and float(line[4]) < 1e-4 for line in lines if line[0] == "apart")


def test_other_losses_void_the_comparison_of_updates(script, monkeypatch):
    update = script("update")
    losses = update.losses
    monkeypatch.setattr(update, "losses", lambda *args: losses(*args) * (1 + 1e-4))
    with pytest.raises(SystemExit, match=r"differ by .*; 1e-06 is allowed"):
        list(update.compare(update.QUICK[0], 1, 8))


class SlowerPeer:
    """Answers as ours does, and says that it took twice as long as ours."""

    def __init__(self, peers, model, case, change=0):
        self.answer = lambda asked: peers.answer(model, case, asked)
        self.change = change

    def __call__(self, asked):
        rows = self.answer(asked)
        changed = [row + self.change if isinstance(row, float) else [row[0] + self.change, *row[1:]] for row in rows]
        return {"cpu": 2.0, "answer": changed}


@pytest.mark.parametrize("place", [("llada", 0), ("llada", 1), ("dllm", 1)])
def test_a_peer_is_compared_on_the_same_answers(script, monkeypatch, place):
    """Responses, log-likelihoods and losses; another answer of the peer voids the comparison."""
    peers, model = script("peers"), dare_bench.load("tiny-llada")
    monkeypatch.setattr(peers, "timed", lambda ours: {"cpu": 1.0, "answer": ours()})
    case = peers.cases(place[0], model.spec.mask)[place[1]]
    few = {"generate": {"gen_length": 4, "steps": 4, "block_length": 4}, "score": {"mc_num": 2, "batch_size": 2}}
    case = replace(case, ours={**case.ours, **few.get(case.kind, {})})
    asked = peers.inputs(case, True, model)
    asked = {kind: rows[:2] for kind, rows in asked.items()}
    timing = peers.compare(SlowerPeer(peers, model, case), model, case, asked, 2, "cpu")
    assert timing.ratios == [2.0, 2.0]
    with pytest.raises(SystemExit, match="the comparison is void"):
        peers.compare(SlowerPeer(peers, model, case, change=1), model, case, asked, 1, "cpu")


def test_noise_is_drawn_as_dllm_draws_it(script):
    """Two calls of torch.rand after the seed: a level for each row, then a number for each position of the padded rows.
    The weight is 1 / level, averaged over the answers' tokens."""
    peers, rows = script("peers"), [([5, 6], [7, 8, 9]), ([5], [6])]
    data = peers.noised(rows, seed=5)
    torch.manual_seed(5)
    level_B = 1e-3 + 0.999 * torch.rand(2)
    expected = torch.rand(2, 5) < level_B[:, None]
    masked = [*expected[0, 2:].tolist(), expected[1, 1].item()]
    assert data.masked_T.tolist() == [False, False, *masked[:3], False, masked[3]] and any(masked)
    weights = [float(1 / level_B[row]) / 4 for row, hit in zip((0, 0, 0, 1), masked, strict=True) if hit]
    assert data.weights_N.tolist() == pytest.approx(weights, rel=1e-5)


def test_the_bound_of_a_ratio_is_the_time_of_the_products(script, monkeypatch):
    """Two layers of known shape: two operations for each weight and row."""
    peers, timing = script("peers"), script("timing").Timing([3.0, 1.0, 2.0], [], None, None)
    monkeypatch.setattr(peers, "SIZE", 100)
    monkeypatch.setattr(
        peers, "timed", lambda product: {"cpu": 2 * float(product()[0, 0]) ** 3 / 1e6}
    )  # 1e6 per second
    monkeypatch.setattr(peers, "answer", lambda model, *_: model(torch.ones(7, 30)))
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.SiLU(), torch.nn.Linear(50, 10))
    assert peers.bound(model, None, {}, timing, "cpu") == pytest.approx(2.0 * 1e6 / (2 * 7 * (30 * 50 + 50 * 10)))


CHECKOUT = {
    "model/modeling_llada.py": """
class LLaDAModelLM:
    @classmethod
    def from_pretrained(cls, folder, torch_dtype): return cls()
    def eval(self): return self
""",
    "generate.py": """
import torch
def generate_with_dual_cache(model, prompt, gen_length):
    print("not an answer")
    return torch.cat([prompt, prompt[:, :gen_length] + 1], 1), 3
""",
}


def test_a_peer_answers_from_a_process_of_its_own(script, tmp_path):
    peers = script("peers")
    for name, text in CHECKOUT.items():
        file = tmp_path / "Fast-dLLM" / "llada" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with peers.opened("fast-dllm", tmp_path, sys.executable, tmp_path, 1) as ask:
        for prompts in ([[1, 2, 3], [4, 5]], [[6, 7]]):
            reply = ask({"prompts": prompts, "fields": {"gen_length": 2, "cache": "dual"}})
            assert reply["answer"] == [[token + 1 for token in row[:2]] for row in prompts]
            assert reply["cpu"] > 0 and reply["wall"] > 0
        with pytest.raises(SystemExit, match="the process of fast-dllm ended with code 1"):
            ask({"prompts": [[1]], "fields": {"cache": "prefix"}})


def test_logits_are_counted_while_they_live(script):
    update = script("update")
    hidden, weight = torch.randn(20, 4, requires_grad=True), torch.randn(10, 4, requires_grad=True)
    with update.LogitsPeak(10, 4) as counter:
        logits = hidden @ weight.t()
        assert counter.peak == 20 * 10 * 4
        logits.softmax(-1).square().sum().backward()
        assert 3 * 800 <= counter.peak < 6 * 800
        del logits
        torch.zeros(1) + 1
    assert counter.alive == {}


def test_a_changed_token_voids_the_comparison(script, monkeypatch):
    cached = script("cached")
    size = cached.CacheSize(width=32, layers=1, ff_width=32, vocab=64, gen=16)
    wrong = [[0] * size.gen]
    monkeypatch.setattr(cached, "ours", lambda *_: lambda: wrong)
    with pytest.raises(SystemExit, match="of the tokens are the plain sampler's"):
        cached.compare(cached.build("exact", size), cached.CacheCase("exact", 1, 16, 4), size, 1)


def test_a_block_is_packed_twice(script, monkeypatch):
    """Once to commit the block before it with its own first step, once for all its other steps."""
    cached, packs = script("cached"), []
    pack = Packer.pack
    monkeypatch.setattr(Packer, "pack", lambda self: packs.append(1) or pack(self))
    size = cached.CacheSize(width=32, layers=1, ff_width=32, vocab=64, gen=32)
    cached.compare(cached.build("exact", size), cached.CacheCase("exact", 2, 16, 4), size, 1)
    warm_up, blocks = 1, size.gen // cached.BLOCK
    assert len(packs) == 2 * (warm_up + blocks)


def test_quartiles_of_few_runs(script):
    timing = script("timing")
    assert timing.quartiles([3.0]) == [3.0, 3.0, 3.0]
    assert timing.Timing([4.0, 6.0, 8.0], [1.0, 2.0, 2.0], None, None).spread() == "4.00x (quartiles 3.50 to 4.00)"


# -- Each developer script is one that somebody runs: make, CI, a document, or another script --------------------------


SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))
CALLERS = ("Makefile", "*.md", ".github/**/*.yml", "docs/**/*.md", "model_adapters/**/*.md", "tasks/**/*.md")


def test_each_script_is_called() -> None:
    called = "\n".join(file.read_text() for pattern in CALLERS for file in ROOT.glob(pattern))
    imported = "\n".join(file.read_text() for file in SCRIPTS)
    idle = [
        str(script.relative_to(ROOT))
        for script in SCRIPTS
        if str(script.relative_to(ROOT)) not in called
        and not re.search(
            rf"^ *(from [\w.]*\b{script.stem} import|(from [\w.]+ )?import .*\b{script.stem}\b)", imported, re.M
        )
        and f'"{script.name}"' not in imported
        and script.name != "__init__.py"
    ]
    assert len(SCRIPTS) > 10 and idle == []


# -- What a forward costs besides computing, in the mean of a whole generation: launches, copie ------------------------


BOUNDS = {
    ("tiny-llada", "none"): (190, 0.3),
    ("tiny-llada", "dual"): (203, 0.3),
    ("tiny-dream", "dual"): (224, 0.3),
    ("tiny-sdar", "exact"): (254, 0.4),
    ("tiny-llada2-base", "exact"): (376, 1),
}
"""Launches of one row, and waits of 16 rows. These may have a tenth more launches, and one copy."""


@pytest.fixture(scope="module")
def dispatch():
    sys.path.insert(0, str(ROOT / "scripts" / "bench"))
    import dispatch

    with pretend_device.available():
        yield dispatch
    sys.path.remove(str(ROOT / "scripts" / "bench"))
    del sys.modules["dispatch"]


@pytest.mark.parametrize(("name", "cache"), BOUNDS)
def test_many_rows_launch_little_more_than_one(name, cache, dispatch):
    launches, waits = BOUNDS[name, cache]
    decoding = dispatch.decodings(name)[cache]
    one, many = (dispatch.count(dispatch.opened(name, "padded"), rows, decoding) for rows in (1, 16))
    assert one.mean("launches") <= launches
    assert many.mean("launches") <= 1.1 * one.mean("launches") and many.steady <= 1.05 * one.steady
    assert many.mean("copies") <= 1 and many.mean("waits") <= waits


def test_waits_are_noticed(dispatch):
    """With sdpa the open positions are listed in each forward."""
    decoding = dispatch.decodings("tiny-llada")["none"]
    assert dispatch.count(dispatch.opened("tiny-llada", "sdpa"), 1, decoding).mean("waits") >= 2
