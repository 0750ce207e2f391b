"""``dare_bench.load``: a bundled name, a folder, or a hub id in the published layout -> a model that answers."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import ValidationError

from dare_bench import hub
from dare_bench.checkpoint_files import (
    ADAPTER,
    FAMILY,
    diffusion_sign,
    read_config,
    refuse_gguf,
    unknown_to_transformers,
)
from dare_bench.config import one_line
from dare_bench.errors import (
    CheckpointError,
    UnknownCheckpointError,
    UsageError,
    brief,
    first_line,
    suggestion,
    unknown,
    unknown_device,
)
from dare_bench.keywords import OpeningKeywords
from dare_bench.log import log
from dare_bench.reading import existing, read_json
from dare_bench.registry import Registration, registry
from dare_bench.runs import lineage
from dare_bench.types import CheckpointSettings, OpeningSettings

if TYPE_CHECKING:
    from dare_bench.model import Model

FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
"""Files fetched from a hub: weights, configuration, tokenizer; never Python code or pickles."""
UNWEIGHTED = [pattern for pattern in FILES if "safetensors" not in pattern]
"""Those without the weights."""
SMALL = ["config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
"""Files that name the family of a checkpoint."""
COPIES = ["consolidated*", "original/*", "onnx/*"]
"""The same weights in other formats, which some repositories (of Llama and Mistral) have beside them."""
ENGINE = ("engine", "engine_url", "engine_args")
"""The arguments of :func:`load` that are not in :class:`OpeningSettings`."""
_LM_EVAL = ("hf", "hf-auto", "huggingface", "vllm", "sglang")
"""Values of lm-eval's ``--model``."""


def locate(checkpoint: str | Path) -> Path:
    """The folder of a checkpoint: a bundled name, a folder, or a hub id (downloaded or from the hub's cache).

    Raises:
        CheckpointError: there is none.
    """
    name = str(checkpoint)
    if name in registry().names("checkpoint"):
        return Path(registry().get("checkpoint", name).target)
    if (path := existing(name)) is not None:
        refuse_gguf(path)
        if not path.is_dir():
            raise UnknownCheckpointError(
                f"{path} is a file, and a checkpoint is a folder; give one, a hub id or a bundled name (dare-bench ls "
                "models)"
            )
        if not any((path / name).exists() for name in ("config.json", ADAPTER, lineage.FILE)):
            raise UnknownCheckpointError(
                f"{path}: no config.json in it; a checkpoint is a folder in the published layout, which has one"
            )
        return path
    if is_hub_id(name):
        return _from_hub(name)
    if name in _LM_EVAL:
        raise UnknownCheckpointError(
            f"no checkpoint {name!r}: model is the checkpoint itself, a folder, hub id or bundled name; instead of"
            f" lm-eval's --model {name} --model-args pretrained=X, use --model X"
        )
    near = suggestion(name, registry().names("checkpoint"))
    raise UnknownCheckpointError(
        f"no checkpoint {name!r}: no such folder or bundled name{near}; not searched on the hub, whose"
        " ids are owner/name; dare-bench ls models lists the bundled names"
    )


def locate_config(checkpoint: str, files: Sequence[str] = SMALL) -> Path:
    """As :func:`locate`, but from the hub only ``files`` are fetched."""
    return here(checkpoint) or _from_hub(checkpoint, files)


def is_hub_id(name: str) -> bool:
    """Is it written as ``owner/name``?"""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def here(checkpoint: str) -> Path | None:
    """The folder of a checkpoint on this machine; None for a hub id, which is not fetched.

    Raises:
        CheckpointError: it is neither.
    """
    bundled = checkpoint in registry().names("checkpoint")
    return None if is_hub_id(checkpoint) and not bundled and existing(checkpoint) is None else locate(checkpoint)


def is_adapter(path: Path) -> bool:
    """Does a folder contain a peft adapter and no checkpoint?"""
    return (path / ADAPTER).is_file() and not (path / "config.json").exists()


