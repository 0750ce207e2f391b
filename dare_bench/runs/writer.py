"""Writing files so that a reader sees the old file or the new one, never half of one.

Each file is written beside its place, flushed to disk, moved over the old one, and the move itself is flushed. Any
trouble is a :class:`SaveError` that names file and reason; the temporary file goes away and the old file stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from dare_bench.errors import RunError, SaveError

LOCK = ".lock"
"""The file by which one process holds a folder."""
_TEMPORARY = re.compile(r"\.dare-[0-9a-f]{16}\.tmp")
_REMEDY = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EACCES: "choose another folder or change its permissions",
    errno.EPERM: "choose another folder or change its permissions",
    errno.ENAMETOOLONG: "choose another folder",
    errno.ENOENT: "choose another folder",
    errno.ENOTDIR: "choose another folder",
    errno.EEXIST: "choose another folder",
    errno.EROFS: "choose a folder on a disk that can be written",
}


def save_error(path: str | Path, error: OSError) -> SaveError:
    """The one-line :class:`SaveError` for an OSError met while writing ``path``."""
    reason = (error.strerror or str(error) or type(error).__name__).strip()
    remedy = _REMEDY.get(error.errno or 0, "run the same command again once that is fixed")
    return SaveError(f"cannot write {path}: {reason[:1].lower()}{reason[1:]}; {remedy}")


def ensure_folder(path: str | Path) -> Path:
    """Make a folder and its parents; raises SaveError."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise save_error(path, error) from error
    except ValueError as error:  # a NUL character
        raise SaveError(f"cannot write {str(path)!r}: {error}; choose another folder") from error
    return path


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk. File systems that cannot do that answer EINVAL; there is nothing to flush."""
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
    """A binary file to write that takes the place of ``path`` when the block ends without an exception.

    ``durable=False`` leaves out the flushes to disk (for pages that can be built again): after a power cut the file
    may be lost, but a killed process still leaves the old file or the new one. A device or a pipe is written to as it
    is, never replaced.

    Raises:
        SaveError: the file could not be written; ``path`` is as it was.
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


def atomic_write_json(path: str | Path, value: Any, *, indent: int | None = 2, durable: bool = True) -> None:
    """Replace ``path`` by strict JSON (see :func:`dumps`); raises SaveError."""
    atomic_write_bytes(path, dumps(value, indent=indent) + b"\n", durable=durable)


def atomic_write_jsonl(
    path: str | Path, rows: Iterable[Any], *, durable: bool = True, digest: hashlib._Hash | None = None
) -> int:
    """Replace ``path`` by one line of strict JSON for each row; returns how many; raises SaveError.

    ``digest`` (of :mod:`hashlib`) is updated with every byte on its way, so that nobody has to read the file again.
    """
    count = 0
    with atomic_file(path, durable=durable) as file:
        for row in rows:
            line = dumps(row) + b"\n"
            file.write(line)
            if digest is not None:
                digest.update(line)
            count += 1
    return count


def dumps(value: Any, *, indent: int | None = None) -> bytes:
    """Strict JSON in UTF-8: see :func:`plain` for what becomes of NaN, sets, arrays and objects."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    # A lone surrogate (broken model output) has no UTF-8 form; as an escape it is legal JSON and reads back equal.
    return text.encode("utf-8", "backslashreplace")


def plain(value: Any, key: str = "") -> Any:
    """``value`` in JSON's own types.

    JSON has no NaN and no infinity: they become null, and "N/A" in a ``..._stderr,...`` entry, which is lm-eval's word
    there (its table printer takes no null). Sets are sorted, numpy values unpacked, anything unknown becomes ``str``.
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
    """A folder, made if missing, for one process at a time. What killed writers left in it is removed.

    Raises:
        RunError: another process has it; the message is ``refusal``. SaveError: it cannot be written.
    """
    place = ensure_folder(folder) / LOCK
    if place.is_symlink() or (place.exists() and not place.is_file()):  # opening it would wait, or empty another file
        raise SaveError(f"{place} is not a regular file; remove it and run the same command again")
    lock = FileLock(place)
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


def remove_leftovers(folder: str | Path) -> int:
    """Remove temporary files of killed writers; returns how many. Only for whoever holds the folder's lock."""
    count = 0
    for path in Path(folder).iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
            count += 1
    return count
