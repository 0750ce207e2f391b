"""Trains a bundled tiny checkpoint from nothing, on two CPU cores, in under half an hour.

Run as::

    python scripts/tiny/train.py --out model_adapters/tiny                    # the recipe tiny-llada
    python scripts/tiny/train.py --recipe NAME --out DIR --work STATE         # keeps its state; run again to resume

The run stops by step, never by time, and every draw is a function of (seed, step): the same machine gives the same
checkpoint again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from balance import Balance
from card import write_card
from data import batch_rows
from families import FAMILIES, Family
from recipe import RECIPES, Recipe
from score import score
from tokenizer import build, save

from dare_bench.diffusion.canvas import pack


def rate(recipe: Recipe, step: int) -> float:
    """Learning rate of a step counted from 0: linear warm-up, then half a cosine down to ``last_rate``."""
    if step < recipe.warm_up:
        return recipe.learning_rate * (step + 1) / recipe.warm_up
    done = (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up)
    return recipe.learning_rate * (recipe.last_rate + (1 - recipe.last_rate) * (1 + math.cos(math.pi * done)) / 2)


def optimizer_of(network: torch.nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; norms are not decayed."""
    matrices = [p for p in network.parameters() if p.dim() > 1]
    vectors = [p for p in network.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)


def train_step(network: Any, balance: Balance, optimizer: Any, recipe: Recipe, tokenizer: Any, step: int) -> float:
    """One update with the family's loss; returns it, in nats for each response token."""
    eos, grid = network.config.eos_token_id, recipe.block_length or 1
    batch = pack(batch_rows(tokenizer, eos, recipe.rows, recipe.seed, step, grid))
    loss = FAMILIES[recipe.family].loss(network, batch, recipe, step)
    for group in optimizer.param_groups:
        group["lr"] = rate(recipe, step)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
    optimizer.step()
    balance.step()
    return float(loss.detach())


def publish(network: Any, family: Family, folder: Path) -> Any:
    """Write the checkpoint as bfloat16 with its tokenizer; return it as reopened, in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    half = family.network(network.config)
    half.load_state_dict(network.state_dict())
    half.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer = save(family.special, folder)
    if family.stop:
        pad = network.config.pad_token_id
        stops = [tokenizer.token_to_id(name) for name in family.stop]
        facts = {"bos_token_id": network.config.bos_token_id, "eos_token_id": stops, "pad_token_id": pad}
        (folder / "generation_config.json").write_text(json.dumps(facts, indent=2) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    return family.network.from_pretrained(folder, dtype=torch.float32)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="tiny-llada", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="folder that gets one folder a checkpoint")
    parser.add_argument("--work", type=Path, help="keep the training state here, and resume from it")
    parser.add_argument("--keep-every", type=int, default=250, help="steps between two kept states")
    parser.add_argument("--until", type=int, help="stop after this step; run again with --work to go on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--score-every", type=int, default=0, help="also score the tasks after so many steps")
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    torch.set_num_threads(args.threads)
    torch.manual_seed(recipe.seed)
    family = FAMILIES[recipe.family]
    tokenizer = build(family.special)
    network = family.network(family.config(recipe, family.special))
    balance = Balance(network, recipe.experts.balance_rate if recipe.experts else 0.0)
    optimizer = optimizer_of(network, recipe)
    start, seconds = 0, 0.0
    state = args.work / "state.pt" if args.work else None
    if state and state.exists():
        saved = torch.load(state, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        start, seconds = saved["step"], saved["seconds"]
    parameters = sum(p.numel() for p in network.parameters())
    say(recipe=args.recipe, parameters=parameters, start=start, steps=recipe.steps)

    def scores(of: Any) -> dict[str, dict[str, float]]:
        return {name: score(of, family.decode, tokenizer, name) for name in recipe.scored}

    network.train()
    losses: list[float] = []
    for step in range(start, min(args.until or recipe.steps, recipe.steps)):
        begun = time.perf_counter()
        losses.append(train_step(network, balance, optimizer, recipe, tokenizer, step))
        seconds += time.perf_counter() - begun  # scoring and writing are not counted
        done = step + 1
        if done % 100 == 0:
            loss = round(sum(losses) / len(losses), 4)
            say(step=done, loss=loss, rate=rate(recipe, step), seconds=round(seconds))
            losses.clear()
        if args.score_every and done % args.score_every == 0:
            say(step=done, scores=scores(network))
        for name, stop in recipe.snapshots.items():
            if stop == done:
                minutes = seconds / 60
                result = scores(publish(network, family, args.out / name))
                write_card(args.out / name, args.recipe, recipe, parameters, done, minutes, args.threads, result)
                say(checkpoint=name, step=done, minutes=round(minutes, 1), scores=result)
        if state and done % args.keep_every == 0:
            args.work.mkdir(parents=True, exist_ok=True)
            facts = {"step": done, "seconds": seconds}
            torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), **facts}, state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
