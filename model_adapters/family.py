"""What a family must say: its network, decoding fields, special ids and chat template. Nothing else differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dare_bench.errors import CheckpointError, DecodingError, closest
from dare_bench.model_adapters.backbone import DiffusionNetwork
from dare_bench.model_adapters.sampling.rule import Rule
from dare_bench.types import Decoding, ModelSpec, Tier


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a meaning. ``mask`` None: nobody said; opening then fails and says how to give it."""

    mask: int | None
    eos: tuple[int, ...]
    eot: int | None
    pad: int | None


class Family(ABC):
    """One family. Subclasses are stateless; see ``llada/family.py`` for all there is to write."""

    name: str
    network: type[DiffusionNetwork]
    decoding: type[Decoding]
    chat_template: str | None = None
    has_cfg_likelihood: bool = False

    def open(self, path: Path, **options: Any) -> Any:
        """Open a folder in this family's published layout (see ``opening.open_native``)."""
        from dare_bench.model_adapters.opening import open_native

        return open_native(self, path, **options)

    @abstractmethod
    def special_ids(self, config: Any, tokenizer: Any | None) -> SpecialIds:
        """Special ids as config and tokenizer name them; never constants."""

    @abstractmethod
    def rule(self, decoding: Any, spec: ModelSpec) -> Rule:
        """The rule that resolved decoding fields mean."""

    def tier(self, rule: Rule) -> Tier:
        """How exact a rule is against the family's published sampler."""
        if rule.how_many != "quota":
            return "A"
        return "E2" if rule.draws and not rule.reference_draws else "E1"

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        """Validated decoding, every value that holds filled in, special ids included.

        Raises:
            DecodingError: a field the family does not have, or a value that cannot be.
        """
        known = list(self.decoding.model_fields)
        for field in fields:
            if field not in known:
                raise DecodingError(
                    f"{self.name} has no decoding field {field!r}; closest: {', '.join(closest(field, known))}; "
                    f"it has {', '.join(sorted(known))}"
                )
        given = {k: v for k, v in fields.items() if v is not None}
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        ids = {"mask_id": spec.mask_id, "eos_id": spec.eos_ids, "eot_id": spec.eot_id}
        try:
            decoding = self.decoding(**{**ids, **given})
        except ValidationError as error:
            raise DecodingError(_reason(error)) from error
        for name in ids:
            value = getattr(decoding, name)
            for token in value if isinstance(value, tuple) else () if value is None else (value,):
                if not 0 <= token < spec.vocab_size:
                    raise DecodingError(
                        f"{name}={token} is outside the vocabulary; allowed are 0 to {spec.vocab_size - 1}"
                    )
        return decoding

    def with_ids(self, spec: ModelSpec, decoding: Decoding) -> ModelSpec:
        """The spec with the special ids of one call."""
        assert decoding.mask_id is not None
        return replace(spec, mask_id=decoding.mask_id, eos_ids=decoding.eos_id or (), eot_id=decoding.eot_id)


def _reason(error: ValidationError) -> str:
    """The first complaint in one line: our own words where we wrote the check, the field and value in any case."""
    first = error.errors()[0]
    text = str(first["msg"]).removeprefix("Value error, ")
    if not first["loc"]:
        return text
    allowed = first.get("ctx", {}).get("expected")
    field = ".".join(map(str, first["loc"]))
    return f"{field}={first['input']!r} cannot be: {f'allowed are {allowed}' if allowed else text.lower()}"


def special_from_tokenizer(tokenizer: Any | None, text: str) -> int | None:
    """The id of a special token by its text, or None when the tokenizer has no such token."""
    if tokenizer is None:
        return None
    found = tokenizer.get_vocab().get(text)
    return None if found is None else int(found)


def require_mask(ids: SpecialIds, path: Path) -> int:
    """The mask id, or an error that says where it was looked for."""
    if ids.mask is None:
        raise CheckpointError(
            f"{path}: no mask id: neither config.json (mask_token_id) nor the tokenizer names one; give mask_id="
        )
    return ids.mask
