"""What a checkpoint *is*, by content, and the name of a run that follows from it.

A checkpoint written anew under the same path has another hash, so it gets another run. Hashing tens of gigabytes at
every start would be slow, so the hash of each file is remembered by (path, size, times of modification and of
change, inode). Only the system sets the time of change, so a modification time that was set back hides nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dare_bench.errors import CheckpointError, DareError
from dare_bench.reading import existing, open_regular, read_json

# Weights, what they mean (config), and how text becomes tokens. A README or a training log beside them is no content.
_CONTENT = (
    re.compile(r".*\.safetensors$"),
    re.compile(r".*\.safetensors\.index\.json$"),
    re.compile(r"(config|generation_config|adapter_config|tokenizer.*|special_tokens_map|added_tokens|vocab)\.json$"),
    re.compile(r"(merges|vocab)\.txt$"),
    re.compile(r".*\.(model|tiktoken|jinja)$"),
)
_CHUNK = 1 << 22
_LARGE = 1 << 30
"""Bytes of files with unknown hashes from which on it is said that they are read: it takes seconds a gigabyte."""

log = logging.getLogger("dare_bench")

FileState = tuple[str, int, int, int, int]
"""Path, size, modification and change time (ns), and inode of a file."""


def cache_dir() -> Path:
    """Where small remembered things go: ``DARE_BENCH_CACHE``, else ``$XDG_CACHE_HOME/dare-bench``, else ``~/.cache``.

    The folder need not exist or be writable: everything in it can be computed again.
    """
    if chosen := os.environ.get("DARE_BENCH_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "dare-bench"
    try:
        return Path.home() / ".cache" / "dare-bench"
    except RuntimeError:  # no HOME and no password entry: containers run under bare user ids
        return Path(tempfile.gettempdir()) / f"dare-bench-{os.getuid()}"


class _Remembered:
    """Hashes of files by their :data:`FileState`, in one JSON file. Losing it costs only time."""

    def __init__(self) -> None:
        self.path = cache_dir() / "file_hashes.json"
        self.new = False
        try:
            self.known: dict[str, Any] = read_json(self.path, DareError)
        except DareError:
            self.known = {}

    def find(self, state: FileState) -> str | None:
        """The hash of a file that is still as it was when it was hashed."""
        seen = self.known.get(state[0])
        return str(seen[-1]) if isinstance(seen, list) and seen[:-1] == list(state[1:]) else None

    def hash(self, file: Path) -> str:
        state = _state(file)
        if (seen := self.find(state)) is not None:
            return seen
        digest = hashlib.sha256()
        with open_regular(file, CheckpointError) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        self.known[state[0]] = [*state[1:], digest.hexdigest()]
        self.new = True
        return digest.hexdigest()

    def store(self) -> None:
        # A read-only home, a full disk or a second process must not stop a run: this is only a memory.
        if not self.new:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, prefix=".hashes-", delete=False) as stream:
                json.dump(self.known, stream)
            Path(stream.name).replace(self.path)


def content_files(folder: Path) -> list[Path]:
    """The files of a checkpoint folder that make it what it is, sorted by name (sub-folders are not part of it)."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return [folder / name for name in names if any(pattern.match(name) for pattern in _CONTENT)]


def _state(file: Path) -> FileState:
    stat = file.stat()
    return str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def file_states(*folders: Path | None) -> list[FileState]:
    """The states of all content files: while they are equal, so are the folders' hashes."""
    return [_state(file) for folder in folders if folder is not None for file in content_files(folder.resolve())]


def content_hash(folder: str | Path) -> str:
    """A checkpoint's identity: ``sha256:<64 hex>`` over the names and contents of its files, wherever they lie. A hub
    snapshot is hashed like any folder: nothing says that the files in it are still those of its revision.

    Raises:
        CheckpointError: no folder there, or no weights in it.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint folder at {path}; give a folder, a hub id or a bundled name")
    files = content_files(path.resolve())
    if not any(file.suffix == ".safetensors" for file in files):
        others = sorted(file.name for file in path.iterdir() if file.suffix in (".bin", ".pt"))
        hint = f"; {others[0]} is a pickle file, which is never loaded; convert it to safetensors" if others else ""
        raise CheckpointError(
            f"no *.safetensors file in {path}; a checkpoint needs at least one next to its config.json{hint}"
        )
    memory = _Remembered()
    try:
        new = sum(state[1] for state in map(_state, files) if memory.find(state) is None)
        if new >= _LARGE:
            log.info("reading %s to tell its content (%.1f GB, once)", path, new / 1e9)
        lines = [f"{file.name}\0{memory.hash(file)}\n" for file in files]
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename}: {error.strerror}") from error
    memory.store()
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def network_hash(network: Any) -> str:
    """The identity of weights in memory (they may have been trained since they were read): ``tensors:<64 hex>``."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\n".encode())
        # Viewed as bytes, because numpy has no bfloat16.
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(raw.numpy().data)
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
    """What a checkpoint is called: a hub id or bundled name as given, ``owner/name`` for a hub snapshot, else the
    folder's name."""
    if (path := existing(checkpoint)) is None:
        return checkpoint
    if found := re.search(r"/models--([^/]+)/snapshots/", path.absolute().as_posix()):
        return found[1].replace("--", "/", 1)
    return path.resolve().name


def adapter_name(adapter: str) -> str:
    """What an adapter is called: like a checkpoint; ``checkpoint-50`` of a training with the training's folder."""
    name = model_name(adapter)
    if re.fullmatch(r"checkpoint-\d+", name):
        return f"{Path(adapter).expanduser().resolve().parent.name}-{name}"
    return name


def shown_name(model: str, adapter: str | None = None) -> str:
    """What a model is called on boards and in summaries: ``base+adapter`` where it has an adapter."""
    return model_name(model) if adapter is None else f"{model_name(model)}+{adapter_name(adapter).split('/')[-1]}"


def readable_prefix(model: str, harness: str, tasks: Iterable[str], adapter: str | None = None) -> str:
    """The part of a run's name for people: model, harness (unless it is lm-eval) and tasks, shortened."""
    name = slug(model_name(model).split("/")[-1], 40)
    if adapter is not None:
        name = f"{name}+{slug(adapter_name(adapter).split('/')[-1], 40)}"
    names = list(tasks)
    shown = "-".join(slug(task, 24) for task in names[:3]) + (f"-and-{len(names) - 3}-more" if len(names) > 3 else "")
    middle = "" if harness == "lm-eval" else f"{slug(harness, 16)}-"
    return f"{name}-{middle}{shown[:80].rstrip('-.')}"


def run_id(prefix: str, identity: Mapping[str, Any]) -> str:
    """``<prefix>-<10 hex>``: the hash is over ``identity``, whatever makes two runs different runs."""
    return f"{prefix}-{digest(identity)}"
