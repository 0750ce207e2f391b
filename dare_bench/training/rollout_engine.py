"""The served engine that samples the completions of a training (``--rollout-engine``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.errors import UsageError
from dare_bench.loading import is_remote
from dare_bench.log import log
from dare_bench.model import Model
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.training.processes import first_process


def engine_class(name: str) -> Any:
    """The class of an engine that can sample completions; raises UsageError if it cannot take new weights, and
    UnknownNameError if there is none of this name."""
    is_remote(name)  # raises for an unknown name
    able = [entry.name for entry in registry().entries("engine") if entry.about.get("reads_weights")]
    if name not in able:
        raise UsageError(
            f"rollout_engine={name!r} cannot replace its weights, and a rollout needs those of the last update;"
            f" engines that can: {', '.join(able)}; without rollout_engine the model in training samples"
        )
    return registry().get("engine", name).load()


def check_rollout_engine(options: Any) -> str | None:
    """The name of the engine that a method's options name, if any; raises UsageError if they give it no address, or a
    tokenizer."""
    name: str | None = getattr(options, "rollout_engine", None)
    if name is None:
        return None
    if options.rollout_engine_url is None:
        raise UsageError(
            f"rollout_engine={name!r} needs the address of its server: --rollout-engine-url http://HOST:PORT"
        )
    if "tokenizer" in options.rollout_engine_args:
        raise UsageError("rollout_engine_args tokenizer: it is that of the model in training; leave it out")
    return name


def open_rollout_engine(options: Any, model: Model) -> LoadedModel | None:
    """The engine that a method's options name, with the tokenizer of the model in training; None: they name none.
    Raises UsageError: see :func:`check_rollout_engine`; or settings that the engine does not have; EngineError: its
    server cannot be reached."""
    name = check_rollout_engine(options)
    if name is None:
        return None
    url, settings = options.rollout_engine_url, options.rollout_engine_args
    tokenizer = None if model.loaded.tokenizer is None else model.path
    engine: LoadedModel = engine_class(name).open(None, url=url, settings=settings, tokenizer=tokenizer)
    if first_process():
        version = engine.spec.engine_version or "(version unknown)"
        log.info("completions are sampled by %s %s at %s; its exactness tier is unknown", name, version, url)
    return engine


def sampled_by(method: Any, counts: Mapping[str, Any]) -> dict[str, Any]:
    """What ``lineage.json`` says of the engine of this session: name, version, tier (None: unknown) and the decoding
    values of its completions, those that the server has fixed included. Without an engine: the ``counts`` of forwards
    and tokens, which are not known with one."""
    engine: LoadedModel | None = getattr(method, "engine", None)
    if engine is None:
        return dict(counts)
    decoding = engine.resolve(method.served_request(())).model_dump(mode="json", exclude_none=True)
    facts = {"name": engine.spec.engine, "version": engine.spec.engine_version, "tier": None, "decoding": decoding}
    return {"rollout_engine": facts}