def base_and_adapter(checkpoint: str | Path, adapter: str | Path | None = None) -> tuple[str, str | None]:
    """The names of base model and adapter. If ``checkpoint`` is an adapter, its configuration names the base.

    Raises:
        CheckpointError: one of them is missing, or an adapter names no base.
        UsageError: both are adapters.
    """
    path = locate(checkpoint)
    if adapter is None:
        return (_base_of(path), str(checkpoint)) if is_adapter(path) else (str(checkpoint), None)
    folder = locate(adapter)
    if not (folder / ADAPTER).is_file():
        raise CheckpointError(f"{adapter}: no {ADAPTER} in it; give an adapter folder in peft's format")
    if is_adapter(path):
        raise UsageError(
            f"{checkpoint} is itself an adapter, of {_base_of(path)!r}; give the base model and one adapter"
        )
    return str(checkpoint), str(adapter)


def _base_of(path: Path) -> str:
    """The base model that an adapter folder names; raises CheckpointError if it names none or it is missing."""
    file = path / ADAPTER
    name = read_json(file, CheckpointError).get("base_model_name_or_path")
    if not isinstance(name, str):
        raise CheckpointError(
            f"{file}: names no base model (base_model_name_or_path={name!r}); give model=BASE and adapter={path}"
        )
    try:
        base = locate(name)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path}: its base model {name!r} was not found; give model=BASE and adapter={path}"
        ) from error
    if is_adapter(base):
        raise CheckpointError(f"{path}: its base model {name!r} is itself an adapter; merge that adapter first")
    return str(name)


def _other_base(base: str, adapter: Path) -> str:
    """A sentence for the case that an adapter names a base of another name than this one; else empty."""
    named = read_json(adapter / ADAPTER, CheckpointError).get("base_model_name_or_path")
    if not isinstance(named, str) or Path(named).name in ("", Path(base).absolute().name):
        return ""
    return (
        f"the adapter was trained on {brief(named)}, and the base here is {brief(base)}; its folder alone, as the "
        "model, opens it with its own base"
    )


def lasting_name(checkpoint: str | Path) -> str:
    """A checkpoint's name for files that may be moved: a bundled name, a hub id, or an absolute path."""
    name, path = str(checkpoint), existing(checkpoint)
    return str(path.resolve()) if path is not None and name not in registry().names("checkpoint") else name


def _from_hub(name: str, files: Sequence[str] = FILES) -> Path:
    from huggingface_hub import snapshot_download

    try:
        with hub.asked_once():
            return Path(snapshot_download(name, allow_patterns=list(files), ignore_patterns=COPIES))
    except Exception as error:
        if (reason := hub.why_offline(error)) is not None:
            problem = f"{reason}, and it is neither a folder nor in the cache (HF_HOME); give a checkpoint's folder"
        else:
            problem = f"there is no such folder, and it cannot be downloaded from the hub ({first_line(error)})"
        raise CheckpointError(f"no checkpoint {name!r}: {problem}") from error


def is_remote(engine: str) -> bool:
    """Is the model of this engine on a server? Raises UnknownNameError for an unknown engine."""
    names = registry().names("engine")
    if engine not in ("native", *names):
        raise unknown("engine", engine, ["native", *names])
    return engine != "native" and bool(registry().get("engine", engine).about.get("remote"))


