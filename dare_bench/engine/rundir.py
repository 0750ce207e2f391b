"""The folder of a run: find or create it, lock it, ``run.json`` and the commit marker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from dare_bench.errors import RunError, UsageError
from dare_bench.harness.common.scope import Scope
from dare_bench.reading import existing, read_json
from dare_bench.runs.field_types import Count, Name
from dare_bench.runs.run_files import DONE_FILE, JOURNAL, RUN_FILE, file_date, file_digest, own_file, results_name
from dare_bench.runs.schema import SCHEMA_VERSION, RunFile, read_part
from dare_bench.runs.writer import LOCK, atomic_write_json, ensure_folder, held, save_error, sync_folder


@dataclass(frozen=True)
class CommitMarker:
    """States that the run's results are complete on disk. ``signature``: of the command that finished it
    (``identity.request_signature``); ``totals``: the number of documents of each task, where known."""

    status: str
    signature: str
    scope: Scope
    totals: Mapping[str, int | None]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _ScopeFile(_Strict):
    limit: Annotated[int | float, Field(gt=0)] | None
    samples: dict[Name, list[Count]] | None


class _DoneFile(_Strict):
    """The commit marker as stored."""

    status: Name
    signature: str = Field(validation_alias=AliasChoices("signature", "asked"))  # "asked": of earlier versions
    scope: _ScopeFile
    totals: dict[Name, Count | None]


def read_done(folder: Path) -> CommitMarker | None:
    """The commit marker of a run directory; None if it is missing or unreadable (it is then written again)."""
    file = own_file(folder, DONE_FILE)
    if file is None:
        return None
    try:
        done = _DoneFile.model_validate(read_json(file, RunError))
        return CommitMarker(done.status, done.signature, Scope.of(**done.scope.model_dump()), done.totals)
    except (RunError, UsageError, ValidationError):
        return None


def candidates(out: Path, run_id: str) -> list[tuple[int, Path]]:
    """Folders of one run id, ``<run_id>`` and the fresh ones ``<run_id>-2``, ..., oldest first."""
    folders = [(1, out / run_id)] if (out / run_id).is_dir() else []
    for path in out.glob(f"{run_id}-*"):
        number = path.name.removeprefix(f"{run_id}-")
        if number.isdecimal() and path.is_dir():
            folders.append((int(number), path))
    return sorted(folders)


def latest_with_prefix(out: Path, prefix: str) -> list[Path]:
    """The latest folder of each run id that consists of this prefix and ten hex digits."""
    ids: set[str] = set()
    for path in () if existing(out) is None else out.glob(f"{prefix}-*"):
        code = path.name.removeprefix(f"{prefix}-").split("-")[0]
        if re.fullmatch("[0-9a-f]{10}", code):
            ids.add(f"{prefix}-{code}")
    return [folders[-1][1] for run_id in sorted(ids) if (folders := candidates(out, run_id))]


def part_folder(whole: Path, scope: Scope) -> Path:
    """The folder, beside a run, of a run of some of its documents."""
    return whole.with_name(f"{whole.name}-{scope.folder_suffix()}")


def choose(out: Path, run_id: str, fresh: bool) -> Path:
    """The folder to work in, created if missing: the latest of this run id, or with ``fresh`` a new one; raises
    SaveError."""
    folders = candidates(ensure_folder(out), run_id)
    if fresh:
        return new_folder(out, run_id, folders[-1][0] + 1 if folders else 1)
    return folders[-1][1] if folders else ensure_folder(out / run_id)


def new_folder(out: Path, name: str, number: int = 1) -> Path:
    """Create the first free folder of ``name``, ``name-2``, ``name-3``, ... from ``number`` on; raises SaveError."""
    while True:
        folder = out / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise save_error(folder, error) from error
        else:
            return folder


def _check(folder: Path) -> None:
    """Raise RunError if writing into the run would write elsewhere: a link out of it, a FIFO in a file's place."""
    if (folder / JOURNAL).resolve() != folder.resolve() / JOURNAL:
        raise RunError(f"{folder / JOURNAL} is a link out of the run; add --fresh for a new run")
    for path in folder.iterdir():
        if path.name in (RUN_FILE, DONE_FILE, LOCK) or path.name.startswith(("results_", "samples_", "traces_")):
            own_file(folder, path.name)


class RunFolder:
    """A run directory, locked for this process inside ``with``; entering raises RunError if another process has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / JOURNAL
        self._date: str | None = None
        self._held = held(
            path, f"run {path} is being written by another process; wait for it, or add --fresh for a new run"
        )

    def __enter__(self) -> RunFolder:
        _check(self.path)
        self._held.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def begin(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """The contents of ``run.json``: ``about``, and id and date of the run (the date is part of its file names) as
        recorded in an existing file, else as recorded now. Raises RunError: the file is damaged."""
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
        stored = read_part(RunFile, read_json(file, RunError), file)
        self._date = stored.date
        identity = {name: getattr(stored, name) for name in ("run_id", "created", "date", "moment")}
        if missing := [name for name, value in identity.items() if value is None and name != "moment"]:
            raise RunError(f"{file} is damaged: it has no {missing[0]!r}; add --fresh for a new run")
        return {**about, **{name: value for name, value in identity.items() if value is not None}}

    def reopen(self) -> None:
        """Remove the commit marker: the run's status is "running" from here on."""
        try:
            (self.path / DONE_FILE).unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise save_error(self.path / DONE_FILE, error) from error

    def commit(self, done: CommitMarker) -> None:
        """Write the commit marker, the last file of a run."""
        atomic_write_json(
            self.path / DONE_FILE,
            {
                "schema_version": SCHEMA_VERSION,
                "run_id": self.path.name,
                "status": done.status,
                "signature": done.signature,
                "scope": done.scope.plain(),
                "totals": dict(done.totals),
                "results_sha256": file_digest(self.path / results_name(self._date)) if self._date else None,
                "finished": datetime.now().astimezone().isoformat(),
            },
        )
