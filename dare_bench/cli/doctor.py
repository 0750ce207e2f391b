"""``dare-bench doctor``: what this installation can do, and which problems it has."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dare_bench.cli.plain import echo_each
from dare_bench.config import parse_pairs
from dare_bench.errors import UsageError
from dare_bench.registry import registry
from dare_bench.types import OpeningSettings
from dare_bench.version import PACKAGE, __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

LINKS = ("model_adapters", "tasks", "trainers", "leaderboards", "reports")
_LOW_DISK = 1 << 30
_APART = frozenset({"lmdeploy"})
"""Extras that need other versions than the rest."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``level``: ok, note (something optional is missing) or bad (things will fail)."""

    name: str
    level: str
    detail: str


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Checkpoint: what it is, and where --device auto puts its layers.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Its family, if config.json does not identify it.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Its dtype: float32, bfloat16, ...")] = None,
    quantize: Annotated[str | None, typer.Option(help="Its matrices in int8 or int4.")] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(help="Memory limits for its weights (default: the free memory): 0=70GB,1=70GB,cpu=100GB."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this installation.

    Checks versions, GPU, extras, plugins, links, caches, sandbox and disk. Exit code 1 if something will not work.

    With --model, print instead the family and mask id of a checkpoint, what determined both, its default sampler, and
    where its layers would go with --device auto. Its weights are not needed, and not fetched from the hub. With
    --max-memory, the plan is for other devices than this machine's.

    Example: dare-bench doctor --model inclusionAI/LLaDA2.0-flash --max-memory 0=126GB,1=126GB
    """
    settings = OpeningSettings.model_construct(
        family=family, dtype=dtype, quantize=quantize, max_memory=parse_pairs(max_memory) or None
    )
    if model is None and any(settings.given().values()):
        raise UsageError("--family, --dtype, --quantize and --max-memory describe a checkpoint; give --model too")
    checks = findings() if model is None else checkpoint(model, settings)
    results = echo_each(checks, lambda check: f"{check.level:<4}  {check.name}: {check.detail}", json=json)
    if any(finding.level == "bad" for finding in results):
        raise typer.Exit(1)


def findings() -> Iterator[Finding]:
    """All findings, the fast checks first."""
    yield Finding("dare-bench", "ok", f"{__version__} in {PACKAGE}")
    yield Finding("python", "ok", platform.python_version())
    yield from links(PACKAGE)
    yield from extras()
    yield from plugins()
    yield cache()
    yield disk(Path.cwd())
    yield sandbox()
    yield scoring()
    yield from accelerator()


def checkpoint(model: str, settings: OpeningSettings) -> Iterator[Finding]:
    """What a checkpoint is, how it decodes, and where its layers would go with ``--device auto``; raises
    CheckpointError, UsageError."""
    from dare_bench.loading import UNWEIGHTED, family_and_reason, locate_config

    folder = locate_config(model, UNWEIGHTED)
    entry, reason = family_and_reason(folder, settings.family)
    yield Finding("family", "ok", f"{entry.name}, {reason}")
    opener = entry.load()
    if hasattr(opener, "facts"):
        for name, detail in opener.facts(folder):
            yield Finding(name, "ok", detail)
    if not hasattr(opener, "planned"):
        raise UsageError(f"{model} is of the family {opener.name}, which --device auto does not divide; --device cuda")
    for name, detail in opener.planned(folder, settings):
        yield Finding(name, "note" if "every forward" in detail else "ok", detail)


def links(folder: Path) -> Iterator[Finding]:
    """The five folders inside the package: symbolic links in a checkout, folders in an installation. Archives that were
    unpacked without links contain small text files instead."""
    for name in LINKS:
        path = folder / name
        if path.is_dir():
            yield Finding(f"folder {name}", "ok", str(path.resolve()))
        else:
            problem = "a text file where a link should be" if path.is_file() else "missing"
            remedy = "clone with git on a system with links, or install the wheel"
            yield Finding(f"folder {name}", "bad", f"{path} is {problem}; {remedy}")


def extras() -> Iterator[Finding]:
    """Which extras are complete, by the package's requirements."""
    from packaging.requirements import Requirement

    try:
        lines = requires("dare-bench") or []
    except PackageNotFoundError:
        detail = "dare-bench runs from a folder and is not installed, so its requirements cannot be checked"
        yield Finding("packages", "note", detail)
        return
    problems: dict[str, list[str | None]] = {}
    for line in lines:
        requirement = Requirement(line)
        extra = re.search(r'extra == "([^"]+)"', str(requirement.marker))
        problems.setdefault(extra[1] if extra else "", []).append(_problem(requirement))
    for extra_name, results in sorted(problems.items()):
        missing = [problem for problem in results if problem is not None]
        name = f"extra [{extra_name}]" if extra_name else "packages"
        if not missing:
            yield Finding(name, "ok", f"{len(results)} of {len(results)} requirements are installed")
        else:
            remedy = f"pip install '.[{extra_name}]' in the clone" if extra_name else "pip install . in the clone"
            if extra_name in _APART:
                remedy = f"pip install '.[eval,{extra_name}]' in the clone, in a separate environment (docs/engines.md)"
            yield Finding(name, "note" if extra_name else "bad", f"{', '.join(missing)}; {remedy}")


def plugins() -> Iterator[Finding]:
    """What each installed plugin adds, or why it is left out."""
    try:
        known = registry().plugins
    except ImportError:  # folders are missing, which has been reported
        return
    for plugin in known:
        name = f"plugin {plugin.name}"
        if plugin.error is None:
            names = (f"{entry.kind.replace('_', ' ')} {entry.name}" for entry in plugin.added)
            yield Finding(name, "ok", f"{plugin.distribution or plugin.target}: {', '.join(names) or 'adds nothing'}")
        else:
            remedy = f"repair or uninstall {plugin.distribution or 'it'}"
            yield Finding(name, "bad", f"left out: {plugin.error} ({plugin.target}); {remedy}")


def _problem(requirement: Requirement) -> str | None:
    """What is wrong with an installed package; None if it satisfies the requirement."""
    name = requirement.name
    try:
        installed = version(name)
    except PackageNotFoundError:
        return f"{name} missing"
    return None if requirement.specifier.contains(installed, prereleases=True) else f"{name} {installed} does not fit"


def cache() -> Finding:
    """The cache of file hashes and task names."""
    from dare_bench.cache import cache_dir

    path = cache_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        detail = f"{path}: {error.strerror}; set DARE_BENCH_CACHE, or checkpoints are hashed every time"
        return Finding("cache", "note", detail)
    return Finding("cache", "ok", f"{path} is writable")


def disk(path: Path) -> Finding:
    free = shutil.disk_usage(path).free
    return Finding("disk", "ok" if free >= _LOW_DISK else "note", f"{free / 2**30:.1f} GiB free at {path}")


def sandbox() -> Finding:
    """The isolation level for generated code, found by trying."""
    from dare_bench.sandbox import InstallHint, isolation
    from dare_bench.sandbox.pool import why_none

    level = isolation()
    if level == "bubblewrap":
        return Finding("sandbox", "ok", "bubblewrap")
    if level == "namespaces":
        return Finding("sandbox", "ok", f"user namespaces ({why_none()}); apt-get install bubblewrap")
    return Finding("sandbox", "note", f"none, so generated code is not run ({why_none()}); {InstallHint}")


def scoring() -> Finding:
    """The isolation of harness code that reads answers, found by trying."""
    from dare_bench.sandbox import InstallHint
    from dare_bench.sandbox.worker_process import why_not_enclosed

    reason = why_not_enclosed()
    if reason is None:
        return Finding("scoring", "ok", "harness code scores answers in a sandboxed process")
    refused = "tasks whose scorers can evaluate text are refused"
    return Finding("scoring", "note", f"without a sandbox ({reason}); {refused}; {InstallHint}")


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
