"""The scripts behind ``make bench`` run, at their smallest, and they stop where tokens differ."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from paths import ROOT

from dare_bench.model_adapters.sampling.attention import Packer

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


def test_the_bundled_checkpoint_is_compared_too(script, capsys):
    script("bundled").main()
    out = capsys.readouterr().out
    assert out.count("same tokens") == 3 and "nothing shared" in out


def test_a_packed_update_is_compared_with_the_padded_one(script, capsys):
    script("update").main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    models = ["tiny-llada,", "tiny-dream,", "tiny-sdar,", "tiny-llada,"]
    assert [line[0] for line in lines] == [word for model in models for word in (model, "time", "logits", "apart")]
    assert all(line[-1] == "met" for line in lines if line[0] == "logits")
    assert all(float(line[1]) <= 1e-6 and float(line[7]) < 1e-4 for line in lines if line[0] == "apart")


def test_another_loss_voids_the_comparison_of_updates(script, monkeypatch):
    update = script("update")
    packed = update.packed
    monkeypatch.setattr(update, "packed", lambda *args: packed(*args) * (1 + 1e-5))
    with pytest.raises(SystemExit, match=r"differ by 1\.0e-05; 1e-06 is allowed"):
        list(update.compare(update.QUICK[0], 1, 8))


def test_a_packed_coupled_update_is_compared_with_the_sequential_one(script, capsys):
    rl = script("rl")
    for line in rl.compare(rl.QUICK[0], 1, 8):
        print(line)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["tiny-llada,", "time", "apart"]
    assert float(lines[2][1]) <= 1e-6 and float(lines[2][7]) < 1e-4, "in float64 and in float32"


def test_another_mask_voids_the_comparison_of_coupled_updates(script, monkeypatch):
    rl = script("rl")
    losses = rl.losses
    monkeypatch.setattr(rl, "losses", lambda *args: losses(*args) * (1 + 1e-4))
    with pytest.raises(SystemExit, match=r"differ by .*; 1e-06 is allowed"):
        list(rl.compare(rl.QUICK[0], 1, 8))


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


def test_flips_count_tokens_and_documents(script):
    flipped = script("flips").flipped
    answers = {"a": ["1", "2", "3"], "b": ["4"], "c": ["5"]}
    assert flipped(answers, answers) == "0.00% of 5, 0 of 3"
    assert flipped(answers, {**answers, "a": ["1", "9"], "c": ["6"]}) == "60.00% of 5, 2 of 3"
    with pytest.raises(SystemExit, match="different documents"):
        flipped(answers, {"a": ["1"]})
