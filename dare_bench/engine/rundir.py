"""The folder of a run: which one it is, who may write to it, and the marks of its beginning and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError, UsageError
from dare_bench.reading import existing, read_json
from dare_bench.runs.fields import Count, Name
from dare_bench.runs.files import DONE_FILE, JOURNAL, RUN_FILE, file_date, file_digest, own_file, results_name
from dare_bench.runs.schema import SCHEMA_VERSION, parse_run_file
from dare_bench.runs.writer import LOCK, atomic_write_json, ensure_folder, held, save_error, sync_folder


@dataclass(frozen=True)
class CommitMarker:
    """The commit marker: the run's results are on disk and whole. ``totals``: documents each task has, where known."""

    status: str
    asked: str
    scope: Scope
    totals: Mapping[str, int | None]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _ScopeFile(_Strict):
    limit: Annotated[int | float, Field(gt=0)] | None
    samples: dict[Name, list[Count]] | None


class _DoneFile(_Strict):
    """The marker as it is stored."""

    status: Name
    asked: str
    scope: _ScopeFile
    totals: dict[Name, Count | None]


def read_done(folder: Path) -> CommitMarker | None:
    """The commit marker of a run directory; None if it is not there (or not readable: it is then made anew)."""
    file = own_file(folder, DONE_FILE)
    if file is None:
        return None
    try:
        found = _DoneFile.model_validate(read_json(file, RunError))
        return CommitMarker(found.status, found.asked, Scope.of(**found.scope.model_dump()), found.totals)
    except (RunError, UsageError, ValidationError):
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
    for path in () if existing(out) is None else out.glob(f"{prefix}-*"):
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


def _check(folder: Path) -> None:
    """Raises RunError where writing into the run would write elsewhere: a link out of it, a FIFO in a file's place."""
    if (folder / JOURNAL).resolve() != folder.resolve() / JOURNAL:
        raise RunError(f"{folder / JOURNAL} is a link out of the run; add --fresh for a new run beside it")
    for path in folder.iterdir():
        if path.name in (RUN_FILE, DONE_FILE, LOCK) or path.name.startswith(("results_", "samples_", "traces_")):
            own_file(folder, path.name)


class RunFolder:
    """A run directory that this process alone may write to, from ``with`` to its end.

    Raises:
        RunError: another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / JOURNAL
        self._date: str | None = None
        self._held = held(
            path, f"run {path} is being written by another process; wait for it, or add --fresh for a run beside it"
        )

    def __enter__(self) -> RunFolder:
        _check(self.path)
        self._held.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def begin(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What ``run.json`` says: ``about``, and the run's id and date as the file that is there has them, or as it is
        made now (the date names the run's files from now on).

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
        found = parse_run_file(read_json(file, RunError), file)
        self._date = found.date
        kept = {name: getattr(found, name) for name in ("run_id", "created", "date", "moment")}
        if missing := [name for name, value in kept.items() if value is None and name != "moment"]:
            raise RunError(f"{file} is damaged: it has no {missing[0]!r}; add --fresh for a new run beside it")
        return {**about, **{name: value for name, value in kept.items() if value is not None}}

    def reopen(self) -> None:
        """Take the commit marker away: from here on the run is running again."""
        try:
            (self.path / DONE_FILE).unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise save_error(self.path / DONE_FILE, error) from error

    def commit(self, done: CommitMarker) -> None:
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
                "results_sha256": file_digest(self.path / results_name(self._date)) if self._date else None,
                "finished": datetime.now().astimezone().isoformat(),
            },
        )
