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
import shutil
import time
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from balance import balanced_routers
from recipe import RECIPES, TinyRecipe

import dare_bench
from dare_bench.loading import locate
from dare_bench.registry import registry
from dare_bench.seeds import key

EOS = "<|endoftext|>"
"""Ends a text and fills the canvas, in every family."""


def bundled(recipe: TinyRecipe) -> Path:
    """The checkpoint with the configuration and the tokenizer of the recipe's family."""
    return locate(f"tiny-{recipe.family}")


def initialize(recipe: TinyRecipe, folder: Path) -> None:
    """Write the checkpoint that training begins with: the bundled one that the recipe names, or random weights, a
    function of its seed."""
    if recipe.start is not None:
        dare_bench.load(recipe.start).save(folder)
        return
    model = dare_bench.load(bundled(recipe), dtype="float32")
    torch.manual_seed(recipe.seed)
    network = type(model.network)(model.network.config)
    model.save(folder)
    network.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def rows(recipe: TinyRecipe, model: Any) -> Iterator[dict[str, str]]:
    """The rows of all steps, of the tasks' training data without held-out items. An answer is filled with EOS to one
    token less than the canvas of its task, since training adds one EOS itself. The row ends at the end of a block, as
    in decoding."""
    streams = {}
    for task in recipe.rows:
        data: Any = registry().get("training_data", task).load()  # a tasks.training.TrainingData
        epochs = (data.items(key("tiny data", recipe.seed, task, epoch)) for epoch in count())
        streams[task] = data, chain.from_iterable(epochs)
    for _ in range(recipe.steps):
        for task, number in recipe.rows.items():
            data, documents = streams[task]
            for document in islice(documents, number):
                prompt, answer = data.prompt(document), data.answer(document)
                prompt_length, answer_length = (len(model.tokenizer.encode(text)) for text in (prompt, answer))
                length = max(data.canvas, answer_length + 1)
                length += -(prompt_length + length) % (model.spec.block_length or 1)
                yield {"prompt": prompt, "answer": answer + EOS * (length - answer_length - 1)}


def train(recipe: TinyRecipe, start: Path, data: Path, out: Path) -> None:
    """Train by ``sft`` with the default loss of the family."""
    with balanced_routers(recipe.balance_rate) if recipe.balance_rate else contextlib.nullcontext():
        dare_bench.train(
            method="sft",
            model=str(start),
            data=str(data),
            output_path=str(out),
            device="cpu",
            max_steps=recipe.steps,
            save_steps=math.gcd(100, *recipe.snapshots.values()),
            per_device_train_batch_size=sum(recipe.rows.values()),
            learning_rate=2e-3,
            warmup_steps=recipe.warm_up,
            weight_decay=0.01,
            seed=recipe.seed,
            padding="masked_out",
            **({} if recipe.noise is None else {"noise": recipe.noise}),
        )


def publish(source: Path, recipe: TinyRecipe, folder: Path) -> Any:
    """Write a trained checkpoint in bfloat16, with the files that the bundled one has; returns it, loaded in
    float32."""
    dare_bench.load(str(source), dtype="bfloat16").save(folder)
    published = {file.name: file for file in bundled(recipe).iterdir() if file.name != "README.md"}
    for file in folder.iterdir():
        if file.name not in published:
            file.unlink()
    if "generation_config.json" in published:
        shutil.copyfile(published["generation_config.json"], folder / "generation_config.json")
    return dare_bench.load(str(folder), dtype="float32")


def scores(folder: Path, recipe: TinyRecipe, out: Path) -> dict[str, dict[str, float]]:
    """The scores of the checkpoint on the recipe's tasks: task -> metric -> mean."""
    run = dare_bench.evaluate(
        model=str(folder),
        tasks=recipe.scored,
        decoding=recipe.decoding,
        dtype="float32",
        device="cpu",
        limit=recipe.limit,
        output_path=str(out),
    )
    values: dict[str, dict[str, float]] = {task: {} for task in recipe.scored}
    for score in run.scores():
        values[score.task][score.metric] = score.value
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="tiny-llada", choices=sorted(RECIPES))
    parser.add_argument("--work", type=Path, required=True, help="folder of the training; the same command resumes it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    torch.set_num_threads(args.threads)
    start, data, trained = args.work / "start", args.work / "rows.jsonl", args.work / "training"
    if not trained.exists():
        initialize(recipe, start)
        with data.open("w") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows(recipe, dare_bench.load(str(start)).loaded))
    began = time.perf_counter()
    train(recipe, start, data, trained)
    minutes = (time.perf_counter() - began) / 60
    for name, step in recipe.snapshots.items():
        source = trained if step == recipe.steps else trained / f"checkpoint-{step}"
        model = publish(source, recipe, args.out / name)
        line = {"checkpoint": name, "step": step, "parameters": model.spec.parameters}
        line |= {"scores": scores(args.out / name, recipe, args.work / "runs")}
        print(json.dumps({**line, "minutes": round(minutes * step / recipe.steps)}), flush=True)


if __name__ == "__main__":
    main()
