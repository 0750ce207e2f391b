"""A pack: a finished run as it is handed to others. Samples and traces are the run's own files, so that the recorded
digests hold. Of its settings it has no folder of the machine, no address of a server, no key."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.reading import open_regular, read_json, read_lines
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import (
    DONE_FILE,
    RUN_FILE,
    file_digest,
    results_name,
    samples_name,
    traces_name,
)
from dare_bench.runs.schema import SCHEMA_VERSION, Environment
from dare_bench.runs.scores import opened_with
from dare_bench.runs.text import listed, without_folders, without_paths
from dare_bench.runs.writer import atomic_file, atomic_write_json, plain

MAX_FILE = 95 << 20
"""Maximum size of a file; GitHub refuses files of more than 100 MiB."""
AGAIN = "make it with: dare-bench leaderboard submit RUN"
_RUN_ID = re.compile(r"[A-Za-z0-9_][\w.+-]*", re.ASCII)
_SETTINGS = (
    "family", "dtype", "attention", "compile", "quantize", "engine", "num_fewshot", "likelihood", "apply_chat_template",
    "fewshot_as_multiturn", "system_instruction", "unsafe_no_sandbox", "recipe",
)  # fmt: skip
"""Requested settings that are public as they are. Others are in the results; the documents are in done.json."""
_DONE = ("schema_version", "run_id", "status", "scope", "totals", "results_sha256", "finished")
_VERSIONS = frozenset({*Environment.model_fields, "datasets", "tokenizers", "numpy"} - {"platform"})
_OF_BLOCK = ("model", "failures", "events", "notes", "execution")
_AS_IT_IS = ("chat_template", "system_instruction")
"""Parts of prompts."""
_LEFT_OUT = ("pretty_env_info", "dare_bench")
_PRIVATE_FLAG = re.compile(
    r"--(?:model[_-]args|engine[_-]url|engine[_-]args|ray[_-]address|output[_-]path|data[_-]dir|include[_-]path)(=.*)?"
    r"|-[ao](.+)?",
    re.DOTALL,
)
_SECRET = re.compile(
    rb"\bhf_[A-Za-z0-9]{30,}|\bgh[opsru]_[A-Za-z0-9]{36}|\bgithub_pat_\w{40,}|\bsk-[\w-]{32,}|\bAKIA[0-9A-Z]{16}\b"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Keys of hubs and services, by their form."""
_NAMES_OF_SECRETS = re.compile("TOKEN|KEY|SECRET|PASSW", re.IGNORECASE)
_SHORTEST = 12
"""Minimum length of the value of an environment variable that is looked for."""


