"""The requests of an evaluation in small pieces, which workers take as they fall free: an answer may take a hundred
times as long as another, and equal shares would leave workers idle.

The pieces are files in a folder that all workers see. A worker takes one by renaming it, which only one can do, on
shared file systems too; the new name says who has it, so that a restarted worker goes on with those of the one that
died. A session that is resumed makes pieces anew.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from dare_bench.engine.queue import group_by_document, longest_first
from dare_bench.errors import RunError
from dare_bench.reading import parse_json, read_bytes
from dare_bench.runs.writer import atomic_write_bytes, dumps, save_error
from dare_bench.types import Request

SHARE = 8
"""A piece has at most 1 / (SHARE x workers) of the work that is left when it is cut: the last ones are single
documents, and no worker holds many while another has none."""
MOST_DOCUMENTS = 32
_PREFIX = "pieces-"
_FIELDS = tuple(field.name for field in fields(Request) if field.name != "resolved")


def cut(requests: Sequence[Request], work: Mapping[str, int], workers: int) -> list[list[Request]]:
    """Requests in pieces of decreasing size, each of whole documents and of one kind, the longest documents first.
    ``work``: forward passes by key, at most; ``workers``: number of workers that will take them."""
    left = sum(work[request.key] for request in requests)
    pieces: list[list[Request]] = []
    for kind in ("generate", "score"):
        piece: list[Request] = []
        size = documents = 0
        for group in group_by_document(longest_first((r for r in requests if r.kind == kind), work)):
            cost = sum(work[request.key] for request in group)
            if piece and (documents == MOST_DOCUMENTS or (size + cost) * SHARE * workers > left):
                pieces.append(piece)
                left -= size
                piece, size, documents = [], 0, 0
            piece += group
            size, documents = size + cost, documents + 1
        if piece:
            pieces.append(piece)
            left -= size
    return pieces


@contextlib.contextmanager
def offered(pieces: Sequence[Sequence[Request]], journal: Path) -> Iterator[Path]:
    """The folder of these pieces, beside the files of a run's journal; it is removed at the end, and so is what a
    killed session left. Raises SaveError: the pieces cannot be written."""
    for old in journal.glob(f"{_PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=journal))
        folder.chmod(0o755)
    except OSError as error:
        raise save_error(journal, error) from error
    try:
        for number, piece in enumerate(pieces):
            rows = [{name: getattr(request, name) for name in _FIELDS} for request in piece]
            atomic_write_bytes(folder / f"{number:06}.json", dumps(rows), durable=False)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Pieces:
    """The pieces in a folder, as one worker takes them. ``folder``: of :func:`offered`; ``worker``: its number; a
    worker that replaces a dead one has the same."""

    def __init__(self, folder: Path, worker: int) -> None:
        self.folder, self._mine = folder, f".taken-{worker}"
        self._done: set[str] = set()

    def __iter__(self) -> Iterator[list[Request]]:
        """Take pieces until there are none: first those that this worker has taken before. Raises RunError: a piece
        cannot be read."""
        while (name := self._next()) is not None:
            self._done.add(name)
            try:
                rows = parse_json(read_bytes(self.folder / name, RunError))
                piece = [Request(**row) for row in rows]
            except (TypeError, ValueError) as error:
                raise RunError(
                    f"{self.folder / name} is not a shard of an evaluation ({error}); run it again"
                ) from error
            yield piece

    def any(self) -> bool:
        """Is there a piece for this worker?"""
        return any(name.endswith((".json", self._mine)) for name in self._names())

    def _next(self) -> str | None:
        """The name of a piece of this worker's that it has not begun; None if all are taken."""
        # A rename over a network can succeed and be reported as failed: the folder, listed anew, tells.
        while True:
            names = self._names()
            mine = next((name for name in names if name.endswith(self._mine) and name not in self._done), None)
            free = next((name for name in names if name.endswith(".json")), None)
            if mine is not None or free is None:
                return mine
            with contextlib.suppress(FileNotFoundError):
                (self.folder / free).rename(self.folder / (free + self._mine))

    def _names(self) -> list[str]:
        """The names of all pieces in their order; none if the folder is gone, since its session ended."""
        try:
            return sorted(path.name for path in self.folder.iterdir())
        except FileNotFoundError:
            return []
