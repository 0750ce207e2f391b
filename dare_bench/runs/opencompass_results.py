"""Results of OpenCompass's command as external runs: ``<date>/predictions`` and ``<date>/results`` have a folder for
each model with one JSON file for each data set. Averages over data sets (``summary``) are not read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.opencompass_numbers import (
    as_share,
    detail_rows,
    higher_is_better,
    in_unit_of,
    mean,
    numbers,
    unclear,
    verdicts,
)
from dare_bench.reading import read_json
from dare_bench.runs.external import ExternalRun, Intervals
from dare_bench.runs.field_types import check
from dare_bench.runs.index import DocumentIndex, LoadedIndex
from dare_bench.runs.lines import LoggedLine
from dare_bench.runs.lm_eval_results import date_in
from dare_bench.runs.opencompass_config import OpenCompassConfig, read_config
from dare_bench.runs.run_files import RUN_FILE, own_file
from dare_bench.runs.schema import UNKNOWN

RESULTS, PREDICTIONS = "results", "predictions"
PARTS = (RESULTS, PREDICTIONS, "configs", "summary")
"""The folders of one run of OpenCompass."""
_DATE = re.compile(r"\d{8}_\d{6}")
_KEPT_NAME = 180


class _NoScore(ValueError):
    """A data set without a score, and why."""


class DataSetResult:
    """What the files of one data set say; raises _NoScore, or RunError for a file that is damaged.

    ``totals`` are shares where that is known; ``values`` are the documents' (one each, the mean over repeats); ``n``
    counts the documents. ``predictions`` are several files if several workers predicted parts, and none if they were
    not kept. ``repeats``: answers to each prompt; None: not recorded.
    """

    def __init__(self, task: str, result: Path, predictions: tuple[Path, ...], repeats: int | None) -> None:
        self.result, self.predictions, self._repeats = result, predictions, repeats
        record, details, _, self.n = self._read()
        if "error" in record:
            raise _NoScore(f"its evaluator failed: {str(record['error'])[:200]}")
        self.totals = {name.replace(",", ";"): value for name, value in numbers(record).items()}
        if not self.totals:
            raise _NoScore("its result has no number")
        if self.n == 0:
            raise _NoScore("its number of documents is unknown: neither details nor predictions were kept")
        first, per_document = next(iter(self.totals)), verdicts(list(map(_averaged, details)), self.n)
        scaled = in_unit_of(self.totals[first], per_document) if per_document is not None else None
        self.values = {} if scaled is None else {first: scaled}
        self.notes: list[str] = []
        for name, total in self.totals.items():
            values = self.values.get(name)
            factor = as_share(name, total, values)
            if unclear(total, values) and factor != 1.0:
                assumed = "that it is a percentage is assumed from its name"
                self.notes.append(f"{task}: {name} {total:g} comes without documents' values; {assumed}")
            self.totals[name] = factor * total
            if values is not None:
                self.values[name] = [factor * value for value in values]
                self.totals[name] = mean(self.values[name])

    def _read(self) -> tuple[dict[str, Any], list[Any], list[dict[str, Any]], int]:
        """The evaluator's result, its details (one for each document, or none), the predictions (in the order of the
        documents, repeats one after another), and the number of documents."""
        result = read_json(self.result, RunError)
        details = detail_rows(result)
        predictions = [row for path in self.predictions for row in _predictions(path)]
        if self.predictions and not predictions:
            raise RunError(f"{self.predictions[0]} is damaged: it has no predictions")
        repeats = self._repeats or max(1, len(predictions) // max(1, len(details)))
        if predictions and len(predictions) != repeats * len(details):
            details = []  # of something else than documents
        return result, details, predictions, len(details) or len(predictions) // repeats

    def rows(self) -> list[dict[str, Any]]:
        """A row in lm-eval's form for each document."""
        _, details, predictions, n = self._read()
        rows = []
        for document in range(n):
            detail = details[document] if details and isinstance(details[document], dict) else {}
            metrics = {name: values[document] for name, values in self.values.items()}
            answers = _row(predictions[document::n], detail)
            row = {"doc_id": document, **answers, "metrics": list(metrics), **metrics}
            try:
                check(LoggedLine, row)
            except ValueError as error:
                raise RunError(f"{self.predictions[0]}, document {document}, is damaged: {error}") from error
            rows.append(row)
        return rows


