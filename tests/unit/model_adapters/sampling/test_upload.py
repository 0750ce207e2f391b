"""Many tensors in one buffer, and the tables of an attention plan that are made for it."""

from __future__ import annotations

import pytest
import torch

from dare_bench.diffusion.plan import Cached, Filled, Plan
from dare_bench.model_adapters.upload import upload

META = torch.device("meta")


def test_tensors_of_all_dtypes_are_parts_of_one_buffer():
    tensors = {
        "flag": torch.tensor(True),
        "bytes": torch.tensor([True, False, True]),
        "ids": torch.arange(6).view(2, 3),
        "float": torch.tensor([0.5, 2.0]),
        "none": torch.zeros(0, dtype=torch.long),
        "double": torch.tensor([1.5], dtype=torch.float64),
    }
    assert upload(tensors, torch.device("cpu")) == tensors
    there = upload(tensors, META)
    assert {name: (x.shape, x.dtype) for name, x in there.items()} == {
        n: (x.shape, x.dtype) for n, x in tensors.items()
    }
    assert {x.device for x in there.values()} == {META}
    assert len({x.untyped_storage()._cdata for x in there.values()}) == 1


class Elsewhere:
    """A device other than the CPU, to which buffers are not moved, so that their values can be read."""

    type = "elsewhere"


def test_values_survive_the_buffer(monkeypatch):
    tensors = {"a": torch.tensor([True, False]), "b": torch.arange(5), "c": torch.tensor([[0.5], [3.0]])}
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self)
    there = upload(tensors, Elsewhere())  # type: ignore[arg-type]
    assert all(torch.equal(there[name], x) for name, x in tensors.items())


@pytest.mark.parametrize("filled", [None, Filled(rows=5, length=8, cached=6)])
@pytest.mark.parametrize("reads", [(), ((3, 4), (7,), ()), ((1, 2), (3, 4), (5, 6))])
def test_a_plan_with_its_tables_attends_as_one_without(filled, reads):
    slots = tuple(torch.tensor(row, dtype=torch.long) for row in reads)
    none = torch.zeros(0, dtype=torch.long)
    cached = Cached(None, slots, none, none, steady=True) if slots else None  # type: ignore[arg-type]
    plan, placed = (Plan((3, 5, 5), 4, cached=cached, filled=filled) for _ in range(2))
    placed.place(placed.tables(), torch.device("cpu"))
    one, two = plan.padded(torch.device("cpu")), placed.padded(torch.device("cpu"))
    for a, b in ((one, two), (one.view, two.view)):
        for name, x in vars(a).items():
            if isinstance(x, torch.Tensor):
                assert torch.equal(x, getattr(b, name)), name
            elif name != "view":
                assert x == getattr(b, name), name
