"""The site's folder: every write is atomic, stays inside and is remembered; what has not changed is not made again.

A site is made of parts (the pages of one run, the samples of one task ...). Each part has a key: a hash of all that it
is made from. The list of files that a build leaves (``data/files.json``) keeps the keys, so that the next build writes
only the parts whose key is another one, and removes what no part has any more. What a build is about to write it notes
first, one line a file (``data/files.new``, which goes when the list is written): of a build that is killed nothing
stays unlisted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dare_bench.errors import DareError
from dare_bench.leaderboards.pages import HERE, Link, render
from dare_bench.reading import read_json, read_source
from dare_bench.runs.writer import (
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    ensure_folder,
    remove_leftovers,
    save_error,
)

MANIFEST = "data/files.json"
NOTED = "data/files.new"
_MAX_LIST = 512 << 20
"""Largest list of files that is read: a site has several for each run."""


@dataclass(slots=True)
class Part:
    """What one part of the site was made from (``key``), its files with their size and time, and what its making found
    out."""

    key: str
    files: dict[str, list[int]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Site:
    """The output folder. ``navigation`` stands on every page, so it is part of every key."""

    def __init__(self, out: Path, navigation: tuple[Link, ...] = ()) -> None:
        self.out = out
        self.navigation = navigation
        self.parts: dict[str, Part] = {}
        self.written: list[str] = []
        """Names of the parts that this build wrote."""
        self._before = _manifest(out)
        self._note: TextIO | None = None
        self._source = _source()
        self._now: Part | None = None

    def part(self, name: str, made_from: Any, write: Callable[[], Mapping[str, Any] | None]) -> dict[str, Any]:
        """Write a part, unless the last build made it from the same and all its files are there.

        ``made_from`` is anything with a faithful ``repr``. What ``write`` returns are the part's facts; they are given
        back, also where nothing had to be written.
        """
        key = _hash(repr((self._source, self.navigation, made_from)))
        known = self._before.get(name)
        if known is not None and known.key == key and self._as_left(known):
            self.parts[name] = known
            return known.facts
        part = self._now = Part(key)
        try:
            part.facts = dict(write() or {})
        except BaseException:  # half a part is none: listed as an earlier build's, its files go or are made again
            old = self._before.setdefault(name, Part(""))
            self._before[name] = Part("", {**old.files, **part.files}, {})
            raise
        finally:
            self._now = None
        part.files = {place: _stamp(self.out / place) for place in part.files}
        self.parts[name] = part
        self.written.append(name)
        return part.facts

    def _as_left(self, part: Part) -> bool:
        """Are a part's files those that were written, by size and time? One that somebody changed is made again."""
        try:
            return all(_stamp(self.out / place) == stamp for place, stamp in part.files.items())
        except OSError:
            return False

    def page(self, place: str, template: str, **values: Any) -> None:
        root = "../" * place.count("/")
        self.text(place, render(template, root, place=place, navigation=self.navigation, **values))

    def text(self, place: str, text: str) -> None:
        atomic_write_text(self._at(place), text, durable=False)

    def json(self, place: str, value: Any) -> None:
        atomic_write_json(self._at(place), value, durable=False)

    def copy(self, place: str, source: Path) -> None:
        atomic_write_bytes(self._at(place), source.read_bytes(), durable=False)

    def _at(self, place: str) -> Path:
        if ".." in Path(place).parts or place.startswith("/"):
            raise AssertionError(f"{place} would leave the site's folder")  # names go through slug() first
        assert self._now is not None, "files belong to parts"
        self._now.files[place] = []
        try:
            if self._note is None:
                self._note = (ensure_folder(self.out / "data") / Path(NOTED).name).open("a", encoding="utf-8")
            self._note.write(f"{place}\n")
            self._note.flush()
        except OSError as error:
            raise save_error(self.out / NOTED, error) from error
        _make_way(self.out / place)
        return self.out / place

    @property
    def files(self) -> list[str]:
        """All files of the site, its list of them included."""
        return sorted({MANIFEST, *(place for part in self.parts.values() for place in part.files)})

    def finish(self) -> None:
        """Remove what an earlier build wrote and this one has not, then note what there is.

        Only names in the earlier build's own list go, and only below the site's folder: other files are not ours.
        """
        kept = set(self.files)
        inside = self.out.resolve()
        for place in {place for part in self._before.values() for place in part.files} - kept:
            path = self.out / place
            if inside in path.resolve().parents and path.is_file():
                try:
                    path.unlink()
                    _remove_empty(path.parent, self.out)
                except OSError as error:
                    raise save_error(path, error) from error
        self.save()

    def save(self) -> None:
        """Note the parts that are done, also where a build is broken off: the next one goes on from there."""
        record = {name: {"key": p.key, "files": p.files, "facts": p.facts} for name, p in sorted(self.parts.items())}
        atomic_write_json(self.out / MANIFEST, {"files": self.files, "parts": record}, durable=False)
        if self._note is not None:
            self._note.close()
            self._note = None
        (self.out / NOTED).unlink(missing_ok=True)

    def abandon(self) -> None:
        """Keep the list complete when a build ends early: what the last build left is still listed."""
        for name, part in self._before.items():
            self.parts.setdefault(name, part)
        self.save()


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _make_way(path: Path) -> None:
    """Remove a pipe or a device where a file of the site is to be: writing into a pipe waits for a reader."""
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            path.unlink()
        except OSError as error:
            raise save_error(path, error) from error


def _manifest(out: Path) -> dict[str, Part]:
    """The parts that the last build left; none where its list is missing or damaged (then all is made again)."""
    for path in (out / MANIFEST, out / NOTED):
        _make_way(path)
    noted = _noted(out)
    try:
        raw = read_json(out / MANIFEST, DareError, limit=_MAX_LIST)
    except DareError:
        raw = {}
    parts = raw.get("parts")
    found: dict[str, Part] = {}
    for name, part in (parts if isinstance(parts, dict) else {}).items():
        if isinstance(part, dict) and isinstance(part.get("files"), dict) and isinstance(part.get("facts"), dict):
            found[str(name)] = Part(str(part.get("key")), part["files"], part["facts"])
    files = raw.get("files")
    places = {str(place) for place in (*(files if isinstance(files, list) else ()), *noted)}
    listed = {place for part in found.values() for place in part.files}
    found[""] = Part("", {place: [] for place in places - listed - {MANIFEST}})  # of no part: these go
    return found


def _noted(out: Path) -> list[str]:
    """What a build that was killed had begun to write; the temporary files that it left there go now."""
    try:
        places = read_source(out / NOTED, DareError, limit=_MAX_LIST).splitlines()
    except DareError:
        return []
    for folder in {(out / place).parent for place in places}:
        if out.resolve() in (folder.resolve(), *folder.resolve().parents) and folder.is_dir():
            remove_leftovers(folder)
    return places


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _source() -> str:
    """A hash of the program that makes the pages: another version makes all of them again."""
    folders = (HERE, HERE.parent / "runs", HERE.parent / "analysis")
    digest = hashlib.blake2b(digest_size=8)
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".j2", ".css", ".js"):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def state(path: Path | None) -> tuple[str, int, int, int] | None:
    """What tells, without reading it, that a file is the one it was: name, size and both times."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return path.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns
