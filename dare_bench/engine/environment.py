"""Versions, hardware and commit of this process, without importing anything for it."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

from dare_bench import version
from dare_bench.program import installed
from dare_bench.runs.schema import Environment

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
