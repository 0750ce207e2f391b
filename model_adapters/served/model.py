"""What all served engines share: a model without a network, and the decoding fields that an engine decides itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from dare_bench.config import one_line
from dare_bench.errors import CheckpointError, DecodingError, SaveError, UsageError
from dare_bench.model_adapters.fields import unknown_field
from dare_bench.protocols import AdapterSettings, LoadedModel
from dare_bench.types import Capabilities, Decoding, LoopStats, Request, Sample

_FINISHED, _STOPS = "it returns finished tokens only", "it stops at an EOS"
Fixed = Mapping[str, tuple[tuple[Any, ...], str]]
"""Decoding fields that an engine does not let a request choose: the values that it honors, and why no others."""
FIXED: Fixed = {
    "trajectory": ((False,), _FINISHED),
    "predictions": ((False,), _FINISHED),
    "near_tie": ((False,), _FINISHED),
    "rng": (("ours",), "it draws its own random numbers"),
    "early_stop": ((None, True), _STOPS),
    "text_after_eos": (("cut",), _STOPS),
}
"""Those of every served engine."""


class EngineSettings(BaseModel):
    """``--engine-args``: how an engine is run or reached. None of them is a decoding field."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, engine: str, values: Mapping[str, Any]) -> Any:
        """The settings; raises UsageError, naming the known ones."""
        try:
            return cls(**values)
        except ValidationError as error:
            known = ", ".join(cls.model_fields)
            raise UsageError(f"--engine-args of {engine}: {one_line(error, 'them')}; known: {known}") from error


class ServedModel(LoadedModel):
    """A loaded model without a network. A subclass encodes prompts, resolves decoding values, and generates; its class
    method ``open`` opens it."""

    engine: ClassVar[str]
    """The engine's registered name."""
    network = None
    capabilities = Capabilities()
    weights_version = 0

    def pretrained(self) -> None:
        """None: the network is in the server."""

    def forwards(self, request: Request) -> int:
        """The tokens of the answer: every forward pass writes at least one, those that only fill a cache aside."""
        return (request.resolved or self.resolve(request.decoding)).gen_length

    def is_as_opened(self) -> bool:
        return self.weights_version == 0

    # -- what an engine does not have ----------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def check_fields(cls, decoding: Mapping[str, Any]) -> None:
        """Refuse decoding fields that this engine never has, before a model is opened; raises DecodingError."""

    def _lacks(self, what: str) -> UsageError:
        return UsageError(f"engine {self.engine} gives no {what}; use --engine native (Python: engine='native')")

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        raise DecodingError(str(self._lacks("log-likelihoods")))

    def score(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        raise self._lacks("log-likelihoods")

    def logits(self, ids: Sequence[int], block_length: int | None = None) -> NoReturn:
        raise self._lacks("logits")

    def save(self, path: str | Path, state_dict: Mapping[str, Any] | None = None) -> None:
        raise SaveError(f"{path}: engine {self.engine} holds the weights; copy the folder that it was started with")

    def read_weights(self, path: str | Path) -> None:
        raise CheckpointError(f"engine {self.engine} cannot replace its weights; open {path} with it instead")

    def add_adapter(self, settings: AdapterSettings) -> None:
        raise self._lacks("network to train")

    def merge_adapter(self) -> None:
        raise self._lacks("network to change")

    def without_adapter(self) -> AbstractContextManager[None]:
        raise self._lacks("network to change")


def refuse_unserved(engine: str, decoding: Decoding, fixed: Fixed) -> None:
    """Refuse decoding values that an engine cannot honor.

    Args:
        fixed: as :data:`FIXED`, for this engine.

    Raises:
        DecodingError: it names the field, its value, and what to do.
    """
    for name, (honored, reason) in fixed.items():
        if (value := getattr(decoding, name)) not in honored:
            raise cannot_honor(engine, name, value, f"{reason}; leave the field out, or use --engine native")


def refuse_unknown(engine: str, names: Iterable[str], kind: type[Decoding], refused: Iterable[str]) -> None:
    """Refuse names that are not decoding fields, and name those that the engine honors.

    Args:
        refused: fields of ``kind`` that the engine refuses.

    Raises:
        DecodingError: an unknown name.
    """
    fields = {*kind.model_fields, *kind.aliases}
    for name in names:
        if name not in fields:
            raise unknown_field(f"engine {engine}", name, fields - {*refused})


def cannot_honor(engine: str, name: str, value: Any, why: str) -> DecodingError:
    """The refusal of a decoding value that an engine would ignore or change."""
    return DecodingError(f"engine {engine} cannot honor {name}={value!r}: {why}")
