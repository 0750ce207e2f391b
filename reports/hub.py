"""A run's scores in the two formats of the Hugging Face Hub: ``.eval_results/*.yaml`` and ``model-index``.

The first is the hub's current format (https://huggingface.co/docs/hub/eval-results), one file for each score, written
and read back by huggingface_hub. It has a value, a date, a source and notes, which get settings, interval and number of
documents. The second is the older list in a model card's front matter.

A score needs the hub's name of its data set, from the run's task configuration or from the user; a score without one
is left out, never given a guessed name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dare_bench.analysis.names import unknown_text
from dare_bench.errors import RunError, SaveError, UsageError, unknown
from dare_bench.formatting import short_number
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import UNKNOWN, Block, TaskBlock
from dare_bench.runs.scores import Score
from dare_bench.runs.text import no_answer, visible
from dare_bench.types import Decoding

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

HubScale = Literal["percent", "fraction"]
FOLDER = ".eval_results"
_LOADERS = frozenset({"arrow", "audiofolder", "csv", "generator", "imagefolder", "json", "pandas", "parquet", "sql"})
_LOADERS |= {"text", "videofolder", "webdataset", "xml"}
"""Values of ``dataset_path`` that are file loaders, not data sets."""
_REVISION = re.compile(r"[0-9a-f]{40}")
_METRICS = {"acc": "accuracy", "acc_norm": "accuracy"}
"""The hub's names of metrics that have other names in harnesses."""
_OMITTED = frozenset({"stop", "confidence_dtype", *Decoding.hidden, *Decoding.id_fields})
_OFF = ("none", "ours", "cut")
"""Values of settings that are switched off."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set of the hub. ``task_id``: the benchmark's name of the task, given by the user (``named``), or the
    configuration that the run loaded, or "default"."""

    id: str
    task_id: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    named: bool = False


