"""The pretend device refuses what CUDA refuses, and counts launches, copies and waits. Every family, strategy and
cache on it: the same tokens as on the CPU, and no operation that mixes tensors of the host and of the device."""

from __future__ import annotations

import golden
import pretend_device
import pytest
import torch
from a2d_checkpoints import MASK, made
from pretend_device import DEVICE, Refused
from sampler_ways import MORE_WAYS, prompts

from dare_bench.loading import load

HOST = torch.arange(6.0).view(2, 3)
ONE, AT = torch.tensor(2.0), torch.tensor([1, 0])


def there():
    return HOST.clone().to(DEVICE)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "mixed",
    [
        lambda: there() + HOST,
        lambda: torch.cat([there(), HOST]),
        lambda: HOST.clone().add_(there().sum()),
        lambda: ONE.clone().add_(there().sum()),
        lambda: torch.nn.functional.linear(there(), HOST),
        lambda: HOST[AT.to(DEVICE)],
        lambda: there().__setitem__(AT.to(DEVICE), HOST),
        lambda: there().gather(0, AT[None]),
    ],
)
def test_tensors_of_both_places_are_refused(mixed, mode):
    with mode(), pytest.raises(Refused):
        mixed()


@pytest.mark.parametrize(
    ("call", "counts"),
    [
        (lambda x: x + ONE, {"launches": 1}),
        (lambda x: x.view(6)[1:].unsqueeze(0), {}),
        (lambda x: x.to(DEVICE), {}),
        (lambda x: x[AT], {"copies": 1, "launches": 1}),
        (lambda x: x + HOST.to(DEVICE), {"copies": 1, "launches": 1}),
        (lambda x: float(x.sum()), {"launches": 1, "waits": 1}),
        (lambda x: x.tolist(), {"waits": 1}),
        (lambda x: x.cpu(), {"waits": 1}),
        (lambda x: x[x > 2], {"launches": 1, "waits": 1}),
        (lambda x: x.nonzero(), {"waits": 1}),
        (lambda x: torch.nn.functional.rms_norm(x, (3,)), {"launches": 1}),
        (lambda x: torch.arange(4, device=DEVICE), {"launches": 1}),
        (lambda x: torch.tensor([1, 2], device=DEVICE), {"copies": 1}),
    ],
)
def test_what_is_counted(call, counts):
    with torch.inference_mode(), pretend_device.available():
        x = there()
        with pretend_device.counted() as seen:
            got = call(x)
        expected = call(HOST) if not isinstance(got, torch.Tensor) else None
    assert {kind: seen[kind] for kind in ("launches", "copies", "waits") if seen[kind]} == counts
    if isinstance(got, pretend_device.OnDevice):
        assert got.device == DEVICE and got.shape == got.held.shape
    elif expected is not None:
        assert got == expected


def test_outside_of_a_test_the_program_refuses_the_device():
    from dare_bench.errors import UsageError
    from dare_bench.loading import load

    with pytest.raises(UsageError, match="'pretend' is not known"):
        load("tiny-llada", device="pretend")


SHORT = {"gen_length": 12, "block_length": 6}
WAYS = {
    **MORE_WAYS,
    "llada": {
        **MORE_WAYS["llada"],
        "reference": {**SHORT, "temperature": 0.7, "rng": "reference"},
        "eoser": {**SHORT, "strategy": "eoser"},
        "ascending": {**SHORT, "strategy": "ascending"},
    },
    "sdar": {**MORE_WAYS["sdar"], "cache none": {"gen_length": 9, "block_length": 4, "cache": "none"}},
    "llada22": {"levenshtein": {"gen_length": 12, "block_length": 8}},
    "diffusion_gemma": {"renoise": {"gen_length": 8}},
}
FEW = {"llada": 3, "diffusion_gemma": 1}
"""Prompts: a third one takes the place of a row that is done. Of other families, two."""
CASES = [(family, way) for family, ways in WAYS.items() for way in ways]


