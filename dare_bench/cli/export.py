"""``dare-bench export``: models and results in other forms. The last line on stdout is the path of what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from dare_bench.cli import export_hub, export_table
from dare_bench.cli.plain import say

app = typer.Typer(help="Write models and results in other forms.", no_args_is_help=True)
app.command("table")(export_table.table)
app.command("hub")(export_hub.hub)


@app.command()
def merge(
    adapter: Annotated[str, typer.Option("--adapter", help="LoRA adapter: a folder or a hub id.")],
    output_path: Annotated[str, typer.Option("--output-path", "-o", help="Folder of the merged checkpoint.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Its base model (default: the one it names).", show_default=False),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Of the merged weights (default: the base model's).", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Where the sums are made.")] = "cpu",
    family: Annotated[
        str | None, typer.Option("--family", help="Family, where config.json does not tell.", show_default=False)
    ] = None,
) -> None:
    """Merge a LoRA adapter into its base model and write a checkpoint in the published layout.

    The sums are rounded to the dtype of the merged weights; --dtype float32 keeps what the adapter computes.

    Example: dare-bench export merge --model tiny-llada-base --adapter out/lora -o out/merged
    """
    from dare_bench.merging import merge as work

    say(work(model, adapter, output_path, dtype=dtype, device=device, family=family))
