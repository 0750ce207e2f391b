"""Results of lm-eval's command as external runs: ``results_<date>.json`` and, with ``--log_samples``,
``samples_<task>_<date>.jsonl`` in one folder for each model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.reading import read_json
from dare_bench.runs.external import ExternalRun, Intervals
from dare_bench.runs.lines import LoggedLine
from dare_bench.runs.run_files import own_file
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.text import without_folders

_NAME = re.compile(r"(?P<stem>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d{1,6})?)\.json")
"""``results_<date>.json``, or ``<name>_<date>.json`` with ``--output_path <name>.json``."""
_TABLES = ("results", "groups", "group_subtasks", "configs", "versions", "higher_is_better", "config")
_FACTS = ("chat_template", "chat_template_sha", "system_instruction", "fewshot_as_multiturn", "max_length")
_MODEL_ARGS = ("pretrained", "model", "path", "engine", "peft", "delta")
"""Model arguments that name the model."""
_NO_SETTINGS = (*_MODEL_ARGS, "dtype", "device", "trust_remote_code")
"""Model arguments that are recorded elsewhere or change no answer; all others are settings."""
_SEEDS = ("random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
_KEPT_NAME = 180


class LmEvalRun(ExternalRun):
    """One results file of lm-eval and its samples files."""

    without_samples = "lm-eval writes them with --log_samples"
    sample_line = LoggedLine

    def samples_file(self, task: str) -> Path | None:
        return (
            own_file(self.path.parent, f"samples_{task}_{date_in(self.path.name)}.jsonl") if "/" not in task else None
        )

    def traces_file(self, task: str) -> None:
        """lm-eval writes none."""


def date_in(name: str) -> str | None:
    """The date in a name that lm-eval gives to a results file; None for any other name."""
    match = _NAME.fullmatch(name)
    return match["date"] if match else None


def read_lm_eval(path: Path, intervals: Intervals) -> LmEvalRun:
    """The results file at ``path``; raises RunError."""
    date = date_in(path.name)
    file = own_file(path.parent, path.name)
    if date is None or file is None:
        raise RunError(f"{path} is not a results file; lm-eval names them results_<date>.json")
    raw = read_json(file, RunError)
    if "dare_bench" in raw:
        raise RunError(f"{path} was written by dare-bench; give its folder {path.parent}")
    for name in ("results", "configs", "config"):
        if not isinstance(raw.get(name), dict):
            raise RunError(f"{path} is not a results file of lm-eval: it has no table {name!r}")
    results = _results(raw)
    return LmEvalRun(path, results, _block(path, date, raw, results), intervals)


def _results(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a results file that readers of runs use. lm-eval writes a blank for a number of examples that does
    not apply."""
    results = {name: raw[name] for name in _TABLES if raw.get(name) is not None}
    results |= {name: raw[name] for name in _FACTS if name in raw}
    shots = raw.get("n-shot")
    results["n-shot"] = {k: v for k, v in shots.items() if type(v) is int} if isinstance(shots, dict) else {}
    results["n-samples"] = raw.get("n-samples", {})
    return results


def _block(path: Path, date: str, raw: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    config = raw["config"]
    args = _arguments(config.get("model_args"))
    of_args = next((args[name] for name in _MODEL_ARGS if args.get(name)), None)
    named = raw.get("model_name") or of_args
    name = without_folders(str(named or config.get("model") or UNKNOWN))
    seeds = tuple(config.get(seed) for seed in _SEEDS)
    limit = config.get("limit")
    parameters = config.get("model_num_parameters")
    return {
        "status": "complete",
        "run_id": f"{name.replace('/', '-')[:_KEPT_NAME]}-lm-eval-{date}",
        "created": _moment(date),
        "model": {
            "name": name,
            "path": _text(of_args or named),
            "family": UNKNOWN,
            "content_hash": f"revision {config['model_sha']}" if config.get("model_sha") else UNKNOWN,
            "adapter": _text(args.get("peft")),
            "dtype": str(config.get("model_dtype") or UNKNOWN).removeprefix("torch."),
            "parameters": parameters if type(parameters) is int and parameters > 0 else 0,
        },
        "harness": {"name": "lm-eval", "version": str(raw.get("lm_eval_version") or UNKNOWN)},
        "tasks": {task: _task(path, task, raw, limit) for task in _leaves(results)},
        "seeds": seeds if all(type(seed) is int for seed in seeds) else None,
        "limit": int(limit) if isinstance(limit, float) and limit.is_integer() else limit,
        "decoding_requested": {k: v for k, v in args.items() if k not in _NO_SETTINGS}
        | _arguments(config.get("gen_kwargs")),
    }


def _leaves(results: Mapping[str, Any]) -> list[str]:
    """The tasks of a results file, without its groups."""
    subtasks = results.get("group_subtasks", {})
    if not isinstance(subtasks, dict) or not all(isinstance(parts, list) for parts in subtasks.values()):
        return []  # refused when the tables are checked
    named = [*results["results"], *(str(part) for parts in subtasks.values() for part in parts)]
    return [name for name in dict.fromkeys(named) if not subtasks.get(name)]


def _task(path: Path, task: str, raw: Mapping[str, Any], limit: Any) -> dict[str, Any]:
    counts = raw.get("n-samples", {})
    counts = counts.get(task) if isinstance(counts, dict) else None
    count, total = (counts.get("effective"), counts.get("original")) if isinstance(counts, dict) else (None, None)
    if type(count) is not int:
        raise RunError(
            f"{path}: the number of documents of {task[:80]!r} is not recorded (n-samples); lm-eval 0.4.3 or newer"
            " records it"
        )
    limited = limit is not None and (type(total) is not int or count < total)
    return {"fingerprint": UNKNOWN, "n_docs": count, "n_total": total, "limit_applied": limited}


def _arguments(value: Any) -> dict[str, Any]:
    """lm-eval's arguments, a mapping or ``k=v,k=v``."""
    if isinstance(value, str):
        return dict(part.partition("=")[::2] for part in value.split(",") if "=" in part)
    return {str(name): part for name, part in value.items()} if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _moment(date: str) -> str:
    day, _, time = date.partition("T")
    try:
        return datetime.fromisoformat(f"{day}T{time.replace('-', ':')}").isoformat()
    except ValueError:
        return date  # refused when the block is checked
