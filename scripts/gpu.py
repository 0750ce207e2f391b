"""What to do first with a GPU, in the order of its value: are the values right, then how fast is it.

    python scripts/gpu.py --output gpu [--minutes 20] [--device cuda] [--only attention,roofline] [--again]

Each part runs in a separate process within its limit of minutes, and its lines are kept in OUTPUT/state.json: the
same command goes on after the parts that are done. OUTPUT/speed.md has the measured rows in the form of docs/speed.md.
It takes torch, transformers, safetensors, tokenizers and what the core reads settings with; no harness. Where nothing
can be installed, name a folder that contains the missing packages in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]  # the package need not be installed

NEEDED = {"torch": "torch", "transformers": "transformers", "safetensors": "safetensors", "tokenizers": "tokenizers",
          "pydantic": "pydantic", "yaml": "pyyaml", "numpy": "numpy", "jinja2": "jinja2"}  # fmt: skip
"""Packages that the core imports, by the names of their modules."""
MODELS = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2")
QUESTIONS = ("2 + 3 =", "a", "sudoku\n.3.4\n4..3\n.431\n.14.\n=", "17 - 9 =")
Lines = Iterator[str]


def values(device: str, quick: bool) -> Lines:
    """Tokens and log-likelihoods in float32, of every bundled family, against those of this machine's CPU."""
    import dare_bench

    for name in MODELS[:1] if quick else MODELS:
        cpu = dare_bench.load(name, device="cpu")
        for attention in ("padded", "sdpa"):
            model = dare_bench.load(name, device=device, dtype="float32", attention=attention)
            first, second = ([a.tokens for a in m.generate(QUESTIONS, gen_length=16)] for m in (cpu, model))
            pairs = [(question, " 5") for question in QUESTIONS]
            scores = ([a.value for a in m.loglikelihood(pairs)] for m in (cpu, model))
            apart = max(abs(a - b) for a, b in zip(*scores, strict=True))
            same = sum(a == b for a, b in zip(first, second, strict=True))
            yield f"{name}, {attention}: {same} of {len(first)} answers equal, log-likelihoods {apart:.1e} apart"
            if apart > 1e-3 or same < len(first) - 1:
                raise SystemExit(f"error: {name} on {device} is another model; 1e-3 and one near tie are allowed")


def tests(device: str, quick: bool) -> Lines:
    """The tests marked ``cuda``: attention without padding, and captured graphs."""
    lacking = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if lacking or not device.startswith("cuda"):
        yield (
            f"skipped: they need CUDA, which {device} is not"
            if not lacking
            else f"skipped: no {' and no '.join(lacking)}"
        )
        return
    import pytest

    folder = ROOT / "tests" / "unit" / "model_adapters"
    files = [folder / "backbone" / "test_attention.py", folder / "sampling" / "test_frames.py"]
    sys.path.append(str(ROOT / "tests"))
    # Not the options of pyproject.toml, which need plugins.
    words = [
        "-c",
        os.devnull,
        "--rootdir",
        str(ROOT),
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-m",
        "cuda",
    ]
    status = pytest.main([*words, "-q", "--tb=line", "--show-capture=no", *map(str, files)])
    if status != 0:
        raise SystemExit(f"error: pytest ended with {status!r}")
    yield "passed"


def attention(device: str, quick: bool) -> Lines:
    """Logits of ``auto`` against those of ``sdpa``, in the same dtype."""
    import dare_bench

    ids = list(range(5, 105))
    for name in MODELS[:1] if quick else MODELS:
        for dtype, allowed in (("float32", 1e-4), ("bfloat16", 5e-2)):
            auto, plain = (dare_bench.load(name, device=device, dtype=dtype, attention=a) for a in ("auto", "sdpa"))
            want, got = plain.logits(ids), auto.logits(ids)
            apart = float((got - want).abs().max() / want.abs().max())
            yield f"{name}, {dtype}: auto is {auto.spec.attention_backend}, {apart:.1e} of the largest logit apart"
            if not apart <= allowed:
                raise SystemExit(f"error: {allowed:.0e} is allowed")


