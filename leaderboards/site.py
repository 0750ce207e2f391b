"""The site's folder: every write is atomic, stays inside the folder, and is recorded; unchanged parts are kept.

A site consists of parts (the pages of one run, the samples of one task ...). Each part has a key: a hash of all its
inputs. The list of files that a build writes (``data/files.json``) has the keys, so that the next build writes only the
parts whose key has changed, and removes files that belong to no part. Before a build writes a file it
appends the name to ``data/files.new``, which is deleted when the list is written: files of a killed build are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from dare_bench.errors import DareError
from dare_bench.leaderboards.rendering import HERE, Link, render
from dare_bench.reading import read_json, read_source
from dare_bench.runs.writer import (
    atomic_write_bytes,
    atomic_write_text,
    dumps,
    ensure_folder,
    remove_leftovers,
    save_error,
)

MANIFEST = "data/files.json"
NOTED = "data/files.new"
_MAX_LIST = 512 << 20
"""Maximum size of the list of files in bytes: a site has several files for each run."""


@dataclass(slots=True)
class SitePart:
    """One part of the site: the hash of its inputs, its files with size and time, and facts about it."""

    key: str
    files: dict[str, list[int]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Site:
    """The output folder. ``navigation`` and ``url`` are on every page, so they are part of every key. ``url``: the
    address at which the site will be, with a slash at its end; empty if unknown. ``written`` has the names of the parts
    that this build wrote."""

    def __init__(self, out: Path, navigation: tuple[Link, ...] = (), url: str = "") -> None:
        self.out = out
        self.navigation = navigation
        self.url = url
        self.parts: dict[str, SitePart] = {}
        self.written: list[str] = []
        self._before = _manifest(out)
        self._log: TextIO | None = None
        self._source = _source()
        self._current: SitePart | None = None

    def part(self, name: str, inputs: Any, write: Callable[[], Mapping[str, Any] | None]) -> dict[str, Any]:
        """Write a part, unless the last build wrote it from equal inputs and its files are unchanged.

        ``inputs`` is anything whose ``repr`` shows every difference. ``write`` returns facts about the part, which
        are returned here, even if nothing had to be written.
        """
        source = repr((self._source, self.navigation, self.url, inputs))
        key = hashlib.blake2b(source.encode("utf-8", "replace"), digest_size=12).hexdigest()
        before = self._before.get(name)
        if before is not None and before.key == key and self._unchanged(before):
            self.parts[name] = before
            return before.facts
        part = self._current = SitePart(key)
        try:
            part.facts = dict(write() or {})
        finally:
            self._current = None
        part.files = {place: _stamp(self.out / place) for place in part.files}
        self.parts[name] = part
        self.written.append(name)
        return part.facts

    def adopt(self, parts: Mapping[str, SitePart]) -> None:
        """Add parts that a forked process has written or found unchanged; those of this process are here already."""
        for name, part in parts.items():
            if name not in self.parts:
                self.parts[name] = part
                if part != self._before.get(name):
                    self.written.append(name)

    def _unchanged(self, part: SitePart) -> bool:
        """Are a part's files those that were written, by size and time? A part that was changed is written again."""
        try:
            return all(_stamp(self.out / place) == stamp for place, stamp in part.files.items())
        except OSError:
            return False

    def page(self, place: str, template: str, **values: Any) -> None:
        root = "../" * place.count("/")
        self.text(place, render(template, root, place=place, navigation=self.navigation, url=self.url, **values))

    def text(self, place: str, text: str) -> None:
        atomic_write_text(self._at(place), text, durable=False)

    def json(self, place: str, value: Any) -> None:
        self.bytes(place, dumps(value) + b"\n")

    def bytes(self, place: str, data: bytes) -> None:
        atomic_write_bytes(self._at(place), data, durable=False)

    def _at(self, place: str) -> Path:
        if ".." in Path(place).parts or place.startswith("/"):
            raise AssertionError(f"{place} is outside the site's folder")  # names go through slug() first
        assert self._current is not None, "files belong to parts"
        self._current.files[place] = []
        try:
            if self._log is None:
                self._log = (ensure_folder(self.out / "data") / Path(NOTED).name).open("a", encoding="utf-8")
            self._log.write(f"{place}\n")
            self._log.flush()
        except OSError as error:
            raise save_error(self.out / NOTED, error) from error
        _remove_special(self.out / place)
        return self.out / place

    @property
    def files(self) -> list[str]:
        """All files of the site, including the list of them."""
        return sorted({MANIFEST, *(place for part in self.parts.values() for place in part.files)})

    def finish(self) -> None:
        """Remove files that only an earlier build wrote, and those of parts that failed, then write the list of files.

        Only names in the lists of files are removed, and only below the site's folder.
        """
        inside = self.out.resolve()
        before = {place for part in self._before.values() for place in part.files}
        for place in before.union(_logged(self.out)).difference(self.files):
            path = self.out / place
            if inside in path.resolve().parents and path.is_file():
                try:
                    path.unlink()
                    _remove_empty(path.parent, self.out)
                except OSError as error:
                    raise save_error(path, error) from error
        self.save()

    def save(self) -> None:
        """Write the list of the parts that are done; after an interrupted build the next one continues from there."""
        record = {
            name: {"key": part.key, "files": part.files, "facts": part.facts}
            for name, part in sorted(self.parts.items())
        }
        atomic_write_bytes(self.out / MANIFEST, dumps({"files": self.files, "parts": record}) + b"\n", durable=False)
        if self._log is not None:
            self._log.close()
            self._log = None
        (self.out / NOTED).unlink(missing_ok=True)

    def abandon(self) -> None:
        """Keep the list complete when a build is interrupted: files of the last build, and of parts that were not
        finished, are still listed."""
        for name, part in self._before.items():
            self.parts.setdefault(name, part)
        unfinished = set(_logged(self.out)).difference(self.files)
        _remove_halves(self.out, unfinished)
        for place in unfinished:
            self.parts[""].files[place] = []
        self.save()


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _remove_special(path: Path) -> None:
    """Remove a pipe or device in the place of a file of the site: writing into a pipe waits for a reader."""
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            path.unlink()
        except OSError as error:
            raise save_error(path, error) from error