class OpenCompassRun(ExternalRun):
    """One model's folder of results."""

    without_samples = "OpenCompass writes them to predictions/, beside results/"
    choice_value = "log-likelihood per token"
    data_sets: dict[str, DataSetResult]
    """Those with a score."""

    @property
    def result_files(self) -> list[Path]:
        return [
            *(data.result for data in self.data_sets.values()),
            *sorted(self.path.parent.parent.glob("configs/*.py")),
        ]

    def samples_file(self, task: str) -> Path | None:
        return next(iter(self.data_sets[task].predictions), None) if task in self.data_sets else None

    def traces_file(self, task: str) -> None:
        """OpenCompass writes none."""

    def samples(self, task: str) -> Iterator[dict[str, Any]]:
        self._check(task, self.tasks)
        return iter(self.data_sets[task].rows() if self.samples_file(task) else ())

    def _readable(self, task: str) -> Iterator[Mapping[str, Any]]:
        of_metrics = self.data_sets[task].values
        for values in zip(*of_metrics.values(), strict=True):
            yield {"metrics": list(of_metrics), **dict(zip(of_metrics, values, strict=True))}

    def index(self, task: str) -> DocumentIndex | None:
        self._check(task, self.tasks)
        return LoadedIndex(task, self.data_sets[task].rows()) if self.samples_file(task) else None


def model_folders(folder: Path) -> list[Path]:
    """The folders of results in one run of OpenCompass, one for each model; empty if ``folder`` is none."""
    if not any((folder / part).is_dir() for part in PARTS if part != RESULTS):
        return []
    try:
        with os.scandir(folder / RESULTS) as entries:
            folders = sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # there is no such folder
        return []
    # JSON files named by data sets; the folder of another program's run has other names.
    names = {path: [file.name for file in path.glob("*.json")] for path in folders}
    return [path for path in folders if names[path] and not any(n == RUN_FILE or date_in(n) for n in names[path])]


def read_opencompass(path: Path, intervals: Intervals) -> OpenCompassRun:
    """The results of one model, in the folder ``path``; raises RunError."""
    work, model = path.parent.parent, path.name
    config = read_config(work / "configs")
    data_sets: dict[str, DataSetResult] = {}
    left_out: list[str] = []
    for name in sorted(entry.name for entry in path.glob("*.json")):
        task = name.removesuffix(".json")
        result = own_file(path, name)
        assert result is not None
        predictions = _prediction_files(work / PREDICTIONS / model, path, task)
        try:
            data_sets[task] = DataSetResult(task, result, predictions, config.repeats(task))
        except _NoScore as reason:
            left_out.append(f"{path}, {task}: {reason}")
    if not data_sets:
        raise RunError(f"{path} has no score; {left_out[0]}")
    run = OpenCompassRun(path, _results(data_sets), _block(path, work, config, data_sets), intervals)
    run.data_sets, run.left_out = data_sets, tuple(left_out)
    return run


def _averaged(row: Any) -> Any:
    """A row of details whose lists (one entry for each repeat) are replaced by their means."""
    if not isinstance(row, dict):
        return row
    return {
        name: mean([float(part) for part in value])
        if isinstance(value, list) and value and all(isinstance(part, (bool, int, float)) for part in value)
        else value
        for name, value in row.items()
    }


def _prediction_files(folder: Path, results: Path, task: str) -> tuple[Path, ...]:
    """``<task>.json``, or the parts ``<task>_0.json``, ``<task>_1.json`` and so on, which have no results of their
    own."""
    if (whole := own_file(folder, f"{task}.json")) is not None:
        return (whole,)
    if (results / f"{task}_0.json").exists():
        return ()
    parts = (own_file(folder, f"{task}_{number}.json") for number in count())
    return tuple(iter(parts.__next__, None))


def _predictions(path: Path) -> list[dict[str, Any]]:
    """The predictions of a file in their order."""
    raw = read_json(path, RunError)
    rows = [raw.get(str(number)) for number in range(len(raw))]
    if not all(isinstance(row, dict) for row in rows):
        raise RunError(f"{path} is damaged: expected predictions numbered from 0 to {len(raw) - 1}")
    return [row for row in rows if row is not None]


