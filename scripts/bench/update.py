"""One training update, packed with the losses of masked tokens alone, against padded rows and all logits.

    python scripts/bench/update.py [--runs 5] [--threads 2] [--quick]

Both sides have the same noised rows, loss and gradients: the script fails if they differ by more than 1e-6 with float64
weights. Float32 is timed; there the two sides add the same numbers in different orders, and the script prints by how
much their results differ. An update is loss, backward and an AdamW step, with learning rate 0 so that the weights do
not change.

- padded: rows of the length of the longest, an attention mask over the pads, logits of every position, of which those
  of the masked tokens are gathered, plain cross-entropy (as in LLaDA's GUIDELINES.md, without pads in the loss). Of two
  copies [noisy | clean] only the noisy one has logits.
- packed: concatenated rows, the last layer and the head for masked tokens alone, chunked cross-entropy; as
  ``dare_bench.diffusion`` does for any trainer.

Prompts have log-normal lengths of 60 to 900 tokens, answers of 16 to 256 (median 100) with one EOS; levels and masks
are LLaDA's. Each run has another batch. Tokens are random: speed does not depend on their values. The bundled networks
have a vocabulary of 300, so one case has a random head of 32,768, where logits dominate as in real models.

The peak memory of logits is counted by a TorchDispatchMode: it sums the bytes of the tensors of forward and backward
that are alive at the same time and as wide as the vocabulary (logits, log-softmax, their gradients; not weights and
their gradients). Temporary memory inside a kernel is not counted.
"""

from __future__ import annotations

import copy
import gc
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from timing import Timing, alternate, options
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dare_bench
from dare_bench.diffusion.canvas import Batch, pack
from dare_bench.diffusion.forward import inputs
from dare_bench.diffusion.masked_copies import MaskedCopies, masked_copies
from dare_bench.diffusion.plan import Plan
from dare_bench.diffusion.schedules import CleanCopies, NoiseSchedule, draw, weights
from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM
from dare_bench.types import ModelSpec

TIME, PEAK = 1.6, 4.0
"""Targets: the two ratios at least."""
SAME = 1e-6
"""The largest relative difference with float64 weights (norms and rotary positions stay in float32)."""

Result = tuple[float, list[Tensor]]
"""Loss and gradients of an update."""


@dataclass(frozen=True)
class UpdateCase:
    """``vocab``: the size of a vocabulary for random weights in the checkpoint's shape; None: the checkpoint itself."""

    model: str
    rows: int
    vocab: int | None = None


CASES = (
    UpdateCase("tiny-llada", 16),
    UpdateCase("tiny-dream", 16),
    UpdateCase("tiny-sdar", 16),
    UpdateCase("tiny-llada", 8, 32768),
)
QUICK = tuple(replace(case, rows=4, vocab=case.vocab and 2048) for case in CASES)


@dataclass(frozen=True)
class Noised:
    """A noised batch with each masked token's weight in the loss."""

    batch: Batch
    masked_T: Tensor
    weights_N: Tensor


def length(rng: random.Random, median: float, low: int, high: int) -> int:
    """A log-normal length in [low, high], by rejection."""
    while not low <= (value := round(math.exp(rng.gauss(math.log(median), 0.65)))) <= high:
        pass
    return value


