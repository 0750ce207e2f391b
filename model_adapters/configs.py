"""Reading published configurations: what this network cannot do is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedConfig

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.backbone import Arch, Names


class StandardConfig(PreTrainedConfig):
    """What the configurations of Dream, SDAR, LLaDA2 and LLaDA-MoE have in common. Fields that a class does not name
    are kept and saved as they are."""

    hidden_act: str = "silu"
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    mask_token_id: int | None = None
    tie_word_embeddings: bool = False
    use_cache: bool = False


def refuse(config: Any, name: str, supported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointError for a field with a value outside ``supported`` (a missing field is the first value)."""
    for field, allowed in supported.items():
        value = getattr(config, field, allowed[0])
        if value not in allowed:
            raise CheckpointError(f"{name} config has {field}={value!r}; supported: {', '.join(map(repr, allowed))}")


def require_counts(config: Any, name: str, fields: Iterable[str]) -> None:
    """Raise CheckpointError unless each field is a whole number of at least 1."""
    for field in fields:
        value = getattr(config, field, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{name} config has {field}={value!r}; it must be a whole number of at least 1")


def require_routing(config: Any, name: str) -> None:
    """Raise CheckpointError where a router cannot choose ``num_experts_per_tok`` of ``num_experts``."""
    require_counts(config, name, ("num_experts", "num_experts_per_tok"))
    experts, top_k = config.num_experts, config.num_experts_per_tok
    if top_k > experts:
        raise CheckpointError(
            f"{name} config has num_experts_per_tok={top_k}; it must be at most num_experts={experts}"
        )


def require_groups(config: Any, name: str) -> tuple[int, int]:
    """(``n_group``, ``topk_group``), null is 1: experts are chosen from the best groups only.

    Raises:
        CheckpointError: groups that the experts do not fill evenly, or whose best hold too few experts.
    """
    for field in ("n_group", "topk_group"):
        if getattr(config, field) is not None:
            require_counts(config, name, (field,))
    experts, groups, kept = config.num_experts, config.n_group or 1, config.topk_group or 1
    if experts % groups:
        raise CheckpointError(f"{name} config has n_group={groups}; it must divide num_experts={experts}")
    if kept > groups:
        raise CheckpointError(f"{name} config has topk_group={kept}; it must be at most n_group={groups}")
    most = experts // groups * kept
    if config.num_experts_per_tok > most:
        raise CheckpointError(
            f"{name} config has num_experts_per_tok={config.num_experts_per_tok}; it must be at most {most}, the "
            f"experts in topk_group={kept} of n_group={groups} groups"
        )
    return groups, kept


def block_length_of(config: Any, name: str, default: int) -> int:
    """The config's ``block_size``, ``default`` where it has none; raises CheckpointError for what is no length."""
    if config.block_size is None:
        return default
    require_counts(config, name, ("block_size",))
    return int(config.block_size)


def head_dim(config: Any, name: str) -> int:
    """The config's ``head_dim``, else width over heads; raises CheckpointError where that does not divide."""
    given = getattr(config, "head_dim", None)
    if given:
        return int(given)
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        raise CheckpointError(f"{name} config has hidden_size={width}, not divisible by num_attention_heads={heads}")
    return int(width // heads)


def arch_from(config: Any, name: str, names: Names, **switches: Any) -> Arch:
    """The architecture of a config that uses transformers' usual field names; ``switches`` are what the family adds. A
    ``partial_rotary_factor`` is the share of a head's channels that is rotated.

    Raises:
        CheckpointError: a size that is no whole number of at least 1.
    """
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    require_counts(config, name, (*sizes, "max_position_embeddings"))
    channels, share = head_dim(config, name), getattr(config, "partial_rotary_factor", None)
    return Arch(
        **{
            "names": names,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_dim": channels,
            "rotary_dim": None if share is None else int(channels * share),
            "ff_width": getattr(config, "intermediate_size", 0),
            "vocab": config.vocab_size,
            "norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope_theta,
            "tied_head": config.tie_word_embeddings,
            **switches,
        }
    )
