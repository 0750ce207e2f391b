"""Which modules LoRA adapts: groups and name patterns over the published module names, made into peft's settings.

A group means the same in every family: LLaDA's feed-forward output ``ff_out`` is ``mlp``, its LM head
``model.transformer.ff_out`` is not. LM head, router and fused experts are adapted only when they are named.
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
    """What is adapted, by full published names, and the same as peft's LoraConfig takes it."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    """Tensors of stacked experts."""
    target_modules: str | list[str]
    """A regular expression that matches ``modules`` and no other name; an empty list where there are none."""
    target_parameters: list[str] | None
    """Ends of the names of ``parameters``."""


def published(network: Any) -> dict[str, list[str]]:
    """By group, the full names of what can be adapted in this network: modules, and for ``experts`` tensors."""
    names = network.arch.names
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for i, layer in enumerate(network.at(names.layers)):
        there = {path for path, _ in layer.named_modules()}
        for group, parts in PARTS.items():
            paths = [path for part in parts if (path := getattr(names, part)) in there and path]
            leaves = [f"{path}.{leaf}" for path in paths for leaf in FUSED] if group == "experts" else paths
            found[group] += [f"{names.layers}.{i}.{leaf}" for leaf in leaves]
    if not network.arch.tied_head:
        found["head"].append(names.head)
    return found


def choose(network: Any, words: Sequence[str]) -> Targets:
    """What ``words`` name; each is a group or a pattern over published names.

    A name (``q_proj``, ``mlp.up_proj``) means all modules of that name in attention and feed-forward layers; a ``*``
    stands for any characters (``model.layers.0.*``). Router, experts and head are meant only by their group or by
    their own name without ``*`` (``mlp.gate``, ``mlp.experts.gate_up_proj``, ``lm_head``).

    Raises:
        UsageError: no word at all, or one that matches nothing; the message says what there is.
    """
    if not words:
        raise UsageError(f"no LoRA target is named; give groups ({', '.join(GROUPS)}) or module names, by commas")
    there, layers = published(network), network.arch.names.layers
    chosen: dict[str, None] = {}
    for word in words:
        hits = there[word] if word in there else _named(word, there, layers)
        if not hits:
            raise UsageError(_nothing(word, there, network.arch))
        chosen |= dict.fromkeys(hits)
    fused = there["experts"]
    modules = tuple(path for group, paths in there.items() for path in paths if path in chosen and group != "experts")
    parameters = tuple(path for path in fused if path in chosen)
    every = [path for group, paths in there.items() if group != "experts" for path in paths]
    return Targets(
        modules,
        parameters,
        _expression(modules, every, layers) if modules else [],
        _ends(parameters, fused, layers) or None,
    )


def _named(word: str, there: Mapping[str, Sequence[str]], layers: str) -> list[str]:
    """The full names that a word which is no group means."""
    ordinary = [*there["attention"], *there["mlp"]]
    if "*" in word:
        return [path for path in ordinary if fnmatchcase(path, word) or fnmatchcase(path, f"*.{word}")]
    own = [path for path in (*there["router"], *there["experts"]) if word in (path, _in_layer(path, layers)[1])]
    return (
        [path for path in ordinary if f".{path}".endswith(f".{word}")] + own + [p for p in there["head"] if p == word]
    )


def _in_layer(path: str, layers: str) -> tuple[str, str]:
    """("3", "mlp.gate") of "model.layers.3.mlp.gate"; ("", path) of what lies in no layer."""
    if not path.startswith(f"{layers}."):
        return "", path
    index, _, leaf = path.removeprefix(f"{layers}.").partition(".")
    return index, leaf


def _by_leaf(paths: Iterable[str], layers: str) -> dict[str, tuple[str, ...]]:
    """In which layers each name occurs."""
    found: dict[str, tuple[str, ...]] = {}
    for index, leaf in (_in_layer(path, layers) for path in paths):
        found[leaf] = (*found.get(leaf, ()), index)
    return found


def _expression(chosen: Iterable[str], every: Iterable[str], layers: str) -> str:
    """A regular expression for the chosen names: layers by any number where a name is chosen wherever it occurs."""
    all_of, groups = _by_leaf(every, layers), dict[str, list[str]]()
    for leaf, indices in _by_leaf(chosen, layers).items():
        number = "" if indices == ("",) else r"\d+" if indices == all_of[leaf] else _any(indices)
        before = f"{re.escape(layers)}\\.{number}\\." if number else ""
        groups.setdefault(before, []).append(re.escape(leaf))
    return "|".join(before + _any(leaves) for before, leaves in groups.items())


def _any(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"


def _ends(chosen: Iterable[str], every: Iterable[str], layers: str) -> list[str]:
    """Tensor names as peft takes them: their ends, or the whole names where not all layers are meant."""
    all_of, found = _by_leaf(every, layers), list[str]()
    for leaf, indices in _by_leaf(chosen, layers).items():
        found += [leaf] if indices == all_of[leaf] else [f"{layers}.{index}.{leaf}" for index in indices]
    return found


def _nothing(word: str, there: Mapping[str, Sequence[str]], arch: Any) -> str:
    """Why a word matches nothing, and what there is instead."""
    groups = ", ".join(group for group, paths in there.items() if paths)
    start = f"LoRA target {word!r} matches nothing in this model"
    if word in ("router", "experts"):
        return f"{start}: it has no experts; groups: {groups}"
    if word == "head":
        return f"{start}: its LM head is the embedding, which is not adapted; groups: {groups}"
    if word == "mlp":
        return f"{start}: all its feed-forward layers are experts, none shared; name 'experts' to adapt them"
    names = _by_leaf([path for paths in there.values() for path in paths], arch.names.layers)
    return f"{start}; groups: {groups}; names: {', '.join(names)}"