def _check_engine(engine: str, url: str | None, args: Mapping[str, Any] | None, settings: OpeningSettings) -> None:
    """Raise UsageError for opening settings that do not fit the engine."""
    given = settings.given()
    if is_remote(engine):
        if url is None:
            raise UsageError(f"--engine {engine} needs the address of its server: --engine-url http://HOST:PORT")
        if given:
            name, value = next(iter(given.items()))
            raise UsageError(f"{name}={value!r}: a server of --engine {engine} is started with its own")
        return
    if url is not None:
        raise UsageError(
            f"--engine-url {url}: engine {engine} runs here; leave it out, or give --engine sglang or openai"
        )
    if engine == "native" and args:
        raise UsageError(
            f"--engine-args {', '.join(args)}: engine native takes none; give --engine too, or --model-args"
        )
    reasons = {
        "adapter": "takes a complete checkpoint; merge it into a checkpoint first",
        "device": "runs on the GPU that PyTorch finds; leave device out",
        "attention": "has its own attention; leave it out",
        "compile": "runs its own network; leave it out",
    }
    for name, value in given.items():
        if engine != "native" and name not in ("dtype", "mask_id", "eos_id", "eot_id"):
            reason = reasons.get(name, "takes a complete checkpoint; leave it out")
            raise UsageError(f"{name}={value!r}: engine {engine} {reason}")


def _on_server(name: str, engine: str, url: str, args: Mapping[str, Any]) -> Model:
    """The model that a server holds under this name. ``tokenizer`` in ``args`` is a folder, bundled name or hub id."""
    from dare_bench.model import Model

    tokenizer = args.get("tokenizer")
    folder = None
    if tokenizer is not None:
        folder = here(str(tokenizer)) or _from_hub(str(tokenizer), UNWEIGHTED)
    loaded = registry().get("engine", engine).load().open(name, url=url, settings=args, tokenizer=folder)
    settings = {"engine": engine, "engine_url": url, "engine_args": dict(args)}
    return Model(loaded, name=name, path=None, checkpoint=name, load_settings=settings, files=[])


def family_of(path: Path, family: str | None = None) -> Registration:
    """The family's registry entry (see :func:`family_and_reason`)."""
    return family_and_reason(path, family)[0]


def family_and_reason(path: Path, family: str | None = None) -> tuple[Registration, str]:
    """The family's registry entry, and what tells it: ``family``, what the checkpoint was trained or saved as, that of
    config.json's (model_type, architectures[0]), or else of the end of the architecture's name.

    Raises:
        CheckpointError: no config, an unknown family, or a known one that does not open, an autoregressive name with
            signs of a diffusion model, or a configuration of several families where the checkpoint's name does not say
            which.
    """
    if family is not None:
        return registry().get("family", family), "as given"
    config = read_config(path)
    seen = (config.get("model_type"), (config.get("architectures") or [None])[0])
    entries = registry().entries("family")
    trained_as = ((lineage.read(path) or {}).get("settings") or {}).get("family")
    if (recorded := trained_as or config.get(FAMILY)) is not None:
        file = lineage.FILE if trained_as else f"{FAMILY} in config.json"
        return registry().get("family", str(recorded)), f"as it was trained or saved ({file})"
    pair = f"model_type={seen[0]!r}, architecture={seen[1]!r}"
    for entry in entries:
        if seen in map(tuple, entry.about.get("matches", [])):
            return entry, f"by config.json ({pair})"
    model = f"{path}: {pair}"
    if sharing := [entry for entry in entries if list(seen) in entry.about.get("shares", [])]:
        return _named(path, model, sharing), f"by the name of the checkpoint, as several families have its {pair}"
    _refuse_known(model, {*map(str, seen), *_own_classes(config)}, entries)
    return _autoregressive(path, model, config, seen, entries), f"a class of transformers ({pair}), and no mask token"


