"""Content hashes of checkpoints, and names of models and runs.

A checkpoint that is overwritten has another hash, so it gets another run. Hashing tens of gigabytes at every start
would be slow, so the hash of each file is cached by (path, size, modification time, change time, inode). Only the
system sets the change time, so resetting a modification time hides nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from dare_bench.cache import cache_dir, write_cache
from dare_bench.errors import CheckpointError, DareError
from dare_bench.log import log
from dare_bench.reading import existing, open_regular, read_json

# Weights, configuration and tokenizer; a README or a training log is left out.
_CONTENT = (
    re.compile(r".*\.safetensors$"),
    re.compile(r".*\.safetensors\.index\.json$"),
    re.compile(r"(config|generation_config|adapter_config|tokenizer.*|special_tokens_map|added_tokens|vocab)\.json$"),
    re.compile(r"(merges|vocab)\.txt$"),
    re.compile(r".*\.(model|tiktoken|jinja)$"),
)
_LARGE = 1 << 30
"""Bytes to hash from which on a message is logged: it takes seconds per gigabyte."""
_SMALL = 16 << 20
"""Bytes of a file up to which hashing it is as quick as looking up its hash among many."""

FileState = tuple[str, int, int, int, int]
"""Path, size, modification and change time (ns), and inode of a file."""


class _HashCache:
    """Hashes of files that are not small, by their :data:`FileState`, in one JSON file. Losing it costs only time."""

    def __init__(self) -> None:
        self.path = cache_dir() / "file_hashes.json"
        self.changed = False

    @cached_property
    def entries(self) -> dict[str, Any]:
        try:
            return read_json(self.path, DareError)
        except DareError:
            return {}

    def get(self, state: FileState) -> str | None:
        """The hash of a file that has not changed since it was hashed."""
        if state[1] <= _SMALL:
            return None
        entry = self.entries.get(state[0])
        return str(entry[-1]) if isinstance(entry, list) and entry[:-1] == list(state[1:]) else None

    def hash(self, file: Path) -> str:
        state = _state(file)
        if (cached := self.get(state)) is not None:
            return cached
        with open_regular(file, CheckpointError) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if state[1] > _SMALL:
            self.entries[state[0]] = [*state[1:], digest]
            self.changed = True
        return digest

    def store(self) -> None:
        """Write the cache, if it has new hashes; those of files that are gone are dropped."""
        if self.changed:
            write_cache(self.path, {name: entry for name, entry in self.entries.items() if os.path.lexists(name)})


def content_files(folder: Path) -> list[Path]:
    """The files in a checkpoint folder that its content hash covers, sorted by name (subfolders are not covered)."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return [folder / name for name in names if any(pattern.match(name) for pattern in _CONTENT)]


def _state(file: Path) -> FileState:
    stat = file.stat()
    return str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def file_states(*folders: Path | None) -> list[FileState]:
    """The states of all content files; while they are equal, so are the folders' content hashes."""
    return [_state(file) for folder in folders if folder is not None for file in content_files(folder.resolve())]


def content_hash(folder: str | Path) -> str:
    """A checkpoint's identity: ``sha256:<64 hex>`` over the names and contents of its files, independent of its path. A
    hub snapshot is hashed like any folder, as its files may have been changed.

    Raises:
        CheckpointError: no such folder, or no weights in it.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint folder at {path}; give a folder, a hub id or a bundled name")
    files = content_files(path.resolve())
    if not any(file.suffix == ".safetensors" for file in files):
        others = sorted(file.name for file in path.iterdir() if file.suffix in (".bin", ".pt"))
        hint = f"; {others[0]} is a pickle file, which is never loaded; convert it to safetensors" if others else ""
        raise CheckpointError(
            f"no *.safetensors file in {path}; a checkpoint needs at least one beside its config.json{hint}"
        )
    cache = _HashCache()
    try:
        size = sum(state[1] for state in map(_state, files) if cache.get(state) is None)
        if size >= _LARGE:
            log.info("hashing %s (%.1f GB, once)", path, size / 1e9)
        lines = [f"{file.name}\0{cache.hash(file)}\n" for file in files]
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename}: {error.strerror}") from error
    cache.store()
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def network_hash(network: Any) -> str:
    """The identity of weights in memory, which may have been trained since they were read: ``tensors:<64 hex>``."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\n".encode())
        bytes_ = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)  # numpy has no bfloat16
        digest.update(bytes_.numpy().data)
    return f"tensors:{digest.hexdigest()}"


def digest(value: Any, length: int = 10) -> str:
    """``length`` hex digits over plain data, the same on every machine: sorted keys, exact floats."""
    raw = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(raw.encode()).hexdigest()[:length]


def slug(text: str, limit: int) -> str:
    """``text`` as part of a file name: letters, digits, ``.``, ``_`` and ``-``, at most ``limit`` characters."""
    clean = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-._") or "x"
    return clean[:limit].rstrip("-._")


def model_name(checkpoint: str) -> str:
    """The name of a checkpoint: a hub id or bundled name as given, ``owner/name`` for a hub snapshot, else the folder's
    name."""
    if (path := existing(checkpoint)) is None:
        return checkpoint
    if match := re.search(r"/models--([^/]+)/snapshots/", path.absolute().as_posix()):
        return match[1].replace("--", "/", 1)
    return path.resolve().name


def adapter_name(adapter: str) -> str:
    """The name of an adapter, like a checkpoint's; ``checkpoint-50`` is prefixed with the folder of its training."""
    name = model_name(adapter)
    if re.fullmatch(r"checkpoint-\d+", name):
        return f"{Path(adapter).expanduser().resolve().parent.name}-{name}"
    return name


def shown_name(model: str, adapter: str | None = None) -> str:
    """The name of a model on boards and in summaries: ``base+adapter`` with an adapter."""
    return model_name(model) if adapter is None else f"{model_name(model)}+{adapter_name(adapter).split('/')[-1]}"


def readable_prefix(model: str, harness: str, tasks: Iterable[str], adapter: str | None = None) -> str:
    """The readable part of a run id: model, harness (unless it is lm-eval) and tasks, shortened."""
    name = slug(model_name(model).split("/")[-1], 40)
    if adapter is not None:
        name = f"{name}+{slug(adapter_name(adapter).split('/')[-1], 40)}"
    names = list(tasks)
    shown = "-".join(slug(task, 24) for task in names[:3]) + (f"-and-{len(names) - 3}-more" if len(names) > 3 else "")
    middle = "" if harness == "lm-eval" else f"{slug(harness, 16)}-"
    return f"{name}-{middle}{shown[:80].rstrip('-.')}"
