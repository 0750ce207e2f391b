"""Where randomness comes from: stateless keys, never generator state.

A sample's randomness depends on *what* it is, (run seed, task, document, repeat), and on nothing else: not on batch
size, order, sharding, resume, or on which samples ran before it. ``diffusion.rng`` turns a key into uniforms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def key(*parts: object) -> int:
    """A 63-bit key of ``parts``, equal on every machine and Python version (strings and integers only)."""
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = str(part).encode()
        h.update(len(raw).to_bytes(8, "little") + raw)
    return int.from_bytes(h.digest(), "little") >> 1


def sample_key(run_seed: int, task: str, doc_id: int | str, repeat: int) -> int:
    """The key of one sample of a run."""
    return key("sample", run_seed, task, doc_id, repeat)


def prompt_key(seed: int, tokens: Sequence[int], occurrence: int) -> int:
    """The key of a prompt given to ``model.generate``: the same prompt twice is two independent draws."""
    return key("prompt", seed, ",".join(map(str, tokens)), occurrence)
