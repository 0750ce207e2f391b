"""When are two evaluations the same run?

``run_id`` hashes what was *resolved*: model content, tasks, every decoding value that holds. Limit, rows, device, paths
are not in it. Resolving needs the model and the tasks, so there is a second, stricter signature of what was *asked*,
which needs neither: when it is equal to that of a finished run, the run is printed again without opening anything.
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
from dare_bench.types import Decoding, Request
from dare_bench.version import PACKAGE

# Given again by what the model says of itself (ids, family, dtype), or no part of identity.
_ELSEWHERE = frozenset({"device", "dtype", "mask_id", "eos_id", "eot_id", "family"})
# How a model is called (what it is is told by its content), and what a run may grow by.
_NAMES, _SCOPE = frozenset({"model", "adapter"}), frozenset({"limit", "samples", "output_path", "fresh"})
# Where and in what portions the work is done.
_WHERE = frozenset({"max_rows", "devices", "executor", "ray_address"})


def model_content(model: Any, loaded: LoadedModel) -> str:
    """The content hash of a model handed over in memory: that of its folder while it is what the folder holds, else one
    of its weights as they are. A model without a network (a served engine, a test double) says itself what it is."""
    said = getattr(model, "content_hash", None)
    if isinstance(said, str):
        return said
    if isinstance(model, Model) and model.is_as_opened():
        return fingerprint.content_hash(model.path)
    if loaded.network is not None:
        return fingerprint.network_hash(loaded.network)
    kind = type(loaded)
    return f"object:{kind.__module__}.{kind.__qualname__}:{getattr(model, 'name', '')}"


def adapter_content(spec: RunSpec, content: str) -> str | None:
    """The content hash of the adapter on the model whose own is ``content``; None without one. The hash of weights in
    memory covers an adapter's already.

    Raises:
        CheckpointError: no adapter there.
    """
    if spec.adapter is None or not content.startswith("sha256:"):
        return None
    return fingerprint.content_hash(locate(spec.adapter))


def settings_by_task(
    model: LoadedModel, requests: Sequence[Request]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(decoding, likelihood): all resolved values of each task, of generate and of score requests.

    ``requests`` are as the model sees them. Raises DecodingError before anything is computed.
    """
    decoding: dict[str, dict[str, Any]] = {}
    likelihood: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for request in requests:
        mark = fingerprint.digest([request.task, request.kind, request.decoding], 32)
        if mark in seen:
            continue
        seen.add(mark)
        # Every setting is checked; the first document's stands for the task (documents rarely differ).
        if request.kind == "generate":
            resolved = request.resolved or model.resolve(request.decoding)
            refuse_unsound_ids(model, resolved)
            decoding.setdefault(request.task, resolved.model_dump(mode="json"))
        else:
            likelihood.setdefault(request.task, model.resolve_likelihood(request.decoding))
    return decoding, likelihood


def identity(
    spec: RunSpec,
    model: LoadedModel,
    content: str,
    decoding: Mapping[str, Mapping[str, Any]],
    likelihood: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that makes a run this run and no other, as plain data for ``fingerprint.run_id``."""
    facts = model.spec
    return {
        "model": content,
        "family": facts.family,
        "ids": [facts.mask_id, sorted(facts.eos_ids), facts.eot_id],
        "model_args": {k: v for k, v in spec.model_args.items() if k not in _ELSEWHERE},
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
        "dtype": facts.dtype,
        "seeds": list(spec.seeds),
        **({"repeats": spec.repeats} if spec.repeats > 1 else {}),
    }


def request_signature(spec: RunSpec, content: str) -> str:
    """The signature of a command: what was asked, of which model, data files, task files and program."""
    fields = spec.model_dump(mode="json", exclude={*_NAMES, *_SCOPE, *_WHERE})
    fields["tasks"] = sorted(set(spec.tasks))
    files = [*spec.include_path, *([spec.data_dir] if spec.data_dir else [])]
    return fingerprint.digest(
        {
            **fields,
            "content": content,
            "adapter": adapter_content(spec, content),
            "files": [_signature(Path(path)) for path in files],
            "program": [program.code(), *map(installed, ("lm-eval", "opencompass")), _program()],
        },
        32,
    )


@cache
def _program() -> str:
    """This program's own files: whoever changes a sampler or a task wants the run scored anew, not printed again."""
    return _signature(PACKAGE, (".py", ".yaml", ".jsonl", ".j2"))


def _signature(folder: Path, endings: tuple[str, ...] = ()) -> str:
    """A hash over name, size and time of the files below a folder (the package's own folders are links)."""
    found: list[tuple[str, int, int]] = []
    for base, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in names:
            if not endings or name.endswith(endings):
                try:
                    stat = os.stat(os.path.join(base, name))  # noqa: PTH116, PTH118 - thousands of files, at every start
                except OSError:
                    continue
                found.append((f"{base}/{name}", stat.st_size, stat.st_mtime_ns))
    return fingerprint.digest(sorted(found), 32)