def _autoregressive(
    path: Path, model: str, config: dict[str, Any], seen: tuple[Any, Any], entries: Sequence[Registration]
) -> Registration:
    """The family of transformers' own classes; raises CheckpointError for a class that it does not have, and for what
    may be a diffusion model, with the families to choose from."""
    others = [entry for entry in entries if "endings" not in entry.about]
    own = next((entry for entry in entries if str(seen[1]).endswith(tuple(entry.about.get("endings", ())))), None)
    lacks = unknown_to_transformers(config)
    sign = None if own is None or lacks else diffusion_sign(path, config)
    if own is not None and not lacks and sign is None:
        return own
    able = [entry for entry in others if _shares(entry, seen)]
    able = able or [entry for entry in others if seen[1] in entry.about.get("reads", ())]
    names = ", ".join(entry.name for entry in able or others) + (" (which have its network)" if able else "")
    asked = f"give --family NAME, in Python family=, one of {names}"
    if own is None or lacks:
        raise CheckpointError(f"{model} is of an unknown family{f' ({lacks})' if lacks else ''}; {asked}")
    raise CheckpointError(
        f"{model}, but {sign}, so it seems to be a diffusion model of an unknown family; {asked}, or {own.name} if it "
        "is autoregressive all the same"
    )


def _shares(entry: Registration, seen: tuple[Any, Any]) -> bool:
    """Is this model_type or this class one that the family shares with others?"""
    return any(seen[0] == kind or seen[1] == name for kind, name in entry.about.get("shares", ()))


def _own_classes(config: Mapping[str, Any]) -> list[str]:
    """The classes of a checkpoint's own code that its config.json names."""
    own = config.get("auto_map")
    return [str(name).rpartition(".")[2] for name in own.values()] if isinstance(own, dict) else []


def _refuse_known(model: str, names: Container[str], entries: Iterable[Registration]) -> None:
    """Raise CheckpointError for a model with one of these names that is known, but does not open."""
    for entry in entries:
        for name, reason in entry.about.get("declines", {}).items():
            if name in names:
                raise CheckpointError(
                    f"{model} is {reason}; use its authors' code, or add the family by a plugin (docs/plugins.md)"
                )


def _named(path: Path, model: str, entries: Sequence[Registration]) -> Registration:
    """The family, of those with one configuration, whose word is in the checkpoint's published name; raises
    CheckpointError if none or several are."""
    folder = path.absolute()
    name = folder.parent.parent.name if folder.parent.name == "snapshots" else folder.name
    words = re.split(r"[^a-z0-9]+", name.lower())
    fits = [entry for entry in entries if entry.about["named"] in words]
    if len(fits) == 1:
        return fits[0]
    both = " or ".join(f"--family {entry.name}" for entry in entries)
    texts = " or ".join(repr(entry.about["named"]) for entry in entries)
    raise CheckpointError(
        f"{model} is the configuration of several samplers, and the name {name!r} does not say {texts}: give {both}, "
        "in Python family="
    )


def refuse_untrainable(checkpoint: Path, family: str | None) -> Registration:
    """The family of a checkpoint; raises UsageError for one that no method trains."""
    entry = family_of(checkpoint, family)
    if not entry.about.get("trains", True):
        raise UsageError(
            f"{checkpoint} is of the family {entry.name!r}, which no method trains: all methods here train masked "
            "diffusion models; give a checkpoint of such a family (dare-bench ls models), or make one of a Qwen2, "
            "Qwen3 or Llama (dare-bench convert)"
        )
    return entry


def refuse_unknown_opening(given: Mapping[str, Any]) -> None:
    """Refuse an argument that ``load`` does not have, and a text that is none of its values, without torch.

    Raises:
        UsageError: with the allowed names or values.
    """
    known = (*OpeningSettings.model_fields, *ENGINE)
    if "pretrained" in given:
        model = given["pretrained"]
        raise UsageError(f"--model-args: pretrained={model} is how lm-eval names a checkpoint; write --model {model}")
    for name in given:
        if name not in known:
            raise UsageError(f"--model-args: {name!r} is not an argument of load{suggestion(name, known)}")
    texts = {name: v for name, v in given.items() if isinstance(v, str) and name in CheckpointSettings.model_fields}
    try:
        CheckpointSettings.model_validate(texts)
    except ValidationError as error:
        raise UsageError(one_line(error, "--model-args")) from error
    refuse_unknown_device(texts.get("device"))
    if "family" in texts:
        registry().get("family", texts["family"])


