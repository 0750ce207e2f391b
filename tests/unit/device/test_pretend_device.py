"""The pretend device refuses what CUDA refuses, and counts launches, copies and waits."""

from __future__ import annotations

import pretend_device
import pytest
import torch
from pretend_device import DEVICE, Refused

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
