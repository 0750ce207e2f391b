"""What makes two evaluations of an OpenCompass data set the same task: templates, settings of its inferencer, the code
that reads and scores; never where data lay."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dare_bench.harness.opencompass.programs import PROGRAMS_VERSION, runs_code

# Where data lies, what only names or counts things, and the settings of models that we are not. What the data holds is
# in the hash of the documents.
_LEFT_OUT = frozenset(
    {"path", "abbr", "n", "k", "num_repeats", "batch_size", "max_seq_len", "test_range", "local_mode", "type"}
)
# Named only: templates' texts and retrievers' numbers are in the configuration, and no inferencer of theirs runs here.
_NAMED = re.compile(r"^opencompass\.openicl\.icl_(prompt_template|raw_prompt_template|retriever|inferencer)\b")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def definition(cfg: Mapping[str, Any]) -> str:
    """Hash of a data set's definition: its configuration, and the source of every class and function it names."""
    settings = {name: value for name, value in cfg.items() if name not in _LEFT_OUT}
    parts = [_described(settings), _named("type", cfg.get("type"))]
    if runs_code(cfg):
        parts.append(PROGRAMS_VERSION)
    return _hash(json.dumps(parts, sort_keys=True))


def _described(value: Any) -> Any:
    """A JSON value that changes when what ``value`` does changes, and with nothing else."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(name): _inside(str(name), item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return _code(value) if callable(value) else _ADDRESS.sub("", repr(value))


def _inside(name: str, value: Any) -> Any:
    return _named(name, value) if name == "type" else _described(value)


def _named(name: str, value: Any) -> Any:
    """What stands behind ``type``: a class or function, or its name in one of OpenCompass's registries."""
    return _code(_registered(value) or value) if isinstance(value, str) or callable(value) else _described(value)


def _registered(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    from opencompass import registry

    for name in ("ICL_PROMPT_TEMPLATES", "ICL_RETRIEVERS", "ICL_INFERENCERS", "ICL_EVALUATORS"):
        if (found := getattr(registry, name).get(value)) is not None:
            return found
    return registry.TEXT_POSTPROCESSORS.get(value) or registry.LOAD_DATASET.get(value)


def _code(value: Any) -> Any:
    """A function or class by its name and the whole text of its file: helpers that it calls are there too."""
    name = getattr(value, "__qualname__", str(value))
    module = str(getattr(value, "__module__", "") or "")
    if isinstance(value, str) or _NAMED.match(module):
        return f"{module}.{name}" if module else name
    try:
        source = inspect.getsourcefile(value)
    except TypeError:
        source = None
    return [name, _file(source)] if source else f"{module}.{name}"


@cache
def _file(path: str) -> str:
    return _hash(Path(path).read_text(encoding="utf-8", errors="replace"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
