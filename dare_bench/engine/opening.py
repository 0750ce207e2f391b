"""Opens checkpoints for evaluations: late (a finished run needs none) and once (many runs may share one)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.errors import UsageError
from dare_bench.protocols import LoadedModel


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
            from dare_bench.loading import locate

            self._content[spec.model] = fingerprint.content_hash(locate(spec.model))
        return self._content[spec.model]

    def path(self, spec: RunSpec) -> Path | None:
        """Where the open model was read from; None if it never was."""
        return getattr(self._given if self._given is not None else self._model(spec)[0], "path", None)

    def loaded(self, spec: RunSpec) -> LoadedModel:
        """The open model.

        Raises:
            CheckpointError, UsageError: what ``load`` raises; an opening setting that it does not take.
        """
        return _loaded(self._given) if self._given is not None else self._model(spec)[1]

    def _model(self, spec: RunSpec) -> tuple[Any, LoadedModel]:
        arguments = {"device": spec.device, "dtype": spec.dtype, "family": spec.family, **spec.model_args}
        mark = json.dumps([spec.model, arguments], sort_keys=True, default=str)
        if self._open is None or self._open[0] != mark:
            self._open = None  # the one before may be as big as the memory
            model = _load(spec.model, {name: value for name, value in arguments.items() if value is not None})
            self._open = (mark, model, model.loaded)
        return self._open[1:]


def _load(checkpoint: str, arguments: dict[str, Any]) -> Any:
    from dare_bench.loading import load

    try:
        return load(checkpoint, **arguments)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        name = str(error).split("argument")[-1].strip()
        raise UsageError(f"--model-args: {name} is nothing that load takes") from error


def _loaded(model: Any) -> LoadedModel:
    return getattr(model, "loaded", model)
