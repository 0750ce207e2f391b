"""``dare-bench doctor``: what this installation can do, and which problems it has."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated

import typer

from dare_bench.cli.plain import say, say_json
from dare_bench.version import PACKAGE, __version__

LINKS = ("model_adapters", "tasks", "trainers", "leaderboards", "reports")
_LOW_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """``level``: ok, note (something optional is missing) or bad (things will fail)."""

    name: str
    level: str
    detail: str


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check this installation.

    Checks versions, GPU, extras, links, caches, sandbox and disk. Exit code 1 if something will not work."""
    results: list[Finding] = []
    for finding in findings():
        results.append(finding)
        if not json:
            say(f"{finding.level:<4}  {finding.name}: {finding.detail}")
    if json:
        say_json([asdict(finding) for finding in results])
    if any(finding.level == "bad" for finding in results):
        raise typer.Exit(1)


def findings() -> Iterator[Finding]:
    """All findings, the fast checks first."""
    folder = PACKAGE
    yield Finding("dare-bench", "ok", f"{__version__} in {folder}")
    fine = sys.version_info >= (3, 11)
    yield Finding(
        "python", "ok" if fine else "bad", platform.python_version() + ("" if fine else "; needs 3.11 or newer")
    )
    yield from links(folder)
    yield from extras()
    yield cache()
    yield disk(Path.cwd())
    yield sandbox()
    yield scoring()
    yield from accelerator()


def links(folder: Path) -> Iterator[Finding]:
    """The five folders inside the package: symbolic links in a checkout, folders in an installation. Archives that were
    unpacked without links contain small text files instead."""
    for name in LINKS:
        path = folder / name
        if path.is_dir():
            yield Finding(f"folder {name}", "ok", str(path.resolve()))
        else:
            what = "a text file where a link should be" if path.is_file() else "missing"
            remedy = "clone with git on a system with links, or install the wheel"
            yield Finding(f"folder {name}", "bad", f"{path} is {what}; {remedy}")


def extras() -> Iterator[Finding]:
    """Which extras are complete, by the package's own requirements."""
    from packaging.requirements import Requirement

    wanted: dict[str, list[str]] = {}
    try:
        lines = requires("dare-bench") or []
    except PackageNotFoundError:
        yield Finding(
            "packages",
            "note",
            "dare-bench runs from a folder and is not installed, so its requirements cannot be checked",
        )
        return
    for line in lines:
        need = Requirement(line)
        extra = (
            str(need.marker).split('extra == "')[-1].rstrip('"') if need.marker and "extra" in str(need.marker) else ""
        )
        wanted.setdefault(extra, []).append(_state(need.name, need.specifier.contains))
    for extra, states in sorted(wanted.items()):
        missing = [state for state in states if not state.startswith("=")]
        name = f"extra [{extra}]" if extra else "packages"
        if not missing:
            yield Finding(name, "ok", f"all {len(states)} requirements are installed")
        else:
            remedy = f"pip install '.[{extra}]' in the clone" if extra else "pip install . in the clone"
            yield Finding(name, "note" if extra else "bad", f"{', '.join(missing)}; {remedy}")


def _state(name: str, fits: object) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} missing"
    return f"={found}" if callable(fits) and fits(found, prereleases=True) else f"{name} {found} does not fit"


def cache() -> Finding:
    """The cache of file hashes and task names."""
    from dare_bench.fingerprint import cache_dir

    path = cache_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return Finding(
            "cache", "note", f"{path}: {error.strerror}; set DARE_BENCH_CACHE, or checkpoints are hashed every time"
        )
    return Finding("cache", "ok", f"{path} is writable")


def disk(path: Path) -> Finding:
    free = shutil.disk_usage(path).free
    text = f"{free / 2**30:.1f} GiB free at {path}"
    return Finding("disk", "ok" if free >= _LOW_DISK else "note", text)


def sandbox() -> Finding:
    """The isolation level for generated code, found by trying."""
    from dare_bench.sandbox import InstallHint, isolation
    from dare_bench.sandbox.levels import why_none

    level = isolation()
    if level == "bubblewrap":
        return Finding("sandbox", "ok", "bubblewrap")
    if level == "namespaces":
        return Finding("sandbox", "ok", f"user namespaces ({why_none()}); apt-get install bubblewrap")
    return Finding("sandbox", "note", f"none, so generated code is not run ({why_none()}); {InstallHint}")


def scoring() -> Finding:
    """The isolation of harness code that reads answers, found by trying."""
    from dare_bench.sandbox import InstallHint
    from dare_bench.sandbox.forked import why_not_enclosed

    why = why_not_enclosed()
    if why is None:
        return Finding("scoring", "ok", "harness code scores answers in a sandboxed process")
    refused = "tasks whose scorers can evaluate text are refused"
    return Finding("scoring", "note", f"without a sandbox ({why}); {refused}; {InstallHint}")


def accelerator() -> Iterator[Finding]:
    """PyTorch and its devices. Imported last because it takes seconds."""
    try:
        import torch
    except Exception as error:
        yield Finding("torch", "bad", f"does not import ({error}); pip install torch")
        return
    yield Finding("torch", "ok", str(torch.__version__))
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield Finding("gpu", "ok", f"{names} (CUDA {torch.version.cuda})")
    else:
        yield Finding("gpu", "note", f"no GPU that PyTorch can use; {torch.get_num_threads()} CPU threads")
