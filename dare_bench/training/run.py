"""``dare_bench.train``: open a checkpoint, read data, hand both to a method, evaluate what comes out.

The same call resumes: training goes on from the last whole checkpoint, finished evaluations are only read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from dare_bench import fingerprint
from dare_bench.engine.evaluate import evaluate_all, resolve_spec
from dare_bench.engine.hints import check
from dare_bench.engine.opening import open_checkpoint
from dare_bench.engine.plan import plan
from dare_bench.errors import DataError, UsageError
from dare_bench.keywords import TrainKeywords
from dare_bench.loading import base_and_adapter, locate
from dare_bench.protocols import AdapterSettings, LoadedModel
from dare_bench.registry import registry
from dare_bench.run_fields import run_fields
from dare_bench.runs import lineage
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import held
from dare_bench.training import folder
from dare_bench.training.data import read_data
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec, train_spec
from dare_bench.training.tokens import histogram, tokenise

log = logging.getLogger("dare_bench")

_NOT_IDENTITY = frozenset(
    {
        "output_path", "device", "report_to", "logging_steps", "save_steps", "save_total_limit", "eval", "eval_every",
        "eval_on_start", "fsdp", "per_device_train_batch_size", "gradient_accumulation_steps", "model", "adapter",
        "data", "task", "options",
    }
)  # fmt: skip
"""Settings that do not say which training this is (where, how it is cut, what is written), or are told otherwise."""


@dataclass(frozen=True)
class Trained:
    """A finished training: the folder of its checkpoint, and the runs of all evaluations, base first, then by step; of
    one that was finished before, those of base and end alone."""

    path: Path
    runs: tuple[Run, ...]
    not_run: tuple[str, ...] = ()
    """Evaluations that were refused, and why."""
    seconds: float = 0.0


def train(spec: TrainSpec | None = None, **fields: Unpack[TrainKeywords]) -> Trained:
    """Train a checkpoint and evaluate what comes out.

    Args:
        spec: what to do; or give its fields by name: ``train(method="sft", model="tiny-llada-base",
            task="dare_sudoku", output_path="out/sft", max_steps=100, eval={"tasks": "dare_sudoku"})``. A field that
            :class:`TrainSpec` does not have is taken for the method's own.

    Raises:
        UsageError: unknown method, data or settings; an output folder of another training.
        DataError: rows that cannot be learned from, by file and line.
        TrainingError: a loss that is no number. CheckpointError, SaveError, MemoryLimitError: what the message says.
    """
    spec = settle(spec, fields)
    began, out = time.perf_counter(), Path(spec.output_path)
    kind = registry().get("trainer", spec.method).load()
    with _held(out):
        model = _open(spec)
        method = kind(kind.settle(spec.options, model.spec), model.spec, None)  # refuses before data is read
        data = _tokens(spec, kind.reads, model)
        method = kind(method.options, model.spec, data.canvas)
        asked = _asked(spec, method, data)
        services = _Services(spec, method, asked, data)
        status = folder.claim(out, asked) if first_process() else folder.status(out)
        if spec.eval_on_start and first_process():
            services.evaluate_base()
        if status == "complete" or lineage.read(out) is not None:  # written last: a kill came while it was evaluated
            log.info("trained already: %s", out)
        else:
            services.check(model.loaded)
            if spec.adapter:
                _thaw(model.loaded.network)
            elif spec.peft:
                model.loaded.add_adapter(_adapter(spec))
            method.fit(spec, model.loaded, data, out, services)
        del model
        seconds = time.perf_counter() - began
        if first_process():
            services.evaluate(out, -1)
            folder.finish(out, asked, {"seconds": round(seconds, 1)})
    return Trained(out, tuple(services.runs), tuple(services.refused), time.perf_counter() - began)


def settle(spec: TrainSpec | None, fields: Mapping[str, Any]) -> TrainSpec:
    """The whole spec; fields it does not have are the method's options."""
    own = {name: value for name, value in fields.items() if name in TrainSpec.model_fields}
    options = {name: value for name, value in fields.items() if name not in TrainSpec.model_fields}
    given = {**(spec.model_dump() if spec is not None else {}), **own}
    if options:
        given["options"] = {**given.get("options", {}), **options}
    whole = train_spec(**given)
    base, adapter = base_and_adapter(whole.model, whole.adapter)
    if adapter is not None and whole.peft is None:
        raise UsageError(f"{adapter} is an adapter; give --peft lora to go on with it, or merge it (export merge)")
    return whole.model_copy(update={"model": base, "adapter": adapter})


def _held(out: Path) -> contextlib.AbstractContextManager[None]:
    """The output folder, for one training at a time: its first process has it for all."""
    busy = f"{out} is being trained by another process; wait, or choose another folder"
    return held(out, busy) if first_process() else contextlib.nullcontext()


def _open(spec: TrainSpec) -> Any:
    """The model in the dtype it learns in: weights that are trained are float32 unless something else is asked for."""
    dtype = spec.dtype or (None if spec.peft else "float32")
    named = {"adapter": spec.adapter, "device": spec.device, "dtype": dtype, "family": spec.family}
    return open_checkpoint(spec.model, {**named, **spec.model_args})


