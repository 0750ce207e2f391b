"""All errors that users see. A message is one line: what happened, the value seen, what is allowed, what to do.

The command line prints only the message (``--debug`` adds the traceback) and exits with ``exit_code``: 0 finished,
1 failed, 2 usage error, 3 regression, 4 incomplete (some samples failed), 130 interrupted and resumable (143 by
SIGTERM, 129 by SIGHUP).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

BUG = "this is a bug in dare-bench: add --debug for the traceback"
"""The end of a message about an exception that is not a :class:`DareError`."""


class DareError(Exception):
    """Base class of all errors that are shown to users. The message is one line."""

    exit_code = 1


class UsageError(DareError):
    """A usage error: an unknown name, a value out of range, or arguments that exclude each other."""

    exit_code = 2


class PluginWarning(UserWarning):
    """A plugin, or something that it registers, is left out because it does not work. The message is one line."""


class DecodingError(UsageError):
    """A decoding field that the family does not have, or an invalid value (steps not divisible by the blocks)."""


class PromptError(UsageError):
    """A prompt that the model cannot process: empty, longer than its context, or text without a tokenizer."""


class UnknownNameError(UsageError):
    """An unknown task, model, family or field; the message lists the closest names."""


class CheckpointError(DareError):
    """A checkpoint that cannot be loaded: missing, of an unknown family, truncated or missing shards, wrong shapes."""


class UnknownCheckpointError(CheckpointError):
    """A name that is not a checkpoint: no folder, no bundled name, and not written as a hub id."""

    exit_code = 2


class EngineError(DareError):
    """A served engine that cannot be reached, that stopped answering, or that refuses every request."""


class ModelOutputError(DareError):
    """The network returned NaN or infinite logits."""


class MemoryLimitError(DareError):
    """One row alone does not fit into memory."""


class DataError(DareError):
    """A data set, manifest or task file that is missing or malformed."""


class TrainingError(DareError):
    """Training that cannot continue: a NaN or infinite loss, or an output folder of another training."""


class RunError(DareError):
    """A run directory that cannot be used: locked by another process, damaged, or of another schema version."""


class UnknownRunError(RunError):
    """The path of a run that is not there."""

    exit_code = 2


class SaveError(DareError):
    """Results could not be written (disk full, no permission). This error is never ignored."""


class IncompleteError(DareError):
    """The run finished, but some samples failed; they are counted and left out of the scores."""

    exit_code = 4


def in_one_line(error: BaseException) -> str:
    """An exception with the name of its class; ours without."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DareError) else f"{type(error).__name__}: {text}" if text else type(error).__name__


def brief(value: Any, most: int = 80) -> str:
    """A value for a message: its repr on one line, at most ``most`` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_SYNONYMS = {
    "batch_size": ("max_rows", "per_device_train_batch_size"),
    "epochs": ("num_train_epochs",),
    "eval": ("eval_tasks",),
    "lr": ("learning_rate",),
    "max_length": ("gen_length", "max_new_tokens"),
    "max_tokens": ("gen_length", "max_new_tokens"),
    "num_beams": ("steps", "denoising_steps"),
    "num_steps": ("steps", "denoising_steps", "max_steps"),
    "shots": ("num_fewshot",),
}
"""Names of settings in other programs, with the corresponding or most similar names here."""


_SIMILAR, _NEAR = 0.5, 0.6
"""Minimum similarity, from 0 to 1, of a suggested name, and of the best of them."""
_WORD, _NEAR_WORD = 4, 0.8
"""Minimum length and minimum similarity of a single word of a name."""
_FEW = 30
"""Maximum number of known names that a message lists."""


def closest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """The ``n`` known names most similar to ``name``, best first; empty if none is similar enough."""
    names = sorted(set(known))
    synonyms = [other for other in _SYNONYMS.get(name, ()) if other in names]
    # difflib misses obvious prefixes of long names ("gsm" for "gsm8k_cot"): put those first.
    best = synonyms + sorted((k for k in names if k.startswith(name)), key=lambda k: (len(k), k))[:n]
    lower, by_lower = name.lower(), {k.lower(): k for k in names}
    if not best and not difflib.get_close_matches(lower, by_lower, n=1, cutoff=_NEAR):
        if len(name) < _WORD:
            return []
        # a word of a name: "anatomi" for "lukaemon_mmlu_anatomy"
        by_word = {word: k for k in names for word in re.split(r"[\W_]+", k.lower()) if len(word) >= _WORD}
        best = [by_word[word] for word in difflib.get_close_matches(lower, by_word, n=n, cutoff=_NEAR_WORD)]
        if not best:
            return []
    similar = [by_lower[k] for k in difflib.get_close_matches(lower, by_lower, n=n, cutoff=_SIMILAR)]
    return list(dict.fromkeys([*best, *similar]))[:n]


_REMOVED = {
    "max_pads": "a row that ends so many tokens after its answer tells the answer's length, which no decoding knows; "
    "omit it (padding drawn, the default for your data, draws where rows end), or give canvas_length",
}
"""Settings of earlier versions, and why they are gone."""
RENAMED = {"looks_per_forward": "micro_batch_size", "normalise": "normalize"}
"""Settings of earlier versions and their present names. Records of earlier versions have the former."""


def removed(name: str) -> str:
    """What became of a setting of earlier versions, to append to an error message; empty for other names."""
    if name in RENAMED:
        return f"; renamed: {RENAMED[name]} (--{RENAMED[name].replace('_', '-')})"
    return f"; removed: {_REMOVED[name]}" if name in _REMOVED else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; closest: a, b, c``, to append to an error message about ``name``. If no known name is similar, all known
    names, provided that there are few. Of a setting that is gone, the reason."""
    if reason := removed(name):
        return reason
    names = sorted(set(known))
    if near := closest(name, names):
        return f"; closest: {', '.join(near)}"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= _FEW else ""


def unknown_device(device: object) -> UsageError:
    return UsageError(
        f"device {device!r} is not known; allowed: cpu, cuda, cuda:0 and so on, or auto for a diffusion model"
    )


def unknown(kind: str, name: str, known: Iterable[str], *, place: str = "") -> UnknownNameError:
    """An :class:`UnknownNameError` that lists up to three similar known names. ``place``: where they are known."""
    names = sorted(set(known))
    hint = suggestion(name, names) or (
        f"; none of the {len(names):,} known names is similar" if names else "; no names are known"
    )
    return UnknownNameError(f"unknown {kind} {name!r}{place and f' in {place}'}{hint}")
