"""Weight-only int8 and int4: the layers' matrices as whole numbers, multiplied out for each product (tier A).

torchao computes the numbers: int8 with one scale a row (its ``Int8WeightOnlyConfig``), int4 with a scale and a zero
point for 32 columns. Here they are held as plain tensors, two int4 in a byte, so that a network of them can be planned
without memory, and is read one tensor of a file at a time, stacked experts as well. Embeddings, LM head, norms, biases
and routers stay as they are.

Shape letters: R rows, C columns, G groups of columns, B bytes of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from dare_bench.errors import UsageError
from dare_bench.model_adapters.backbone.layers import Layer, attach
from dare_bench.model_adapters.backbone.moe import Experts

Kind = Literal["int8", "int4"]
KINDS: tuple[Kind, ...] = ("int8", "int4")
GROUP = 32
"""Columns of int4 with a common scale; fewer where it does not divide the number of columns."""


class Numbers(NamedTuple):
    """A matrix, or some of its rows: ``values`` int8 [..., R, C], or uint8 [..., R, B] with column b in the lower and
    column b + B in the upper half of a byte; ``scale`` [..., R, G]; ``zero`` uint8 [..., R, G] of int4, the value that
    stands for 0."""

    values: Tensor
    scale: Tensor
    zero: Tensor | None


def numbers_of(weight: Tensor, kind: Kind) -> Numbers:
    """A matrix [..., R, C] in numbers, as torchao computes them; raises UsageError without torchao."""
    torchao = _torchao()
    if kind == "int8":
        tensor = torchao.Int8Tensor.from_hp(weight, torchao.PerRow())
        return Numbers(tensor.qdata, tensor.scale.to(weight.dtype), None)
    groups = (*(1,) * (weight.ndim - 1), gcd(GROUP, weight.shape[-1]))
    mapping = torchao.quant_primitives.MappingType.ASYMMETRIC
    bits: Any = torch.int4  # type: ignore[attr-defined]
    tensor = torchao.IntxUnpackedToInt8Tensor.from_hp(weight, groups, bits, mapping_type=mapping)
    lower, upper = (tensor.qdata + 8).to(torch.uint8).chunk(2, -1)
    return Numbers(lower | upper << 4, tensor.scale.to(weight.dtype), (tensor.zero_point + 8).to(torch.uint8))


def dense(numbers: Numbers) -> Tensor:
    """The matrix [..., R, C] in the dtype of its scales."""
    values, scale, zero = numbers
    if zero is None:
        return values.to(scale.dtype).mul_(scale)
    result = torch.cat([values & 15, values >> 4], -1).to(scale.dtype).unflatten(-1, (scale.shape[-1], -1))
    return result.sub_(zero[..., None]).mul_(scale[..., None]).flatten(-2)


class QuantizedMatrix(nn.Module):
    """A matrix in numbers, whose call gives it in the model's dtype, [..., R, C]."""

    def __init__(self, weight: Tensor, kind: Kind) -> None:
        super().__init__()
        *rows, columns = weight.shape
        self.kind: Kind = kind
        groups, width = (1, columns) if kind == "int8" else (columns // gcd(GROUP, columns), columns // 2)
        dtype = torch.int8 if kind == "int8" else torch.uint8
        self.values = self._empty(weight, (*rows, width), dtype)
        self.scale = self._empty(weight, (*rows, groups), weight.dtype)
        self.zero = None if kind == "int8" else self._empty(weight, (*rows, groups), torch.uint8)

    @staticmethod
    def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, dtype=dtype, device=like.device), requires_grad=False)

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """That of the matrix."""
        return self.scale.dtype

    def forward(self) -> Tensor:
        return dense(Numbers(self.values, self.scale, self.zero))


