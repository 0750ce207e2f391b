"""Matrices in int8 and int4: close to the whole ones, read from a folder, compared with it, and never saved."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dare_bench.errors import UsageError
from dare_bench.loading import load

IDS = list(range(5, 29))
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@needs_torchao
@pytest.mark.parametrize(("kind", "far"), [("int8", 0.02), ("int4", 0.2)])
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_quantized_weights_answer_nearly_alike(tmp_path: Path, name: str, kind: str, far: float) -> None:
    whole, model = load(name, device="cpu"), load(name, device="cpu", quantize=kind)
    want, got = whole.logits(IDS), model.logits(IDS)
    assert 0 < (got - want).abs().mean() < far * want.abs().mean()
    assert model.is_as_opened() and model.spec.precision == f"float32+{kind}"
    assert model.spec.parameters == whole.spec.parameters
    assert model.generate(["2 + 3 ="], gen_length=8)[0].tier == "A"
    with pytest.raises(UsageError, match="open with quantized weights"):
        model.save(tmp_path / "saved")


@needs_torchao
def test_stacked_experts_are_quantized() -> None:
    whole, model = load("tiny-llada2", device="cpu"), load("tiny-llada2", device="cpu", quantize="int8")
    sizes = [sum(weight.nbytes for weight in opened.network.state_dict().values()) for opened in (whole, model)]
    assert sizes[1] < 0.7 * sizes[0] and model.is_as_opened()
    assert (model.logits(IDS) - whole.logits(IDS)).abs().mean() < 0.2 * whole.logits(IDS).abs().mean()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="allowed are int8, int4"):
        load("tiny-llada", device="cpu", quantize="int2")


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is installed")
def test_without_torchao_the_extra_is_named() -> None:
    with pytest.raises(UsageError, match=r"dare-bench\[quantize\]"):
        load("tiny-llada", device="cpu", quantize="int8")
