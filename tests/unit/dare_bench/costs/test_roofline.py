"""The roofline: what is counted is what PyTorch counts, and the shapes are those of recipes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dare_bench.cli import main
from dare_bench.costs import roofline
from dare_bench.costs.roofline import Roofline, measure, published, random_network
from dare_bench.errors import UnknownNameError, UsageError

CPU = torch.device("cpu")


def small(like="llada-8b", layers=2):
    """The family of a recipe with a network of few channels."""
    network = published(like, layers)
    arch = replace(network.arch, width=64, heads=4, kv_heads=2, head_dim=16, rotary_dim=None, ff_width=96, vocab=256)
    return replace(network, arch=arch)


@pytest.fixture
def quick(monkeypatch):
    for name, value in {"PRODUCT": {"cpu": 64}, "COPIED": {"cpu": 1 << 16}, "SECONDS": 0.0}.items():
        monkeypatch.setattr(roofline, name, value)


def test_the_operations_of_the_measured_forward_are_those_that_pytorch_counts(quick):
    network = small(layers=3)
    found, built = measure(network, 2, 96, CPU, torch.float32), random_network(network, CPU, torch.float32)
    at = torch.cat([torch.arange(64, 96), torch.arange(160, 192)])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        logits = built(torch.randint(256, (2, 96)), logits_at=at).logits
    assert logits.shape == (64, 256) and bool(torch.isfinite(logits).all())
    assert found.flop == counter.get_total_flops()
    assert found.read == 4 * sum(weight.numel() for weight in built.parameters() if weight.dim() > 1)


def test_the_floor_is_the_longer_time():
    flop, read = Roofline(10.0, 100.0, 50, 100, 10.0), Roofline(10.0, 100.0, 1, 500, 10.0)
    assert (flop.share, next(iter(flop.floors))) == (0.5, "matrix products")
    assert (read.share, next(iter(read.floors))) == (0.5, "reading weights")


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
    assert published("llada-8b-base", 32).arch.layers == 32
    with pytest.raises(UnknownNameError, match="llada-9b"):
        published("llada-9b", 2)
    with pytest.raises(UsageError, match=r"several shapes: llada-1\.5, .*; give one of these names"):
        published("llada", 2)
    with pytest.raises(UsageError, match="--layers 33: llada-8b has 1 to 32"):
        published("llada-8b", 33)
