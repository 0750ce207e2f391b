"""A pretend accelerator, for tests: its tensors have real values, computed on the CPU, and lie on ``pretend:0``.

An operation with tensors of both places is refused as CUDA refuses it, and what costs time on a GPU is counted:
``launches`` (operations that compute on the device), ``copies`` (from the host to the device) and ``waits`` (the host
reads a value of the device, or needs one to know a shape).

It is PyTorch's backend for devices written in Python (``PrivateUse1``): a tensor on the device holds a tensor of the
host, and every operation that PyTorch dispatches on it comes to :func:`_run`. Without inference mode, attention
comes as the operations of which it consists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from dare_bench import loading
from dare_bench.model_adapters import load_arguments, open_native
from dare_bench.model_adapters.causal import open_causal
from dare_bench.model_adapters.causal import scoring as causal_scoring
from dare_bench.model_adapters.scoring import forwards, score

NAME = "pretend"


class _Module(_DummyBackendModule):
    """What PyTorch and accelerate ask of ``torch.pretend``."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)

READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2", "unique_consecutive",
         "unique_dim"}  # fmt: skip
"""Operations whose result, or its size, the host waits for."""
COPIES = {"_to_copy", "copy_", "copy"}
PLACED = {"index", "index_put_", "index_put", "_index_put_impl_"}
"""Operations that take indices on the host for a tensor on the device, and copy them there."""
AS_ONE = {"scaled_dot_product_attention", "rms_norm"}
"""Operations of several that are one launch on a GPU."""
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach",
         "_reshape_alias", "lift_fresh"}  # fmt: skip
"""Operations that compute nothing, besides views."""


class Refused(RuntimeError):
    """What CUDA refuses."""


class OnDevice(Tensor):
    """A tensor on the pretend device; ``held`` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, requires_grad: bool = False) -> Tensor:
        if held.is_meta:  # a weight that accelerate takes away is a parameter again
            return torch.nn.Parameter(held, requires_grad=False)
        with torch.inference_mode(held.is_inference()):  # views of weights are not, wherever they are made
            return Tensor._make_wrapper_subclass(
                cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
                device=DEVICE, requires_grad=requires_grad,
            )  # fmt: skip

    def __init__(self, held: Tensor, requires_grad: bool = False) -> None:
        self.held = held

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held})"

    def untyped_storage(self) -> torch.UntypedStorage:
        """To tell by its address which tensors share their memory."""
        return self.held.untyped_storage()

    def __getitem__(self, at: Any) -> Tensor:
        """Lists as tensors of the host, since PyTorch would make them on the device past its dispatcher."""
        parts = at if isinstance(at, tuple) else (at,)
        return super().__getitem__(tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts))

    def tolist(self) -> Any:
        _count("waits", "tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **(kwargs or {}))


_counts: list[Counter[str]] = []


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what happens inside: ``launches``, ``copies`` and ``waits``, and each with its operation's name."""
    counts: Counter[str] = Counter()
    _counts.append(counts)
    try:
        yield counts
    finally:
        _counts[:] = [other for other in _counts if other is not counts]


def _count(kind: str, name: str) -> None:
    for counts in _counts:
        counts[kind] += 1
        counts[f"{kind} {name}"] += 1


