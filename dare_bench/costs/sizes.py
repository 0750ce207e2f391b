"""Sizes: of a checkpoint, from the headers of its files; of training rows, from some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from dare_bench import recipes
from dare_bench.checkpoint_files import read_config, read_header
from dare_bench.costs.network import network_shape
from dare_bench.costs.recipe import TEMPLATE_TOKENS, model_spec
from dare_bench.loading import family_of, here
from dare_bench.protocols import LoadedModel
from dare_bench.recipe_schema import ExpertFacts, Facts, RecipeFile
from dare_bench.registry import registry
from dare_bench.training.opening import refuse_untrainable
from dare_bench.training.rewards import NO_FUNCTIONS, Functions, check_options
from dare_bench.training.rollout_engine import check_rollout_engine
from dare_bench.training.rows import Data, Kind, PreferencePair, TokenRow, Tokens
from dare_bench.training.sources import find_files
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenize
from dare_bench.types import Decoding, ModelSpec, OpeningSettings, Request, RewardPrompt

SAMPLED_ROWS = 256
"""Number of rows from which the mean length is estimated."""
CHARACTERS = 3.5
"""Characters per token if there is no tokenizer: English text and code in current vocabularies."""
UNKNOWN_TOKENS = 512.0
UNKNOWN_ROWS = 10_000


class Dimensions(Facts):
    """The shape of a network, as in recipes, and how its family projects queries, keys and values."""

    fused_qkv: bool = False
    """By one matrix."""
    qk_norm: bool = False
    """With norms of queries and keys."""


class PublishedModel:
    """A published checkpoint that is not on this machine, from the facts in its recipes: enough to count the forwards
    of its sampler and to settle the options of a training method."""

    def __init__(self, file: RecipeFile, family: str | None = None) -> None:
        self.family: Any = registry().get("family", family or file.family).load()
        self.spec: ModelSpec = model_spec(self.family, file.facts)
        network = self.family.network
        structure = dimensions_of(network.arch_of(network.config_class())).model_dump(include={"fused_qkv", "qk_norm"})
        self.dimensions = Dimensions.model_validate({**file.facts.model_dump(), **structure})

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        """All decoding values for the requested ones; raises DecodingError."""
        resolved: Decoding = self.family.resolve(decoding, self.spec)
        return resolved

    def forwards(self, request: Request) -> int:
        """Upper bound of the forwards of a request whose prompt is given as token ids; raises DecodingError."""
        sampler = self.family.sampler(self.resolve(request.decoding), self.spec)
        most: int = sampler.most_forwards(len(request.prompt) if sampler.attention.causal else 0)
        return most


@dataclass
class CheckpointSize:
    """``parameters``: of all weights; ``active``: of those that a token uses. Both are None if the checkpoint is not on
    this machine and has no recipe."""

    parameters: float | None = None
    active: float | None = None
    two_copies: bool = False
    seconds_per_forward: float | None = None
    """Of one row, as measured on this machine."""
    model: LoadedModel | PublishedModel | None = None
    """The loaded checkpoint, possibly without weights; or what its recipes say."""
    dimensions: Dimensions | None = None
    """Of the network, if its family is one of ours."""
    dtype: str = "bfloat16"
    """Of the published weights."""
    notes: tuple[str, ...] = ()
    """What was assumed of the checkpoint."""


@dataclass(frozen=True)
class TrainingRows:
    """``count`` items of an epoch with rows of a mean length of ``tokens``, of which ``answer`` are the response, or
    the canvas of a completion."""

    count: int
    tokens: float
    source: str
    forwards: tuple[float, float, float] | None = None
    """Of an item in an optimizer step, counted per row: in the rollout, without gradients (old values, reference), in
    the update. None: they follow from a checkpoint that is not known."""
    answer: float = 0.0
    open: float = 0.0
    """Positions of a completion whose logits a forward of the sampler computes, at most."""
    iterations: int = 1
    """Optimizer steps on a rollout."""
    samples: bool = False
    """Are the items completions that the model in training samples?"""
    second_network: bool = False
    """Is the reference another network than the one in training?"""


def size_of(model: str, family: str | None = None) -> CheckpointSize:
    """The size of a checkpoint, from the headers of its files; from its recipes if it is not on this machine. Nothing
    is downloaded and no weight is read. Raises CheckpointError."""
    if (folder := here(model)) is None:
        return _published_size(model, family)
    files = sorted(folder.glob("*.safetensors"))
    counts = {name: math.prod(tensor.shape) for file in files for name, tensor in read_header(file).items()}
    config = read_config(folder)
    total = float(sum(counts.values()))
    routed = float(sum(count for name, count in counts.items() if ".experts." in name))
    arch_of = getattr(family_of(folder, family).load(), "arch_of", None)
    dimensions = None if arch_of is None else dimensions_of(arch_of(config)[1])
    active, experts = config.get("num_experts_per_tok"), config.get("num_experts")
    if dimensions is not None and dimensions.experts is not None:
        active, experts = dimensions.experts.active, dimensions.experts.count
    share = active / experts if isinstance(active, int) and isinstance(experts, int) and experts else 1.0
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    two_copies = dimensions is not None and dimensions.block_length is not None
    return CheckpointSize(total, total - routed * (1 - share), two_copies, dimensions=dimensions, dtype=dtype)


def dimensions_of(arch: Any) -> Dimensions:
    """Those of the architecture of one of our networks."""
    moe, experts = arch.moe, None
    if moe is not None:
        dense = arch.layers - sum(moe.layers)
        experts = ExpertFacts(
            count=moe.experts, active=moe.top_k, ff=moe.width, shared_ff=moe.shared_width, dense_layers=dense
        )
    return Dimensions(
        layers=arch.layers,
        d_model=arch.width,
        heads=arch.heads,
        kv_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        ff=arch.ff_width,
        vocab=arch.vocab,
        experts=experts,
        attention="bidirectional" if arch.block_length is None else "block-causal",
        block_length=arch.block_length,
        fused_qkv=bool(arch.names.qkv),
        qk_norm=arch.qk_norm,
    )


def _published_size(model: str, family: str | None) -> CheckpointSize:
    """The size of a checkpoint by the facts of a recipe; unknown if no recipe has it."""
    files = (recipes.load(name) for name in registry().names("recipe"))
    file = next((file for file in files if file.model == model), None)
    if file is None:
        return CheckpointSize()
    published, notes = PublishedModel(file, family), [f"the dimensions of {model} in its recipes"]
    net = published.dimensions
    shape = network_shape(net, notes)
    total = shape.weights + shape.experts + shape.head + net.d_model * (2 * net.layers + 1)  # embedding and norms
    notes.append("the embedding and the LM head are two matrices")
    return CheckpointSize(
        parameters=total,
        active=total - shape.experts * (1 - shape.active),
        two_copies=net.attention == "block-causal",
        model=published,
        dimensions=net,
        notes=tuple(notes),
    )


def tokenizing(model: str, family: str | None = None) -> LoadedModel | None:
    """A checkpoint without its weights; None if it is not on this machine, or its family is not one of our networks.
    Raises CheckpointError."""
    if (folder := here(model)) is None:
        return None
    opener = family_of(folder, family).load()
    opened: LoadedModel | None = (
        opener.open(folder, OpeningSettings(device="cpu"), weights=False) if hasattr(opener, "arch_of") else None
    )
    return opened


def rows_of(
    spec: TrainSpec,
    model: LoadedModel | PublishedModel | None = None,
    processes: int = 1,
    functions: Functions = NO_FUNCTIONS,
) -> TrainingRows:
    """Number and mean length of the rows of a training, from some of them (from all if epochs are counted).

    Args:
        model: the checkpoint. Rows are tokenized as in the training, with its chat template; if it is not on this
            machine, the number of tokens is estimated from the length of the text.

    Raises:
        UsageError, DataError: the training would refuse these settings or rows.
    """
    if (folder := here(spec.model)) is not None:
        refuse_untrainable(folder, spec.family)
    trainer: Any = registry().get("trainer", spec.method).load()
    kind: Kind = getattr(trainer, "reads", "examples")
    built, count, source = _tokens_of(spec, kind, model)
    prompt = mean(len(row.prompt) for item in built.items for row in item)
    if model is None or not hasattr(trainer, "lengths"):
        answer = mean(len(row.answer) for item in built.items for row in item)
        forwards = None if kind == "prompts" else _forwards(trainer, spec, kind)
        return TrainingRows(count, prompt + answer, source, forwards, answer, samples=kind == "prompts")
    method = trainer(trainer.settle(spec.options, model.spec), model.spec, built.canvas)
    if records := _rewarded(spec, built):
        check_options(records, method.options.reward, weights=method.options.reward_weights, functions=functions)
    if method.reference is not None:
        here(method.reference)  # raises CheckpointError
    check_rollout_engine(method.options)
    method.check_sizes(spec.with_defaults(trainer), built, processes)
    tokens = mean(method.lengths(built))
    rows = TrainingRows(
        count=count * method.uses_of_item,
        tokens=tokens,
        source=source,
        forwards=_forwards(method, spec, kind),
        answer=tokens - prompt,
        second_network=method.wants_reference and not _is_base(spec),
    )
    return _with_sampler(rows, method, spec, model, built) if kind == "prompts" else rows


def _rewarded(spec: TrainSpec, tokens: Tokens) -> tuple[RewardPrompt, ...]:
    """The prompts for the reward; if the rows are in a hub data set that a task names, one that stands for them, if the
    reward has the task's name. Its truth is one that every such reward reads."""
    if tokens.records or tokens.kind != "prompts" or spec.task not in registry().names("reward"):
        return tokens.records
    return (RewardPrompt("", "0", str(spec.task), str(spec.task)),)