def frames(device: str, quick: bool) -> Lines:
    """Steps captured as CUDA graphs, and compiled before, against others: the same tokens, and the ratio of times."""
    import dare_bench

    if not device.startswith("cuda"):
        yield f"skipped: CUDA captures graphs, {device} does not"
        return
    for name in MODELS:
        dtype = "bfloat16" if name == "tiny-llada2" else "float32"  # experts are captured in bfloat16 alone
        open_with = partial(dare_bench.load, name, device=device, dtype=dtype, attention="padded")
        if open_with().loaded.frames is None:
            yield f"{name}: its experts are not captured on this GPU"
            continue
        answers, seconds = [], []
        for compile in (False, None, True):
            model = open_with(compile=compile)
            times = list[float]()
            for _ in range(4):
                start = time.perf_counter()
                got = [answer.tokens for answer in model.generate(QUESTIONS, gen_length=16)]
                times.append(time.perf_counter() - start)
            answers.append(got)
            seconds.append((times[0], min(times[1:])))
        same = [sum(a == b for a, b in zip(answers[0], other, strict=True)) for other in answers[1:]]
        firsts = ", ".join(f"{first:.2g}" for first, _ in seconds)
        yield f"{name}: {same[0]} of {len(QUESTIONS)} answers equal captured, {same[1]} compiled; first call {firsts} s"
        for way, (_, then) in zip(("captured", "compiled and captured"), seconds[1:], strict=True):
            yield f"| {way} steps, {name} | {seconds[0][1] / then:.2f}x |"
        if same[0] < len(QUESTIONS) or same[1] < len(QUESTIONS) - 1:
            raise SystemExit("error: other tokens; captured steps allow none, and compiled ones at most one near tie")


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """What ``run`` launches as one CUDA graph."""
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def roofline(device: str, quick: bool) -> Lines:
    """The share that a forward of LLaDA-8B (of two of its layers on a CPU) reaches of the speed that the machine
    allows. Its floor is the larger of its operations at the rate of a large product, and its weights at the rate of a
    copy."""
    from copy import copy
    from dataclasses import replace

    import torch

    from dare_bench.costs.trace import find, shapes, traced
    from dare_bench.diffusion.plan import Plan

    model, is_gpu = copy(find("GSAI-ML/LLaDA-8B-Instruct")), device.startswith("cuda")
    sizes = {"width": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ff_width": 96, "vocab": 256} if quick else {}
    sizes |= {} if is_gpu and not quick else {"layers": 2, "tied_head": True}
    model.network = copy(model.network)
    model.network.arch = arch = replace(model.network.arch, **sizes)
    dtype = torch.bfloat16 if is_gpu else torch.float32
    built = shapes(model, arch.layers, dtype).eval().to_empty(device=device)
    size, count = (64, 1 << 16) if quick else (8192, 1 << 30) if is_gpu else (2048, 1 << 28)
    left, right, product = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    source, target = torch.zeros(2, count, dtype=torch.uint8, device=device)

    def best(run: Callable[[], Any]) -> float:
        times = list[float]()
        while len(times) < 4 or sum(times) < (0 if quick else 1):
            start = time.perf_counter()
            run()
            if is_gpu:
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
        return min(times[1:])

    with torch.no_grad():
        for tensor in built.state_dict().values():
            tensor.normal_(0.0, 0.02)
        product_rate = 2 * size**3 / best(lambda: torch.mm(left, right, out=product))
        copy_rate = 2 * count / best(lambda: target.copy_(source))
        yield f"the machine's rates: {product_rate / 1e12:.3g} TFLOP/s, {copy_rate / 1e12:.3g} TB/s, read and written"
        read = [weight for name, weight in built.named_parameters() if weight.dim() > 1]
        embedding = 0 if arch.tied_head else built.get_input_embeddings().weight.nbytes
        weights = sum(weight.nbytes for weight in read) - embedding
        for rows, tokens in ((1, 32), (32, 32), (1, 556)) if is_gpu else ((1, 556), (1, 32)):
            ids = torch.randint(arch.vocab, (rows, tokens), device=device)
            at = torch.arange(rows * tokens, device=device).view(rows, tokens)[:, -32:].reshape(-1)

            def run(ids: torch.Tensor = ids, at: torch.Tensor = at) -> Any:
                return built(ids, logits_at=at)

            flop = traced(model, dtype, Plan((tokens,) * rows), rows * 32).flop
            floors = {"matrix products": flop / product_rate, "reading weights": weights / copy_rate}
            limit = max(floors, key=lambda name: floors[name])
            goal = 70 + 5 * is_gpu
            for way, ran in {"": run, **({", captured": captured(run)} if is_gpu else {})}.items():
                seconds, what = best(ran), f"{rows} x {tokens} tokens{way}"
                yield f"{what}: {seconds * 1e3:.3g} ms, at least {floors[limit] * 1e3:.3g} by {limit}"
                yield f"| roofline, {what} | {floors[limit] / seconds:.0%} (goal {goal}%) |"


def sampler(device: str, quick: bool) -> Lines:
    """Our sampler against the plain one of ``scripts/bench/naive.py``, which takes prompts one by one."""
    import torch
    from models import generate, native_model
    from naive import decode
    from timing import Timing

    from dare_bench.model_adapters.backbone.attention import pick_attention
    from dare_bench.model_adapters.frames import LAUNCH_BOUND, CudaGraphs, Frames
    from dare_bench.model_adapters.llada import FAMILY, LLaDAConfig, LLaDAModelLM
    from dare_bench.types import ModelSpec

    torch.manual_seed(0)
    width, layers, gen, block, vocab = (64, 1, 8, 4, 256) if quick else (2048, 16, 64, 32, 32768)
    config = LLaDAConfig(
        d_model=width, n_heads=width // 64, n_kv_heads=width // 64, n_layers=layers, mlp_hidden_size=3 * width,
        vocab_size=vocab, embedding_size=vocab, max_sequence_length=4096, init_std=0.06,
    )  # fmt: skip
    dtype = torch.float32 if quick else torch.bfloat16
    network = LLaDAModelLM(config).to(dtype).to(device)
    spec = ModelSpec("llada", vocab - 1, (vocab - 2,), None, vocab - 2, vocab, 4096, device=device)
    model = native_model(FAMILY, network, spec)
    auto = pick_attention("auto", torch.device(device), dtype, 64)
    ways = {f"attention {auto.name}": (auto, None)}
    weights = sum(weight.numel() for weight in network.parameters())
    if device.startswith("cuda"):
        ways["small steps captured"] = (
            auto,
            Frames(network, None, CudaGraphs(torch.device(device)), LAUNCH_BOUND / weights),
        )

    def logits(tokens_BL: torch.Tensor) -> torch.Tensor:
        return network(tokens_BL).logits  # type: ignore[no-any-return]

    fields = {"gen_length": gen, "block_length": block, "steps": gen, "early_stop": False}
    for rows in (1, 2 if quick else 32):
        items = [[5 + (7 * i + j) % 200 for j in range(30 + 8 * i)] for i in range(rows)]
        plain_s, ours_s = list[float](), {way: list[float]() for way in ways}
        for run in range(1 if quick else 4):
            (network.attention, model.frames), start = ways[f"attention {auto.name}"], time.perf_counter()
            plain = [decode(logits, [p], spec.mask, gen, block, block, device=device)[0] for p in items]
            plain_s += [time.perf_counter() - start] * (run > 0 or quick)  # both end with tokens on the host
            same = {}
            for way, (network.attention, model.frames) in ways.items():
                start = time.perf_counter()
                ours = generate(model, items, fields, rows)
                ours_s[way] += [time.perf_counter() - start] * (run > 0 or quick)
                equal = [a == b for pair in zip(plain, ours, strict=True) for a, b in zip(*pair, strict=True)]
                same[way] = sum(equal) / len(equal)
        for way, seconds in ours_s.items():
            if quick and same[way] < 1:
                raise SystemExit(f"error: {same[way]:.0%} of the tokens are those of the plain sampler")
            speed, rate = Timing(plain_s, seconds, None, None).spread(), rows * gen / statistics.median(seconds)
            yield f"{rows} rows, {way}: {speed}, {rate:.0f} tokens/s, {same[way]:.0%} of the tokens equal"
            yield f"| plain sampler, {rows} rows, {str(dtype).removeprefix('torch.')}, {way} | {speed} |"


def drafts(device: str, quick: bool) -> Lines:
    """Steps verified together against one a forward, one answer at a time: the same tokens, forwards and time."""
    import dare_bench

    for name in MODELS[:1] if quick else MODELS:
        model = dare_bench.load(name, device=device, dtype="float32")
        answers, forwards, seconds = [], [], []
        for count in (0, 3):
            model.generate(QUESTIONS[:1], gen_length=32, draft_steps=count)  # loads what later answers use
            start = time.perf_counter()
            asked = [model.generate([q], gen_length=32, draft_steps=count)[0] for q in QUESTIONS]
            seconds.append(time.perf_counter() - start)
            answers.append([answer.tokens for answer in asked])
            forwards.append(sum(answer.nfe for answer in asked))
        same = sum(a == b for a, b in zip(*answers, strict=True))
        yield f"{name}: {same} of {len(QUESTIONS)} answers equal, {forwards[0]} forwards without and {forwards[1]} with"
        yield f"| 3 drafts, {name} | {seconds[0] / seconds[1]:.2f}x |"
        if same < len(QUESTIONS) - 1:
            raise SystemExit("error: steps with drafts decode other tokens; at most one near tie is allowed")


@dataclass(frozen=True)
class Stage:
    """Something to do, and the most minutes that it may take."""

    run: Callable[[str, bool], Lines]
    minutes: float


PARTS = {"values": Stage(values, 3), "tests": Stage(tests, 4), "attention": Stage(attention, 2),
         "frames": Stage(frames, 5), "roofline": Stage(roofline, 3), "sampler": Stage(sampler, 5),
         "drafts": Stage(drafts, 2)}  # fmt: skip


def missing() -> list[str]:
    """Packages that are needed and not here."""
    return [package for module, package in NEEDED.items() if find_spec(module) is None]


def ran(name: str, device: str, quick: bool, seconds: float) -> dict[str, Any]:
    """The record of a part, which runs in a separate process."""
    words = [sys.executable, __file__, "--part", name, "--device", device, *(["--quick"] if quick else [])]
    began = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
        status, out = "done" if done.returncode == 0 else "failed", done.stdout
        status = "skipped" if out.startswith("skipped") else status
        reason = done.stderr.strip().splitlines()[-25:] if done.returncode else []
    except subprocess.TimeoutExpired as error:
        status, out, reason = "stopped", (error.stdout or b"").decode(), [f"stopped after {seconds:.0f} s"]
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "lines": [*out.splitlines(), *reason]}


