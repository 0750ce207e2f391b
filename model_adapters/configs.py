"""Read published configurations; values of a wrong type, and features that the network lacks, are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from transformers import PreTrainedConfig

from dare_bench.errors import CheckpointError, brief
from dare_bench.model_adapters.backbone import Arch, MoE, WeightNames

Count = Annotated[int, Field(ge=1, le=2**40, description="a whole number of at least 1")]
Layers = Annotated[int, Field(ge=1, le=10_000, description="a whole number of 1 to 10,000")]
Experts = Annotated[int, Field(ge=0, le=100_000, description="a whole number of 0 to 100,000")]
Natural = Annotated[int, Field(ge=0, le=2**40, description="a whole number of at least 0")]
Positive = Annotated[float, Field(gt=0, description="a finite number above 0")]
Share = Annotated[float, Field(gt=0, le=1, description="a number above 0, at most 1")]
"""Types of fields; a configuration class is the schema of its family's config.json."""
_SUPPORTED: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu",), "rope_scaling": (None,)}
"""The only values that any :class:`StandardConfig` may have."""
_UNKNOWN_THETA = 10000.0
"""What transformers 5.0 writes for the theta of a class that it does not know."""
_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}


class Rope(BaseModel):
    """Rotary positions without scaling: ``rope_parameters`` of transformers 5, or ``rope_scaling`` of 4."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    rope_theta: Positive | None = None
    partial_rotary_factor: Share | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: Annotated[float, Field(ge=1, le=1)] = 1

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: v for name, v in given.items() if v is not None} if isinstance(given, dict) else given


class PublishedConfig(PreTrainedConfig):
    """A configuration whose file may be written by transformers 4 or 5. It has, and saves, the fields that both read:
    ``rope_theta`` and ``partial_rotary_factor`` are not in ``rope_parameters``."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        return super().from_dict(_without_ropes(config_dict, cls.__name__.removesuffix("Config")), **kwargs)


def _without_ropes(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A config.json with its theta and rotated share at the top level, as transformers 4 writes them.

    Of a file by transformers 5, a theta of :data:`_UNKNOWN_THETA` in ``rope_parameters`` gives way to the one at the
    top level, which the published networks read.

    Raises:
        CheckpointError: scaled positions, no theta, or two values of one of them.
    """
    fields = ("rope_parameters", "rope_scaling")
    flat = {field: value for field, value in raw.items() if field not in fields}
    for field in (field for field in fields if raw.get(field) is not None):
        rope = _rope(raw[field], f"{name} config has {field}={brief(raw[field])}")
        by_5 = field == "rope_parameters" and str(raw.get("transformers_version")).startswith("5.")
        if by_5 and rope.get("rope_theta") == _UNKNOWN_THETA and flat.get("rope_theta") is not None:
            del rope["rope_theta"]
        for key, value in rope.items():
            if flat.get(key) not in (None, value):
                raise CheckpointError(
                    f"{name} config has {key}={brief(flat[key])}, and {key}={value} in {field}; keep the one that the "
                    "weights were trained with"
                )
        flat |= rope
        if flat.get("rope_theta") is None:
            raise CheckpointError(f"{name} config has {field}={brief(raw[field])} without rope_theta; add it")
    return flat


def _rope(given: Any, seen: str) -> dict[str, float]:
    """Theta and share, where rotary positions name them; raises CheckpointError with what was ``seen``. They may be
    given for each kind of layer, and are then equal, as the network has one kind."""
    by_kind = isinstance(given, dict) and given and all(isinstance(entry, dict) for entry in given.values())
    ropes = [_entry(entry, seen) for entry in (given.values() if by_kind else [given])]
    if any(rope != ropes[0] for rope in ropes):
        raise CheckpointError(f"{seen}; supported are rotary positions that are equal for all kinds of layers")
    return ropes[0]


def _entry(entry: Any, seen: str) -> dict[str, float]:
    kind = (entry.get("rope_type") or entry.get("type")) if isinstance(entry, dict) else None
    try:
        if kind in (None, "default"):
            return Rope.model_validate(entry).model_dump(
                include={"rope_theta", "partial_rotary_factor"}, exclude_none=True
            )
    except ValidationError:
        pass
    raise CheckpointError(
        f"{seen} (rope_type={brief(kind)}); supported: null, or the rope_type 'default' with a rope_theta above 0 and "
        "a partial_rotary_factor of at most 1"
    )


class StandardConfig(PublishedConfig):
    """The fields that the configurations of Dream, SDAR, LLaDA2 and LLaDA-MoE have in common. Fields that a class does
    not declare are kept and saved unchanged."""

    hidden_act: str = "silu"
    initializer_range: float = 0.02
    rms_norm_eps: Share = 1e-6
    mask_token_id: Any = None  # checked with the other special ids, which may be given when a checkpoint is opened
    tie_word_embeddings: bool = False
    use_cache: bool = False


class LlamaConfig(StandardConfig):
    """Llama's fields, with the sizes of iLLaDA-8B and Stable-DiffCoder-8B, which differ in few of them."""

    vocab_size: Count = 155136
    hidden_size: Count = 4096
    intermediate_size: Count = 14336
    num_hidden_layers: Layers = 32
    num_attention_heads: Count = 32
    num_key_value_heads: Count = 8
    max_position_embeddings: Count = 8192
    rope_theta: Positive = 10000.0
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> dict[str, bool]:
        """By the names of :class:`Arch`."""
        return {"qkv_bias": self.attention_bias, "o_bias": self.attention_bias, "ff_bias": self.mlp_bias}


@contextmanager
def describing() -> Iterator[None]:
    """Inside, what a configuration and its network raise becomes a CheckpointError."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RuntimeError) as error:
        raise CheckpointError(f"config.json does not describe a network ({' '.join(str(error).split())})") from error


def check_types(config_class: type[PreTrainedConfig], raw: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless each field of a config.json has a value of the type that its class gives it."""
    alias: dict[str, str] = getattr(config_class, "attribute_map", {})
    hints, schema = _schema(config_class)  # type: ignore[arg-type]
    try:
        schema.model_validate({alias.get(name, name): value for name, value in raw.items()})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        seen = next(name for name in raw if alias.get(name, name) == field)
        title = config_class.__name__.removesuffix("Config")
        raise CheckpointError(
            f"{title} config has {seen}={brief(raw[seen])}; it must be {_expected(hints[field])}"
        ) from error


@cache
def _schema(config_class: Any) -> tuple[dict[str, Any], type[BaseModel]]:
    """The types of the fields that the class and our base classes declare, and a schema of them."""
    ours = config_class.__mro__[: config_class.__mro__.index(PreTrainedConfig)]
    hints = {name: hint for base in ours[::-1] for name, hint in get_annotations(base, eval_str=True).items()}
    known = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    known |= {"dtype": str | None, "torch_dtype": str | None, "quantization_config": None}
    strict = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())
    fields: dict[str, Any] = {name: (hint, None) for name, hint in known.items()}
    return known, create_model(config_class.__name__, __config__=strict, **fields)


