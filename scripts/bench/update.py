"""One coupled-GRPO update, packed with the losses of scored tokens alone, against padded forwards with all logits.

    python scripts/bench/update.py [--runs 5] [--threads 2] [--quick]

The update is one inside a rollout, with clipped ratios to old values that differ. Each completion has three masked
copies (all masked, a random mask, its complement). An update is loss, backward and an AdamW step with learning rate 0.
Both sides have the same copies; the script fails if loss or gradients differ by more than 1e-6 with float64 weights.
Float32 is timed; there the two sides add the same numbers in different orders, and the script prints by how much their
results differ. Losses of positive and negative advantages cancel, so they are compared relative to the mean size of an
advantage.

- padded: a forward for each of the three masks, of rows padded to the longest, with the logits of every position, from
  which the log-probabilities of the scored tokens are gathered; autograd through the loss.
- packed: the copies of all three in one forward, the last layer and the head for scored tokens alone; the loss settled
  as one weight for each scored token, as ``dare_bench.trainers.loop`` does.

Prompts have log-normal lengths of 60 to 900 tokens, completions a canvas of 128 tokens, of which 16 to 128 count (up to
the first EOS). Tokens and rewards are random. The bundled networks have a vocabulary of 300, so one case has a random
head of 32,768, where logits dominate as in real models.

The peak memory of logits is the largest sum of bytes of the tensors of forward and backward that are alive at the same
time and as wide as the vocabulary (logits, log-softmax, their gradients; not weights and their gradients). Temporary
memory inside a kernel is not counted.
"""

from __future__ import annotations

import copy
import gc
import math
import random
from collections.abc import Callable, Iterator
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
from dare_bench.diffusion.forward import inputs
from dare_bench.diffusion.masked_copies import MaskedCopies
from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM
from dare_bench.seeds import key
from dare_bench.trainers.forwards import divide
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.coupled_grpo import CoupledGRPO
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import RolloutStep, Update, advantages
from dare_bench.types import ModelSpec

CANVAS, GROUP, MASKS = 128, 4, 3
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


CASES = (UpdateCase("tiny-llada", 16), UpdateCase("tiny-dream", 16), UpdateCase("tiny-llada", 8, 32768))
QUICK = tuple(replace(case, rows=4, vocab=case.vocab and 2048) for case in CASES)


@dataclass(frozen=True)
class CoupledUpdate:
    """A step inside a rollout, and its method."""

    method: CoupledGRPO
    step: RolloutStep

    @property
    def scale(self) -> float:
        """The mean size of an advantage."""
        return float(self.step.surrogate.advantage_A.abs().mean())


def losses(network: Any, data: CoupledUpdate) -> Tensor:
    """-log p of the scored tokens of all copies in one packed forward, [N]."""
    ((copies, index_N),) = divide(data.step.copies, 1)
    nll_N = network(**data.method.inputs(copies).arguments()).nll
    return torch.zeros_like(nll_N).index_copy(0, index_N, nll_N)


def packed(network: Any, spec: ModelSpec, data: CoupledUpdate) -> Tensor:
    """The loss, with the gradient of its settled weights."""
    nll_N = losses(network, data)
    settled_N = nll_N.detach().double().requires_grad_()
    loss, _ = data.method.loss(data.step, settled_N, None)
    (weight_N,) = torch.autograd.grad(loss, settled_N)
    weighted = torch.dot(nll_N, weight_N.to(nll_N.dtype)).double()
    return weighted + (loss - weighted).detach()


def padded(network: Any, spec: ModelSpec, data: CoupledUpdate) -> Tensor:
    """The loss, one padded forward for each mask."""
    copies = data.step.copies
    nll_N = torch.zeros(len(copies.at_N), dtype=network.get_output_embeddings().weight.dtype)
    rows = len(copies) // MASKS
    for mask in range(MASKS):
        part, index_N = copies.take(range(mask * rows, (mask + 1) * rows))
        nll_N = nll_N.index_copy(0, index_N, padded_losses(network, spec, part))
    loss, _ = data.method.loss(data.step, nll_N, None)
    return loss


def padded_losses(network: Any, spec: ModelSpec, copies: MaskedCopies) -> Tensor:
    """-log p of the scored tokens [N], from B rows of W columns, W the longest row's length."""
    forward, lengths = inputs(copies, spec), copies.batch.lengths
    rows, width = len(lengths), max(lengths)
    real_BW = torch.arange(width) < torch.tensor(lengths)[:, None]
    index_U = real_BW.flatten().nonzero()[:, 0]
    tokens = torch.full((rows * width,), spec.mask_id)
    tokens[index_U] = forward.tokens_U
    plan = Plan((width,) * rows)
    views = plan.views(tokens.device)  # the list that the plan caches and every layer reads
    views[0] = replace(views[0], mask=real_BW[:, None, None].expand(-1, -1, width, -1))
    logits = network.head(network.hidden(tokens, torch.arange(width).repeat(rows), plan, None))
    return cross_entropy(logits[index_U[forward.at_N]], forward.targets_N, reduction="none")


