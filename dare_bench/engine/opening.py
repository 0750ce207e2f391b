"""Opens checkpoints for evaluations: late (a finished run needs none) and once (many runs may share one)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.engine.soundness import refuse_unsound
from dare_bench.errors import UsageError
from dare_bench.loading import base_and_adapter, is_adapter, load, locate
from dare_bench.model import Model
from dare_bench.protocols import LoadedModel
from dare_bench.reading import existing


def split_adapter(spec: RunSpec, given: Any = None) -> RunSpec:
    """The spec with base model and adapter as separate fields, however the model is named: by its base and ``adapter``,
    by ``adapter`` among the ``model_args``, or by the adapter's folder, which names its base.

    Args:
        given: a model that is open already; what it was opened from holds.

    Raises:
        CheckpointError: an adapter or its base is not there. UsageError: two adapters.
    """
    arguments = dict(spec.model_args)
    named = [name for name in (spec.adapter, arguments.pop("adapter", None)) if name is not None]
    if given is not None:
        theirs = getattr(given, "adapter", None)
        if named and named != [str(theirs)]:
            raise UsageError(f"adapter={named[0]!r}, but the model is open already; load(base, adapter=...) opens both")
        held = _as_opened(spec, given) if isinstance(given, Model) else {}
        return spec.model_copy(update={"adapter": None if theirs is None else str(theirs), **held})
    if not named and ((folder := existing(spec.model)) is None or not is_adapter(folder)):
        return spec
    if len(set(named)) > 1:
        raise UsageError(f"two adapters are named, {named[0]!r} and {named[1]!r} in model_args; give one")
    base, adapter = base_and_adapter(spec.model, named[0] if named else None)
    return spec.model_copy(update={"model": base, "adapter": adapter, "model_args": arguments})


def _as_opened(spec: RunSpec, model: Model) -> dict[str, Any]:
    """The opening settings of an open model, as a command that opens it alike would give them.

    Raises:
        UsageError: the spec asks for others.
    """
    facts = {"family": model.spec.family, "device": model.spec.device, "dtype": model.spec.dtype}
    named = {**{name: getattr(spec, name) for name in facts}, **spec.model_args}
    asked = {name: value for name, value in named.items() if value is not None and name != "adapter"}
    for name, value in asked.items():
        held = model.asked.get(name, facts.get(name))
        if value not in (held, facts.get(name)):
            raise UsageError(f"{name}={value!r}, but the model is open already ({name}={held!r}); give it to load")
    whole = {**model.asked, **asked}
    return {**{name: whole.pop(name, None) for name in facts}, "model_args": whole}


class Opener:
    """One model for one run or many.

    Args:
        model: a model that is open already (the public one, or what the engine sees of it); None opens what a spec
            names, again only when a spec names another checkpoint or other settings for opening it.
    """

    def __init__(self, model: Any = None) -> None:
        self._given = model
        self._open: tuple[str, Any, LoadedModel] | None = None
        self._content: dict[str, str] = {}

    def content(self, spec: RunSpec) -> str:
        """The content hash of the model, without opening it."""
        if self._given is not None:
            return ident.model_content(self._given, _loaded(self._given))
        if spec.model not in self._content:
            folder = locate(spec.model)
            if is_adapter(folder):
                raise UsageError(f"{spec.model} is an adapter; give its base model, and it as the adapter")
            self._content[spec.model] = fingerprint.content_hash(folder)
        return self._content[spec.model]

    def path(self, spec: RunSpec) -> Path | None:
        """Where the open model was read from; None if it never was."""
        return getattr(self._given if self._given is not None else self._model(spec)[0], "path", None)

    def loaded(self, spec: RunSpec) -> LoadedModel:
        """The open model.

        Raises:
            CheckpointError, UsageError: what ``load`` raises; an opening setting that it does not take; a mask id or
                tokenizer that ``dare-bench validate`` fails.
        """
        return _loaded(self._given) if self._given is not None else self._model(spec)[1]

    def _model(self, spec: RunSpec) -> tuple[Any, LoadedModel]:
        named = {"adapter": spec.adapter, "device": spec.device, "dtype": spec.dtype, "family": spec.family}
        arguments = {**named, **spec.model_args}
        mark = json.dumps([spec.model, arguments], sort_keys=True, default=str)
        if self._open is None or self._open[0] != mark:
            self._open = None  # the one before may be as big as the memory
            model = open_checkpoint(spec.model, {name: value for name, value in arguments.items() if value is not None})
            refuse_unsound(model, spec.model)
            self._open = (mark, model, model.loaded)
        return self._open[1:]


def open_checkpoint(checkpoint: str, arguments: dict[str, Any]) -> Any:
    """``load`` with arguments that people wrote; raises UsageError, too, for one that it does not have."""
    try:
        return load(checkpoint, **arguments)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        name = str(error).split("argument")[-1].strip()
        raise UsageError(f"--model-args: {name} is nothing that load takes") from error


def _loaded(model: Any) -> LoadedModel:
    return getattr(model, "loaded", model)
