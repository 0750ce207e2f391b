"""Our sampler and likelihoods against the published code of others: same weights, prompts and tokens.

    python scripts/bench/peers.py CHECKOUTS --python PYTHON [--peers llada,sdar] [--models tiny,512]

CHECKOUTS contains clones of ML-GSAI/LLaDA, NVlabs/Fast-dLLM, JetAstra/SDAR and ZHZisZZ/dllm under these last names;
their code runs in a separate process (``peer_process.py``) by PYTHON, an interpreter with torch and the version of
transformers that they need (4.53 for fast-dllm and sdar, 4.57 for the others). Both processes take turns, and
seconds are processor time (by the clock with several threads). The script fails where tokens differ, or a
log-likelihood by 1e-3. The last column is the ratio if our matrix products ran at the rate of a large one and all else
took no time: no program that computes these products reaches more.

Models: the family's bundled tiny checkpoint, and random weights of hidden size 512 with 4 layers (about 17 M). Random
weights have a large standard deviation, so that no token depends on the order of additions. ``mixed``: 8 prompts of 30
to 300 tokens; ours takes them together, the peer as its evaluation does.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from peer_process import timed
from timing import Timing
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from update import updates

import dare_bench
from dare_bench.diffusion.forward import inputs as forward_inputs
from dare_bench.diffusion.masked_copies import Batch, masked_copies, pack
from dare_bench.types import ModelSpec

FAMILIES = {"llada": "llada", "fast-dllm": "llada", "dllm": "llada", "sdar": "sdar", "dream": "dream"}
GEN, BLOCK = 32, 16
SIZE = 2048
"""Rows and columns of a large matrix."""
STD = 0.06
"""Standard deviation of random weights: logits then differ by several units."""
LLADA = {
    "d_model": 512, "n_heads": 8, "n_kv_heads": 8, "n_layers": 4, "mlp_hidden_size": 1408, "vocab_size": 2048,
    "embedding_size": 2048, "init_std": STD,
}  # fmt: skip
QWEN = {
    "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "head_dim": 64,
    "intermediate_size": 1408, "vocab_size": 2048, "initializer_range": STD,
}  # fmt: skip


@dataclass(frozen=True)
class PeerCase:
    """What ours and the peer are asked for: fields by the names of each."""

    name: str
    ours: dict[str, Any]
    theirs: dict[str, Any]
    kind: Literal["generate", "score", "train"] = "generate"


def cases(peer: str, mask: int) -> list[PeerCase]:
    llada = {"gen_length": GEN, "block_length": BLOCK, "steps": GEN}
    if peer == "llada":
        draws = {"mc_num": 32, "batch_size": 16, "seed": 3}
        return [
            PeerCase("generate", llada, {**llada, "mask_id": mask}),
            PeerCase("likelihood", {**draws, "estimator": "reference"}, {**draws, "mask_id": mask}, "score"),
        ]
    if peer == "fast-dllm":
        caches = [PeerCase(f"cache {c}", {**llada, "cache": c}, {**llada, "cache": c}) for c in ("prefix", "dual")]
        few = {**llada, "steps": GEN // 4, "cache": "dual"}
        all_cases = [*caches, PeerCase("cache dual, 4 tokens a step", few, few)]
        return [PeerCase(c.name, c.ours, {**c.theirs, "mask_id": mask}) for c in all_cases]
    if peer == "sdar":
        shared = {"gen_length": GEN, "block_length": 4, "remasking_strategy": "sequential"}
        steps = ((4, "1 token a step"), (1, "4 tokens a step"))
        return [
            PeerCase(
                f"sequential, {text}",
                {**shared, "denoising_steps": count},
                {**shared, "denoising_steps": count, "top_k": 1, "mask_id": mask},
            )
            for count, text in steps
        ]
    if peer == "dream":
        shared = {"max_new_tokens": GEN, "steps": GEN, "alg": "maskgit_plus", "temperature": 0.0}
        return [PeerCase("maskgit_plus", shared, {**shared, "mask_token_id": mask})]
    theirs = {"max_new_tokens": GEN, "steps": GEN, "block_size": BLOCK, "mask_id": mask}
    step = {"seed": 3}
    return [PeerCase("MDLMSampler", llada, theirs), PeerCase("MDLMTrainer, one step", step, step, "train")]


def random_checkpoint(tiny: Any, folder: Path) -> None:
    """Write a checkpoint of the family of ``tiny``, with other sizes and random weights."""
    torch.manual_seed(0)
    config = tiny.config.to_dict() | (LLADA if "d_model" in tiny.config.to_dict() else QWEN)
    network = type(tiny)(type(tiny.config)(**config))
    head = network.get_output_embeddings().weight
    with torch.no_grad():
        head *= 4
        head[network.config.mask_token_id] = 0  # never predicted
    network.save_pretrained(folder)


@contextmanager
def opened(peer: str, checkouts: Path, python: str, folder: Path, threads: int) -> Iterator[Any]:
    """A function that sends a request to the peer's process and returns its reply."""
    script = str(Path(__file__).with_name("peer_process.py"))
    words = [python, script, peer, str(checkouts), str(folder), str(threads)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout

        def ask(request: dict[str, Any]) -> Any:
            print(json.dumps(request), file=process.stdin, flush=True)
            if not (line := process.stdout.readline()):
                raise SystemExit(f"error: the process of {peer} ended with code {process.wait()}; its message is above")
            return json.loads(line)

        yield ask
        process.stdin.close()


def inputs(case: PeerCase, mixed: bool, model: Any) -> dict[str, Any]:
    """Prompts, training rows, or pairs of which four share a context, of random tokens."""
    rng, last = random.Random(7), min(model.spec.vocab_size, *model.spec.eos_ids, model.spec.mask_id)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(last) for _ in range(count)]

    if case.kind == "train":
        answers = [rng.randint(16, 128) for _ in range(8)] if mixed else [64]
        return {"rows": [(tokens(rng.randint(30, 300) if mixed else 128), tokens(length)) for length in answers]}
    if case.kind == "generate":
        lengths = [rng.randint(30, 300) for _ in range(8)] if mixed else [128]
        return {"prompts": [tokens(length) for length in lengths]}
    if not mixed:
        return {"pairs": [(tokens(60), tokens(20))]}
    contexts = [tokens(rng.randint(30, 100)) for _ in range(2)]
    return {"pairs": [(context, tokens(rng.randint(8, 30))) for context in contexts for _ in range(4)]}


