"""``dare-bench export``: tables, Hub files, merged checkpoints. The last line on stdout is the path of the output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dare_bench.cli.plain import echo, echo_error, log_to_stderr
from dare_bench.cli.runs import RUN_HELP, RUNS_HELP, open_one, open_runs
from dare_bench.errors import UsageError
from dare_bench.runs.text import counted, visible
from dare_bench.runs.writer import atomic_write_text

if TYPE_CHECKING:
    from dare_bench.reports.hub import HubResult

CARD = "README.md"

app = typer.Typer(help="Export results as tables or Hub files, and merge adapters.", no_args_is_help=True)


@app.command()
def table(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUNS_HELP)],
    format: Annotated[
        Literal["markdown", "latex", "csv"], typer.Option("--format", "-f", help="Output format.")
    ] = "markdown",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Output file (default: print to the terminal).")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", "-t", help="Tasks in the order of the columns, separated by commas.")
    ] = None,
    interval: Annotated[
        Literal["none", "pm", "range"],
        typer.Option(help="Interval next to each value: none, ± half its width, or both ends (asymmetric)."),
    ] = "range",
    fingerprints: Annotated[
        bool, typer.Option("--fingerprints", help="Add a column of settings fingerprints.")
    ] = False,
    nfe: Annotated[bool, typer.Option("--nfe", help="Add forward passes per request (NFE) after each task.")] = False,
    caption: Annotated[str | None, typer.Option(help="Caption above the table.")] = None,
) -> None:
    """Write runs as a table.

    The table has one row per checkpoint and one column per task; partial scores are marked. Bold marks the best score
    of a column and all scores whose intervals overlap its interval. CSV has plain numbers, both ends of the interval,
    the forward passes per request, and the settings fingerprint.

    Example: dare-bench export table out/trained/runs --format latex -o table.tex
    """
    from dare_bench.reports.export_formats import render
    from dare_bench.reports.score_table import score_table

    columns = [name for name in map(str.strip, tasks.split(",")) if name] if tasks is not None else None
    if columns == []:
        raise UsageError("--tasks is empty; give names, as in --tasks gsm8k,humaneval, or omit it")
    opened = list({run.path.resolve(): run for run in open_runs(runs)}.values())
    for run in opened:
        if not run.scores():
            echo_error(f"left out: {run.path} has no score (status {run.status})")
    scores = score_table(opened, columns)
    text = render(scores, format, intervals=interval, fingerprints=fingerprints, passes=nfe, caption=caption)
    if output is None:
        echo(text.removesuffix("\n"), whole=True)
        return
    atomic_write_text(output, text, durable=False)
    echo(output)


@app.command()
def hub(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    output: Annotated[str | None, typer.Option("--output", "-o", help="Output folder (default: hub/<run>).")] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=ID[:TASK_ID]",
            help="Data set of a task on the hub, and the task's name in that data set; can be repeated.",
        ),
    ] = None,
    source_url: Annotated[str | None, typer.Option(help="Address at which the run can be viewed.")] = None,
    scale: Annotated[Literal["percent", "fraction"], typer.Option(help="Unit of scores that are shares.")] = "percent",
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Also export limited or incomplete scores; their notes say so.")
    ] = False,
    push: Annotated[bool, typer.Option("--push", help="Send the files to --repo-id, as a pull request.")] = False,
    repo_id: Annotated[str | None, typer.Option(help="The model's repository on the hub.")] = None,
    no_pr: Annotated[
        bool, typer.Option("--no-pr", help="With --push: commit directly, without a pull request.")
    ] = False,
) -> None:
    """Write the scores of a run for the Hugging Face Hub.

    Writes .eval_results/*.yaml, and a README.md with model-index; --push sends the former. The data set of a task is
    taken from the run's configuration, or from --dataset; tasks without one are left out.

    Example: dare-bench export hub out/my-run -o hub
    """
    from dare_bench.reports.hub import card_of, card_result, entry_file, is_id, parse_datasets, results_of

    if push and repo_id is None:
        raise UsageError("--push needs --repo-id OWNER/NAME, the model's repository on the hub")
    if repo_id is not None and not is_id(repo_id):
        raise UsageError(f"--repo-id {repo_id!r} is not a repository name; expected OWNER/NAME")
    if no_pr and not push:
        raise UsageError("--no-pr needs --push; add it, or omit --no-pr")
    opened = open_one(run)
    datasets = parse_datasets(dataset or ())
    results, left_out = results_of(opened, datasets, scale=scale, allow_partial=allow_partial)
    for reason in left_out:
        echo_error(f"left out: {reason}")
    if not results:
        raise UsageError(
            "nothing to export: no task has a data set on the hub; name one with --dataset TASK=ID:TASK_ID"
        )
    run_name = opened.run_id if opened.is_external else opened.path.resolve().name
    folder = Path(output) if output is not None else Path("hub") / run_name
    name = visible((repo_id or opened.model).rpartition("/")[2])
    files = {result.path: entry_file(result, source_url) for result in results}
    card = card_of(name, [card_result(result, source_url) for result in results])
    for path, content in {**files, CARD: card}.items():
        atomic_write_text(folder / path, content, durable=False)
    _print_written(results, folder)
    if push and repo_id is not None:
        from dare_bench.reports.hub import push as push_files

        message = f"Evaluation results of {', '.join(result.score.task for result in results)}"
        echo_error(f"pushing {counted(len(files), 'file')} to {repo_id} ...")
        description = f"Exported by dare-bench from the run {opened.run_id}."
        echo_error(
            f"pushed: {push_files(files, repo_id, message=message, description=description, create_pr=not no_pr)}"
        )
    else:
        echo_error(f"nothing was pushed; --push --repo-id {repo_id or 'OWNER/NAME'} would open a pull request with:")
        for path in files:
            echo_error(f"  {path}")
    echo_error(f"{CARD} contains only the scores and is not pushed: it would replace the text of the repository's card")
    echo(folder)


def _print_written(results: list[HubResult], folder: Path) -> None:
    for result in results:
        data, task = result.dataset, result.score.task
        echo_error(f"wrote {folder / result.path}: {task} = {result.value:g}, data set {data.id}, task {data.task_id}")
        if not data.named:
            echo_error(
                f"  the task id {data.task_id!r} is assumed; if the data set's eval.yaml has another one, give"
                f" --dataset {task}={data.id}:TASK_ID"
            )
    echo_error(f"wrote {folder / CARD}: model-index with {counted(len(results), 'result')}")


@app.command()
def merge(
    adapter: Annotated[str, typer.Option(help="LoRA adapter: a folder or a hub id.")],
    output_path: Annotated[str, typer.Option("--output-path", "-o", help="Folder of the merged checkpoint.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Base model (default: the one that the adapter names).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtype of the merged weights (default: the base model's).")] = None,
    device: Annotated[str, typer.Option(help="Device on which the weights are merged.")] = "cpu",
    family: Annotated[str | None, typer.Option(help="Family, if config.json does not identify it.")] = None,
) -> None:
    """Merge a LoRA adapter into its base model.

    Writes a checkpoint in the published format. The merged weights are rounded to their dtype, which is bfloat16 for
    most published bases; --dtype float32 avoids this rounding.

    Example: dare-bench export merge --model tiny-llada-base --adapter out/lora -o out/merged
    """
    from dare_bench.merging import merge as work

    log_to_stderr()
    echo(work(model, adapter, output_path, dtype=dtype, device=device, family=family))