def noised(case: UpdateCase, seed: int, shorter: int) -> Noised:
    rng = random.Random(seed)
    rows = []
    for _ in range(case.rows):
        counts = length(rng, 230, 60, 900), length(rng, 100, 16, 256)
        prompt, answer = ([rng.randrange(256) for _ in range(-(-n // shorter))] for n in counts)
        rows.append((prompt, answer))
    batch, key_B = pack(rows), torch.arange(case.rows)
    noise = draw(NoiseSchedule("even"), CleanCopies(batch, key_B, torch.zeros(case.rows, dtype=torch.long), seed))
    length_T = batch.response_lengths_B[batch.row_T]
    weight_T = weights(noise, "elbo") / (length_T.clamp(min=1) * case.rows)
    return Noised(batch, noise.masked_T, weight_T[noise.masked_T].float())


def packed(network: Any, spec: ModelSpec, data: Noised) -> Tensor:
    forward = inputs(masked_copies(data.batch, data.masked_T, spec.mask_id), spec)
    return torch.dot(network(**forward.arguments()).nll.float(), data.weights_N)


def padded(network: Any, spec: ModelSpec, data: Noised) -> Tensor:
    nll_N = padded_losses(network, spec, masked_copies(data.batch, data.masked_T, spec.mask_id))
    return torch.dot(nll_N.float(), data.weights_N)


def padded_losses(network: Any, spec: ModelSpec, copies: MaskedCopies) -> Tensor:
    """-log p of the scored tokens [N]. B rows, C copies of W columns each, W the longest row's length."""
    forward, lengths = inputs(copies, spec), copies.batch.lengths
    rows, copies, width = len(lengths), forward.plan.copies, max(lengths)
    length_B = torch.tensor(lengths)
    column = torch.arange(width)
    real_BCW = (column < length_B[:, None])[:, None].expand(rows, copies, width)
    index_U = real_BCW.flatten().nonzero()[:, 0]  # in packed order: row by row, copy by copy
    tokens = torch.full((rows * copies * width,), spec.mask_id)
    tokens[index_U] = forward.tokens_U
    plan = Plan((copies * width,) * rows, forward.plan.block_length, copies)
    views = plan.views(tokens.device)  # the list that the plan caches and every layer reads
    mask = real_BCW.reshape(rows, 1, 1, -1).expand(-1, -1, copies * width, -1)
    views[0] = replace(views[0], mask=mask if views[0].mask is None else mask & views[0].mask)
    hidden = network.hidden(tokens, column.repeat(rows * copies), plan, None)
    logits = network.head(hidden.view(rows, copies, width, -1)[:, 0].reshape(rows * width, -1))
    row, rest = index_U[forward.at_N] // (copies * width), index_U[forward.at_N] % (copies * width)
    return cross_entropy(logits[row * width + rest], forward.targets_N, reduction="none")


class LogitsPeak(TorchDispatchMode):
    """Counts the bytes of live tensors of width ``vocab``; ``peak`` is their maximum."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.vocab, self.width, self.peak = vocab, width, 0
        self.alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.alive = {ref: size for ref, size in self.alive.items() if not ref.expired()}
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.dim() > 1 and x.shape[-1] == self.vocab and x.shape[-2] != self.width:
                self.alive[StorageWeakRef(x.untyped_storage())] = x.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self.alive.values()))
        return out


def build(case: UpdateCase) -> tuple[Any, ModelSpec]:
    """The network, in float32, and its spec."""
    loaded = dare_bench.load(case.model, device="cpu", dtype="float32").loaded
    if case.vocab is None:
        return loaded.network.train(), loaded.spec
    torch.manual_seed(0)
    fields = {**loaded.network.config.to_dict(), "vocab_size": case.vocab, "embedding_size": case.vocab, "dtype": None}
    return LLaDAModelLM(LLaDAConfig(**fields)).train(), replace(loaded.spec, vocab_size=case.vocab)


def updates(network: Any, spec: ModelSpec, loss_of: Callable[..., Tensor]) -> Callable[[Any], Result]:
    """A function that performs one update on a batch."""
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.0)

    def update(data: Any) -> Result:
        optimizer.zero_grad()
        loss = loss_of(network, spec, data)
        loss.backward()
        optimizer.step()
        return loss.item(), [p.grad for p in parameters]

    return update


def difference(result: Result, peer: Result, scale: float | None = None) -> float:
    """The maximum of the relative differences of the losses, and of the gradients in the L2 norm. ``scale``: what the
    losses are relative to (default: the loss)."""
    (loss, gradients), (peer_loss, peer_gradients) = result, peer
    pairs = zip(gradients, peer_gradients, strict=True)
    distance = sum(float((a - b).double().square().sum()) for a, b in pairs)
    norm = sum(float(b.double().square().sum()) for b in peer_gradients)
    return max(abs(loss - peer_loss) / (scale or abs(peer_loss)), math.sqrt(distance / norm))


def logits_peak(network: Any, update: Callable[[Noised], Result], data: Noised) -> int:
    """Bytes, over one update."""
    gc.collect()
    with LogitsPeak(*network.get_output_embeddings().weight.shape) as counter:
        update(data)
    return counter.peak


def check(case: UpdateCase, result: Result, peer: Result, scale: float | None = None) -> float:
    """The :func:`difference` of two updates with float64 weights; SystemExit if it is too large."""
    error = difference(result, peer, scale)
    if not error <= SAME:
        raise SystemExit(f"{case}: with float64 weights loss or gradients differ by {error:.1e}; {SAME:.0e} is allowed")
    return error


def alternated(
    slow: Callable[[Any], Result], fast: Callable[[Any], Result], batches: Iterable[tuple[Any, float | None]]
) -> tuple[Timing, float]:
    """Alternate two updates on each batch; the largest :func:`difference` of their results.

    Args:
        batches: each with the ``scale`` of the difference.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    apart = 0.0
    for data, scale in batches:
        pair = alternate(partial(slow, data), partial(fast, data), 1)
        apart = max(apart, difference(pair.fast_value, pair.slow_value, scale))
        seconds[0].extend(pair.slow)
        seconds[1].extend(pair.fast)
    return Timing(*seconds, None, None), apart


def compare(case: UpdateCase, runs: int, shorter: int) -> Iterator[str]:
    """The lines of a case; SystemExit if the results of both sides differ."""
    network, spec = build(case)
    double, short = copy.deepcopy(network).double(), noised(case, 0, 4 * shorter)
    exact = check(case, *(updates(double, spec, loss_of)(short) for loss_of in (packed, padded)))
    slow, fast = updates(network, spec, padded), updates(network, spec, packed)
    first = noised(case, 0, shorter)  # warms up, and is what the memory is counted on
    before, after = (logits_peak(network, update, first) for update in (slow, fast))
    batches = [noised(case, seed, shorter) for seed in range(1, runs + 1)]
    timing, apart = alternated(slow, fast, ((data, None) for data in batches))
    sizes = ((case.rows * max(b.batch.lengths), len(b.masked_T), len(b.weights_N)) for b in batches)
    counts = [sum(column) // runs for column in zip(*sizes, strict=True)]
    yield (
        f"{case.model}, {spec.vocab_size} words, {case.rows} rows: {counts[0]} padded, {counts[1]} packed, "
        f"{counts[2]} masked tokens a batch"
    )
    yield f"    time    {timing.spread()}  >= {TIME:g}x {verdict(timing.ratio >= TIME)}"
    mib = f"{before / 2**20:.1f} -> {after / 2**20:.1f} MiB"
    yield f"    logits  {before / after:.2f}x ({mib})  >= {PEAK:g}x {verdict(before >= PEAK * after)}"
    yield differences(exact, apart)


def differences(exact: float, rounded: float) -> str:
    """The line about the :func:`difference` of both sides: with float64 weights, as :func:`check` allowed it, and in
    float32."""
    return f"    apart   {exact:.0e} in float64  <= {SAME:.0e} met; {rounded:.0e} in float32, from rounding"


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main() -> None:
    args = options(__doc__)
    print(f"padded rows and all logits -> packed and masked only; float32, {args.threads} threads, {args.runs} runs")
    for case in QUICK if args.quick else CASES:
        for line in compare(case, args.runs, 8 if args.quick else 1):
            print(line, flush=True)


if __name__ == "__main__":
    main()
