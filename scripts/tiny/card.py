"""The card of a tiny checkpoint: how it was made and what it scores, from the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recipe import Recipe

METRICS = {
    "exact_match": "right",
    "cell_accuracy": "empty cells right",
    "digit_accuracy": "digits right",
    "format": "expressions with the right numbers",
}


def score_table(scores: Mapping[str, Mapping[str, float]]) -> str:
    """One row a task: the share of right answers, and its partial credit."""
    lines = ["| task | right | partial credit |", "|---|---|---|"]
    for task, metrics in scores.items():
        partial = ", ".join(f"{METRICS[k]} {v:.1%}" for k, v in metrics.items() if k != "exact_match")
        lines.append(f"| `{task}` | {metrics['exact_match']:.1%} | {partial} |")
    return "\n".join(lines)


def write_card(
    folder: Path,
    recipe_name: str,
    recipe: Recipe,
    parameters: int,
    step: int,
    minutes: float,
    scores: Mapping[str, Mapping[str, float]],
) -> None:
    """Write ``README.md`` beside the checkpoint. ``minutes`` are training time up to this step."""
    name, final = folder.name, max(recipe.snapshots, key=lambda n: recipe.snapshots[n])
    trained = "\n".join(f"  - {count} rows of `{task}`" for task, count in recipe.rows.items())
    untrained = [f"`{task}`" for task in scores if task not in recipe.rows]
    part = (
        "" if name == final else f"\n\nThis is `{final}` stopped early: step {step} of {recipe.steps} of the same run."
    )
    missing = f" It was not trained on {', '.join(untrained)}." if untrained else ""
    (folder / "README.md").write_text(
        f"""---
license: apache-2.0
---

# {name}

A LLaDA of {parameters:,} parameters in the published layout, small enough to lie in the repository. It knows our own
small tasks and nothing else: it is for demos, for tests, and as a start for trainers, not for language.{part}

## Scores

Held-out test sets, zero examples, raw text, the deterministic low-confidence sampler, as many steps as tokens, float32.
No test grid, pair of operands or problem was ever trained on.{missing}

{score_table(scores)}

Use each task's own `gen_length`, the canvas it was trained on: 20 tokens for sudoku, 4 for arithmetic, 14 for
countdown. With another length it does worse.

## How it was made

```
python scripts/tiny/train.py --recipe {recipe_name} --out model_adapters/tiny
```

- From nothing, on data made by seed, new in every step, in exactly the prompt format of the tasks. In every batch:
{trained}
- Answers are filled with EOS to the task's canvas, and the EOS are learned like any token.
- LLaDA's supervised loss: noise level t uniform on (0.001, 1), spread evenly over each batch; response tokens masked
  with probability t; cross-entropy divided by t and by the length of the response.
- {recipe.layers} layers, width {recipe.width}, {recipe.heads} heads, feed-forward {recipe.ff_width}, context 8,192.
- AdamW, learning rate {recipe.learning_rate:g}, {recipe.warm_up} steps of warm-up, a cosine over {recipe.steps} steps,
  betas {recipe.betas[0]} and {recipe.betas[1]}, weight decay {recipe.weight_decay:g}, clipping at {recipe.clip:g}.
- Step {step}, seed {recipe.seed}. Training to here took {minutes:.0f} minutes on 2 cores.
- Weights are stored as bfloat16; evaluate in float32.
- Tokenizer: 256 bytes, a few merges for the words of our prompts and frequent English, LLaDA's special tokens and
  chat template. Any text encodes and decodes without loss.

Licence: Apache-2.0.
"""
    )
