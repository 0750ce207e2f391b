"""LoRA targets: groups and patterns of published module names, as settings of peft.

A group means the same in every family: LLaDA's feed-forward output ``ff_out`` is ``mlp``, its LM head
``model.transformer.ff_out`` is not. LM head, router and fused experts are adapted only if they are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from dare_bench.errors import UsageError

PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("q", "k", "v", "qkv", "o"),
    "mlp": ("gate", "up", "down", "shared_gate", "shared_up", "shared_down"),
    "router": ("router",),
    "experts": ("experts",),
}
"""The fields of ``WeightNames`` that a group stands for in one layer."""
GROUPS = (*PARTS, "head")
FUSED = ("gate_up_proj", "down_proj")
"""Tensors of a layer's stacked experts."""


@dataclass(frozen=True)
class Targets:
    """The adapted modules and tensors by full published names, and the equivalent arguments of peft's LoraConfig."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    """Tensors of stacked experts."""
    target_modules: str | list[str]
    """A regular expression that matches exactly ``modules``; an empty list if there are none."""
    target_parameters: list[str] | None
    """Ends of the names of ``parameters``."""


def published(network: Any) -> dict[str, list[str]]:
    """The full names of the adaptable modules by group; for ``experts``, of tensors."""
    names = network.arch.names
    paths_of: dict[str, list[str]] = {group: [] for group in GROUPS}
    for i, layer in enumerate(network.at(names.layers)):
        available = {path for path, _ in layer.named_modules()}
        for group, parts in PARTS.items():
            paths = [path for part in parts if (path := getattr(names, part)) in available and path]
            leaves = [f"{path}.{leaf}" for path in paths for leaf in FUSED] if group == "experts" else paths
            paths_of[group] += [f"{names.layers}.{i}.{leaf}" for leaf in leaves]
    if not network.arch.tied_head:
        paths_of["head"].append(names.head)
    return paths_of


def choose(network: Any, words: Sequence[str]) -> Targets:
    """The targets of ``words``, each a group or a pattern over published names.

    A name (``q_proj``, ``mlp.up_proj``) means all modules of that name in attention and feed-forward layers; a ``*``
    stands for any characters (``model.layers.0.*``). Router, experts and head are meant only by their group or by
    their own name without ``*`` (``mlp.gate``, ``mlp.experts.gate_up_proj``, ``lm_head``).

    Raises:
        UsageError: no word, or one that matches nothing.
    """
    if not words:
        raise UsageError(f"no LoRA target is given; give groups ({', '.join(GROUPS)}) or module names, by commas")
    available, layers = published(network), network.arch.names.layers
    chosen: dict[str, None] = {}
    for word in words:
        hits = available[word] if word in available else _named(word, available, layers)
        if not hits:
            raise UsageError(_nothing(word, available, network.arch))
        chosen |= dict.fromkeys(hits)
    fused = available["experts"]
    modules = tuple(
        path for group, paths in available.items() for path in paths if path in chosen and group != "experts"
    )
    parameters = tuple(path for path in fused if path in chosen)
    every = [path for group, paths in available.items() if group != "experts" for path in paths]
    return Targets(
        modules,
        parameters,
        _expression(modules, every, layers) if modules else [],
        _ends(parameters, fused, layers) or None,
    )


def _named(word: str, available: Mapping[str, Sequence[str]], layers: str) -> list[str]:
    """The full names that match a word that is not a group."""
    ordinary = [*available["attention"], *available["mlp"]]
    if "*" in word:
        return [path for path in ordinary if fnmatchcase(path, word) or fnmatchcase(path, f"*.{word}")]
    own = [path for path in (*available["router"], *available["experts"]) if word in (path, _in_layer(path, layers)[1])]
    return (
        [path for path in ordinary if f".{path}".endswith(f".{word}")]
        + own
        + [p for p in available["head"] if p == word]
    )


def _in_layer(path: str, layers: str) -> tuple[str, str]:
    """("3", "mlp.gate") of "model.layers.3.mlp.gate"; ("", path) for a path outside the layers."""
    if not path.startswith(f"{layers}."):
        return "", path
    index, _, leaf = path.removeprefix(f"{layers}.").partition(".")
    return index, leaf


def _by_leaf(paths: Iterable[str], layers: str) -> dict[str, tuple[str, ...]]:
    """The layers in which each name occurs."""
    indices: dict[str, tuple[str, ...]] = {}
    for index, leaf in (_in_layer(path, layers) for path in paths):
        indices[leaf] = (*indices.get(leaf, ()), index)
    return indices


def _expression(chosen: Iterable[str], every: Iterable[str], layers: str) -> str:
    """A regular expression for the chosen names; layer numbers are ``\\d+`` if a name is chosen in all its layers."""
    all_of, groups = _by_leaf(every, layers), dict[str, list[str]]()
    for leaf, indices in _by_leaf(chosen, layers).items():
        number = "" if indices == ("",) else r"\d+" if indices == all_of[leaf] else _any(indices)
        before = f"{re.escape(layers)}\\.{number}\\." if number else ""
        groups.setdefault(before, []).append(re.escape(leaf))
    return "|".join(before + _any(leaves) for before, leaves in groups.items())


def _any(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"


def _ends(chosen: Iterable[str], every: Iterable[str], layers: str) -> list[str]:
    """Tensor names for peft: their ends, or full names if not all layers are adapted."""
    all_of, names = _by_leaf(every, layers), list[str]()
    for leaf, indices in _by_leaf(chosen, layers).items():
        names += [leaf] if indices == all_of[leaf] else [f"{layers}.{index}.{leaf}" for index in indices]
    return names


def _nothing(word: str, available: Mapping[str, Sequence[str]], arch: Any) -> str:
    """The message for a word that matches nothing."""
    groups = ", ".join(group for group, paths in available.items() if paths)
    start = f"LoRA target {word!r} matches nothing in this model"
    if word in ("router", "experts"):
        return f"{start}: it has no experts; groups: {groups}"
    if word == "head":
        return f"{start}: its LM head is the embedding, which is not adapted; groups: {groups}"
    if word == "mlp":
        return f"{start}: all its feed-forward layers are experts, none shared; name 'experts' to adapt them"
    names = _by_leaf([path for paths in available.values() for path in paths], arch.names.layers)
    return f"{start}; groups: {groups}; names: {', '.join(names)}"