def answer(model: Any, case: PeerCase, request: dict[str, Any]) -> Any:
    """Ours: tokens of responses, log-likelihoods, or the loss of a training step."""
    if case.kind == "train":
        return [update_of(model)(noised(request["rows"], **case.ours))[0]]
    if case.kind == "score":
        return [result.value for result in model.loglikelihood(request["pairs"], **case.ours)]
    return [result.tokens for result in model.generate(request["prompts"], max_rows=16, **case.ours)]


@cache
def update_of(model: Any) -> Any:
    """A function that performs a training step on noised rows."""
    return updates(model.network.train(), model.spec, supervised_loss)


@dataclass(frozen=True)
class Noised:
    """A noised batch with each masked token's weight in the loss."""

    batch: Batch
    masked_T: Tensor
    weights_N: Tensor


def supervised_loss(network: Any, spec: ModelSpec, data: Noised) -> Tensor:
    forward = forward_inputs(masked_copies(data.batch, data.masked_T, spec.mask_id), spec)
    return torch.dot(network(**forward.arguments()).nll.float(), data.weights_N)


def noised(rows: list[Any], seed: int) -> Noised:
    """dllm's noise: a level for each row, and independent masks on the rows padded to the longest."""
    batch = pack(rows)
    torch.manual_seed(seed)
    alpha_B = 1 - (1e-3 + (1 - 1e-3) * torch.rand(len(rows)))
    chance_BL = torch.rand(len(rows), max(batch.lengths))
    level_T = 1 - alpha_B[batch.row_T]
    masked_T = (chance_BL[batch.row_T, batch.column_T] < level_T) & batch.response_T
    return Noised(batch, masked_T, 1 / level_T[masked_T] / batch.response_T.sum())


def compare(ask: Any, model: Any, case: PeerCase, request: dict[str, Any], runs: int, clock: str) -> Timing:
    """Alternating runs after one item to warm up; exits with an error if the answers differ."""
    times: tuple[list[float], list[float]] = ([], [])
    warm_up = {kind: items[:1] for kind, items in request.items()}
    ask({**warm_up, "fields": case.theirs})
    answer(model, case, warm_up)
    for _ in range(runs):
        replies = ask({**request, "fields": case.theirs}), timed(lambda: answer(model, case, request))
        for seconds, reply in zip(times, replies, strict=True):
            seconds.append(reply[clock])
    theirs, ours = (reply["answer"] for reply in replies)
    relative = 1e-4 if case.kind == "train" else 1e-5
    pairs = zip(theirs, ours, strict=True)
    near = case.kind != "generate" and all(abs(a - b) < 1e-3 + relative * abs(a) for a, b in pairs)
    if not near and theirs != ours:
        raise SystemExit(f"error: {case.name}: the peer answers {theirs}, ours {ours}; the comparison is void")
    return Timing(*times, theirs, ours)


def product_rate(clock: str) -> float:
    """Operations per second of a large matrix product."""
    left, right, out = (torch.ones(SIZE, SIZE) for _ in range(3))
    return 2 * SIZE**3 / min(timed(lambda: torch.mm(left, right, out=out))[clock] for _ in range(10))


def bound(model: Any, case: PeerCase, request: dict[str, Any], timing: Timing, clock: str) -> float:
    """The ratio if ours took the time of its matrix products alone (without attention), at the rate of a large one."""
    with FlopCounterMode(display=False) as counter:
        answer(model, case, request)
    return statistics.median(timing.slow) / (counter.get_total_flops() / product_rate(clock))


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peers", default=",".join(FAMILIES))
    parser.add_argument("--models", default="tiny,512")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = "cpu" if args.threads == 1 else "wall"
    for kind in args.models.split(","):
        for peer in args.peers.split(","):
            family = FAMILIES[peer]
            tiny = dare_bench.load(f"tiny-{family}")
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch, "model")
                if kind == "512":
                    random_checkpoint(tiny.network, folder)
                else:
                    tiny.save(folder)
                (folder / "generation_config.json").write_text("{}")  # Dream's code requires the file
                model = dare_bench.load(folder, dtype="float32", device="cpu")
                with opened(peer, args.checkouts, args.python, folder, args.threads) as ask:
                    for case in cases(peer, model.spec.mask):
                        for mixed in (False, True):
                            request = inputs(case, mixed, model)
                            timing = compare(ask, model, case, request, args.runs, clock)
                            rows, limit = "mixed 8" if mixed else "1", bound(model, case, request, timing, clock)
                            line = f"{peer:<10}{kind:<6}{case.name:<32}{rows:<9}{timing.spread()}"
                            print(f"{line}, at most {limit:.2f}x", flush=True)


if __name__ == "__main__":
    main()
