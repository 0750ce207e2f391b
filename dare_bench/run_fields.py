"""RunSpec fields from user input: flags, ``-C run.yaml``, and the evaluations of a training or a sweep."""

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
    "strategy": (str, 'Instead of the family\'s: a name of ls strategies, or JSON {"name": NAME, field: value}.'),
    "temperature": (float, "Sampling temperature; 0 is greedy decoding."),
    "remasking": (str, "LLaDA: how positions are chosen: low_confidence or random."),
    "cfg_scale": (float, "LLaDA: classifier-free guidance; 0 is off."),
    "threshold": (float, "Unmask all positions with at least this confidence."),
    "factor": (float, "LLaDA: Fast-dLLM's factor for parallel unmasking."),
    "cache": (str, "none; exact (default of block-causal families); prefix or dual (approximate)."),
    "logits_eos_inf": (bool, "LLaDA: suppress EOS."),
    "confidence_eos_eot_inf": (bool, "LLaDA: unmask EOS and EOT last (with a temperature, EOT alone)."),
    "early_stop": (bool, "Stop at EOS in a finished block; on by default if the text is cut there."),
    "text_after_eos": (str, "Text after the first EOS: cut or keep."),
    "rng": (str, "Random numbers: ours, or reference to replay the published code's generator (slow)."),
}
"""Decoding fields with their own flag: type and help text; all others are set by ``--gen-kwargs``."""

ESTIMATOR = "Estimator of log-likelihoods: auto, exact, reference, fast, adaptive (docs/likelihoods.md)."
"""The help text of the likelihood field that has a flag."""

_PAIRS = ("decoding", "likelihood", "model_args", "engine_args")


def run_fields(config: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a RunSpec; flags that are None are not set.

    Raises:
        UsageError: an unknown key of the file, or an invalid value.
    """
    fields = _from_file(config) if config is not None else {}
    given = _plain({name: value for name, value in flags.items() if value is not None})
    for name in _PAIRS:
        given[name] = {**fields.get(name, {}), **given.get(name, {})}
    return {**fields, **given}


def _from_file(config: str) -> dict[str, Any]:
    settings = read_yaml(config)
    known = [*RunSpec.model_fields, *ALIASES, *DECODING, "estimator"]
    try:
        for name, value in settings.items():
            if name not in known:
                raise unknown("setting", name, known)
            _check_number(name, value)
        fields = _plain(settings)
        run_spec(**{"model": "-", "tasks": ("-",), **fields})
    except UsageError as error:
        raise UsageError(f"{config}: {error}") from error
    return fields


def _check_number(name: str, value: Any) -> None:
    """Raise UsageError unless a file's decoding field is a number where its flag takes one."""
    kind, _ = DECODING.get(name, (str, ""))
    allowed = {int: int, float: int | float}.get(kind)
    if allowed and value is not None and (isinstance(value, bool) or not isinstance(value, allowed)):
        raise UsageError(f"{name}={value!r}: expected a {'whole ' if kind is int else ''}number")


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve aliases, parse ``k=v`` texts, and collect decoding fields (a field's own flag wins over --gen-kwargs) and
    the estimator (likewise)."""
    fields: dict[str, Any] = {}
    decoding: dict[str, Any] = {}
    likelihood: dict[str, Any] = {}
    for alias, value in given.items():
        name = ALIASES.get(alias, alias)
        if name in DECODING:
            decoding[name] = _strategy(value) if name == "strategy" else value
        elif name == "estimator":
            likelihood[name] = value
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
            names = [value] if isinstance(value, str) else value
            if not isinstance(names, list | tuple) or not all(isinstance(task, str) for task in names):
                raise UsageError(f"tasks={value!r}: expected names separated by commas, or a list of names")
            fields[name] = value
        elif name == "model" and not isinstance(value, str):
            raise UsageError(f"model={value!r}: expected one name, folder or hub id")
        else:
            fields[name] = value
    if decoding:
        fields["decoding"] = {**fields.get("decoding", {}), **decoding}
    if likelihood:
        fields["likelihood"] = {**fields.get("likelihood", {}), **likelihood}
    return fields


def _strategy(value: Any) -> Any:
    """``--strategy``: a name, or JSON of a name and fields, also as ``--gen-kwargs`` has it."""
    if not (isinstance(value, str) and value.lstrip().startswith("{")):
        return value
    fields = parse_pairs(value)
    return fields.get("strategy", fields)


def number(value: Any) -> Any:
    """``--limit``: a count, or a fraction below 1; values other than text are validated by RunSpec."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        fraction = float(value)
        if 1 < fraction < math.inf and not fraction.is_integer():
            raise ValueError
        return fraction
    except ValueError:
        raise UsageError(f"limit={value!r}: expected a count (50) or a fraction of the documents (0.1)") from None


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
    """``--samples``: JSON or a JSON file: ``{"task": [document numbers]}``."""
    if value is None or isinstance(value, dict):
        return value
    text = str(value)
    try:
        samples = reading.parse_json(text if text.lstrip().startswith("{") else reading.read_bytes(text, UsageError))
    except UsageError as error:
        raise UsageError(f"--samples: {error}") from error
    except ValueError as error:
        raise UsageError(f'--samples: {error}; expected {{"task": [document numbers]}}') from error
    if not isinstance(samples, dict) or not all(isinstance(ids, list) for ids in samples.values()):
        raise UsageError('--samples: expected {"task": [document numbers]}')
    return samples