def _expected(hint: Any) -> str:
    """The allowed values of a type in words."""
    if get_origin(hint) is Annotated:
        return str(get_args(hint)[1].description)
    if get_origin(hint) is list:
        return f"a list, each entry {_expected(get_args(hint)[0])}"
    if parts := get_args(hint):
        return " or ".join(_expected(part) for part in parts)
    return "null" if hint in (None, type(None)) else _WORDS[hint]


def refuse(config: Any, name: str, supported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointError for a field with a value outside ``supported`` (a missing field is the first value)."""
    for field, allowed in supported.items():
        value = getattr(config, field, allowed[0])
        if value not in allowed:
            raise CheckpointError(
                f"{name} config has {field}={brief(value)}; supported: {', '.join(map(repr, allowed))}"
            )


def check_moe(name: str, moe: MoE, top_k: str = "num_experts_per_tok") -> None:
    """Raise CheckpointError where a router cannot choose as many experts as the field ``top_k`` says of ``num_experts``
    experts, of which only those in the best ``topk_group`` of ``n_group`` groups may be chosen."""
    if moe.experts % moe.groups:
        raise CheckpointError(f"{name} config has n_group={moe.groups}; it must divide num_experts={moe.experts}")
    if moe.top_groups > moe.groups:
        raise CheckpointError(f"{name} config has topk_group={moe.top_groups}; it must be at most n_group={moe.groups}")
    if moe.top_k > moe.experts:
        raise CheckpointError(f"{name} config has {top_k}={moe.top_k}; it must be at most num_experts={moe.experts}")
    if moe.pool and not moe.top_k <= moe.pool <= moe.experts:
        raise CheckpointError(
            f"{name} config has expert_capacity={moe.pool}; it must be at least num_experts_per_tok={moe.top_k} and "
            f"at most num_experts={moe.experts}"
        )
    eligible = moe.experts // moe.groups * moe.top_groups
    if moe.top_k > eligible:
        raise CheckpointError(
            f"{name} config has num_experts_per_tok={moe.top_k}; it must be at most {eligible}, the experts in "
            f"topk_group={moe.top_groups} of n_group={moe.groups} groups"
        )


def head_dim(config: Any, name: str) -> int:
    """The config's ``head_dim``, else width / heads; raises CheckpointError if the width is not divisible."""
    given = getattr(config, "head_dim", None)
    if given:
        return int(given)
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        raise CheckpointError(f"{name} config has hidden_size={width}, not divisible by num_attention_heads={heads}")
    return int(width // heads)


def arch_from(
    config: Any,
    name: str,
    names: WeightNames,
    supported: Mapping[str, tuple[Any, ...]],
    moe: MoE | None = None,
    **switches: Any,
) -> Arch:
    """The architecture of a config that uses transformers' usual field names; ``switches`` are further fields. A
    ``partial_rotary_factor`` is the share of a head's channels that is rotated.

    Raises:
        CheckpointError: a value outside ``supported`` (see :func:`refuse`), another activation than SiLU, scaled rotary
            positions, or sizes that contradict each other.
    """
    refuse(config, name, {**_SUPPORTED, **supported})
    if moe is not None and any(moe.layers):
        check_moe(name, moe)
    channels, share = head_dim(config, name), getattr(config, "partial_rotary_factor", None)
    rotated = channels if share is None else int(channels * share)
    if rotated % 2 or rotated < 2:
        raise CheckpointError(
            f"{name} config rotates {rotated} of {channels} channels of a head; it must be an even count"
        )
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    if heads % shared:
        raise CheckpointError(
            f"{name} config has num_attention_heads={heads}, not divisible by num_key_value_heads={shared}"
        )
    return Arch(
        **{
            "names": names,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_dim": channels,
            "rotary_dim": rotated,
            "ff_width": getattr(config, "intermediate_size", 0),
            "vocab": config.vocab_size,
            "norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope_theta,
            "tied_head": config.tie_word_embeddings,
            "moe": moe,
            **switches,
        }
    )
