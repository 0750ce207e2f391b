"""A network of 0.6 billion weights on a CPU: float32, bfloat16 and weight-only int8 (``--quantize int8``) take turns.

The shape is that of Qwen3-0.6B as dllm-hub's A2D has it, the weights are random, and decoding is that of the published
GSM8K scores. Times are seconds of processor time divided by the number of threads: what the work takes where no other
program runs. ``--documents 20`` also says how long so many documents of GSM8K take, from forwards that are timed
here: nothing is read from a data set, and the prompts have the mean length that the recipe's cost estimate assumes.
``--answers 2`` times whole answers of the command, ``dare-bench generate``, instead; ``--answers 20 --eval DATA_DIR``
times an evaluation, ``dare-bench eval``.

    OMP_WAIT_POLICY=passive python scripts/bench/small.py --threads 2
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from models import generate
from safetensors.torch import save_file

from dare_bench import load, recipes
from dare_bench.loading import locate
from dare_bench.types import LoopStats

MASK, EOS, VOCAB = 151_669, 151_645, 151_936
WAYS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8, float32": {"dtype": "float32", "quantize": "int8"},
    "int8, bfloat16": {"dtype": "bfloat16", "quantize": "int8"},
}
GSM8K = {"mdlm": 1033, "bd3lm": 93}
"""Tokens of a prompt of GSM8K by the sampler of the checkpoint: with five worked examples, and with none."""


def write_checkpoint(folder: Path, layers: int) -> None:
    """A checkpoint of Qwen3-0.6B's shape with random weights in bfloat16."""
    config = recipes.load("qwen3-0.6b-diffusion-mdlm").config
    config = {**config, "num_hidden_layers": layers, "architectures": ["A2DQwen3LMHeadModel"], "dtype": "bfloat16"}
    config |= {"vocab_size": VOCAB, "tie_word_embeddings": True, "rope_theta": 1e6, "max_position_embeddings": 40_960}
    (folder / "config.json").write_text(json.dumps(config))
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size, kv = config["head_dim"], config["num_key_value_heads"]
    shapes = {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    shapes |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,), "self_attn.q_proj": (heads * size, width)}
    shapes |= {f"self_attn.{name}_proj": (kv * size, width) for name in "kv"}
    shapes |= {"self_attn.o_proj": (width, heads * size), "mlp.down_proj": (width, inner)}
    shapes |= {f"mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
    every = {f"layers.{layer}.{name}": shape for layer in range(layers) for name, shape in shapes.items()}
    every |= {"norm": (width,), "embed_tokens": (VOCAB, width)}
    generator = torch.Generator().manual_seed(0)

    def weight(shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        return (torch.randn(shape, generator=generator) * 0.02).bfloat16()

    tensors = {f"model.{name}.weight": weight(shape) for name, shape in every.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def seconds_of(model: Any, prompt: int, rows: int, decoding: dict[str, Any]) -> tuple[float, int]:
    """Processor seconds of a thread, and forward passes, of ``rows`` answers to prompts of ``prompt`` tokens."""
    tokens = torch.randint(0, 100_000, (rows, prompt), generator=torch.Generator().manual_seed(1)).tolist()
    stats = LoopStats()
    start = time.process_time()
    generate(model, tokens, decoding, rows, stats)
    return (time.process_time() - start) / torch.get_num_threads(), stats.forwards


def documents(models: dict[str, Any], kind: str, count: int, part: int) -> None:
    """How long documents of GSM8K take with the published decoding, from the first ``part`` of an answer's tokens.

    The sampler mdlm computes the whole canvas in each forward, so that the time of a forward does not depend on how
    far the answer is; bd3lm computes one block in a forward, and the text before it once for each block.
    """
    (recipe,) = recipes.find(f"qwen3-0.6b-diffusion-{kind}/gsm8k")
    decoding = dict(recipe.fields()["decoding"])
    length, steps, block = (decoding[name] for name in ("gen_length", "steps", "block_length"))
    if kind == "mdlm":  # few forwards of the whole canvas
        least = decoding | {"steps": part}
    else:  # whole blocks of it
        least = decoding | {"gen_length": block * part, "steps": steps * block * part // length}
    for name, model in models.items():
        seconds, forwards = seconds_of(model, GSM8K[kind], 1, least)
        whole = steps if kind == "mdlm" else forwards * length // (block * part)
        took = seconds / forwards * whole
        print(
            f"gsm8k, {kind}, {name}: {seconds / forwards:.3f} s a forward ({forwards} timed), {whole} forwards and "
            f"{took:.0f} s a document, {took * count / 60:.0f} minutes for {count}",
            flush=True,
        )


def answers(
    folder: Path, ways: list[str], samplers: list[str], count: int, threads: int, data: str | None = None
) -> None:
    """Time ``dare-bench generate`` from start to end for whole answers to prompts of GSM8K's mean length, with the
    published decoding and no stop at EOS; with ``data`` one ``dare-bench eval`` of so many documents of GSM8K instead.
    """
    words = locate("tiny-dream")  # any tokenizer will do: with this one a prompt has a token for each character
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(words / name, folder / name)
    for kind in samplers:
        (recipe,) = recipes.find(f"qwen3-0.6b-diffusion-{kind}/gsm8k")
        decoding = {name: recipe.fields()["decoding"][name] for name in ("gen_length", "steps", "block_length")}
        fields = ",".join(f"{name}={value}" for name, value in (decoding | {"early_stop": False}).items())
        given = ["--model", str(folder), "--device", "cpu", "--family", f"a2d_{kind}", "--gen-kwargs", fields]
        for way in ways:
            flags = [word for name, value in WAYS[way].items() for word in (f"--{name}", value)]
            if data is not None:
                flags += ["--tasks", "gsm8k", "--num-fewshot", "0", "--limit", str(count), "--data-dir", data]
                about = f"{kind}, {way}: {count} documents, {decoding}"
                timed(["eval", *given, *flags, "-o", str(folder / "runs" / kind / way)], threads, about)
                continue
            for _ in range(count):
                about = f"{kind}, {way}: {decoding} after {GSM8K[kind]} tokens"
                timed(["generate", *given, *flags, "1" * GSM8K[kind]], threads, about)


def timed(words: list[str], threads: int, about: str) -> None:
    """Run the command and print what it took."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "dare_bench.cli", *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"{words[0]}, {about}: {used / threads:.0f} s of each of {threads} threads, "
        f"{time.perf_counter() - start:.0f} s on the clock",
        flush=True,
    )


def products() -> None:
    """PyTorch's kernel for int8 weights beside dense products, with a matrix of the network."""
    weight_RC = torch.randn(3072, 1024) * 0.02
    scale_R = weight_RC.abs().amax(1) / 127
    int8_RC = (weight_RC / scale_R[:, None]).round().to(torch.int8)
    for tokens in (32, 256):
        x_TC = torch.randn(tokens, 1024)
        for dtype in (torch.float32, torch.bfloat16):
            x, dense = x_TC.to(dtype), weight_RC.to(dtype)
            kernels = {
                "dense": partial(torch.nn.functional.linear, x, dense),
                "int8": partial(torch._weight_int8pack_mm, x, int8_RC, scale_R.to(dtype)),
            }
            milliseconds: dict[str, list[float]] = {name: [] for name in kernels}
            for _ in range(4):
                for name, kernel in kernels.items():
                    start = time.process_time()
                    kernel()
                    milliseconds[name].append((time.process_time() - start) * 1000 / torch.get_num_threads())
            dense_ms, int8_ms = (min(milliseconds[name][1:]) for name in kernels)
            print(
                f"product of {tokens} tokens, {str(dtype)[6:]}: dense {dense_ms:.2f} ms, int8 {int8_ms:.2f} ms "
                f"({int8_ms / dense_ms:.1f}x)",
                flush=True,
            )


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by semicolons; int8 needs torchao")
    parser.add_argument("--documents", type=int, default=0)
    parser.add_argument("--answers", type=int, default=0)
    parser.add_argument("--eval", metavar="DATA_DIR", help="with --answers N: an evaluation of N documents of GSM8K")
    parser.add_argument("--samplers", default="bd3lm,mdlm", help="of --answers, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one layer and one run, to check that the script works")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = args.ways.split(";")
    with TemporaryDirectory() as place:
        write_checkpoint(Path(place), 1 if args.quick else 28)
        if args.answers:
            answers(Path(place), names, args.samplers.split(","), args.answers, args.threads, args.eval)
            return
        products()
        openers = {
            kind: partial(load, place, family=f"a2d_{kind}", mask_id=MASK, eos_id=EOS, device="cpu") for kind in GSM8K
        }
        models = {name: openers["mdlm"](**WAYS[name]).loaded for name in names}
        decoding = {"gen_length": 32, "steps": 8, "early_stop": False}
        for rows in (1, 8):
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(1 if args.quick else args.runs):
                for name in names:
                    seconds[name].append(seconds_of(models[name], 40, rows, decoding)[0])
            for name in names:
                ratio = statistics.median(a / b for a, b in zip(seconds[names[0]], seconds[name], strict=True))
                speed = 32 * rows / min(seconds[name])
                print(f"{rows} rows, {name}: {speed:.1f} tokens/s, {ratio:.2f}x {names[0]}", flush=True)
        if args.documents:
            documents(models, "mdlm", args.documents, 2)
            del models
            documents({name: openers["bd3lm"](**WAYS[name]).loaded for name in names}, "bd3lm", args.documents, 1)


if __name__ == "__main__":
    main()