def rows_of(state: dict[str, Any], device: str) -> str:
    """The measured rows as a table of docs/speed.md."""
    rows = [line for record in state.values() for line in record["lines"] if line.startswith("|")]
    return "\n".join([f"| on {device} | speed |", "|---|---|", *rows]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gpu"))
    parser.add_argument("--device", default=None, help="default: cuda where there is one, else cpu")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--again", action="store_true", help="also the parts that are done")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that the script works")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if lacking := missing():
        found = f"error: not installed: {', '.join(lacking)}; "
        print(f"{found}pip install {' '.join(lacking)}, or name their folder in PYTHONPATH", file=sys.stderr)
        return 2
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.part:
        for line in PARTS[args.part].run(device, args.quick):
            print(line, flush=True)
        return 0
    unknown = set(args.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only {min(unknown)}: the parts are {', '.join(PARTS)}")
    args.output.mkdir(parents=True, exist_ok=True)
    file = args.output / "state.json"
    state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    named = torch.cuda.get_device_name() if device.startswith("cuda") else device
    end = time.monotonic() + 60 * args.minutes
    for name, part in PARTS.items():
        before = state.get(name, {})
        finished = before.get("status") == "done" and before.get("device") == named
        if name not in args.only.split(",") or (finished and not args.again):
            continue
        if (left := end - time.monotonic()) < 1:
            print(f"{name}: no time left; the same command goes on here")
            continue
        state[name] = {**ran(name, device, args.quick, min(60 * part.minutes, left)), "device": named}
        file.write_text(json.dumps(state, indent=1))
        (args.output / "speed.md").write_text(rows_of(state, named))
        head = f"{name}: {state[name]['status']}, {state[name]['seconds']} s"
        print(head, *state[name]["lines"], sep="\n  ", flush=True)
    return 0 if all(state.get(name, {}).get("status") in ("done", "skipped") for name in args.only.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
