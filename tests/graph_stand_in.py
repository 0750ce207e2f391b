"""A stand-in for CUDA graphs, which need a GPU: what is dispatched once is recorded with its tensors, and a replay
computes the same operations on the same tensors again, into the same results.

It fails on what cannot be captured: operations that the host waits for, and tensors that are neither given nor made by
an operation before. Those are made on the host in every step, and a replay would never see them.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "bincount", "_unique2", "repeat_interleave")


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.numel()]


class Recording(TorchDispatchMode):
    """Records what happens inside; ``given`` are the tensors that stay where they are."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.known = {storage(tensor) for tensor in given}
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.kept: list[Any] = []  # a freed tensor's place would be taken by another one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        assert name not in WAITS, f"the host waits for {name}"
        for tensor in tensors((args, kwargs)):
            if name == "index":
                assert tensor.dtype != torch.bool or tensor is args[0], "the host waits for the size of an index"
            assert storage(tensor) in self.known, f"{name} is given a tensor that was made on the host"
        out = func(*args, **kwargs)
        self.known |= {storage(tensor) for tensor in tensors(out)}
        self.operations.append((func, args, kwargs, out))
        self.kept.append((args, kwargs, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.operations:
            taken = {storage(tensor) for tensor in tensors((args, kwargs))}
            again = func(*args, **kwargs)
            for old, new in zip(tensors(out), tensors(again), strict=True):
                assert old.shape == new.shape
                if storage(old) not in taken:  # a new tensor, and neither a view nor changed in place
                    old.copy_(new)


def held(x: Any) -> list[Tensor]:
    """All tensors in a record, its fields, and theirs."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, dict):
        return [tensor for item in x.values() for tensor in held(item)]
    if isinstance(x, list | tuple):
        return [tensor for item in x for tensor in held(item)]
    return [tensor for f in fields(x) for tensor in held(getattr(x, f.name))] if is_dataclass(x) else []


class RecordedGraphs:
    """Takes the place of ``CudaGraphs``, for forwards that are not compiled; counts what it made and replayed."""

    def __init__(self) -> None:
        self.made = self.replayed = 0

    def __call__(self, forward: Any) -> Any:
        state, network = forward.args
        own = held(state)
        places = [(tensor, storage(tensor), tensor.shape) for tensor in own]
        before = [tensor.clone() for tensor in own]
        with Recording([*network.parameters(), *network.buffers(), *own]) as recording:
            made = forward()
        for tensor, values in zip(own, before, strict=True):  # while it is captured, a GPU computes nothing
            tensor.copy_(values)
        self.made += 1

        def replay() -> Any:
            assert all(storage(tensor) == place and tensor.shape == shape for tensor, place, shape in places)
            recording.replay()
            self.replayed += 1
            return made

        return replay
