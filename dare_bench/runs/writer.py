"""Atomic file writing: a reader sees the old file or the new one. Each file is written to a temporary file in its
folder, flushed and moved over the old one; then the move is flushed. An error is a :class:`SaveError`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from dare_bench.errors import RunError, SaveError, UsageError, brief
from dare_bench.reading import existing

LOCK = ".lock"
"""The lock file of a folder."""
_TEMPORARY = re.compile(r"\.dare-[0-9a-f]{16}\.tmp")
_REMEDY = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space and run the same command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "choose another folder or change its permissions"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EEXIST), "choose another folder"),
    errno.EROFS: "choose a folder on a disk that can be written",
}


def save_error(path: str | Path, error: OSError) -> SaveError:
    """The one-line :class:`SaveError` for an OSError while writing ``path``."""
    reason = (error.strerror or str(error) or type(error).__name__).strip()
    remedy = _REMEDY.get(error.errno or 0, "run the same command again once that is fixed")
    return SaveError(f"cannot write {path}: {reason[:1].lower()}{reason[1:]}; {remedy}")


def ensure_folder(path: str | Path) -> Path:
    """Make a folder and its parents; raises SaveError, also for a name that is not UTF-8: result files record it, and
    libraries refuse it."""
    path = Path(path)
    try:
        str(path).encode()
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise save_error(path, error) from error
    except UnicodeEncodeError as error:
        raise SaveError(f"cannot write {str(path)!r}: the name is not UTF-8 text; choose another folder") from error
    except ValueError as error:  # a NUL character
        raise SaveError(f"cannot write {str(path)!r}: {error}; choose another folder") from error
    return path


def refuse_target(path: str | Path, option: str) -> None:
    """Refuse a file that could not be written later, before there is work that would be lost; its folder is made.

    Raises:
        UsageError: it is a folder.
        SaveError: its folder cannot be made, or not be written into.
    """
    if Path(path).is_dir():
        raise UsageError(f"{option} {path} is a folder; give a file in it, as {option} {Path(path) / 'page.html'}")
    if not os.access(ensure_folder(Path(path).parent), os.W_OK):
        raise save_error(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk; a file system that does not support it (EINVAL) has nothing to flush."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_file(path: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A binary file to write, which replaces ``path`` when the block ends without an exception; raises SaveError.

    ``durable=False`` omits the flushes to disk (for pages that can be built again): a power failure may lose the file,
    but a killed process still leaves the old file or the new one. A device or a pipe is written to, never replaced.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():  # /dev/null, a pipe
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            raise save_error(path, error) from error
        return
    folder = ensure_folder(path.parent)
    temporary = folder / f".dare-{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise save_error(path, error) from error
        raise
    if durable:
        try:
            sync_folder(folder)
        except OSError as error:
            raise save_error(path, error) from error


def atomic_write_bytes(path: str | Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``data``; raises SaveError."""
    with atomic_file(path, durable=durable) as file:
        file.write(data)


def atomic_write_text(path: str | Path, text: str, *, durable: bool = True) -> None:
    """Replace ``path`` by ``text`` in UTF-8; a lone surrogate becomes U+FFFD; raises SaveError."""
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    atomic_write_bytes(path, data, durable=durable)


def atomic_write_json(path: str | Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` by strict JSON (see :func:`dumps`); raises SaveError."""
    atomic_write_bytes(path, dumps(value, indent=2) + b"\n", durable=durable)


def atomic_write_jsonl(path: str | Path, rows: Iterable[Any]) -> str:
    """Replace ``path`` by one line of strict JSON for each row; returns the file's SHA-256; raises SaveError."""
    digest = hashlib.sha256()
    with atomic_file(path) as file:
        for row in rows:
            line = dumps(row) + b"\n"
            file.write(line)
            digest.update(line)
    return digest.hexdigest()


def dumps(value: Any, *, indent: int | None = None) -> bytes:
    """Strict JSON in UTF-8; :func:`plain` converts NaN, sets, arrays and objects."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    # A lone surrogate (broken model output) has no UTF-8 form; as an escape it is legal JSON and reads back equal.
    return text.encode("utf-8", "backslashreplace")


def plain(value: Any, key: str = "") -> Any:
    """``value`` in JSON's types.

    NaN and infinity become null, or "N/A" in a ``..._stderr,...`` entry as in lm-eval (its table printer takes no
    null). Sets are sorted, numpy values unpacked; anything else becomes ``str``.
    """
    if value is None or isinstance(value, (str, bool)):
        return str(value) if type(value) is not str and isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else ("N/A" if "_stderr," in key else None)
    if isinstance(value, Mapping):
        return {str(k): plain(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist(), key)
    return str(value)


@contextlib.contextmanager
def held(folder: str | Path, refusal: str) -> Iterator[None]:
    """Lock a folder, made if missing, for one process at a time, and remove the temporary files of killed writers;
    raises RunError or SaveError."""
    lock_file = ensure_folder(folder) / LOCK
    if lock_file.is_symlink() or (lock_file.exists() and not lock_file.is_file()):  # opening could block or truncate
        raise SaveError(f"{lock_file} is not a regular file; remove it and run the same command again")
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
        remove_leftovers(folder)
    except Timeout:
        raise RunError(refusal) from None
    except OSError as error:
        lock.release()
        raise save_error(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def refuse_other_files(folder: str | Path, marks: Sequence[str]) -> None:
    """Raise UsageError for a file, or a folder that has visible files and none of ``marks``, by which one of ours is
    known: nothing is written among files of somebody else."""
    path = existing(folder)
    if path is None:
        return
    if not path.is_dir():
        raise UsageError(f"{folder} is a file; give a folder")
    names = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    if names and not any((path / mark).exists() for mark in marks):
        raise UsageError(
            f"{folder} holds files that this command did not write ({brief(', '.join(names))}); "
            "give a new or an empty folder"
        )


def remove_leftovers(folder: str | Path) -> None:
    """Remove temporary files of killed writers. Requires the folder's lock."""
    for path in Path(folder).iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
