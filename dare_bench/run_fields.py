"""From the words of people to the fields of a run: flags, ``-C run.yaml``, what a training or a sweep evaluates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dare_bench import reading
from dare_bench.config import ALIASES, RunSpec, parse_pairs, read_yaml, run_spec
from dare_bench.errors import UsageError, unknown

DECODING: Mapping[str, tuple[type, str]] = {
    "gen_length": (int, "Number of response tokens."),
    "steps": (int, "Denoising steps (SDAR: denoising_steps)."),
    "block_length": (int, "Tokens per block."),
    "temperature": (float, "Sampling temperature; 0 is greedy decoding."),
    "remasking": (str, "LLaDA: how positions are chosen: low_confidence or random."),
    "cfg_scale": (float, "LLaDA: classifier-free guidance; 0 is off."),
    "threshold": (float, "Unmask all positions with at least this confidence."),
    "factor": (float, "LLaDA: Fast-dLLM's factor for parallel unmasking."),
    "cache": (str, "none; exact (default of block-causal families); prefix or dual (approximate)."),
    "logits_eos_inf": (bool, "LLaDA: suppress EOS."),
    "confidence_eos_eot_inf": (bool, "LLaDA: unmask EOS and EOT last."),
    "early_stop": (bool, "Stop at EOS in a finished block; on by default if the text is cut there."),
    "text_after_eos": (str, "Text after the first EOS: cut or keep."),
    "rng": (str, "Random numbers: ours, or reference (those of the published code; slow)."),
}
"""Decoding fields that have a flag of their own: type and help text; all others go through ``--gen-kwargs``."""

_PAIRS = ("decoding", "likelihood", "model_args")


def run_fields(config: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a RunSpec. ``flags`` hold None for what was not given.

    Raises:
        UsageError: a key of the file that nobody knows, or a value that cannot be read.
    """
    fields = _from_file(config) if config is not None else {}
    given = _plain({name: value for name, value in flags.items() if value is not None})
    for name in _PAIRS:
        given[name] = {**fields.get(name, {}), **given.get(name, {})}
    return {**fields, **given}


def _from_file(config: str) -> dict[str, Any]:
    found = read_yaml(config)
    known = [*RunSpec.model_fields, *ALIASES, *DECODING]
    for name in found:
        if name not in known:
            raise UsageError(f"{config}: {unknown('setting', name, known)}")
    try:
        for name, value in found.items():
            _check_number(name, value)
        fields = _plain(found)
        run_spec(**{"model": "-", "tasks": ("-",), **fields})
    except UsageError as error:
        raise UsageError(f"{config}: {error}") from error
    return fields


def _check_number(name: str, value: Any) -> None:
    """Flags are read as numbers by the command line, what a file says is not; raises UsageError."""
    kind, _ = DECODING.get(name, (str, ""))
    if kind not in (int, float) or value is None:
        return
    whole = kind is float or isinstance(value, int)
    if isinstance(value, bool) or not isinstance(value, int | float) or not whole:
        raise UsageError(f"{name}={value!r}: expected a {'whole ' if kind is int else ''}number")


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Aliases resolved, ``k=v`` texts read, decoding fields gathered (a field's own flag wins over --gen-kwargs)."""
    fields: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for word, value in given.items():
        name = ALIASES.get(word, word)
        if name in DECODING:
            own[name] = value
        elif name in _PAIRS:
            fields[name] = {**fields.get(name, {}), **parse_pairs(value)}
        elif name == "max_rows":
            fields[name] = rows(value)
        elif name == "limit":
            fields[name] = number(value)
        elif name == "apply_chat_template" and isinstance(value, str):
            fields[name] = {"true": True, "false": False}.get(value.lower(), value)
        elif name == "samples":
            fields[name] = chosen(value)
        elif name == "tasks":
            fields[name] = _names(value)
        elif name == "model" and not isinstance(value, str):
            raise UsageError(f"model={value!r}: expected one name, folder or hub id")
        else:
            fields[name] = value
    if own:
        fields["decoding"] = {**fields.get("decoding", {}), **own}
    return fields


def _names(value: Any) -> Any:
    """``--tasks``: names by commas, or a list of them."""
    if not isinstance(value, str) and not (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
        raise UsageError(f"tasks={value!r}: expected names separated by commas, or a list of names")
    return value


def number(value: Any) -> Any:
    """``--limit``: a count, or a share below 1; what is no text is the run's to check."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        share = float(value)
        if math.isfinite(share) and share > 1 and not share.is_integer():
            raise ValueError
        return share
    except ValueError:
        raise UsageError(f"limit={value!r}: expected a count (50) or a share of the documents (0.1)") from None


def rows(value: Any) -> Any:
    """``--max-rows`` or lm-eval's ``--batch-size``; ``auto`` lets the model choose."""
    if not isinstance(value, str):
        return value
    if value.startswith("auto"):
        return None
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"max_rows={value!r}: expected a number of rows or 'auto'") from None


def chosen(value: Any) -> dict[str, list[int]] | None:
    """``--samples``: JSON, or a file that holds it: ``{"task": [document numbers]}``."""
    if value is None or isinstance(value, dict):
        return value
    text = str(value)
    try:
        found = reading.parse_json(text if text.lstrip().startswith("{") else reading.read_bytes(text, UsageError))
    except UsageError as error:
        raise UsageError(f"--samples: {error}") from error
    except ValueError as error:
        raise UsageError(f'--samples: {error}; expected {{"task": [document numbers]}}') from error
    if not isinstance(found, dict) or not all(isinstance(ids, list) for ids in found.values()):
        raise UsageError('--samples: expected {"task": [document numbers]}')
    return found
