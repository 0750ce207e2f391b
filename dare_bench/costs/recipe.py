"""The estimated GPU cost of a recipe, from its facts and settings, without weights, data or a GPU.

Floating-point operations of a pass over q tokens that attend to c tokens: 2 body q + 4 layers heads head_dim q c +
2 head h, where ``body`` is the number of parameters that a token uses, ``head`` that of the LM head, and h the number
of positions with logits. A pass takes the maximum of the time to compute and the time to read weights and cache. If the
checkpoint is on this machine, ``--dry-run`` times real samples instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from dare_bench.costs.network import BYTES, NetworkShape, network_shape
from dare_bench.errors import UsageError, unknown
from dare_bench.recipe_schema import Facts, RecipeRun, TestSet
from dare_bench.recipes import Recipe, plain
from dare_bench.registry import registry
from dare_bench.suites import merged
from dare_bench.types import Decoding, ModelSpec

UTILIZATION = 0.4
"""Assumed share of the peak in an evaluation. Matrix products reach 0.8 on an H200 (790 of 989 TFLOP/s measured);
attention, small batches and launches reduce it."""
ROWS = 16
"""Assumed number of rows per forward pass; it matters only if reading weights limits the speed."""
TEMPLATE_TOKENS = 30
"""Assumed number of tokens of the task's text and the chat template in a prompt."""
EXACT_LIMIT = 7
"""Maximum length in tokens of targets that are enumerated instead of sampled, unless the recipe requires draws."""


@dataclass(frozen=True)
class Gpu:
    """Dense bfloat16 peak in TFLOP/s, memory bandwidth in TB/s, memory in GB, and what its links (NVLink) send in GB/s
    (half of the sum of both directions), from the vendor's data sheet."""

    name: str
    tflops: float
    tb_per_s: float
    memory_gb: float
    link_gb_per_s: float

    def seconds(self, operations: float, read: float, received: float = 0.0) -> float:
        """Time for bfloat16 operations while bytes are ``read`` from memory and ``received`` over the links, at
        :data:`UTILIZATION` of each peak."""
        times = operations / (self.tflops * 1e12), read / (self.tb_per_s * 1e12), received / (self.link_gb_per_s * 1e9)
        return max(times) / UTILIZATION


GPUS: Mapping[str, Gpu] = {
    "A100": Gpu("A100 80GB SXM", 312.0, 2.039, 80.0, 300.0),
    "H100": Gpu("H100 SXM", 989.4, 3.35, 80.0, 450.0),
    "H200": Gpu("H200 SXM", 989.4, 4.8, 141.0, 450.0),
}


def gpu_named(name: str) -> Gpu:
    """A GPU of the table; raises UnknownNameError."""
    if name not in GPUS:
        raise unknown("GPU", name, GPUS)
    return GPUS[name]


@dataclass(frozen=True)
class Pass:
    """``count`` passes of one row over ``tokens`` that attend to ``context``, and logits at ``projected`` positions."""

    count: float
    tokens: float
    context: float
    projected: float = 0.0


@dataclass(frozen=True)
class GpuCost:
    """``forwards``: passes, counted per row (NFE); ``pflop``: 1e15 operations; ``hours``: GPU hours."""

    forwards: int
    pflop: float
    hours: float


@dataclass(frozen=True)
class RecipeEstimate:
    """``at_most``: every response has its full length. ``expected``: rows stop at the end of the answer if the sampler
    can do so; otherwise equal to ``at_most``."""

    recipe: str
    gpu: str
    documents: int
    prompts: int
    at_most: GpuCost
    expected: GpuCost
    assumptions: list[str]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """The estimate in a few lines."""
        lines = [
            f"{self.recipe}: estimate for one {self.gpu}, not a measurement",
            f"  {self.prompts:,} prompts ({self.documents:,} documents)",
        ]
        costs = {"at most": self.at_most, "expected": self.expected}
        for label, cost in costs.items() if self.expected != self.at_most else [("at most", self.at_most)]:
            hours = f"{cost.hours:,.1f} GPU hours" if cost.hours >= 1 else f"{cost.hours * 60:.0f} GPU minutes"
            lines.append(f"  {label} {cost.forwards:,} forward passes, {cost.pflop:,.0f} PFLOP, {hours}")
        return "\n".join([*lines, *(f"  assumed: {text}" for text in self.assumptions)])