@dataclass(frozen=True, slots=True)
class HubResult:
    """One score as it is exported; ``value`` is on the requested scale."""

    score: Score
    dataset: HubDataset
    value: float
    date: str
    notes: str
    shots: int | None

    @property
    def path(self) -> str:
        """Its file in the model's repository, which depends on the settings but not on the run."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.score.task).strip("-.") or "task"
        return f"{FOLDER}/{name}-{self.score.fingerprint[:8]}.yaml"


def parse_datasets(words: Sequence[str]) -> dict[str, HubDataset]:
    """``TASK=ID[:TASK_ID]`` by task; without a TASK_ID it is "default", the hub's name of an only task.

    Raises:
        UsageError: not of that form, or not a valid id.
    """
    datasets = {}
    for word in words:
        task, sign, name = word.rpartition("=")
        identity, _, task_id = name.partition(":")
        if not sign or not task or not is_id(identity):
            raise UsageError(
                f"--dataset {word!r}: expected TASK=ID or TASK=ID:TASK_ID with a data set's id on the hub,"
                " as in gsm8k=openai/gsm8k:gsm8k"
            )
        datasets[task] = HubDataset(identity, task_id or "default", named=bool(task_id))
    return datasets


def results_of(
    run: Run, datasets: Mapping[str, HubDataset], *, scale: HubScale = "percent", allow_partial: bool = False
) -> tuple[list[HubResult], list[str]]:
    """The headline scores that can be exported, and what is left out with the reason.

    A group is exported in place of its tasks, unless ``datasets`` names them. Shares are in percent, as is usual on the
    hub, or unchanged with ``scale="fraction"``; other scores are never scaled.

    Raises:
        RunError: the run has no scores, or is limited or incomplete and ``allow_partial`` is not set.
        UnknownNameError: ``datasets`` names a task that the run does not have.
    """
    scored = list(dict.fromkeys(score.task for score in run.scores()))
    if not scored:
        raise RunError(f"{run.path} has no score yet (status {run.status}); run the same command again to finish it")
    for task in datasets:
        if task not in scored:
            raise unknown("task", task, scored)
    results, left_out = [], []
    for task in dict.fromkeys([*run.top_level(), *datasets]):
        score = run.headline(task)
        dataset = datasets.get(task) or _dataset_of(run, task)
        if score is None or dataset is None:
            left_out.append(f"{task}: its data set on the hub is unknown; name it: --dataset {task}=ID:TASK_ID")
            continue
        partial = list(_partial(run, score))
        if partial and not allow_partial:
            raise RunError(
                f"{run.name}, {task}: {'; '.join(partial)}; such a score is exported only with --allow-partial,"
                " with a note"
            )
        value = 100 * score.value if scale == "percent" and score.is_share else score.value
        notes = visible("; ".join(_notes(run, score, dataset, partial, scale))).replace("\n", " ")
        shots = run.results.get("n-shot", {}).get(task)
        results.append(HubResult(score, dataset, round(value, 4), _date(run.created), notes, shots))
    return results, left_out


def is_id(text: str) -> bool:
    """Is it a valid repository or data set id?"""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return bool(text)


def _dataset_of(run: Run, name: str) -> HubDataset | None:
    """The data set in a task's configuration; None where the data come from a file or code, the harness does not name
    them, or the tasks of a group have several."""
    datasets = {_dataset_in(run.results.get("configs", {}).get(task)) for task in members(run.results, name)}
    return datasets.pop() if len(datasets) == 1 else None


def _dataset_in(config: Any) -> HubDataset | None:
    if not isinstance(config, Mapping) or config.get("custom_dataset") is not None:
        return None
    path, name, options = config.get("dataset_path"), config.get("dataset_name"), config.get("dataset_kwargs") or {}
    if not isinstance(path, str) or path in _LOADERS or not is_id(path) or Path(path).exists():
        return None
    if not isinstance(options, Mapping) or "data_files" in options or "data_dir" in options:
        return None
    revision = str(options.get("revision") or "")
    split = config.get("test_split") or config.get("validation_split")
    return HubDataset(
        path,
        visible(str(name or "default")),
        visible(str(name)) if name else None,
        visible(str(split)) if split else None,
        revision if _REVISION.fullmatch(revision) else None,
    )


def _partial(run: Run, score: Score) -> Iterator[str]:
    """Why a score is not over all documents of the task."""
    if score.limited:
        yield f"limited to {score.n} of {score.n_total or 'more'} documents"
    if failed := run.failed_documents(score.task):
        yield f"{no_answer(failed)} left out"
    elif run.status == "running" or (run.status == "incomplete" and not run.require_block().failures):
        yield f"the run is {'not finished' if run.status == 'running' else 'incomplete'}"


def _notes(run: Run, score: Score, dataset: HubDataset, partial: Sequence[str], scale: HubScale) -> Iterator[str]:
    """What the hub's format has no field for, the most important first."""
    block = run.require_block()
    if partial:
        yield f"PARTIAL: {', '.join(partial)}"
    percent = scale == "percent" and score.is_share
    yield score.key.removesuffix(",none") + (" in percent" if percent else "")
    yield f"n={score.n}"
    if score.lo is not None and score.hi is not None and score.level is not None:
        lo, hi = (short_number(bound, percent) for bound in (score.lo, score.hi))
        yield f"{100 * score.level:g} % interval {lo} to {hi} ({score.method})"
    tasks = [block.tasks[task] for task in members(run.results, score.task) if task in block.tasks]
    shots = run.results.get("n-shot", {}).get(score.task)
    if shots is not None:
        yield f"{shots}-shot"
    yield from _settings(tasks, block)
    if run.results.get("chat_template_sha") or run.results.get("chat_template"):
        yield "chat template applied"
    if score.engine is not None:
        yield f"answered by {score.engine}"
    if run.is_external:
        yield unknown_text(run)
    if score.tier is not None:
        yield f"sampler exactness tier {score.tier}" + (" (approximate)" if score.tier == "A" else "")
    ours = "" if run.is_external else f", dare-bench {block.environment.dare_bench or UNKNOWN}"
    yield f"{block.harness.name} {block.harness.version}{ours}"
    yield f"checkpoint {block.model.name} ({block.model.dtype})"
    yield f"settings fingerprint {score.fingerprint}, task {score.task_fingerprint}"
    yield from (note for note in block.notes if f"data set {dataset.id} " in note)