@pytest.fixture(scope="module")
def on_device():
    """A family's model on the pretend device, opened once."""
    models = {}

    def model(family):
        if family not in models:
            cpu = golden.model(family)
            ids = golden.special_ids(family)
            named = {"family": "llada2.2"} if family == "llada22" else {}
            folder = cpu.loaded.path
            models[family] = load(folder, device="pretend", dtype="float32", **named, **ids)
        return models[family]

    with pretend_device.available():
        yield model


def answers(model, family, way, **more):
    got = model.generate(
        prompts(family)[: FEW.get(family, 2)], seed=3, trajectory=True, **{"max_rows": 2, **WAYS[family][way], **more}
    )
    return [(a.tokens, a.nfe, a.reference_nfe, a.finish_reason, [e[:4] for e in a.trajectory]) for a in got]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_the_same_tokens_on_a_device(family, way, on_device):
    with pretend_device.counted() as counts:
        got = answers(on_device(family), family, way)
    assert got == answers(golden.model(family), family, way)
    assert counts["launches"] > counts["waits"] > 0


@pytest.mark.parametrize(("family", "way"), [x for x in dict(reversed(CASES)).items() if x[0] != "diffusion_gemma"])
def test_what_is_recorded_is_that_of_the_cpu(family, way, on_device):
    """Near ties and predictions, in one way of each family that records them."""
    fields = {"seed": 3, "near_tie": True, "predictions": True, **WAYS[family][way]}
    got, expected = (
        [(a.near_tie, a.predictions) for a in model.generate(prompts(family)[:1], **fields)]
        for model in (on_device(family), golden.model(family))
    )
    assert got == expected and got[0][1]


@pytest.mark.parametrize(
    "way", [("llada", "low_confidence"), ("sdar", "low_confidence_static 4 T=0.8"), ("dream", "entropy")]
)
def test_drafts_save_forwards_on_a_device(way, on_device):
    family = way[0]
    drafted = answers(on_device(family), *way, draft_steps=2, gen_length=12, max_rows=1)
    stepwise = answers(golden.model(family), *way, gen_length=12, max_rows=1)
    assert [a[0] for a in drafted] == [a[0] for a in stepwise] and [a[2:] for a in drafted] == [a[2:] for a in stepwise]
    assert sum(a[1] for a in drafted) < sum(a[1] for a in stepwise)


A2D = {"gen_length": 14, "block_length": 4, "steps": 9, "early_stop": False, "temperature": 0.5, "seed": 3}
A2D_WAYS = {
    "mdlm": ("a2d_mdlm", {}),
    "mdlm, guided and shifted": ("a2d_mdlm", {"cfg_scale": 1.0, "cfg_keep_tokens": [3], "right_shift_logits": True}),
    "mdlm, suppressed": ("a2d_mdlm", {"suppress_tokens": [1], "begin_suppress_tokens": [2], "temperature": 0.0}),
    "bd3lm": ("a2d_bd3lm", {}),
    "bd3lm, shifted": ("a2d_bd3lm", {"right_shift_logits": True}),
    "bd3lm, guided": ("a2d_bd3lm", {"cfg_scale": 1.0}),
}


@pytest.mark.parametrize("way", A2D_WAYS)
def test_a2d(way, tmp_path, on_device):
    folder, (family, fields) = made(tmp_path / "checkpoint"), A2D_WAYS[way]
    several, got = [[5, 6, 7], list(range(9, 22)), [15], list(range(40, 58))], {}
    for device in ("cpu", "pretend"):
        for attention in ("sdpa", "padded"):
            model = load(folder, family=family, device=device, attention=attention, mask_id=MASK, pad_id=7)
            got[device, attention] = [a.tokens for a in model.generate(several, max_rows=3, **{**A2D, **fields})]
    assert all(tokens == got["cpu", "sdpa"] for tokens in got.values())