def _manifest(out: Path) -> dict[str, SitePart]:
    """The parts of the last build; none if its list is missing or damaged (then everything is written again)."""
    for path in (out / MANIFEST, out / NOTED):
        _remove_special(path)
    logged = _logged(out)
    _remove_halves(out, logged)
    try:
        raw = read_json(out / MANIFEST, DareError, limit=_MAX_LIST)
    except DareError:
        raw = {}
    parts, files = raw.get("parts"), raw.get("files")
    result: dict[str, SitePart] = {}
    for name, part in (parts if isinstance(parts, dict) else {}).items():
        if isinstance(part, dict) and isinstance(part.get("files"), dict) and isinstance(part.get("facts"), dict):
            result[str(name)] = SitePart(str(part.get("key")), part["files"], part["facts"])
    result.pop("", None)
    places = {str(place) for place in (*(files if isinstance(files, list) else ()), *logged)}
    listed = {place for part in result.values() for place in part.files}
    result[""] = SitePart("", {place: [] for place in places - listed - {MANIFEST}})  # files of no part are removed
    return result


def _logged(out: Path) -> list[str]:
    """The files that this build, or one that was killed, has begun to write."""
    try:
        return read_source(out / NOTED, DareError, limit=_MAX_LIST).splitlines()
    except DareError:
        return []


def _remove_halves(out: Path, places: Iterable[str]) -> None:
    """Remove the temporary files that killed processes left beside these files."""
    for folder in {(out / place).parent for place in places}:
        if out.resolve() in (folder.resolve(), *folder.resolve().parents) and folder.is_dir():
            remove_leftovers(folder)


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


@cache
def _source() -> str:
    """A hash of the code that writes the pages: another version writes all of them again."""
    digest = hashlib.blake2b(digest_size=8)
    files = [HERE.parent / "formatting.py"]
    for folder in (HERE, HERE.parent / "runs", HERE.parent / "analysis"):
        files += sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".j2", ".css", ".js"))
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def state(path: Path | None) -> tuple[str, int, int, int] | None:
    """Name, size and both times of a file: equal as long as it is unchanged, and known without reading it."""
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