def _settings(tasks: Sequence[TaskBlock], block: Block) -> Iterator[str]:
    """Decoding and likelihood settings that are equal in all tasks, without those that are switched off."""
    for settings in ([task.decoding for task in tasks], [task.likelihood for task in tasks]):
        names = [name for name in (settings[0] if settings else {}) if name not in _OMITTED]
        shared = {
            name: settings[0][name] for name in names if all(task.get(name) == settings[0][name] for task in settings)
        }
        requested = block.decoding_requested
        shown = {n: v for n, v in shared.items() if n in requested or not (v in (None, *_OFF) or v is False)}
        if shown:
            yield ", ".join(f"{name} {value}" for name, value in shown.items())
    seed = block.seeds[2] if block.seeds else UNKNOWN
    yield f"seed {seed}" + (f", {block.repeats} answers to each prompt" if block.repeats > 1 else "")


def _date(created: str) -> str:
    """In UTC where the run recorded its time zone, in seconds."""
    moment = datetime.fromisoformat(created)
    if moment.tzinfo is None:
        return moment.isoformat(timespec="seconds")
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def entry_file(result: HubResult, source_url: str | None = None) -> str:
    """The text of a score's ``.eval_results`` file, verified by huggingface_hub's parser."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml, parse_eval_result_entries

    entry = EvalResultEntry(
        dataset_id=result.dataset.id,
        task_id=result.dataset.task_id,
        value=result.value,
        dataset_revision=result.dataset.revision,
        date=result.date,
        source_url=source_url,
        notes=result.notes,
    )
    text = _yaml(eval_result_entries_to_yaml([entry]))
    if parse_eval_result_entries(yaml.safe_load(text)) != [entry]:
        raise RunError(f"{result.score.task}: huggingface_hub cannot parse its own output: {text[:200]!r}")
    return text


def card_result(result: HubResult, source_url: str | None = None) -> EvalResult:
    """The score as huggingface_hub's record for ``model-index``, which has neither notes nor a date."""
    from huggingface_hub import EvalResult

    score = result.score
    return EvalResult(
        task_type="text-generation",
        task_name=visible(score.task),
        dataset_type=result.dataset.id,
        dataset_name=result.dataset.id.rpartition("/")[2],
        dataset_config=result.dataset.config,
        dataset_split=result.dataset.split,
        dataset_revision=result.dataset.revision,
        dataset_args=None if result.shots is None else {"num_few_shot": result.shots},
        metric_type=_METRICS.get(score.metric, visible(score.metric)),
        metric_name=visible(score.key.removesuffix(",none")),
        metric_value=result.value,
        metric_args={"notes": result.notes},
        source_url=source_url,
        source_name="dare-bench" if source_url else None,
    )


def card_of(model: str, results: Sequence[EvalResult]) -> str:
    """A model card of nothing but these results, as its ``model-index``."""
    from huggingface_hub.repocard_data import eval_results_to_model_index

    # One at a time: huggingface_hub joins results of one data set under the task and arguments of the first.
    entries = [part for result in results for part in eval_results_to_model_index(model, [result])[0]["results"]]
    return f"---\n{_yaml({'model-index': [{'name': model, 'results': entries}]})}---\n"


def _yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def push(files: Mapping[str, str], repo_id: str, *, message: str, description: str = "", create_pr: bool = True) -> str:
    """Commit ``files`` (path in the repository to text) at once and return the URL of the pull request, or of the
    commit with ``create_pr=False``.

    Raises:
        SaveError: the hub cannot be reached, knows no such repository, or does not allow it.
    """
    import huggingface_hub
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's or httpx2's, by its version
    from huggingface_hub.utils import logging

    operations = [
        huggingface_hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=text.encode())
        for path, text in files.items()
    ]
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # otherwise it logs every retry
    try:
        commit = huggingface_hub.HfApi(library_name="dare-bench").create_commit(
            repo_id=repo_id,
            operations=operations,
            commit_message=message,
            commit_description=description,
            create_pr=create_pr,
        )
    except (OSError, ValueError, HTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise SaveError(
            f"cannot push to {repo_id}: {type(error).__name__}: {reason}; check the network, the repository's name and"
            " your token (hf auth login), then run the same command again"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    return str(commit.pr_url or commit.commit_url)
