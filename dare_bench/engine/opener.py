"""Opens checkpoints for evaluations: only when needed, and once for several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.engine.soundness import refuse_unsound
from dare_bench.errors import UsageError
from dare_bench.loading import ENGINE, base_and_adapter, is_adapter, is_remote, load, locate, refuse_unknown_opening
from dare_bench.log import log
from dare_bench.model import Model
from dare_bench.protocols import LoadedModel
from dare_bench.reading import existing
from dare_bench.types import CheckpointSettings

_IN_MODEL = {"attention": "attention_backend", "compile": "compiled"}
"""Those that have another name in a ``ModelSpec``."""


def split_adapter(spec: RunSpec, given: Any = None) -> RunSpec:
    """The spec with base model and adapter in separate fields. The adapter may be given as ``adapter``, in
    ``model_args``, or as the model, in which case it names its base.

    Args:
        given: an open model, whose base and adapter take precedence.

    Raises:
        CheckpointError: an adapter or its base is missing. UsageError: two adapters.
    """
    arguments = dict(spec.model_args)
    names = [name for name in (spec.adapter, arguments.pop("adapter", None)) if name is not None]
    if given is not None:
        opened = getattr(given, "adapter", None)
        if names and names != [str(opened)]:
            raise UsageError(f"adapter={names[0]!r}, but the model is open already; load(base, adapter=...) opens both")
        settings = _opening_settings(spec, given) if isinstance(given, Model) else {}
        return spec.model_copy(update={"adapter": None if opened is None else str(opened), **settings})
    if not names and ((folder := existing(spec.model)) is None or not is_adapter(folder)):
        return spec
    if len(set(names)) > 1:
        raise UsageError(f"two adapters are given, {names[0]!r} and {names[1]!r} in model_args; give one")
    base, adapter = base_and_adapter(spec.model, names[0] if names else None)
    return spec.model_copy(update={"model": base, "adapter": adapter, "model_args": arguments})


def _opening_settings(spec: RunSpec, model: Model) -> dict[str, Any]:
    """The RunSpec fields with which a command would open the same model. Raises UsageError: the spec requests other
    settings."""
    names = [name for name in CheckpointSettings.model_fields if name != "adapter"]
    facts = {name: getattr(model.spec, _IN_MODEL.get(name, name), None) for name in names}
    if model.spec.captured:
        facts["compile"] = None
    if spec.engine not in ("native", model.spec.engine):
        raise UsageError(f"engine={spec.engine!r}, but the model is open already with {model.spec.engine!r}")
    named = {**{name: getattr(spec, name) for name in facts}, **spec.model_args}
    requested = {name: value for name, value in named.items() if value is not None and name != "adapter"}
    for name, value in requested.items():
        current = model.load_settings.get(name, facts.get(name))
        if value not in (current, facts.get(name)):
            raise UsageError(f"{name}={value!r}, but the model is open already ({name}={current!r}); give it to load")
    settings = {**model.load_settings, **requested}
    engine = {name: settings.pop(name) for name in ENGINE if name in settings}
    return {**{name: settings.pop(name, None) for name in facts}, **engine, "model_args": settings}


class Opener:
    """One model for one run or many. ``model``: an open model (a ``Model`` or ``LoadedModel``); None opens the
    checkpoint of a spec, again only for another checkpoint or other opening settings."""

    def __init__(self, model: Any = None) -> None:
        self._given = model
        self._opened: tuple[str, Any] | None = None
        self._content: dict[str, str] = {}

    def content(self, spec: RunSpec) -> str:
        """The content hash of the model, without opening it."""
        if self._given is not None:
            return ident.model_content(self._given, _loaded(self._given))
        if is_remote(spec.engine):
            return ident.model_content(self.model(spec), self.loaded(spec))
        if spec.model not in self._content:
            folder = locate(spec.model)
            if is_adapter(folder):
                raise UsageError(f"{spec.model} is an adapter; give its base as the model, and it as the adapter")
            self._content[spec.model] = fingerprint.content_hash(folder)
        return self._content[spec.model]

    def path(self, spec: RunSpec) -> Path | None:
        """The folder that the open model was read from, if any."""
        return getattr(self.model(spec), "path", None)

    def loaded(self, spec: RunSpec) -> LoadedModel:
        """The open model. Raises CheckpointError, UsageError: as ``load``; an unknown opening setting; a mask id or
        tokenizer that fails ``dare-bench validate``."""
        if self._given is None and self._opened is None:
            log.info("opening %s", spec.model)  # before torch is imported, which takes seconds
        return _loaded(self.model(spec))

    def model(self, spec: RunSpec) -> Any:
        """The open model as it was given, else a :class:`Model`; raises as :meth:`loaded`."""
        if self._given is not None:
            return self._given
        served = spec.engine != "native" or spec.engine_url or spec.engine_args
        names = (*CheckpointSettings.model_fields, *(ENGINE if served else ()))
        arguments = {**{name: getattr(spec, name) for name in names}, **spec.model_args}
        key = json.dumps([spec.model, arguments], sort_keys=True, default=str)
        if self._opened is None or self._opened[0] != key:
            self._opened = None  # frees the memory of the previous model first
            model = open_checkpoint(spec.model, {name: value for name, value in arguments.items() if value is not None})
            refuse_unsound(model, spec.model)
            self._opened = (key, model)
        return self._opened[1]


def open_checkpoint(checkpoint: str, arguments: dict[str, Any]) -> Any:
    """``load`` with arguments of the command line; also raises UsageError for an unknown argument."""
    refuse_unknown_opening(arguments)
    return load(checkpoint, **arguments)


def _loaded(model: Any) -> LoadedModel:
    return getattr(model, "loaded", model)