class _Product(Function):
    """``x W^T + b`` whose backward multiplies W out again: otherwise a training would hold the dense matrices of all
    layers between forward and backward. W and b are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: QuantizedMatrix, bias: Tensor | None) -> Tensor:
        ctx.matrix = matrix
        return linear(x, matrix(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return upstream @ ctx.matrix().to(upstream.dtype), None, None


class QuantizedLinear(nn.Module):
    """``x W^T + b`` with a :class:`QuantizedMatrix` W. Gradients flow to x, so that an adapter can be trained."""

    def __init__(self, module: nn.Linear, kind: Kind) -> None:
        super().__init__()
        self.in_features, self.out_features = module.in_features, module.out_features
        self.weight, self.bias = QuantizedMatrix(module.weight, kind), module.bias

    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return linear(x, self.weight(), self.bias)
        result: Tensor = _Product.apply(x, self.weight, self.bias)
        return result


class Rows:
    """Rows of a :class:`QuantizedMatrix` in place of a tensor of the network, as a file has it: it is cut like one, and
    what is copied into it is turned into numbers."""

    def __init__(self, numbers: Numbers, kind: Kind) -> None:
        self.numbers, self.kind = numbers, kind
        self.ndim, self.is_meta = numbers.values.ndim, numbers.values.is_meta

    def __iter__(self) -> Iterator[Rows]:
        for parts in zip(*(part for part in self.numbers if part is not None), strict=True):
            yield self._with(parts)

    def chunk(self, count: int) -> list[Rows]:
        """Equal parts of the rows."""
        cut = [part.chunk(count, -2) for part in self.numbers if part is not None]
        return [self._with(parts) for parts in zip(*cut, strict=True)]

    def _with(self, parts: tuple[Tensor, ...]) -> Rows:
        values, scale, *zero = parts
        return Rows(Numbers(values, scale, zero[0] if zero else None), self.kind)

    def copy_(self, weight: Tensor) -> None:
        for own, new in zip(self.numbers, self._numbers(weight), strict=True):
            if own is not None and new is not None:
                own.copy_(new)

    def holds(self, weight: Tensor) -> bool:
        """Are these the numbers of a weight?"""
        pairs = zip(self.numbers, self._numbers(weight), strict=True)
        return all(own is new or (own is not None and new is not None and torch.equal(own, new)) for own, new in pairs)

    def _numbers(self, weight: Tensor) -> Numbers:
        scale = self.numbers.scale
        return numbers_of(weight.to(scale.device, scale.dtype), self.kind)


def quantize(network: Any, kind: Kind) -> None:
    """Replace the matrices of all layers by empty ones in numbers, on the same device; those with an odd number of
    columns stay as they are. Weights are then read into :func:`weights_of`."""
    for layer in [module for module in network.modules() if isinstance(module, Layer)]:
        for path, module in list(layer.named_modules()):
            if type(module) is nn.Linear and module.in_features % 2 == 0:  # a router is a subclass
                attach(layer, path, QuantizedLinear(module, kind))
            elif isinstance(module, Experts):
                for name, weight in list(module.named_parameters()):
                    if weight.shape[-1] % 2 == 0:
                        delattr(module, name)
                        module.add_module(name, QuantizedMatrix(weight, kind))


def is_quantized(network: Any) -> bool:
    """Does the network have matrices in numbers?"""
    return any(isinstance(module, QuantizedMatrix) for module in network.modules())


def weights_of(network: Any) -> dict[str, Tensor | Rows]:
    """The weights of a network by name; a matrix in numbers is :class:`Rows`, by the name of what it replaces."""
    weights: dict[str, Tensor | Rows] = dict(network.state_dict())
    for path, module in network.named_modules():
        if isinstance(module, QuantizedMatrix):
            for name, _ in module.named_parameters():
                del weights[f"{path}.{name}"]
            weights[path] = Rows(Numbers(module.values.data, module.scale.data, _data(module.zero)), module.kind)
    return weights


def _data(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.data


def _torchao() -> Any:
    try:
        import torchao.quantization
        import torchao.quantization.quant_primitives
    except ImportError:
        raise UsageError("quantize needs torchao, which is not installed: pip install 'dare-bench[quantize]'") from None
    return torchao.quantization