@cache
def _facts(func: Any) -> tuple[str, bool, bool, tuple[int, ...]]:
    """The name of an operation, if it consists of others, if it computes nothing, and which arguments it changes."""
    name = func._schema.name.removeprefix("aten::")
    made_of_others = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    writes = (i for i, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write)
    return name, made_of_others and name not in AS_ONE, func.is_view or name in EMPTY, tuple(writes)


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation that is given a tensor of the device, or makes one."""
    name, made_of_others, free, writes = _facts(func)
    if made_of_others and (out := func.decompose(*args, **kwargs)) is not NotImplemented:
        return out
    given = [leaf for leaf in _leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]
    own = {id(tensor.held): tensor for tensor in given if isinstance(tensor, OnDevice)}
    to = kwargs.get("device")
    made_here = bool(own) if to is None else torch.device(to).type == NAME
    if name in COPIES:
        source = isinstance(args[name != "_to_copy"], OnDevice)
        made_here = made_here if name == "_to_copy" else isinstance(args[0], OnDevice)
        kinds = {(True, True): "launches", (False, True): "copies", (True, False): "waits"}
        _count(kinds[source, made_here], name)
    else:
        if own:
            _check(name, args, [tensor for tensor in given if not isinstance(tensor, OnDevice)], writes)
        if _reads(name, args, kwargs):
            _count("waits", name)
        elif made_here and not free:
            _count("launches", name)
    out = func(*_mapped(args, _held), **{key: _mapped(x, _held) for key, x in kwargs.items()})
    if name == "scaled_dot_product_attention":  # in memory, a query's heads follow one another, as CUDA leaves them
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    assert all(tensor.shape == tensor.held.shape for tensor in own.values()), f"{name} changes a tensor's shape"
    return _mapped(out, lambda x: own[id(x)] if id(x) in own else _placed(x)) if made_here else out


def _check(name: str, args: Any, hosts: list[Tensor], writes: tuple[int, ...]) -> None:
    """Refuse tensors of the host, which may have no dimension, or be indices, if nothing is written there."""
    indices = args[1] if name in PLACED and isinstance(args[0], OnDevice) else ()
    for tensor in hosts:
        if any(tensor is index for index in indices):
            _count("copies", name)
        elif tensor.dim() or any(tensor is args[i] for i in writes if i < len(args)):
            raise Refused(f"{name}: a tensor {list(tensor.shape)} on the host, and others on the device")


def _reads(name: str, args: Any, kwargs: Any) -> bool:
    """Does the host wait for a value, or for the size of the result?"""
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    masks = name in PLACED and any(isinstance(i, OnDevice) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return name in READS or (masks and (name == "index" or args[2].numel() != 1))


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, list | tuple):
        for item in x:
            yield from _leaves(item)
    else:
        yield x


def _mapped(x: Any, to: Callable[[Any], Any]) -> Any:
    return type(x)(_mapped(item, to) for item in x) if type(x) in (list, tuple) else to(x)


def _held(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu") if x.type == NAME else x
    return x.held if isinstance(x, OnDevice) else x


def _placed(x: Any) -> Any:
    return OnDevice(x) if isinstance(x, Tensor) and not isinstance(x, OnDevice) else x


def _making(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.tensor`` or ``torch.as_tensor``, in which a device written in Python cannot take part."""

    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != NAME:
            return original(data, *args, device=device, **kwargs)
        return (data if isinstance(data, OnDevice) else original(data, *args, **kwargs)).to(DEVICE)

    return make


_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")
_ranges = torch.library.Library("aten", "IMPL")
for _kind in ("default", "start", "start_step"):  # PyTorch's own make a range by making an empty tensor larger
    _arange = getattr(torch.ops.aten.arange, _kind)
    _ranges.impl(_arange, partial(_run, _arange), "PrivateUse1")
_device_constructors()  # which ``with torch.device(...)`` knows from now on: before some are replaced


@contextmanager
def available() -> Iterator[None]:
    """Lets code make tensors on the device, and ``dare_bench.load`` open models with ``device="pretend"``; packs have
    the sizes that they have on a CPU."""
    allowed = load_arguments.pick_device

    def pick(name: str | None) -> torch.device:
        return DEVICE if name is not None and name.startswith(NAME) else allowed(name)

    with ExitStack() as stack:
        for name in ("tensor", "as_tensor"):
            stack.enter_context(patch.object(torch, name, _making(getattr(torch, name))))
        for module in (load_arguments, open_native, open_causal):
            stack.enter_context(patch.object(module, "pick_device", pick))
        stack.enter_context(patch.object(loading, "refuse_unknown_device", lambda _: None))
        for sizes in (score.CLEAN_TOKENS, forwards.PACK_TOKENS, forwards.READ_TOKENS, causal_scoring.LOGITS):
            stack.enter_context(patch.dict(sizes, {NAME: sizes["cpu"]}))
        yield