def _forwards(method: Any, spec: TrainSpec, kind: Kind) -> tuple[float, float, float]:
    """Forwards of an item of a method that does not sample, or of its class."""
    draws = getattr(getattr(method, "options", None), "draws", spec.options.get("draws"))
    rows = float(draws or 1) * (2 if kind == "pairs" else 1)
    reference = getattr(method, "wants_reference", False)
    divided = spec.gradient_accumulation_steps > 1 or spec.looks_per_forward is not None
    own_values = not getattr(method, "linear", False) and (divided or (reference and _is_base(spec)))
    return 0.0, rows * (reference + own_values), rows


def _is_base(spec: TrainSpec) -> bool:
    """Is the reference the network in training with its adapter off?"""
    return spec.peft is not None and spec.adapter is None and not spec.options.get("reference")


def _with_sampler(
    rows: TrainingRows, method: Any, spec: TrainSpec, model: LoadedModel | PublishedModel, tokens: Tokens
) -> TrainingRows:
    """With the forwards of completions, of which the sampler takes at most as many as for a prompt of median length."""
    prompts = sorted((list(item[0].prompt) for item in tokens.items), key=len)
    prompt = prompts[len(prompts) // 2]
    request = Request(key="0", kind="generate", prompt=prompt, decoding=method.request(prompt), seed=0)
    block = getattr(model.resolve(request.decoding), "block_length", None) or model.spec.block_length
    forwards = method.forwards_of_completion(spec, model.forwards(request))
    iterations = int(getattr(method.options, "num_iterations", 1))
    opened = min(block or rows.answer, rows.answer)
    return replace(rows, forwards=forwards, open=opened, iterations=iterations, samples=True)


def _tokens_of(spec: TrainSpec, kind: Kind, model: LoadedModel | PublishedModel | None) -> tuple[Tokens, int, str]:
    """Some rows of a training as token ids, the number of all rows, and how tokens were counted. Without a tokenizer
    the ids mean nothing: only their number is estimated."""
    from dare_bench.training.data import hub_data, read_data

    known = hub_data(spec.task)
    if known is None and (spec.task is not None or find_files(str(spec.data), spec.split)):
        limited = spec.model_copy(update={"rows": min(spec.rows or SAMPLED_ROWS, SAMPLED_ROWS)})
        return _read(read_data(spec if spec.max_steps is None else limited, kind), spec, model)
    return _assumed(spec, kind, model, known)


def _read(data: Data, spec: TrainSpec, model: LoadedModel | PublishedModel | None) -> tuple[Tokens, int, str]:
    some = replace(data, rows=data.rows[:SAMPLED_ROWS])
    if model is None or isinstance(model, PublishedModel):
        items = tuple(_by_characters(row, spec) for row in some.rows)
        source = f"characters / {CHARACTERS:g}, {TEMPLATE_TOKENS} for a chat template"
        return _tokens(some, items, spec), len(data.rows), source
    built = tokenize(some, model, spec)
    # The training skips rows that are too long.
    return built, round(len(data.rows) * len(built.items) / len(some.rows)), "its tokenizer"


def _assumed(
    spec: TrainSpec, kind: Kind, model: LoadedModel | PublishedModel | None, hub: Any
) -> tuple[Tokens, int, str]:
    """One row for all, with the mean lengths of the test set of the same data if a recipe has them. ``hub``: the
    registered hub data set of the task, if it has one."""
    data, count = (spec.data, UNKNOWN_ROWS) if hub is None else (hub.data, hub.count)
    prompt, answer, source = round(UNKNOWN_TOKENS / 2), round(UNKNOWN_TOKENS / 2), "assumed: not a local file"
    for known in recipes.test_sets():
        if known.id.partition(",")[0].replace(" ", ":") == data and known.prompt_tokens is not None:
            prompt, answer = known.prompt_tokens + TEMPLATE_TOKENS, known.answer_tokens or answer
            source = f"the mean lengths of {known.id}, {TEMPLATE_TOKENS} for a chat template"
    row = _row(prompt, answer, spec)
    rows = {"examples": (row,), "pairs": (row, row), "prompts": (replace(row, answer=()),)}[kind]
    return _tokens(Data(kind, (), "", source), (rows,), spec), spec.rows or count, source


def _tokens(data: Data, items: tuple[tuple[TokenRow, ...], ...], spec: TrainSpec) -> Tokens:
    records = tuple(row for row in data.rows if isinstance(row, RewardPrompt))
    return Tokens(data.kind, items, "", data.name, data.canvas, records, spec.max_length)


def _row(prompt: float, answer: float, spec: TrainSpec) -> TokenRow:
    """A row of so many tokens, at most ``max_length`` together."""
    limit = spec.max_length or 10**9
    kept = min(round(prompt), limit - 1)
    return TokenRow((0,) * kept, (0,) * min(round(answer), limit - kept), "", 0)


def _by_characters(row: Any, spec: TrainSpec) -> tuple[TokenRow, ...]:
    """The rows of an item, as long as their texts suggest."""
    is_chat = not isinstance(row.prompt, str)
    text = "".join(turn["content"] for turn in row.prompt) if is_chat else row.prompt
    prompt = len(text) / CHARACTERS + TEMPLATE_TOKENS * is_chat
    answers = (row.chosen, row.rejected) if isinstance(row, PreferencePair) else (getattr(row, "answer", ""),)
    return tuple(_row(prompt, len(answer) / CHARACTERS, spec) for answer in answers)