def refuse_unknown_device(device: Any) -> None:
    """Refuse a name that is not a device, without torch, which knows more."""
    if isinstance(device, str) and not re.fullmatch(r"auto|(cpu|cuda)(:\d+)?", device):
        raise unknown_device(device)


def load(
    checkpoint: str | Path,
    *,
    engine: str = "native",
    engine_url: str | None = None,
    engine_args: Mapping[str, Any] | None = None,
    **settings: Unpack[OpeningKeywords],
) -> Model:
    """Open a checkpoint in its published layout, without remote code.

    Args:
        checkpoint: a bundled name (``dare-bench ls models``), a Hugging Face folder, or a hub id. The folder of a LoRA
            adapter opens with the base model that it names.
        engine: ``native``, ``lmdeploy``, ``sglang`` or ``openai`` (docs/engines.md).
        engine_url: the address of the server of ``sglang`` or ``openai``, whose model ``checkpoint`` names.
        engine_args: settings of the engine: ``timeout``, ``retries``, ``tokenizer``; ``tp`` and others of lmdeploy.
        settings: fields of :class:`~dare_bench.types.OpeningSettings`, where each is described (docs/python.md).

    Returns:
        A :class:`dare_bench.Model`. A folder without a tokenizer opens and takes token ids.

    Raises:
        CheckpointError: missing, incomplete, of an unknown family, wrong vocabulary; an adapter of another base.
        UsageError: unknown device, dtype, attention, family or engine, or a setting that the engine does not have.
        EngineError: a server that cannot be reached, or that serves something else.
    """
    for name in settings:
        if name not in OpeningSettings.model_fields:
            raise TypeError(f"load() got an unexpected keyword argument {name!r}")
    opening = OpeningSettings.model_construct(**settings)
    refuse_unknown_device(opening.device)
    _check_engine(engine, engine_url, engine_args, opening)
    if is_remote(engine):
        return _on_server(str(checkpoint), engine, str(engine_url), engine_args or {})
    return _in_this_process(checkpoint, opening, engine, engine_args or {})


def _in_this_process(
    checkpoint: str | Path, settings: OpeningSettings, engine: str, engine_args: Mapping[str, Any]
) -> Model:
    """The model of a checkpoint, with a network of ours or an engine that is a library."""
    from dare_bench.fingerprint import file_states
    from dare_bench.model import Model

    for name in ("adapter", "family"):
        value = getattr(settings, name)
        if value is not None and not isinstance(value, str | Path):
            raise UsageError(f"{name}={value!r}: expected a name")
    base, adapter_name = base_and_adapter(checkpoint, settings.adapter)
    path, folder = locate(base), None if adapter_name is None else locate(adapter_name)
    other = "" if folder is None else _other_base(base, folder)
    files = file_states(path, folder)
    recorded = {name: value for name, value in settings.given().items() if name != "adapter"}
    if settings.dtype is not None:
        recorded["dtype"] = str(settings.dtype).removeprefix("torch.")
    if engine == "native":
        try:
            loaded = family_of(path, settings.family).load().open(path, settings.model_copy(update={"adapter": folder}))
        except CheckpointError as error:
            if not (other and str(error).startswith(str(folder))):
                raise
            raise CheckpointError(f"{error}; {other}") from error
        if other:
            log.warning("%s: %s", folder, other)
    else:
        recorded |= {"engine": engine, "engine_args": dict(engine_args)}
        loaded = registry().get("engine", engine).load().open(path, settings, engine_args)
    if loaded.network is not None:
        loaded.network.name_or_path = lasting_name(base)  # a saved adapter names it as its base
    return Model(
        loaded,
        name=base if adapter_name is None else f"{base}+{adapter_name}",
        path=path,
        adapter=folder,
        checkpoint=lasting_name(base),
        load_settings=recorded,
        files=files,
    )
