"""Versions, hardware and commit of this process, without importing anything for it; and which program answered which
request of a run, as the journal and the results record it."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from dare_bench import fingerprint, program, version
from dare_bench.engine.journal import Journal
from dare_bench.program import installed
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.runs.schema import Environment, Program

_PACKAGES = ("torch", "transformers", "lm_eval", "datasets", "tokenizers", "numpy")


def command() -> str:
    """The command that started this process, quoted for a shell."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    if program == "__main__.py":  # python -m dare_bench.cli
        program = "dare-bench"
    return shlex.join([program, *sys.argv[1:]])


def current_environment() -> Environment:
    """Versions and hardware for the results file."""
    return Environment(
        python=platform.python_version(),
        dare_bench=version.__version__,
        platform=platform.platform(),
        cpu=_cpu(),
        gpu=_gpu(),
        git_commit=git_commit(),
        **{name: installed(name.replace("_", "-")) for name in _PACKAGES},
    )


def _cpu() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model} ({usable} cores)"


def cuda() -> Any:
    """``torch.cuda`` if torch is imported and has a GPU, else None."""
    torch = sys.modules.get("torch")  # never imported only for this
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def _gpu() -> str | None:
    if (gpu := cuda()) is None:
        return None
    return f"{gpu.device_count()} x {gpu.get_device_name()} (CUDA {sys.modules['torch'].version.cuda})"


@cache
def git_commit() -> str | None:
    """The commit of the checkout that this package runs from (followed by ``+`` if modified); None if installed."""
    root = version.PACKAGE.resolve().parent
    if not (root / ".git").exists():
        return None
    git = partial(subprocess.run, capture_output=True, text=True, timeout=10, check=True, cwd=root)
    try:
        head = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def program_parts(model: LoadedModel) -> dict[str, str]:
    """The parts of the running program with ``model`` open, by name: code, packages, device, threads, attention
    backend, whether steps are compiled, dtype."""
    spec, torch = model.spec, sys.modules.get("torch")
    device = spec.device.partition(":")[0]
    if device == "cuda" and torch is not None:
        device = torch.cuda.get_device_name(spec.device)
    parts = {**program.code(), "device": device}
    if spec.device == "cpu" and model.network is not None and torch is not None:
        parts["threads"] = str(torch.get_num_threads())
    if spec.attention_backend is not None:
        parts["attention"] = spec.attention_backend
    if spec.compiled:
        parts["compiled"] = "steps"
    if spec.captured and spec.attention_backend != "padded":
        parts["attention"] += ", padded in small steps"
    if spec.engine != "native":
        parts["engine"] = " ".join(filter(None, (spec.engine, spec.engine_version)))
    for entry in registry().entries("family"):
        if entry.name == spec.family and entry.plugin is not None:
            parts[f"plugin {entry.plugin}"] = program.package_code(entry.target.partition(":")[0])
    return {**parts, "dtype": spec.precision}


def record_program(journal: Journal, model: LoadedModel, session: int, environment: Environment) -> str:
    """Record in the journal which program answers from here on; returns the digest that its samples carry."""
    parts, versions = program_parts(model), environment.model_dump()
    mark = fingerprint.digest([parts, versions], 16)
    record = {"type": "program", "program": mark, "session": session, "parts": parts, "environment": versions}
    journal.append(record)
    return mark


def programs_of(journal: Journal, keys: Iterable[str]) -> list[Program]:
    """The programs that answered these requests, in the order in which they began; one without parts stands for
    answers whose program is not recorded or cannot be read."""
    counts = Counter(journal.program(key) for key in keys if key in journal)
    recorded = {"": {}} | {record["program"]: record["parts"] for record in journal.records("program")}
    programs: dict[str, Program] = {}
    for mark in dict.fromkeys([*recorded, *counts]):
        if counts[mark]:
            parts = recorded.get(mark, {})
            programs.setdefault(str(sorted(parts.items())), Program(parts=parts, requests=0)).requests += counts[mark]
    return list(programs.values())


def environment_of(journal: Journal, keys: Iterable[str], earlier: Environment | None, now: Environment) -> Environment:
    """Where these requests were answered; values that differ between sessions are joined by "and". ``earlier``: the
    environment in the run's results so far, for answers of sessions that did not record theirs; ``now``: of this
    process; used if there are no answers."""
    marks = {journal.program(key) for key in keys if key in journal}
    recorded = {record["program"]: record["environment"] for record in journal.records("program")}
    environments = [] if marks <= recorded.keys() or earlier is None else [earlier.model_dump()]
    environments += [versions for mark, versions in recorded.items() if mark in marks]
    if not environments:
        return now
    values: dict[str, dict[str, None]] = {name: {} for versions in environments for name in versions}
    for versions in environments:
        for name, value in versions.items():
            if isinstance(value, str):
                values[name][value] = None
    return Environment(**{name: " and ".join(distinct) or None for name, distinct in values.items()})


def program_warnings(programs: Sequence[Program]) -> Iterator[str]:
    """What a reader of the results must know about the programs that answered."""
    if text := program.several(programs):
        yield f"{text}; --fresh answers all by one"
    if len(programs) == 1 and (text := program.from_running(programs[0].parts)):
        yield f"scored by a different program version than the one that answered ({text}); --fresh answers again"
