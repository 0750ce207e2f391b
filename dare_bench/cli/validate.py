"""``dare-bench validate``: is this checkpoint complete, and are its answers independent of the batch?"""

from __future__ import annotations

from typing import Annotated

import typer

from dare_bench.cli.plain import echo_checks
from dare_bench.config import parse_pairs
from dare_bench.loading import here


def validate(
    checkpoint: Annotated[str, typer.Argument(help="A folder, a hub id or a bundled name.")],
    model_args: Annotated[str | None, typer.Option("--model-args", "-a", help="k=v,k=v for loading the model.")] = None,
    family: Annotated[str | None, typer.Option(help="Family, if config.json does not identify it.")] = None,
    device: Annotated[str, typer.Option(help="Device for the checks; tokens are compared in float32.")] = "cpu",
    quantize: Annotated[
        str | None, typer.Option(help="int8 or int4: also measure the effect of quantized weights.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a checkpoint is complete and decodes correctly.

    Checks keys, mask id, tokenizer, saving and loading, and batch invariance, and measures flips in bfloat16, and with
    --quantize those of quantized weights. Exit code 1 if a check fails.
    """
    from dare_bench.engine.validation import validate as check

    here(checkpoint)  # a name that is not there is no failed check
    options = {"device": device, "family": family, "quantize": quantize, **parse_pairs(model_args)}
    checks = check(checkpoint, **{name: value for name, value in options.items() if value is not None})
    echo_checks(checks, json=json)
