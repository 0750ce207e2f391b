"""``dare-bench convert``: a diffusion checkpoint of an autoregressive one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dare_bench.checkpoint_files import read_config
from dare_bench.cli.plain import echo, echo_error
from dare_bench.errors import CheckpointError, SaveError, UsageError, brief
from dare_bench.loading import locate, locate_config
from dare_bench.reading import existing
from dare_bench.registry import Registration, registry


def convert(
    checkpoint: Annotated[str, typer.Argument(help="A folder or a hub id.")],
    to: Annotated[str, typer.Option("--to", help="What to make of it: a2d (of Qwen2, Qwen3 or Llama).")],
    output: Annotated[str, typer.Option("--output", "-o", help="A new folder.")],
    shift: Annotated[
        bool, typer.Option("--shift", help="A state goes on predicting the next token, not its own.")
    ] = False,
) -> None:
    """Make a diffusion model of an autoregressive checkpoint, for training.

    The weights stay as they are, the class in config.json changes, and the tokenizer gets a mask token. Its answers are
    of no use before it is trained: dare-bench train sft --model OUTPUT --family a2d_mdlm (or a2d_bd3lm).

    Example: dare-bench convert Qwen/Qwen3-0.6B --to a2d -o qwen3-mdlm
    """
    targets = {entry.about["converts"]: entry for entry in registry().entries("family") if "converts" in entry.about}
    if to not in targets:
        raise UsageError(f"--to {to}: not known; allowed: {', '.join(sorted(targets))}")
    if existing(output) is not None:
        raise SaveError(f"{output} exists; give a new folder")
    _check_class(checkpoint, targets[to])
    mask = targets[to].load().convert(locate(checkpoint), Path(output), shift=shift)
    echo_error(
        f"the mask token is id {mask}; train it before use: dare-bench train sft --model {output} "
        "--family a2d_mdlm (or a2d_bd3lm) --data FILE"
    )
    echo(output)


def _check_class(checkpoint: str, target: Registration) -> None:
    """Raise CheckpointError for a class that is not converted, before torch is imported and weights are fetched."""
    config = read_config(locate_config(checkpoint))
    seen = [config.get("model_type"), (config.get("architectures") or [None])[0]]
    if seen not in target.about["converts_from"]:
        allowed = ", ".join("/".join(pair) for pair in target.about["converts_from"])
        raise CheckpointError(
            f"{checkpoint}: model_type={brief(seen[0])}, architecture={brief(seen[1])} cannot be converted to "
            f"{target.about['converts']}; it must be one of {allowed}"
        )
