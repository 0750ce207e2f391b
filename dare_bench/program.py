"""The program that answers: digests of our code that can change an answer, and versions of the packages it uses.

Prompts are not part of it (they are in a request's key), nor are scorers, which run whenever results are written.
Nothing is imported for it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dare_bench.runs.schema import Program

_HERE = Path(__file__).parent
_FOLDERS = {"sampler": "model_adapters/sampling", "scorer": "model_adapters/scoring", "diffusion": "diffusion"}
_CORE = ("chat.py", "chat_worker.py", "loading.py", "merging.py", "model.py", "seeds.py", "types.py")
_PACKAGES = ("torch", "transformers", "tokenizers")


@cache
def installed(name: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def code() -> Mapping[str, str]:
    """By part: 12 hex digits over its source files, or the version of a package."""
    folders = {name: set((_HERE / folder).rglob("*.py")) for name, folder in _FOLDERS.items()}
    others = set((_HERE / "model_adapters").rglob("*.py")).difference(*folders.values())
    files = {**folders, "adapters": others, "core": {_HERE / name for name in _CORE}}
    versions = {name: number for name in _PACKAGES if (number := installed(name)) is not None}
    return {**{name: _digest(_HERE, sources) for name, sources in files.items()}, **versions}


def package_code(module: str) -> str:
    """12 hex digits over the source files of the package that a module belongs to; "" if it is not installed."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    return _digest(file.parent, file.parent.rglob("*.py") if spec.submodule_search_locations else [file])


def _digest(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """``sampler 1a2b -> 3c4d, torch 2.12 -> 2.13``: the parts that differ; empty if none does."""
    if not before and now:
        return "the program that answered was not recorded"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}" for name in names)


def several(programs: Sequence[Program]) -> str:
    """How the programs that answered a run differ from the first of them; empty if there is one."""
    if len(programs) < 2:
        return ""
    first, *others = programs
    counts = (f"{other.requests} by another ({differences(first.parts, other.parts)})" for other in others)
    return f"answered by {len(programs)} programs: {first.requests} answers by the first, {', '.join(counts)}"


def from_running(parts: Mapping[str, str]) -> str:
    """How the running code differs from the recorded ``parts``; device, threads, attention, dtype are not compared."""
    now = code()
    return differences({name: parts[name] for name in now if name in parts}, now)