def estimate(recipe: Recipe, overrides: Mapping[str, Any] | None = None, gpu: str = "H100") -> RecipeEstimate:
    """Forward passes and GPU hours of a recipe. ``overrides``: RunSpec fields that replace those of the recipe.

    Raises:
        UsageError: an unknown GPU, a recipe that cannot be run, or a test set whose size is not recorded.
        DecodingError: decoding or likelihood settings that the family does not have or allow.
    """
    device = gpu_named(gpu)
    explicit = {name: value for name, value in (overrides or {}).items() if value is not None}
    fields = merged(recipe.fields(), explicit)  # raises for a recipe that cannot be run
    test_set, facts = recipe.entry.published.test_set, recipe.file.facts
    notes: list[str] = []
    run, sampler = _settings(recipe, fields, notes)
    documents = _documents(recipe.name, test_set, fields, notes)
    prompt = _prompt(run, test_set, notes)
    if run.kind == "likelihood":
        bound = expected = list(_likelihood(run, test_set, prompt, notes))
        requests = documents * run.repeats * (test_set.choices or 2)
    else:
        answer = float(test_set.answer_tokens or run.decoding["gen_length"])
        bound = list(_generation(facts, sampler, prompt, None))
        expected = list(_generation(facts, sampler, prompt, answer))
        requests = documents * run.repeats * run.prompts
        notes += _generation_notes(facts, sampler, answer)
    shape = network_shape(facts, notes)
    notes.append(
        f"{UTILIZATION:.0%} of the {device.name}'s peak (data sheet: {device.tflops:g} TFLOP/s dense bf16, "
        f"{device.tb_per_s:g} TB/s), {ROWS} rows to a forward pass; loading and scoring take no time"
    )
    return RecipeEstimate(
        recipe=recipe.name,
        gpu=device.name,
        documents=documents,
        prompts=requests,
        at_most=_cost(bound, shape, device, requests),
        expected=_cost(expected, shape, device, requests),
        assumptions=notes,
    )


def _settings(recipe: Recipe, fields: Mapping[str, Any], notes: list[str]) -> tuple[RecipeRun, Any]:
    """The recipe's run with the settings of ``fields`` and the family's defaults, and the family's sampler (None for
    likelihoods)."""
    run, file = recipe.entry.run, recipe.file
    assert run is not None
    family = registry().get("family", fields["family"]).load()
    spec = model_spec(family, file.facts)
    decoding: dict[str, Any] = {}
    likelihood: dict[str, Any] = {}
    sampler = None
    if run.kind == "likelihood":
        likelihood = family.likelihood_settings(fields["likelihood"], spec)
    else:
        resolved = family.resolve(fields["decoding"], spec)
        decoding, sampler = resolved.model_dump(), family.sampler(resolved, spec)
        published, explicit = plain(run.decoding), plain(fields["decoding"])
        if explicit.get("gen_length") != published.get("gen_length"):
            # The family's counts (steps, block length) that the new length does not change, or determines.
            counts = {name: value for name, value in decoding.items() if _is_count(type(resolved), name, value)}
            same = [f"{name}={value}" for name, value in counts.items() if value == published.get(name)]
            derived = [f"{name}={value}" for name, value in counts.items() if name not in explicit]
            length = f"gen_length={decoding['gen_length']}"
            notes += [f"{length} with the recipe's own {', '.join(same)}"] if same else []
            notes += [f"{length} with {', '.join(derived)} by {family.name}'s rule"] if derived else []
    if fields["model"] != file.model:
        notes.append(f"a network of {file.model}'s shape; the shape of {fields['model']} is not known here")
    shots = fields.get("num_fewshot")
    update = {"decoding": decoding, "likelihood": likelihood, "repeats": fields["repeats"]}
    return run.model_copy(update={**update, "shots": run.shots if shots is None else shots}), sampler


def model_spec(family: Any, facts: Facts) -> ModelSpec:
    """What a family's samplers and the training methods need of a checkpoint that is only known by its facts. Special
    ids and the context limit are not among them: no number of tokens or forwards depends on those given here."""
    return ModelSpec(
        family=family.name,
        mask_id=0,
        eos_ids=(1,),
        eot_id=None,
        pad_id=None,
        vocab_size=facts.vocab or 2**31,
        context_limit=2**31,
        attention=facts.attention,
        block_length=facts.block_length,
        predicts=family.predicts,
        heads=facts.heads or 0,
        kv_heads=facts.kv_heads or facts.heads or 0,
        sft=family.sft,
    )


def _is_count(kind: type[Decoding], name: str, value: Any) -> bool:
    """Is this a count of the family that has no fixed default, but follows from the length or the checkpoint?"""
    field = kind.model_fields[name]
    is_derived = field.default_factory is not None or field.is_required()
    return name not in Decoding.model_fields and is_derived and type(value) is int