def _row(predictions: Sequence[Mapping[str, Any]], detail: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt, answers and target of a document. An empty hash is unknown: that of a prompt that is not one text, and
    that of a target before OpenCompass's postprocessing ("gold"), with which nothing was compared."""
    first = predictions[0]
    labels = {name.removeprefix("label: "): part for name, part in first.items() if name.startswith("label: ")}
    prompt = first.get("origin_prompt")
    reference = _reference(detail)
    target = _text(first.get("gold")) if reference is None else reference
    arguments: dict[str, dict[str, Any]]
    responses: list[list[Any]]
    if labels:
        pairs = [{"arg_0": _prompt_of(part), "arg_1": label} for label, part in labels.items()]
        arguments = {f"gen_args_{at}": pair for at, pair in enumerate(pairs)}
        responses = [[_log_likelihood(part)] for part in labels.values()]
        answer = detail.get("predictions", "")
    else:
        arguments = {"gen_args_0": {"arg_0": prompt if isinstance(prompt, str) else _turns(prompt), "arg_1": {}}}
        responses = [[_text(each.get("prediction")) for each in predictions]]
        answer = detail.get("pred", detail.get("predictions", ""))
    return {
        "target": target,
        "arguments": arguments,
        "resps": responses,
        "filtered_resps": answer if isinstance(answer, list) else [answer],
        "filter": "none",
        "doc_hash": "",
        "prompt_hash": _hash(prompt) if isinstance(prompt, str) and not labels else "",
        "target_hash": "" if reference is None else _hash(target),
    }


def _reference(detail: Mapping[str, Any]) -> str | None:
    """What the answer was compared with, where the details have it: "answer" (one for each repeat) or "references"."""
    value = detail.get("answer", detail.get("references"))
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, str) else None


def _prompt_of(part: Any) -> str:
    return _text(part.get("prompt") or part.get("testing input")) if isinstance(part, dict) else ""


def _log_likelihood(part: Any) -> list[str]:
    """OpenCompass's "PPL" is the mean negative log-likelihood per token; with the sign of a likelihood, in the form in
    which lm-eval logs one."""
    value = part.get("PPL") if isinstance(part, dict) else None
    return [str(-value) if isinstance(value, (int, float)) else "", "False"]


def _turns(prompt: Any) -> Any:
    """A prompt of several turns as messages; anything else as text."""
    if isinstance(prompt, list) and all(isinstance(turn, dict) for turn in prompt):
        return [{"role": _text(turn.get("role")), "content": _text(turn.get("prompt"))} for turn in prompt]
    return _text(prompt)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _results(data_sets: Mapping[str, DataSetResult]) -> dict[str, Any]:
    """The scores in lm-eval's form."""
    totals = {task: own.totals for task, own in data_sets.items()}
    return {
        "results": {name: {f"{metric},none": total for metric, total in own.items()} for name, own in totals.items()},
        "group_subtasks": {},
        "configs": {},
        "versions": {},
        "n-shot": {},
        "n-samples": {task: {"effective": own.n} for task, own in data_sets.items()},
        "higher_is_better": {name: higher_is_better(own) for name, own in totals.items()},
        "config": {},
    }


def _block(path: Path, work: Path, config: OpenCompassConfig, data_sets: Mapping[str, DataSetResult]) -> dict[str, Any]:
    name = path.name
    return {
        "status": "complete",
        "run_id": f"{name[:_KEPT_NAME]}-opencompass-{work.name[:40]}",
        "created": _moment(path, work),
        "model": {
            "name": name,
            "path": config.model_path(name),
            "family": UNKNOWN,
            "content_hash": UNKNOWN,
            "dtype": UNKNOWN,
        },
        "harness": {"name": "opencompass", "version": UNKNOWN},
        "tasks": {
            task: {"fingerprint": UNKNOWN, "n_docs": own.n, "limit_applied": config.is_limited(task)}
            for task, own in data_sets.items()
        },
        "seeds": None,
        "notes": [note for own in data_sets.values() for note in own.notes],
    }


def _moment(path: Path, work: Path) -> str:
    """The date in the folder's name, else that of the newest file of results."""
    if _DATE.fullmatch(work.name):
        try:
            return datetime.strptime(work.name, "%Y%m%d_%H%M%S").isoformat()
        except ValueError:
            pass
    newest = max(file.stat().st_mtime for file in path.glob("*.json"))
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
