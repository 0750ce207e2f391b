"""The program that answers: digests of our code that can change an answer, and versions of the packages it uses.

A digest is of the syntax tree, so a changed comment, docstring or layout is not another program. Prompts are not part
of it (they are in a request's key), nor are scorers, which run whenever results are written. Nothing is imported for
it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dare_bench.cache import cache_dir, write_cache
from dare_bench.errors import DareError
from dare_bench.reading import read_json
from dare_bench.runs.schema import Program

_HERE = Path(__file__).parent
_FOLDERS = {"sampler": "model_adapters/sampling", "scorer": "model_adapters/scoring", "diffusion": "diffusion"}
_CORE = ("chat.py", "chat_worker.py", "loading.py", "merging.py", "model.py", "seeds.py", "types.py")
_PACKAGES = ("torch", "transformers", "tokenizers")
_SYNTAX = "ast:"
"""Begins a digest of syntax trees; earlier versions of dare-bench recorded digests of the files' bytes, without it."""
_CACHED = 64
"""Digests that are kept in the cache."""


@cache
def installed(name: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def code() -> Mapping[str, str]:
    """By part: the digest of its source files (``ast:`` and 12 hex digits), or the version of a package."""
    folders = {name: set((_HERE / folder).rglob("*.py")) for name, folder in _FOLDERS.items()}
    others = set((_HERE / "model_adapters").rglob("*.py")).difference(*folders.values())
    files = {**folders, "adapters": others, "core": {_HERE / name for name in _CORE}}
    versions = {name: number for name in _PACKAGES if (number := installed(name)) is not None}
    return {**{name: _digest(_HERE, sources) for name, sources in files.items()}, **versions}


def package_code(module: str) -> str:
    """The digest of the source files of the package that a module belongs to; "" if it is not installed."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    return _digest(file.parent, file.parent.rglob("*.py") if spec.submodule_search_locations else [file])


def _digest(root: Path, files: Iterable[Path]) -> str:
    """Of the names and syntax trees of these files. Parsing takes a second, so digests are cached by the bytes."""
    contents = {file.relative_to(root).as_posix(): file.read_bytes() for file in files}
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    cached, key = cache_dir() / "program_digests.json", whole.hexdigest()
    try:
        known = dict(read_json(cached, DareError))
    except (DareError, TypeError, ValueError):
        known = {}
    if isinstance(found := known.get(key), str):
        return found
    trees = hashlib.sha256()
    for name, content in sorted(contents.items()):
        trees.update("\n".join([name, *_syntax(ast.parse(content)), ""]).encode(errors="surrogatepass"))
    result = _SYNTAX + trees.hexdigest()[:12]
    write_cache(cached, dict([*known.items(), (key, result)][-_CACHED:]))
    return result


def _syntax(node: object) -> Iterator[str]:
    """A syntax tree in words, without positions and strings that stand alone; the same in each version of Python that
    parses to the same nodes."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name != "kind":  # the kind of a constant: u"..."
                yield name
                yield from _syntax(value)
        yield ")"
    elif isinstance(node, list):
        for item in node:
            if not (
                isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and type(item.value.value) is str
            ):
                yield from _syntax(item)
    else:
        yield repr(node)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """``sampler 1a2b -> 3c4d, torch 2.12 -> 2.13``: the parts that differ; empty if none does. Of code whose bytes were
    recorded (by an earlier dare-bench) nobody can tell whether it is the same; the text says so."""
    if not before and now:
        return "the program that answered was not recorded"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    unknown = [
        name
        for name in names
        if name in before and name in now and before[name].startswith(_SYNTAX) != now[name].startswith(_SYNTAX)
    ]
    changes = [f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}" for name in names if name not in unknown]
    if unknown:
        changes.append(f"{', '.join(unknown)}: recorded by the bytes of the files, which cannot be compared")
    return ", ".join(changes)


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
