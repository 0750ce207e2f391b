"""Our sampler and likelihoods against the published code of others: same weights, prompts and tokens.

    python scripts/bench/peers.py CHECKOUTS --python PYTHON [--peers llada,sdar]

CHECKOUTS contains clones of ML-GSAI/LLaDA, NVlabs/Fast-dLLM, JetAstra/SDAR and ZHZisZZ/dllm under these last names;
their code runs in a separate process (``peer_process.py``) by PYTHON, an interpreter with torch and the version of
transformers that they need (4.53 for fast-dllm and sdar, 4.57 for the others). Both processes take turns, and
seconds are processor time (by the clock with several threads). The script fails where tokens differ, or a
log-likelihood by 1e-3.

The models have random weights, hidden size 512 and 4 layers (about 17 M); the weights have a large standard deviation,
so that no token depends on the order of additions. ``mixed``: 8 prompts of 30 to 300 tokens; ours takes them together,
the peer as its evaluation does.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peer_process import timed
from plain import Timing

import dare_bench

FAMILIES = {"llada": "llada", "fast-dllm": "llada", "dllm": "llada", "sdar": "sdar", "dream": "dream"}
GEN, BLOCK = 32, 16
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
    kind: Literal["generate", "score"] = "generate"


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
    return [PeerCase("MDLMSampler", llada, theirs)]


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
    """Prompts, or pairs of which four share a context, of random tokens."""
    rng, last = random.Random(7), min(model.spec.vocab_size, *model.spec.eos_ids, model.spec.mask_id)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(last) for _ in range(count)]

    if case.kind == "generate":
        lengths = [rng.randint(30, 300) for _ in range(8)] if mixed else [128]
        return {"prompts": [tokens(length) for length in lengths]}
    if not mixed:
        return {"pairs": [(tokens(60), tokens(20))]}
    contexts = [tokens(rng.randint(30, 100)) for _ in range(2)]
    return {"pairs": [(context, tokens(rng.randint(8, 30))) for context in contexts for _ in range(4)]}


def answer(model: Any, case: PeerCase, request: dict[str, Any]) -> Any:
    """Ours: tokens of responses, or log-likelihoods."""
    if case.kind == "score":
        return [result.value for result in model.loglikelihood(request["pairs"], **case.ours)]
    return [result.tokens for result in model.generate(request["prompts"], max_rows=16, **case.ours)]


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
    pairs = zip(theirs, ours, strict=True)
    near = case.kind == "score" and all(abs(a - b) < 1e-3 + 1e-5 * abs(a) for a, b in pairs)
    if not near and theirs != ours:
        raise SystemExit(f"error: {case.name}: the peer answers {theirs}, ours {ours}; the comparison is void")
    return Timing(*times, theirs, ours)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peers", default=",".join(FAMILIES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = "cpu" if args.threads == 1 else "wall"
    for peer in args.peers.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "model")
            random_checkpoint(dare_bench.load(f"tiny-{FAMILIES[peer]}").network, folder)
            (folder / "generation_config.json").write_text("{}")  # Dream's code requires the file
            model = dare_bench.load(folder, dtype="float32", device="cpu")
            with opened(peer, args.checkouts, args.python, folder, args.threads) as ask:
                for case in cases(peer, model.spec.mask):
                    for mixed in (False, True):
                        timing = compare(ask, model, case, inputs(case, mixed, model), args.runs, clock)
                        print(f"{peer:<10}{case.name:<32}{'mixed 8' if mixed else '1':<9}{timing.spread()}", flush=True)


if __name__ == "__main__":
    main()
