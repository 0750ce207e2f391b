"""The data types that all parts share. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator

Tier = Literal["E0", "E1", "E2", "A"]
"""Exactness, shown beside every score. E0: same bits as the published sampler; E1: same computation with floating-point
sums in another order; E2: same distribution from another random stream; A: approximate."""

TIER_MEANING: Mapping[Tier, str] = {
    "E0": "same bits as the published sampler",
    "E1": "same computation, floating-point sums in another order",
    "E2": "same distribution, another random stream",
    "A": "approximate: a different distribution from the published sampler's",
}

Dtype = Literal["float32", "bfloat16", "float16", "float64", "auto"]
"""Dtypes of weights; auto: the published one, if this machine is fast in it."""

TIE = 1e-4
"""A decision is a near tie if a change of the logits by this turns it; float32 on CPUs differs by about 1e-5."""


class Message(TypedDict):
    """One chat turn."""

    role: str
    content: str


Prompt = str | Sequence[int] | Sequence[Message]
"""Raw text, token ids, or chat messages (only these go through the chat template)."""


class Event(NamedTuple):
    """One change of the canvas.

    ``step`` counts the row's forward passes from 0 (or from ``Request.start_forward``). ``position`` counts from the
    first response token (positions of masks inside the prompt are negative). ``confidence`` is the token's probability
    as the family's sampler ranks it. In a model that edits, a position can be set several times. A remask has the mask
    id as its token, and the confidence with which the removed token was written.

    ``logprob`` is the natural logarithm, in nats and not rounded, of the token's probability in the distribution that
    it was drawn from: at temperature, after top-k and top-p, without suppressed ids. It is 0.0 for a greedy choice
    (temperature 0 or top_k 1) and for a remask. It is None where it was not recorded, or where the sampler put another
    token than the drawn one (LLaDA2.2, whose insertions and deletions also move tokens). Which positions were written
    is another choice, and not part of it.
    """

    step: int
    op: Literal["set", "remask", "insert", "delete"]
    position: int
    token: int
    confidence: float
    logprob: float | None = None


ADAPTIVE = "adaptive"
"""The likelihood estimator that draws until a document's best choice is known."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model.

    ``key`` is unique in a run and does not depend on order, batch or resume. ``seed`` is the counter-based key of the
    sample's randomness (see :mod:`dare_bench.seeds`). ``decoding`` holds the fields given for this request by their
    users' names, on top of the model's defaults.

    A generate request may start from a given ``canvas``: the response so far, at most ``gen_length`` tokens (in whole
    blocks) with the mask id where a position is open; the rest is open, too. Decoding starts in the first block that
    has masks, after ``start_step`` forwards of that block. A row that goes on from the canvas, ``start_step`` and
    ``start_forward`` of an earlier row with the same seed gives that row's tokens, also where they are drawn. Inside a
    block, an approximate cache is computed anew, and the tokens may differ; a strategy that masks tokens again refuses
    to go on there, since a canvas does not hold their confidences.

    With ``end_forward`` a row ends after that forward, wherever it is: its ``tokens`` and ``end_step`` are the canvas
    and the ``start_step`` of a request that goes on.
    """

    key: str
    kind: Literal["generate", "score"]
    prompt: Prompt
    target: str | Sequence[int] | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    task: str = ""
    doc_id: int | str = 0
    repeat: int = 0
    want_greedy: bool = False
    """Score requests: is ``is_greedy`` needed? It costs a diffusion model one forward pass for each target token."""
    rolling: bool = False
    """Score requests: the target is a text without a prompt, of any length, scored in windows that are as long as the
    context (lm-eval's ``loglikelihood_rolling``); the first begins behind BOS, or EOS where there is none."""
    suffix: str | None = None
    """Generate requests: the text behind the answer, which a bidirectional model sees: the answer fills the middle."""
    canvas: Sequence[int] | None = None
    start_step: int = 0
    """Forwards that the first block with masks already had."""
    start_forward: int | None = None
    """Forwards that the row already had; random numbers and events are counted from here. None: ``start_step``."""
    end_forward: int | None = None
    """Forwards, as in ``start_forward``, after which the row ends though masks are left. None: it is finished."""
    resolved: Decoding | None = field(default=None, compare=False, repr=False)
    """All resolved values of ``decoding``, if it has been resolved already."""

    @property
    def document(self) -> tuple[str, str, int]:
        """What the choices of a document have in common."""
        return self.task, str(self.doc_id), self.repeat

    @property
    def is_adaptive(self) -> bool:
        """Does the answer depend on the document's other choices, which must then be answered together?"""
        return self.kind == "score" and self.decoding.get("estimator") == ADAPTIVE


@dataclass(slots=True)
class Generation:
    """The response to one prompt.

    ``tokens`` is the response only, raw, at most ``gen_length`` long (with ``early_stop`` it ends with the first EOS);
    ``text`` is cut at the first EOS, then at the first stop string; None without a tokenizer. ``nfe`` counts the
    forwards this row took part in (CFG counts 2; 0: the engine does not report them), ``reference_nfe`` those that the
    published sampler counts (of a row that started from a canvas, or that ``Request.end_forward`` ended: ``nfe``).
    A server that returns no token ids leaves ``tokens`` empty; ``tokens_to_eos`` is then the number that it reports.
    """

    tokens: list[int]
    text: str | None
    nfe: int
    finish_reason: Literal["length", "eos", "stop"]
    reference_nfe: int = 0
    prompt_tokens: int = 0
    tokens_to_eos: int = 0
    """Tokens up to and including the first EOS (all of them without one); used for speed."""
    residual_masks: int = 0
    tier: Tier | None = "E1"
    """None: unknown, since the sampler of a server cannot be inspected."""
    seconds: float = 0.0
    near_tie: bool | None = None
    """Does a change of the logits by ``TIE`` change a decision behind it? None: not recorded."""
    trajectory: list[Event] | None = None
    weights_version: int = 0
    """The model's ``weights_version`` when the row started."""
    predictions: list[list[int]] | None = None
    """For each forward the response, ``gen_length`` tokens, if all masks took their proposed tokens in it: the mask id
    where the forward computed no logits (behind the block)."""
    prediction_texts: list[str] | None = None
    """The text of each of ``predictions``, cut as ``text`` is; None without a tokenizer."""
    end_step: int | None = None
    """Of a row that ``Request.end_forward`` ended: the forwards that its first block with masks had. ``tokens`` is then
    the whole canvas after the prompt, in whole blocks, with masks. None: the row is finished."""


@dataclass(slots=True)
class Likelihood:
    """log p(target | context) as estimated. ``stderr`` is the Monte Carlo standard error (0 for exact), in nats.
    ``is_greedy``: does greedy decoding give the target? None: it was not asked for. ``deviations`` make up ``stderr``,
    as the root of their sum of squares; the differences of two choices' deviations make up the error of the difference
    of their values, also where the choices share their draws. Exact values have none."""

    value: float
    stderr: float
    is_greedy: bool | None
    nfe: int
    estimator: str = ""
    draws: int = 0
    target_tokens: int = 0
    prompt_tokens: int = 0
    tier: Tier = "E1"
    seconds: float = 0.0
    weights_version: int = 0
    deviations: list[float] = field(default_factory=list)
    separated: bool | None = None
    """Of adaptive draws: was the document's best choice known when they ended? None: there is no other choice."""


@dataclass(slots=True)
class Sample:
    """A finished request: an answer, or a one-line error."""

    request: Request
    answer: Generation | Likelihood | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RewardPrompt:
    """A prompt whose answers get a reward: the reference answer, the name of the reward, and further fields. ``key`` is
    the counter-based key of the answer's random numbers, for rewards that draw some; 0 outside of a rollout."""

    prompt: Prompt
    truth: str
    task: str
    where: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    key: int = 0


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one answer.

    ``value`` is what a policy is trained on; None: the answer cannot be scored, and is left out of its group's
    statistics. ``accuracy`` is 1 if the answer is right, else 0, whatever the options of the reward; None: unknown.
    ``terms`` are the measured parts by name (``correctness``, ``format``), before they are weighted.
    """

    value: float | None
    accuracy: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class LoopStats:
    """Cost of a pass over many rows; the model counts each forward as it ends."""

    forwards: int = 0
    row_forwards: int = 0
    """Sum over forwards of the rows that took part, each as often as its NFE counts the forward."""
    slot_forwards: int = 0
    """Sum over forwards of the available slots; ``row_forwards / slot_forwards`` is the occupancy."""
    tokens_processed: int = 0
    halvings: list[dict[str, int]] = field(default_factory=list)
    """The number of rows before and after each time memory ran out."""
    watch: Callable[[int], None] | None = field(default=None, repr=False, compare=False)
    """Called with the rows of each forward; an exception ends the pass."""
    observe: Callable[[Request, Event], None] | None = field(default=None, repr=False, compare=False)
    """Called with each event of a request that records its trajectory, as soon as the forward is made."""

    def count(self, rows: int, tokens: int, slots: int | None = None) -> None:
        """Count a forward of ``rows`` rows out of ``slots`` (default: all in use)."""
        self.forwards += 1
        self.row_forwards += rows
        self.slot_forwards += rows if slots is None else slots
        self.tokens_processed += tokens
        if self.watch is not None:
            self.watch(rows)

    def plain(self) -> dict[str, Any]:
        """The counts."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.compare}

    @property
    def occupancy(self) -> float | None:
        return self.row_forwards / self.slot_forwards if self.slot_forwards else None


class CheckpointSettings(BaseModel):
    """How a checkpoint is opened: flags of ``dare-bench eval``, keywords of ``evaluate`` and ``load``; None: not given.

    A new field is known to both commands and to the ``open`` of families, which uses it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    adapter: str | None = Field(default=None, description="LoRA adapter for the model: a folder or a hub id.")
    family: str | None = Field(default=None, description="Family, if config.json does not identify it.")
    device: str | None = Field(
        default=None, description="cpu, cuda, cuda:1, ..., or auto: divided among all GPUs, then host memory and disk."
    )
    dtype: Dtype | None = Field(
        default=None, description="float32, bfloat16, ..., or auto: the published one, if this machine is fast in it."
    )
    attention: Literal["auto", "sdpa", "padded", "flex", "varlen"] | None = Field(
        default=None, description="How attention is computed: auto, sdpa, padded, flex or varlen (docs/attention.md)."
    )
    compile: bool | None = Field(
        default=None,
        description="Compile steps of decoding; false: not even captured as CUDA graphs (docs/attention.md).",
    )
    quantize: Literal["int8", "int4"] | None = Field(
        default=None, description="Weight-only quantization of the layers, int8 or int4: approximate (tier A)."
    )

    @field_validator("adapter", mode="before", json_schema_input_type=str | Path | None)
    @classmethod
    def _path(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value


class OpeningSettings(CheckpointSettings):
    """The keywords of :func:`dare_bench.load`: also those without a flag. ``mask_id``, ``eos_id`` and
    ``eot_id`` override what config and tokenizer say, and so does ``pad_id``.

    Values are not validated here (``model_construct``): the opener of a family or engine checks them.
    """

    dtype: Any = None
    mask_id: int | None = None
    eos_id: int | Sequence[int] | None = None
    eot_id: int | None = None
    pad_id: int | None = None
    max_memory: Mapping[int | str, int | str] | None = None
    """For ``device="auto"``, the memory that weights may take: ``{0: "70GB", "cpu": "100GB"}``."""

    def given(self) -> dict[str, Any]:
        """The settings that were given, by name."""
        return {name: value for name, value in self if value is not None and value is not False}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts of a loaded checkpoint."""

    family: str
    mask_id: int | None
    """The token that a diffusion model replaces; None for a model that has none."""
    eos_ids: tuple[int, ...]
    eot_id: int | None
    pad_id: int | None
    vocab_size: int
    context_limit: int
    attention: Literal["bidirectional", "block-causal", "causal"] = "bidirectional"
    block_length: int | None = None
    """Of block-causal attention; blocks are counted from the first token, in likelihoods and training always."""
    predicts: Literal["same", "next"] = "same"
    routing_block: int | None = None
    """The columns whose tokens choose experts together (block routing); blocks are multiples of it."""
    edit_ids: tuple[int, ...] = ()
    """Of a model that edits: the tokens that delete a token and insert a mask before it (LLaDA2.2)."""
    end_think_ids: tuple[int, ...] = ()
    """Of a model whose sampler makes the end of thoughts likelier: the tokens of that end (iLLaDA)."""
    noise: Literal["absorbing", "uniform"] = "absorbing"
    dtype: str = "float32"
    device: str = "cpu"
    attention_backend: str | None = None
    """How our networks compute attention (docs/attention.md); None: another engine or library does."""
    compiled: bool = False
    """Are steady steps compiled (docs/attention.md)?"""
    captured: bool = False
    """Are small steady steps captured as CUDA graphs, with attention ``padded``?"""
    parameters: int = 0
    heads: int = 0
    kv_heads: int = 0
    """Attention heads, of queries and of keys; 0: unknown."""
    sft: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method ``sft`` as the family's authors fine-tune."""
    engine: str = "native"
    """What computes the answers: ``native`` is this package; others are served engines (docs/engines.md)."""
    engine_version: str | None = None
    bos_id: int | None = None
    """What stands in the place of an empty prompt, where the published sampler needs a token there."""
    blocks_from: Literal["start", "answer"] = "start"
    """Are the blocks of decoding counted from the first token, or from the end of the prompt?"""
    whole_blocks: bool = True
    """Does decoding finish the last block, also beyond the tokens that were asked for?"""
    causal_prefix: bool = False
    """Do the clean tokens before a block attend causally, and not by blocks (Nemotron-Labs-Diffusion)?"""
    quantize: str | None = None
    """``int8`` or ``int4`` if the layers' matrices are held so; products and everything else are in ``dtype``."""

    @property
    def precision(self) -> str:
        """What is recorded as the dtype of a run: ``bfloat16``, ``bfloat16+int8``."""
        return self.dtype if self.quantize is None else f"{self.dtype}+{self.quantize}"

    @property
    def mask(self) -> int:
        """``mask_id`` where the caller needs one; raises TypeError for a model without one."""
        if self.mask_id is None:
            raise TypeError(f"{self.family}: this model has no mask id")
        return self.mask_id

    @property
    def open_id(self) -> int:
        """What an open position of a canvas holds: the mask, or, where noise is uniform, an id beyond the vocabulary,
        for which the network is shown a random token."""
        return self.vocab_size if self.noise == "uniform" else self.mask


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Optional features of a loaded model, which a method that needs one asks for before anything runs."""

    trajectory: bool = False
    logprobs: bool = False
    """Do events have the ``logprob`` of the distribution that drew the token?"""
    predictions: bool = False
    """Does the decoding field ``predictions`` record the response that each forward predicts?"""
    near_tie: bool = False
    """Does the decoding field ``near_tie`` record whether rounding could have changed an answer?"""
    canvas: bool = False
    """May a request start from a given canvas?"""
    end_forward: bool = False
    """May a request end a row after a given forward?"""
    likelihood: bool = False
    rolling: bool = False
    """Is there a log-likelihood of a whole text (:attr:`Request.rolling`)?"""
    row_keyed_randomness: bool = False
    weight_update: bool = False
    """Can :meth:`~dare_bench.protocols.LoadedModel.read_weights` replace the weights of the open model?"""
    messages: bool = False
    """Does it take text and chat messages without a tokenizer, because a server has one?"""


class Decoding(BaseModel):
    """The decoding fields that every family has; a family adds others by its users' names.

    ``early_stop``: stop a row at an EOS in a finished block (None: as the family's reference does); the tokens then end
    with the first EOS. This is exact if the text is cut at EOS, since nothing after it is read.
    ``rng="reference"`` replays the draws of the published code, one row at a time, for parity.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    gen_length: int = 128
    temperature: float = 0.0
    early_stop: bool | None = None
    text_after_eos: Literal["cut", "keep"] = "cut"
    stop: tuple[str, ...] = ()
    rng: Literal["ours", "reference"] = "ours"
    trajectory: bool = False
    predictions: bool = Field(default=False, exclude=True)
    near_tie: bool = False
    mask_id: int | None = None
    eos_id: tuple[int, ...] | None = None
    eot_id: int | None = None
    """Special ids for this call; when resolved, the effective ones (None: the model has none)."""

    hidden: ClassVar[frozenset[str]] = frozenset({"trajectory", "predictions", "near_tie", "margin"})
    """Fields that record more but change no token; not part of a run's identity (``margin``: of older runs)."""
    id_fields: ClassVar[tuple[str, ...]] = ("mask_id", "eos_id", "eot_id")
    """Fields that hold token ids."""
    aliases: ClassVar[dict[str, str]] = {"max_new_tokens": "gen_length"}
    """Other names of fields."""

    @property
    def deterministic(self) -> bool:
        """Is the answer to a prompt always the same?"""
        return self.temperature == 0

    @property
    def rewriting(self) -> tuple[str, str] | None:
        """What of the family's decoding writes over tokens, and what to give so that each is written once; None:
        each is."""
        return None

    @property
    def remark(self) -> str:
        """What of these fields has no effect, in one sentence; empty if all have one."""
        return ""

    @field_validator("stop", mode="before", json_schema_input_type=str | Sequence[str])
    @classmethod
    def _one_string(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("eos_id", mode="before", json_schema_input_type=int | Sequence[int] | None)
    @classmethod
    def _several(cls, value: Any) -> Any:
        """One id or several; booleans are refused."""
        ids = value if value is None or isinstance(value, list | tuple) else (value,)
        for item in ids or ():
            cls._whole(item)
        return ids

    @field_validator("gen_length", "mask_id", "eot_id", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """Refuse True and False as counts or ids."""
        if isinstance(value, bool):
            raise ValueError("must be a whole number")
        return value
