"""The C allocator's thresholds, for networks that compute on a CPU.

glibc returns large freed blocks to the system at once, so that every large temporary tensor is mapped and cleared
anew, page by page. Higher thresholds let it keep them.

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
"""Free memory at the top of the heap that stays with the process."""
MAPPED_FROM_BYTES = 1 << 28
"""Blocks of this size and more are mapped on their own, and returned when freed."""


@cache
def keep_freed_memory() -> bool:
    """Let the allocator keep up to 1 GB of freed memory; False where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
