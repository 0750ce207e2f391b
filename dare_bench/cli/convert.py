"""``dare-bench convert``: a diffusion checkpoint of an autoregressive one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dare_bench.cli.plain import echo, echo_error


def convert(
    checkpoint: Annotated[str, typer.Argument(help="A folder or a hub id.")],
    to: Annotated[str, typer.Option("--to", help="What to make of it: a2d (of Qwen2, Qwen3 or Llama).")],
    output: Annotated[str, typer.Option("--output", "-o", help="A new folder.")],
) -> None:
    """Make a diffusion model of an autoregressive checkpoint, for training.

    The weights stay as they are, the class in config.json changes, and the tokenizer gets a mask token. Its answers are
    of no use before it is trained: dare-bench train sft --model OUTPUT --family a2d_mdlm (or a2d_bd3lm).

    Example: dare-bench convert Qwen/Qwen3-0.6B --to a2d -o qwen3-mdlm
    """
    from dare_bench.errors import UsageError
    from dare_bench.loading import locate
    from dare_bench.registry import registry

    targets = {entry.about["converts"]: entry for entry in registry().entries("family") if "converts" in entry.about}
    if to not in targets:
        raise UsageError(f"--to {to}: not known; allowed: {', '.join(sorted(targets))}")
    mask = targets[to].load().convert(locate(checkpoint), Path(output))
    echo_error(
        f"the mask token is id {mask}; train it before use: dare-bench train sft --model {output} "
        "--family a2d_mdlm (or a2d_bd3lm) --data FILE"
    )
    echo(output)
