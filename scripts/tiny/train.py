"""Train a bundled tiny checkpoint from random weights by ``dare-bench train``: about half an hour on two CPU cores.

Run as::

    python scripts/tiny/train.py --recipe tiny-llada --work out/tiny-llada --out model_adapters/tiny

The working folder contains an initialized checkpoint (``start``), the training rows (``rows.jsonl``) and the training;
the same command resumes it. Printed are the scores and minutes that ``model_adapters/tiny/README.md`` states.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from balance import balanced_routers
from data import write_rows
from families import FAMILIES, TinyFamily
from recipe import RECIPES, TinyRecipe
from tokenizer import EOS, save

import dare_bench
from dare_bench.model_adapters.backbone.pretrained import pretrained

PUBLISHED = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def initialize(recipe: TinyRecipe, family: TinyFamily, folder: Path) -> None:
    """Write the checkpoint that training begins with: the bundled one that the recipe names, or random weights, a
    function of its seed."""
    folder.mkdir(parents=True, exist_ok=True)
    if recipe.start is not None:
        dare_bench.load(recipe.start).save(folder)
        return
    torch.manual_seed(recipe.seed)
    pretrained(family.network)(family.config(recipe)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save(family.special, folder)


def train(recipe: TinyRecipe, start: Path, data: Path, out: Path) -> None:
    """Train by ``sft`` with the default loss of the family."""
    balanced = balanced_routers(recipe.experts.balance_rate) if recipe.experts else contextlib.nullcontext()
    with balanced:
        dare_bench.train(
            method="sft",
            model=str(start),
            data=str(data),
            output_path=str(out),
            device="cpu",
            max_steps=recipe.steps,
            save_steps=math.gcd(100, *recipe.snapshots.values()),
            per_device_train_batch_size=sum(recipe.rows.values()),
            learning_rate=recipe.learning_rate,
            warmup_steps=recipe.warm_up,
            weight_decay=recipe.weight_decay,
            seed=recipe.seed,
            padding="masked_out",
            **({} if recipe.noise is None else {"noise": recipe.noise}),
        )


def publish(source: Path, family: TinyFamily, folder: Path) -> Any:
    """Write a trained checkpoint in bfloat16; returns it, loaded in float32."""
    dare_bench.load(str(source), dtype="bfloat16").save(folder)
    model = dare_bench.load(str(folder), dtype="float32")
    if family.stop:
        token_id = model.tokenizer.convert_tokens_to_ids
        stops = [token_id(name) for name in family.stop]
        config = {"bos_token_id": token_id(family.bos), "eos_token_id": stops, "pad_token_id": token_id(EOS)}
        (folder / "generation_config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in folder.iterdir():
        if file.name in PUBLISHED:
            file.chmod(0o644)
        else:
            file.unlink()
    return model


def scores(folder: Path, recipe: TinyRecipe, family: TinyFamily, out: Path) -> dict[str, dict[str, float]]:
    """The scores of the checkpoint on the recipe's tasks: task -> metric -> mean."""
    run = dare_bench.evaluate(
        model=str(folder),
        tasks=recipe.scored,
        decoding=family.decoding,
        dtype="float32",
        device="cpu",
        limit=recipe.limit,
        output_path=str(out),
    )
    values: dict[str, dict[str, float]] = {task: {} for task in recipe.scored}
    for score in run.scores():
        values[score.task][score.metric] = score.value
    return values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="tiny-llada", choices=sorted(RECIPES))
    parser.add_argument("--work", type=Path, required=True, help="folder of the training; the same command resumes it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    family = FAMILIES[recipe.family]
    torch.set_num_threads(args.threads)
    start, data, trained = args.work / "start", args.work / "rows.jsonl", args.work / "training"
    if not trained.exists():
        initialize(recipe, family, start)
        write_rows(recipe, dare_bench.load(str(start)).tokenizer.backend_tokenizer, data)
    began = time.perf_counter()
    train(recipe, start, data, trained)
    minutes = (time.perf_counter() - began) / 60
    for name, step in recipe.snapshots.items():
        source = trained if step == recipe.steps else trained / f"checkpoint-{step}"
        model = publish(source, family, args.out / name)
        result = scores(args.out / name, recipe, family, args.work / "runs")
        line = {"checkpoint": name, "step": step, "parameters": model.spec.parameters, "scores": result}
        print(json.dumps({**line, "minutes": round(minutes * step / recipe.steps)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