def _documents(name: str, test_set: TestSet, fields: Mapping[str, Any], notes: list[str]) -> int:
    samples, limit = fields.get("samples"), fields.get("limit")
    if samples:
        return sum(map(len, samples.values()))
    if limit is not None:
        notes.append("--limit counts over the whole test set; a harness takes so many of each data set in it")
    if test_set.documents is None:
        if limit is None or limit < 1:
            raise UsageError(
                f"recipe {name}: the size of its test set is not recorded ({test_set.id}); give --limit with a count"
            )
        return int(limit)
    if limit is None:
        return test_set.documents
    return min(test_set.documents, int(limit) if limit >= 1 else ceil(limit * test_set.documents))


def _prompt(run: RecipeRun, test_set: TestSet, notes: list[str]) -> float:
    """Mean number of prompt tokens: the question, few-shot examples with their answers, the template."""
    is_known = test_set.prompt_tokens is not None and test_set.tokens == "data"
    question = test_set.prompt_tokens or 200
    total = question * (1 + run.shots) + (test_set.answer_tokens or 0) * run.shots + TEMPLATE_TOKENS
    source = "the mean of the data" if is_known else "unknown, assumed"
    notes.append(f"prompts of {total} tokens: a question of {question} ({source}), {run.shots} worked examples")
    return float(total)


def _generation(facts: Facts, sampler: Any, prompt: float, answer: float | None) -> Iterator[Pass]:
    """The passes of one response. ``answer``: its length in tokens if the sampler can stop there."""
    length, block, cache = sampler.gen_length, sampler.block_length, sampler.attention.cache
    if facts.attention == "block-causal":
        yield from _blockwise(facts, sampler, prompt, answer)
        return
    passes, blocks, context = sampler.strategy.expected_forwards(block), length // block, prompt + length
    if not cache.used:
        yield Pass(blocks * passes * sampler.forwards_per_turn, context, context, block / 2)
        return
    yield Pass(blocks, context, context, block / 2)
    for number in range(blocks):
        yield Pass(passes - 1, block if cache.block_alone else length - number * block, context, block / 2)


def _blockwise(facts: Facts, sampler: Any, prompt: float, answer: float | None) -> Iterator[Pass]:
    """Block by block with a cache of the earlier ones; a block is committed in the first pass of the next one."""
    block, written, tokens_per_forward = sampler.block_length, sampler.gen_length, None
    if answer is not None:
        written, tokens_per_forward = min(written, ceil(answer) + 1), facts.tokens_per_forward or 1.0
    passes = sampler.strategy.expected_forwards(block, tokens_per_forward)
    yield Pass(1, prompt, prompt)
    for number in range(ceil(written / block)):
        context = prompt + (number + 1) * block
        yield Pass(passes, block if sampler.attention.cache.used else context, context, block / 2)


def _generation_notes(facts: Facts, sampler: Any, answer: float) -> list[str]:
    if facts.attention == "bidirectional":
        return ["every response is decoded to its full length, the LM head run at the masks of the open block"]
    notes = [f"expected: answers end after {answer:.0f} tokens; at most: full length, every step of every block"]
    if sampler.strategy.parallel:
        tokens = facts.tokens_per_forward
        source = (
            "the authors' measured mean"
            if tokens
            else "none published, so the slowest is assumed"
        )
        notes.append(f"expected: {tokens or 1:g} tokens written a forward pass ({source})")
    return notes


def _likelihood(run: RecipeRun, test_set: TestSet, prompt: float, notes: list[str]) -> Iterator[Pass]:
    """The passes of one choice: one per draw, over context and target."""
    target = test_set.answer_tokens or 1
    draws = int(run.likelihood["mc_num"])
    if run.likelihood.get("estimator", "auto") != "reference" and target <= EXACT_LIMIT:
        draws = 2**target - 1
    guided = 2 if float(run.likelihood.get("cfg_scale", 0)) > 0 else 1
    notes.append(f"{test_set.choices or 2} choices of {target} tokens, {draws * guided} forward passes each")
    yield Pass(draws * guided, prompt + target, prompt + target, target / 2)


def flops(part: Pass, shape: NetworkShape) -> float:
    """Operations of a pass of one row."""
    compute = 2 * shape.body * part.tokens + shape.attention * part.tokens * part.context
    return compute + 2 * shape.head * part.projected


def _cost(parts: list[Pass], shape: NetworkShape, gpu: Gpu, requests: int) -> GpuCost:
    operations = seconds = forwards = 0.0
    for part in parts:
        touched = 1 - (1 - shape.active) ** (part.tokens * ROWS)
        read = BYTES * (shape.weights + touched * shape.experts) + ROWS * shape.cached * part.context
        seconds += part.count / ROWS * gpu.seconds(ROWS * flops(part, shape), read)
        operations += part.count * flops(part, shape)
        forwards += part.count
    return GpuCost(round(forwards * requests), operations * requests / 1e15, seconds * requests / 3600)