def write_pack(run: Run, out: Path, *, traces: bool = True) -> Run:
    """Write ``out/<run_id>``, with or without unmasking traces, and return it as a run; raises RunError or
    SaveError."""
    if run.is_external:
        raise RunError(f"{run.path} is an external result; only runs of dare-bench can be submitted")
    block = run.require_block()
    if not _RUN_ID.fullmatch(run.run_id):
        raise RunError(f"{run.path}: run_id {run.run_id[:80]!r} cannot be a folder's name; evaluate again with --fresh")
    files = [run.require_samples(task) for task in block.tasks]
    files += [file for task in block.tasks if traces and (file := run.traces_file(task)) is not None]
    folder = out / run.run_id
    if os.path.lexists(folder):
        raise RunError(f"{folder} exists; remove it, or give another folder with --out")
    try:
        for file in files:
            refuse_secrets(file, os.environ)
            with open_regular(file, RunError) as source, atomic_file(folder / file.name) as copy:
                shutil.copyfileobj(source, copy)
        for name, value in public_files(run).items():
            if name == DONE_FILE:
                value["results_sha256"] = file_digest(folder / results_name(str(run.date)))
            atomic_write_json(folder / name, value)
            refuse_secrets(folder / name, os.environ)
        return open_pack(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def open_pack(path: str | Path) -> Run:
    """The run in a pack that somebody else may have written; raises RunError."""
    path = Path(path)
    if path.is_symlink() or not path.is_dir():
        raise RunError(f"{path} is not a folder; a pack is a folder of files: {AGAIN}")
    with os.scandir(path) as entries:
        names = set()
        for entry in entries:
            names.add(entry.name)
            if not entry.is_file(follow_symlinks=False):
                raise RunError(f"{path}: {entry.name!r} is a link or a folder; a pack has only regular files: {AGAIN}")
            if (size := entry.stat(follow_symlinks=False).st_size) > MAX_FILE:
                raise RunError(
                    f"{path}: {entry.name} has {size:,} bytes; at most {MAX_FILE:,} are allowed: leave traces out"
                    " (submit --no-traces), or submit fewer tasks in a run"
                )
    run = Run(path)
    date = run.date or ""
    lines = {name(task, date) for task in run.tasks for name in (samples_name, traces_name)}
    if other := sorted(names - lines - {RUN_FILE, DONE_FILE, results_name(date)}):
        raise RunError(f"{path}: {listed(other, 3)[:300]} is not a file of this run; remove it, or {AGAIN}")
    if missing := sorted({RUN_FILE, DONE_FILE, results_name(date)} - names):
        raise RunError(f"{path}: {listed(missing, 3)} is missing; {AGAIN}")
    return run


def public_files(run: Run) -> dict[str, dict[str, Any]]:
    """The contents of the JSON files of a run's pack by name, :data:`DONE_FILE` last; those of a pack are unchanged;
    raises RunError."""
    block, date = run.require_block(), str(run.date)
    opened = opened_with(run.results)
    record = block.model_dump(mode="json")
    record |= without_paths({name: record[name] for name in _OF_BLOCK})
    record["model"]["path"] = None
    record["command"] = _public_command(block.command)
    record["environment"] = {name: v for name, v in record["environment"].items() if name in _VERSIONS}
    for task in record["tasks"].values():
        task["data"] = without_paths(task["data"])
    results = {name: v for name, v in run.results.items() if name not in _LEFT_OUT}
    public = {name: v if name in _AS_IT_IS else without_paths(v) for name, v in results.items()}
    arguments = {"pretrained": record["model"]["name"], **opened}
    public["config"] = {**public.get("config", {}), "model_args": arguments}
    asked = run.requested
    spec = {name: asked[name] for name in _SETTINGS if name in asked}
    spec |= {"model": record["model"]["name"], "model_args": opened, "harness": block.harness.name}
    spec |= {"decoding": block.decoding_requested, "seeds": block.seeds, "repeats": block.repeats}
    spec |= {name: [without_folders(word) for word in asked.get(name) or ()] for name in ("tasks", "include_path")}
    about = {"schema_version": SCHEMA_VERSION, "run_id": run.run_id, "created": run.created, "date": date, "spec": spec}
    done = read_json(run.path / DONE_FILE, RunError)
    marker = {**{name: done.get(name) for name in _DONE}, "signature": ""}
    return {results_name(date): {**public, "dare_bench": record}, RUN_FILE: about, DONE_FILE: marker}


def private_parts(pack: Run) -> list[str]:
    """What a pack has beside its public form, as ``FILE: PLACE`` (``run.json: spec.data_dir``); raises RunError."""
    return [
        f"{name}: {place}"
        for name, public in public_files(pack).items()
        for place in _differing(read_json(pack.path / name, RunError), plain(public))
    ]


def _differing(value: Any, public: Any, place: str = "") -> Iterator[str]:
    """Where ``value`` differs from ``public``, or has more."""
    if isinstance(value, Mapping) and isinstance(public, Mapping):
        for name, inner in value.items():
            where = f"{place}.{name}" if place else str(name)
            if name in public:
                yield from _differing(inner, public[name], where)
            else:
                yield where
    elif value != public:
        yield place


def _public_command(command: str) -> str:
    """A command of ours without the flags that name folders, servers and arguments of the checkpoint; else nothing: a
    script's arguments are its user's."""
    try:
        words = iter(shlex.split(command) if command.startswith("dare-bench ") else ())
    except ValueError:
        return ""
    kept = []
    for word in words:
        if (flag := _PRIVATE_FLAG.fullmatch(word)) is None:
            kept.append(without_paths(word))
        elif not any(flag.groups()):
            next(words, None)
    return shlex.join(kept)


def refuse_secrets(file: Path, environment: Mapping[str, str] | None = None) -> None:
    """Refuse a file with a key: by its form, or the value of a variable of ``environment`` that is named like one;
    raises RunError."""
    known = {
        name: value.encode()
        for name, value in (environment or {}).items()
        if _NAMES_OF_SECRETS.search(name) and len(value) >= _SHORTEST
    }
    for number, _, raw in read_lines(file, RunError):
        variable = next((name for name, value in known.items() if value in raw), None)
        if variable is not None or _SECRET.search(raw):
            what = f"the value of {variable}" if variable else "what looks like the key of a service"
            raise RunError(f"{file}, line {number} contains {what}; packs are public: evaluate again without it")
