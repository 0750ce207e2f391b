"""Which evaluations are the same run.

The run id hashes what was *resolved*: model content, tasks, all decoding values; not limit, rows, device or paths. That
needs the model and the tasks; the stricter request signature hashes the command and needs neither: if it equals that of
a finished run, that run is returned without opening anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dare_bench import fingerprint, program
from dare_bench.config import RunSpec
from dare_bench.engine.soundness import refuse_unsound_ids
from dare_bench.loading import locate
from dare_bench.model import Model
from dare_bench.program import installed
from dare_bench.protocols import LoadedModel
from dare_bench.types import Decoding, OpeningSettings, Request
from dare_bench.version import PACKAGE

_UNSIGNED = frozenset({
    "model", "adapter",  # their content hashes are signed instead
    "limit", "until_halfwidth", "samples", "output_path", "fresh", "engine_url",  # commands of one run may differ here
    "max_rows", "devices", "executor", "ray_address",  # where and in what portions the work is done
})  # fmt: skip
"""Fields of a RunSpec that the request signature leaves out."""


def same_evaluation(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Do two requested specs (``run.json``) evaluate alike, perhaps other checkpoints or other numbers of documents?"""
    names = {*left, *right} - _UNSIGNED - {"device", "attention", "compile"}
    engine = {"engine": "native", "engine_args": {}}  # of runs that are older than these fields
    return all({**engine, **left}.get(name) == {**engine, **right}.get(name) for name in names)


def model_content(model: Any, loaded: LoadedModel) -> str:
    """The content hash of an open model: of its folder while the model equals the folder's, else of its weights in
    memory. A model without a network (a served engine, a test double) may have an attribute ``content_hash``."""
    content = getattr(model, "content_hash", None) or getattr(loaded, "content_hash", None)
    if isinstance(content, str):
        return content
    if isinstance(model, Model) and model.path is not None and model.is_as_opened():
        return fingerprint.content_hash(model.path)
    if loaded.network is not None:
        return fingerprint.network_hash(loaded.network)
    kind = type(loaded)
    return f"object:{kind.__module__}.{kind.__qualname__}:{getattr(model, 'name', '')}"


def adapter_content(spec: RunSpec, content: str) -> str | None:
    """The content hash of the adapter on a model with the hash ``content``; None without one, and where ``content``
    already covers it (weights in memory). Raises CheckpointError: there is no such adapter."""
    if spec.adapter is None or not content.startswith("sha256:"):
        return None
    return fingerprint.content_hash(locate(spec.adapter))


def settings_by_task(
    model: LoadedModel, requests: Sequence[Request]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(decoding, likelihood): all resolved values of each task, of generate and of score requests. ``requests`` are as
    the model sees them. Raises DecodingError before anything is computed."""
    decoding: dict[str, dict[str, Any]] = {}
    likelihood: dict[str, dict[str, Any]] = {}
    distinct: dict[str, Request] = {}
    for request in requests:
        distinct.setdefault(fingerprint.digest([request.task, request.kind, request.decoding], 32), request)
    for request in distinct.values():
        # All settings are checked; those of a task's first document stand for the task (documents rarely differ).
        if request.kind == "generate":
            resolved = request.resolved or model.resolve(request.decoding)
            refuse_unsound_ids(model, resolved)
            decoding.setdefault(request.task, resolved.model_dump(mode="json"))
        else:
            likelihood.setdefault(request.task, model.resolve_likelihood(request.decoding))
    return decoding, likelihood


def run_prefix(spec: RunSpec) -> str:
    """The readable part of the run id."""
    return fingerprint.readable_prefix(spec.model, spec.harness, sorted(set(spec.tasks)), spec.adapter)


def run_id(spec: RunSpec, identity: Mapping[str, Any]) -> str:
    """``<prefix>-<10 hex>``: the hash covers the run's :func:`identity`."""
    return f"{run_prefix(spec)}-{fingerprint.digest(identity)}"


def identity(
    spec: RunSpec,
    model: LoadedModel,
    content: str,
    decoding: Mapping[str, Mapping[str, Any]],
    likelihood: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that distinguishes one run from another, as plain data."""
    facts = model.spec
    padding = [facts.pad_id] if facts.blocks_from == "answer" else []  # whose later blocks do not see it
    return {
        "model": content,
        "family": facts.family,
        "ids": [facts.mask_id, sorted(facts.eos_ids), facts.eot_id, *padding],
        # Of the opening settings, those that change an answer are taken from the open model.
        "model_args": {k: v for k, v in spec.model_args.items() if k not in OpeningSettings.model_fields},
        "adapter": adapter_content(spec, content),
        "harness": spec.harness,
        "tasks": sorted(set(spec.tasks)),
        "num_fewshot": spec.num_fewshot,
        "chat_template": spec.apply_chat_template,
        "fewshot_as_multiturn": spec.fewshot_as_multiturn if spec.apply_chat_template else None,
        "system_instruction": spec.system_instruction,
        "decoding": {
            task: {k: v for k, v in values.items() if k not in Decoding.hidden} for task, values in decoding.items()
        },
        "likelihood": {task: dict(values) for task, values in likelihood.items()},
        "dtype": facts.precision,
        "seeds": list(spec.seeds),
        **({"repeats": spec.repeats} if spec.repeats > 1 else {}),
        **({"engine": [facts.engine, spec.engine_args.get("tokenizer")]} if facts.engine != "native" else {}),
        **_order(spec),
    }


def _order(spec: RunSpec) -> dict[str, str]:
    """Runs that may stop answer documents in a random order, and are not those that answer the first ones."""
    return {"order": "random"} if spec.until_halfwidth is not None else {}


def request_signature(spec: RunSpec, content: str) -> str:
    """A hash of a command: settings, model content, data files, task files and program."""
    fields = spec.model_dump(mode="json", exclude=set(_UNSIGNED))
    fields["tasks"] = sorted(set(spec.tasks))
    files = [*spec.include_path, *([spec.data_dir] if spec.data_dir else [])]
    return fingerprint.digest(
        {
            **fields,
            **_order(spec),
            "content": content,
            "adapter": adapter_content(spec, content),
            "files": [_signature(Path(path)) for path in files],
            "program": [program.code(), *map(installed, ("lm-eval", "opencompass")), _program()],
        },
        32,
    )


@cache
def _program() -> str:
    """The files of this program: after a change of a sampler or a task, a finished run is scored again."""
    return _signature(PACKAGE, (".py", ".yaml", ".jsonl", ".j2"))


def _signature(folder: Path, endings: tuple[str, ...] = ()) -> str:
    """A hash of names, sizes and times of the files below a folder; links to folders are followed."""
    files: list[tuple[str, int, int]] = []
    for base, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in names:
            if not endings or name.endswith(endings):
                try:
                    stat = os.stat(os.path.join(base, name))  # noqa: PTH116, PTH118 - thousands of files, at every start
                except OSError:
                    continue
                files.append((f"{base}/{name}", stat.st_size, stat.st_mtime_ns))
    return fingerprint.digest(sorted(files), 32)