def _thaw(network: Any) -> None:
    """Let an adapter that was opened for evaluation learn again."""
    for name, weight in network.named_parameters():
        weight.requires_grad_("lora_" in name)


def _adapter(spec: TrainSpec) -> AdapterSettings:
    return AdapterSettings(spec.lora_r, spec.lora_alpha, spec.lora_dropout, spec.lora_targets, spec.seed)


def _tokens(spec: TrainSpec, kind: Any, model: Any) -> Tokens:
    tokens = tokenise(read_data(spec, kind), model.loaded, spec)
    if first_process():
        for line in histogram(tokens).split("\n"):
            log.info("%s", line)
    return tokens


def _asked(spec: TrainSpec, method: Any, data: Tokens) -> dict[str, Any]:
    """What makes this training this training and no other; micro-batches and processes do not, their product does."""
    settings = spec.model_dump(mode="json", exclude=set(_NOT_IDENTITY))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return {
        **settings,
        "learning_rate": spec.learning_rate or (method.lora_learning_rate if spec.peft else method.learning_rate),
        "base": fingerprint.model_name(spec.model),
        "base_content": fingerprint.content_hash(locate(spec.model)),
        "base_adapter": fingerprint.content_hash(locate(spec.adapter)) if spec.adapter else None,
        "reference_content": fingerprint.content_hash(locate(method.reference)) if method.reference else None,
        "options": method.options.model_dump(mode="json"),
        "data": data.name,
        "data_hash": data.hash,
        "items": len(data.items),
        "batch": spec.per_device_train_batch_size * spec.gradient_accumulation_steps * processes,
    }


class _Services:
    """What the engine does for a trainer (see ``protocols.Services``)."""

    def __init__(self, spec: TrainSpec, method: Any, asked: dict[str, Any], data: Tokens) -> None:
        self.spec, self.method, self.asked, self.data = spec, method, asked, data
        self.runs: list[Run] = []
        self.refused: list[str] = []
        self._parents = lineage.read(locate(spec.adapter or spec.model))

    def check(self, model: LoadedModel) -> None:
        """Refuse evaluations none of which can be made, before anything is trained; raises UsageError or DataError."""
        planned = plan(self._fields({"model": self.spec.model})) if self.spec.eval else []
        refused: list[Exception] = []
        for one in planned:
            try:
                spec = resolve_spec(None, None, {**one.fields, "limit": 1, "samples": None})[0]
                source = registry().get("harness", spec.harness).load()
                check(source, spec)
                source(spec, model).requests()
            except (UsageError, DataError) as error:
                refused.append(error)
        if refused and len(refused) == len(planned):
            raise refused[0]

    def open(self, checkpoint: str | None) -> LoadedModel:
        """Another model, as this training's own was opened; None: the one that training starts from."""
        other = {} if checkpoint is None else {"model": checkpoint, "adapter": None}
        model: LoadedModel = _open(self.spec.model_copy(update=other)).loaded
        return model

    def evaluate_base(self) -> None:
        """Evaluate the checkpoint that training starts from."""
        base = {"model": self.spec.model, **({"adapter": self.spec.adapter} if self.spec.adapter else {})}
        self._evaluate({**base, "family": self.spec.family, "model_args": self.spec.model_args})

    def evaluate(self, checkpoint: Path, step: int) -> None:
        """Evaluate a saved checkpoint; nothing where nothing was asked for."""
        family = {"family": self.spec.family, "model_args": self.spec.model_args}
        self._evaluate({"model": str(checkpoint), **family})

    def _evaluate(self, model: dict[str, Any]) -> None:
        for outcome in evaluate_all(plan(self._fields(model))) if self.spec.eval else ():
            if outcome.run is not None:
                self.runs.append(outcome.run)
                continue
            self.refused.append(": ".join(part for part in (outcome.planned.name, str(outcome.reason)) if part))
            log.warning("%s", self.refused[-1])

    def _fields(self, model: dict[str, Any]) -> dict[str, Any]:
        """The fields of the evaluation of a model."""
        where = {"device": self.spec.device, "dtype": self.spec.dtype, **model}
        asked = run_fields(None, self.spec.eval)
        runs = str(Path(self.spec.output_path) / "runs")
        return {**{name: value for name, value in where.items() if value}, **asked, "output_path": runs}

    def lineage(self, folder: Path, step: int, steps: int) -> None:
        """Write ``lineage.json``."""
        asked = dict(self.asked)
        told = {name: asked.pop(name) for name in ("base", "base_content", "base_adapter", "options", "data")}
        before = [*self._parents.get("parents", ()), self._parents] if self._parents else []
        parents = [{k: v for k, v in one.items() if k != "parents"} for one in before]
        lineage.write(
            folder,
            lineage.Lineage(
                **told,
                method=asked.pop("method"),
                peft=asked.pop("peft"),
                data_hash=asked.pop("data_hash"),
                seed=asked.pop("seed"),
                step=step,
                steps=steps,
                settings=asked,
                parents=tuple(parents),
            ),
        )
