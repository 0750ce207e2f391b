"""The journal of a run: append-only files of records, each with a checksum, durable before they are counted.

A record is one line, ``{"sum":"<16 hex>",...}``, whose checksum covers everything after it. Each writer has a file in
``<run>/journal``; all are read when a run is opened. A torn last line is cut off before anything is appended. A damaged
line in the middle, or one without a valid record, is left in place and reported; its sample is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.engine.codec import is_record
from dare_bench.errors import RunError, SaveError
from dare_bench.reading import open_regular, parse_json, read_lines
from dare_bench.runs.run_files import own_file
from dare_bench.runs.writer import save_error, sync_folder

_HEAD = b'{"sum":"'
_SUM = 16
_BODY = len(_HEAD) + _SUM + 2  # a quote and a comma follow the checksum


def _checksum(rest: bytes) -> bytes:
    return hashlib.blake2b(rest, digest_size=_SUM // 2).hexdigest().encode()


def pack(record: dict[str, Any]) -> bytes:
    """A record as a line that begins with its checksum."""
    rest = json.dumps(record, separators=(",", ":")).encode()[1:]
    return _HEAD + _checksum(rest) + b'",' + rest + b"\n"


def unpack(line: bytes) -> dict[str, Any] | None:
    """The object of a line, as it was packed; None if the line is torn or damaged."""
    if not line.endswith(b"}\n") or not line.startswith(_HEAD):
        return None
    rest = line[_BODY:-1]
    if line[len(_HEAD) : _BODY] != _checksum(rest) + b'",':
        return None
    try:
        record: dict[str, Any] = parse_json(b"{" + rest)
    except ValueError:
        return None
    return record


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    offset: int
    length: int
    program: str


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that could not be read, other than a torn end of its file."""

    file: str
    line: int


class Journal(AbstractContextManager["Journal"]):
    """The journal of one run, open for one writer.

    ``append`` writes at once, so a killed process loses nothing; ``sync`` makes what was written durable, so a power
    failure loses nothing that was counted. A failed write leaves the file unchanged.

    Args:
        folder: ``<run>/journal``; created if missing.
        writer: the name of this writer's file; two live writers never share one.
    """

    def __init__(self, folder: Path, writer: str = "main") -> None:
        self.folder = folder
        self.file = folder / f"{writer}.jsonl"
        self.damage: list[Damage] = []
        self._places: dict[str, _Place] = {}
        self._records: list[dict[str, Any]] = []
        self._intact: dict[Path, tuple[int, int]] = {}
        """Length and number of lines of each file up to the end of its last intact line."""
        self._unsynced = False
        self._broken = ""
        self._sync_cost = 0.0
        self._last_sync = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in self._files():
                self._scan(file)
            end = self._intact.get(self.file, (0, 0))[0]
            self._fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._fd, end)
            sync_folder(folder)
        except OSError as error:
            raise save_error(self.file, error) from error
        self._end = end

    def _scan(self, file: Path) -> list[tuple[str, str]]:
        """Read what follows a file's last intact line; returns (type, key or "") of each record."""
        added: list[tuple[str, str]] = []
        start, lines = self._intact.get(file, (0, 0))
        bad: list[int] = []
        for number, offset, line in read_lines(file, RunError, start, cut=True):
            record = unpack(line)
            valid = record is not None and is_record(record)
            if not valid:
                bad.append(lines + number)
            if record is not None:
                # Bad lines up to an intact one are damage; bad lines at the end are a torn write.
                self.damage += [Damage(file.name, n) for n in bad]
                bad.clear()
                self._intact[file] = (offset + len(line), lines + number)
            if record is None or not valid:
                continue
            if record["type"] == "sample":
                self._places[record["key"]] = _Place(file, offset, len(line), sys.intern(record.get("program", "")))
            else:
                self._records.append(record)
            added.append((record["type"], record.get("key", "")))
        return added

    def _files(self) -> list[Path]:
        paths = (own_file(self.folder, path.name) for path in sorted(self.folder.glob("*.jsonl")))
        return [path for path in paths if path is not None]

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def records(self, kind: str) -> list[dict[str, Any]]:
        """All records of a type other than "sample", in the order written by each writer."""
        return [record for record in self._records if record["type"] == kind]

    def sample(self, key: str) -> dict[str, Any]:
        """The record of one sample, read from disk; raises KeyError if there is none."""
        place = self._places[key]
        if place.file == self.file:
            line = os.pread(self._fd, place.length, place.offset)
        else:
            with open_regular(place.file, RunError) as stream:
                stream.seek(place.offset)
                line = stream.read(place.length)
        record = unpack(line)
        if record is None:
            raise RunError(f"{place.file} changed while it was in use ({key}); does another program write to it?")
        return record

    def program(self, key: str) -> str:
        """The digest of the program that answered (:mod:`dare_bench.engine.environment`); "" if not recorded."""
        return self._places[key].program

    def reread(self) -> list[tuple[str, str]]:
        """Read what other writers added, durable or not; returns (type, key or "") of each record."""
        return [record for file in self._files() if file != self.file for record in self._scan(file)]

    def adopt(self) -> list[tuple[str, str]]:
        """Like :meth:`reread`, and make all of it durable, which a killed writer may not have done."""
        added = self.reread()
        for file in self._files():
            with open_regular(file, RunError) as stream:
                try:
                    os.fsync(stream.fileno())
                except OSError as error:
                    raise save_error(file, error) from error
        return added

    def append(self, record: dict[str, Any]) -> None:
        """Write a record (``type``, and ``key`` for samples); it is durable after the next ``sync``.

        Raises:
            SaveError: the disk is full or the file cannot be written; the journal is unchanged. If the partial line
                could not be removed, every later append is refused, as it would follow half a line.
        """
        if self._broken:
            raise SaveError(
                f"cannot write {self.file}: an earlier write failed ({self._broken}) and its partial line could not be"
                " removed; fix that and run the same command again: it drops the partial line and resumes"
            )
        line = pack(record)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as error:
            self._undo(error)
            raise save_error(self.file, error) from error
        if record["type"] == "sample":
            self._places[record["key"]] = _Place(self.file, self._end, len(line), record.get("program", ""))
        else:
            self._records.append(record)
        self._end += len(line)
        self._unsynced = True

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        if not self._unsynced:
            return
        begin = time.perf_counter()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise save_error(self.file, error) from error
        self._unsynced = False
        self._last_sync = time.perf_counter()
        self._sync_cost = self._last_sync - begin

    @property
    def sync_is_due(self) -> bool:
        """Is it time to sync again? At most a tenth of the time is spent waiting for the disk."""
        return time.perf_counter() - self._last_sync >= 10 * self._sync_cost

    def close(self) -> None:
        """Sync and close; closing twice is fine."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._fd)
            self._fd = -1

    def _undo(self, reason: OSError) -> None:
        """Remove a partial line. If that fails, nothing may follow it; the next opening drops it as torn."""
        try:
            os.ftruncate(self._fd, self._end)
        except OSError:
            self._broken = reason.strerror or str(reason)
