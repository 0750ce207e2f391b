"""Every error a user can meet: what happened, the value seen, what is allowed, what to do, in one line.

The command line prints the message alone (``--debug`` adds the traceback) and leaves with ``exit_code``:
0 fine, 1 the run failed, 2 usage, 3 regression, 4 incomplete (some samples failed), 130 interrupted and resumable
(143 by SIGTERM, 129 by SIGHUP).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class DareError(Exception):
    """Base of all errors that are meant for a person. The message is one line."""

    exit_code = 1


class UsageError(DareError):
    """The words of a call or command are off: an unknown name, a value out of range, fields that exclude each other."""

    exit_code = 2


class DecodingError(UsageError):
    """A decoding field that the family does not have, or a value that cannot be (steps that blocks do not divide)."""


class PromptError(UsageError):
    """A prompt that this model cannot take: longer than its context, without a tokenizer to read it, empty."""


class UnknownNameError(UsageError):
    """A task, model, family or field nobody knows; the message names the closest ones."""


class CheckpointError(DareError):
    """A checkpoint that cannot be opened: not there, another family, missing or truncated shards, wrong shapes."""


class ModelOutputError(DareError):
    """The network gave NaN or infinite logits."""


class MemoryLimitError(DareError):
    """One row alone does not fit into memory."""


class DataError(DareError):
    """A data set, manifest or task file that is missing or malformed."""


class TrainingError(DareError):
    """Training that cannot go on: a loss that is no number, a folder that holds another training."""


class RunError(DareError):
    """A run directory that cannot be used: locked by another process, damaged, of another schema."""


class SaveError(DareError):
    """Results could not be written (disk full, no permission). Never swallowed."""


class IncompleteError(DareError):
    """The run finished, but some samples failed; they are counted and left out of the scores."""

    exit_code = 4


_SYNONYMS = {
    "batch_size": ("max_rows", "per_device_train_batch_size"),
    "epochs": ("num_train_epochs",),
    "lr": ("learning_rate",),
    "max_length": ("gen_length", "max_new_tokens"),
    "max_tokens": ("gen_length", "max_new_tokens"),
    "num_beams": ("steps", "denoising_steps"),
    "num_steps": ("steps", "denoising_steps", "max_steps"),
    "shots": ("num_fewshot",),
}
"""What other programs call settings that have another name here, or the one that comes nearest."""


_NEAR = 0.6
"""Similarity from which on a name is worth suggesting, 0 to 1."""
_WORD, _NEAR_WORD = 4, 0.8
"""The same of one word of a name: letters from which on it counts, and its similarity."""
_FEW = 12
"""Known names that fit into one line."""


def closest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """The ``n`` known names nearest to ``name``, best first; none if not even the best is near."""
    names = sorted(set(known))
    meant = [other for other in _SYNONYMS.get(name, ()) if other in names]
    found = difflib.get_close_matches(name, names, n=n, cutoff=0.0)
    # difflib misses obvious prefixes of long names ("gsm" for "gsm8k_cot"): put those first.
    prefixed = sorted((k for k in names if k.startswith(name)), key=lambda k: (len(k), k))[:n]
    lower = name.lower()
    near = meant or prefixed or difflib.get_close_matches(lower, {k.lower() for k in names}, n=1, cutoff=_NEAR)
    if not near and len(name) >= _WORD:  # "anatomi" for "lukaemon_mmlu_anatomy"
        words = {word for k in names for word in re.split(r"[\W_]+", k.lower()) if len(word) >= _WORD}
        near = difflib.get_close_matches(lower, words, n=1, cutoff=_NEAR_WORD)
    return list(dict.fromkeys([*meant, *prefixed, *found]))[:n] if near else []


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; closest: a, b, c``, to put behind what is wrong with ``name``. Where no known name is near: all of
    them, if they are few."""
    names = sorted(set(known))
    if near := closest(name, names):
        return f"; closest: {', '.join(near)}"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= _FEW else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """An :class:`UnknownNameError` that names the three closest known names."""
    names = sorted(set(known))
    hint = suggestion(name, names) or (f"; none of the {len(names):,} known is near" if names else "; none is known")
    return UnknownNameError(f"unknown {kind} {name!r}{hint}")
