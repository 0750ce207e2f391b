"""The folder of a run: which one it is, who may write to it, and the marks of its beginning and end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError
from dare_bench.runs.files import DONE_FILE, JOURNAL, RUN_FILE, file_date
from dare_bench.runs.writer import atomic_write_json, ensure_folder, held, save_error, sync_folder

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Done:
    """The commit marker: the run's results are on disk and whole. ``totals``: documents each task has, where known."""

    status: str
    asked: str
    scope: Scope
    totals: Mapping[str, int | None]


def read_done(folder: Path) -> Done | None:
    """The commit marker of a run directory; None if it is not there (or not readable: it is then made anew)."""
    try:
        raw = json.loads((folder / DONE_FILE).read_text())
        scope = Scope.of(raw["scope"]["limit"], raw["scope"]["samples"])
        return Done(raw["status"], raw["asked"], scope, dict(raw["totals"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def candidates(out: Path, run_id: str) -> list[tuple[int, Path]]:
    """Folders of one run id, ``<run_id>`` and the fresh ones ``<run_id>-2``, ..., oldest first."""
    found = [(1, out / run_id)] if (out / run_id).is_dir() else []
    for path in out.glob(f"{run_id}-*"):
        number = path.name.removeprefix(f"{run_id}-")
        if number.isdecimal() and path.is_dir():
            found.append((int(number), path))
    return sorted(found)


def latest_with_prefix(out: Path, prefix: str) -> list[Path]:
    """For each run id that begins so (a prefix and ten hex digits), its latest folder."""
    ids: set[str] = set()
    for path in out.glob(f"{prefix}-*"):
        code = path.name.removeprefix(f"{prefix}-").split("-")[0]
        if len(code) == 10 and all(c in "0123456789abcdef" for c in code):
            ids.add(f"{prefix}-{code}")
    return [found[-1][1] for run_id in sorted(ids) if (found := candidates(out, run_id))]


def choose(out: Path, run_id: str, fresh: bool) -> Path:
    """The folder to work in: the latest of this run id, or with ``fresh`` a new one beside it. Made if missing."""
    ensure_folder(out)
    there = candidates(out, run_id)
    if there and not fresh:
        return there[-1][1]
    number = there[-1][0] + 1 if there else 1
    while True:
        folder = out / (run_id if number == 1 else f"{run_id}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:  # another process made it just now
            if not fresh:
                return folder
            number += 1
        except OSError as error:
            raise save_error(folder, error) from error
        else:
            return folder


class RunFolder:
    """A run directory that this process alone may write to, from ``with`` to its end.

    Raises:
        RunError: another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / JOURNAL
        self._held = held(
            path, f"run {path} is being written by another process; wait for it, or add --fresh for a run beside it"
        )

    def __enter__(self) -> RunFolder:
        self._held.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def begin(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """``run.json`` as it is, or made from ``about`` and the present date (which names the run's files from now on).

        Raises:
            RunError: the file is damaged.
        """
        file = self.path / RUN_FILE
        if not file.exists():
            moment = datetime.now()
            atomic_write_json(
                file,
                {
                    "schema_version": SCHEMA_VERSION,
                    "run_id": self.path.name,
                    "created": moment.astimezone().isoformat(),
                    "date": file_date(moment),
                    **about,
                },
            )
        try:
            found = json.loads(file.read_text())
            if found["schema_version"] > SCHEMA_VERSION:
                raise RunError(f"{file}: written by a newer dare-bench (schema {found['schema_version']}); upgrade it")
            return {**found, "date": str(found["date"]), "created": str(found["created"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file} is damaged ({error}); add --fresh for a new run beside it") from error

    def reopen(self) -> None:
        """Take the commit marker away: from here on the run is running again."""
        try:
            (self.path / DONE_FILE).unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise save_error(self.path / DONE_FILE, error) from error

    def commit(self, done: Done) -> None:
        """Write the commit marker: the last thing that happens to a run."""
        atomic_write_json(
            self.path / DONE_FILE,
            {
                "schema_version": SCHEMA_VERSION,
                "run_id": self.path.name,
                "status": done.status,
                "asked": done.asked,
                "scope": done.scope.plain(),
                "totals": dict(done.totals),
                "finished": datetime.now().astimezone().isoformat(),
            },
        )
