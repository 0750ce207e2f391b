"""Counter-based random numbers: a uniform is a pure function of (key, kind, step, position).

No generator state exists, so a draw does not depend on batch, order, device or resume. The mixing function is the
finalizer of splitmix64 (Steele, Lea, Flood 2014), applied once for each counter; integers wrap in int64 on CPU and CUDA
alike.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class Draw(IntEnum):
    """The kind of a draw; each kind is a separate stream."""

    TOKEN = 1
    ORDER = 2
    NOISE_LEVEL = 3
    MASK = 4
    CANVAS = 5


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_M1 = _signed(0xBF58476D1CE4E5B9)
_M2 = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's is arithmetic, so the copies of the sign bit are masked away."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _M1
    x = (x ^ _shift(x, 27)) * _M2
    return x ^ _shift(x, 31)


def uniform(key: Tensor, kind: Draw, step: Tensor | int, position: Tensor | int) -> Tensor:
    """Uniforms in (0, 1), float64, of the broadcast shape of ``key``, ``step`` and ``position`` (int64)."""
    x = _mix(key + _signed(_GOLDEN * int(kind) % (1 << 64)))
    x = _mix(x + _GOLDEN * (torch.as_tensor(step, device=key.device) + 1))
    x = _mix(x + _GOLDEN * (torch.as_tensor(position, device=key.device) + 1))
    return (_shift(x, 11).double() + 0.5) * 2.0**-53