def length(rng: random.Random) -> int:
    """A prompt's log-normal length, by rejection."""
    while not 60 <= (value := round(math.exp(rng.gauss(math.log(230), 0.65)))) <= 900:
        pass
    return value


def rollout(case: UpdateCase, seed: int, shorter: int) -> Rollout:
    """Random completions with random rewards."""
    rng = random.Random(seed)
    canvas = CANVAS // shorter
    completions = []
    for row in range(case.rows):
        prompt = [rng.randrange(256) for _ in range(-(-length(rng) // shorter))]
        tokens = tuple(rng.randrange(256) for _ in range(canvas))
        scored = rng.randint(max(1, canvas // 8), canvas)
        completions.append(Completion(tuple(prompt), tokens, scored, key("bench", seed, row), (0,) * canvas))
    rewards = [rng.random() for _ in completions]
    advantage = advantages(torch.tensor(rewards), GROUP, "leave_one_out").tolist()
    return Rollout(
        number=0,
        completions=completions,
        texts=[""] * case.rows,
        rewards=rewards,
        advantage=advantage,
        scored_total=sum(c.scored for c in completions),
        weights_version=0,
    )


def data_of(case: UpdateCase, network: Any, spec: ModelSpec, seed: int, shorter: int) -> CoupledUpdate:
    """The second step on a rollout: its old values are the network's, changed by 0.1 nats or so."""
    method = CoupledGRPO(CoupledGRPO.settle({"beta": 0.0}, spec), spec, CANVAS)
    played = rollout(case, seed, shorter)
    update = Update(number=1, iteration=1, completions=case.rows, seed=seed, steps=2)
    data = CoupledUpdate(method, method.step(played, update))
    with torch.no_grad():
        values = method.action_logprobs(played, data.step, losses(network, data))
    generator = torch.Generator().manual_seed(seed)
    noise = [(0.1 * torch.randn(len(v), generator=generator)).tolist() for v in values]
    played.old = [[[a + b for a, b in zip(v, n, strict=True)] for v, n in zip(values, noise, strict=True)]]
    return CoupledUpdate(method, method.step(played, update))


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


def difference(result: Result, peer: Result, scale: float) -> float:
    """The maximum of the relative differences of the losses, and of the gradients in the L2 norm. ``scale``: what the
    losses are relative to."""
    (loss, gradients), (peer_loss, peer_gradients) = result, peer
    pairs = zip(gradients, peer_gradients, strict=True)
    distance = sum(float((a - b).double().square().sum()) for a, b in pairs)
    norm = sum(float(b.double().square().sum()) for b in peer_gradients)
    return max(abs(loss - peer_loss) / scale, math.sqrt(distance / norm))


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


def logits_peak(network: Any, update: Callable[[CoupledUpdate], Result], data: CoupledUpdate) -> int:
    """Bytes, over one update."""
    gc.collect()
    with LogitsPeak(*network.get_output_embeddings().weight.shape) as counter:
        update(data)
    return counter.peak


def compare(case: UpdateCase, runs: int, shorter: int) -> Iterator[str]:
    """The lines of a case; SystemExit if the results of both sides differ."""
    network, spec = build(case)
    double = copy.deepcopy(network).double()
    short = data_of(case, double, spec, 0, 4 * shorter)
    exact = difference(*(updates(double, spec, loss_of)(short) for loss_of in (packed, padded)), short.scale)
    if not exact <= SAME:
        raise SystemExit(f"{case}: with float64 weights loss or gradients differ by {exact:.1e}; {SAME:.0e} is allowed")
    slow, fast = updates(network, spec, padded), updates(network, spec, packed)
    first, *steps = (data_of(case, network, spec, seed, shorter) for seed in range(runs + 1))
    before, after = (logits_peak(network, update, first) for update in (slow, fast))  # warms up
    pairs = [alternate(partial(slow, data), partial(fast, data), 1) for data in steps]
    timing = Timing([pair.slow[0] for pair in pairs], [pair.fast[0] for pair in pairs], None, None)
    apart = max(difference(p.fast_value, p.slow_value, data.scale) for p, data in zip(pairs, steps, strict=True))
    read, scored = (sum(len(getattr(data.step.copies, name)) for data in steps) // runs for name in ("seen_T", "at_N"))
    yield (
        f"{case.model}, {spec.vocab_size} words, {case.rows} completions: {read} tokens read, {scored} scored an update"
    )
    yield f"    time    {timing.spread()}"
    yield f"    logits  {before / after:.2f}x ({before / 2**20:.1f} -> {after / 2**20:.1f} MiB)"
    yield f"    apart   {exact:.0e} in float64; {apart:.0e} in float32, from rounding"


def main() -> None:
    args = options(__doc__)
    print(f"padded, all logits -> packed, scored only; float32, {args.threads} threads, {args.runs} runs")
    for case in QUICK if args.quick else CASES:
        for line in compare(case, args.runs, 8 if args.quick else 1):
            print(line, flush=True)


if __name__ == "__main__":
    main()
