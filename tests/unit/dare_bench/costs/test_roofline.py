"""The roofline: what is counted is what PyTorch counts, and the shapes are those of recipes."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dare_bench.cli import main
from dare_bench.costs import roofline
from dare_bench.costs.roofline import Peaks, Roofline, Workload, needed, published, random_network
from dare_bench.errors import UnknownNameError, UsageError

CPU = torch.device("cpu")
SMALL = {"d_model": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ff": 96, "vocab": 256}


def small(like="llada-8b", layers=2):
    """The family of a recipe with a network of few channels."""
    model = published(like, layers)
    model.dimensions = model.dimensions.model_copy(update=SMALL)
    return model


@pytest.fixture
def quick(monkeypatch):
    for name, value in {"PRODUCT": {"cpu": 64}, "COPIED": {"cpu": 1 << 16}, "SECONDS": 0.0}.items():
        monkeypatch.setattr(roofline, name, value)


@pytest.mark.parametrize(("like", "layers"), [("llada-8b", 1), ("llada-8b", 3), ("dream-7b", 2)])
def test_operations_are_those_that_pytorch_counts(like, layers):
    """The keys and values of the last layer are computed for all tokens, everything else of it for 32 of a row."""
    model, work = small(like, layers), Workload(rows=2, tokens=96)
    network = random_network(model, CPU, torch.float32)
    at = torch.cat([torch.arange(64, 96), torch.arange(160, 192)])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        logits = network(torch.randint(256, (2, 96)), logits_at=at).logits
    assert logits.shape == (64, 256) and bool(torch.isfinite(logits).all())
    assert needed(model.dimensions, work)[0] == counter.get_total_flops()


@pytest.mark.parametrize("like", ["llada-8b", "sdar-8b", "sdar-30b-a3b-sci", "llada2.0-mini"])
def test_weights_are_those_of_the_network(like):
    """Its matrices, each once: with many tokens, all experts are read."""
    model = published(like, 2)
    network = random_network(model, torch.device("meta"), torch.float32)
    matrices = sum(weight.numel() for weight in network.parameters() if weight.dim() > 1)
    assert needed(model.dimensions, Workload(64, 64))[1] == pytest.approx(matrices, rel=1e-6)


def test_a_block_attends_to_what_is_before_it():
    """Blocks of 4 in a row of 8, with one layer less: 4 columns see 4, 4 see 8."""
    net = small("sdar-8b").dimensions
    whole = net.model_copy(update={"block_length": None})
    more = needed(whole, Workload(1, 8))[0] - needed(net, Workload(1, 8))[0]
    assert more == 2 * 4 * 4 * 16 * (8 - 4) * 4  # two layers, 4 heads of 16 channels, 4 operations each


def test_the_floor_is_the_longer_time():
    peaks = Peaks(flop_per_s=10.0, bytes_per_s=100.0)
    assert (Roofline(peaks, 50, 100, 10.0).share, Roofline(peaks, 50, 100, 10.0).limit) == (0.5, "matrix products")
    assert (Roofline(peaks, 1, 500, 10.0).share, Roofline(peaks, 1, 500, 10.0).limit) == (0.5, "reading weights")


def test_doctor_prints_the_share_of_the_floor(quick, monkeypatch, capsys):
    monkeypatch.setattr(roofline, "published", small)
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--json", "--roofline", "--like", "sdar-8b", "--rows", "2", "--tokens", "16"])
    found = {finding["name"]: finding["detail"] for finding in json.loads(capsys.readouterr().out)}
    assert not left.value.code
    assert "GFLOP/s in float32 on cpu" in found["products"] and "GB/s" in found["copies"]
    assert found["forward"].startswith("sdar-8b with 2 layers, 2 x 16 tokens, logits at 32:")
    assert "% of the floor, the goal is 70%; small networks reach less" in found["forward"]


def test_shapes_that_are_not_there_are_one_line():
    assert published("llada-8b-base", 32).dimensions.layers == 32
    with pytest.raises(UnknownNameError, match="llada-9b"):
        published("llada-9b", 2)
    with pytest.raises(UsageError, match=r"several shapes: llada-1\.5, .*; give one of these names"):
        published("llada", 2)
    with pytest.raises(UsageError, match="--layers 33: llada-8b has 1 to 32"):
        published("llada-8b", 33)
