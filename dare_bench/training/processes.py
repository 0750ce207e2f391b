"""Which of several processes this is, as torchrun and accelerate tell it before any of them is connected."""

from __future__ import annotations

import os


def first_process() -> bool:
    """Is this the first process of all (or the only one)?"""
    return int(os.environ.get("RANK", "0")) == 0
