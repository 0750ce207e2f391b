"""``dare-bench eval``: evaluate a checkpoint. The last line on stdout is the path of the results file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dare_bench.cli.guard import State
from dare_bench.cli.plain import say_json, tell

_SAMPLER, _TASKS, _RUN = "Decoding (defaults come from the task and the family)", "Tasks", "Run"


def _decoding(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_SAMPLER, show_default=False)


def _task(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_TASKS, show_default=False, **more)


def _run(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_RUN, show_default=False, **more)


def evaluate(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Checkpoint: a folder, a hub id or a bundled name.", show_default=False),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", help="LoRA adapter for the model: a folder or a hub id.", show_default=False),
    ] = None,
    tasks: Annotated[
        str | None,
        _task("--tasks", "-t", text="Names, groups, globs or suites (dare, dare-smoke), separated by commas."),
    ] = None,
    recipe: Annotated[
        str | None,
        _task(
            "--recipe",
            text="Settings of a published score: checkpoint/entry, separated by commas (dare-bench ls recipes).",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", "-C", help="YAML file with these settings; options override it.", show_default=False),
    ] = None,
    model_args: Annotated[
        str | None,
        typer.Option(
            "--model-args", "-a", help="k=v,k=v for loading the model (mask_id, eos_id, ...).", show_default=False
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option("--family", help="Family, if config.json does not identify it.", show_default=False)
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, ...", show_default=False)] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16, ...", show_default=False)] = None,
    harness: Annotated[str | None, _task("--harness", text="Harness of the tasks: lm-eval or opencompass.")] = None,
    num_fewshot: Annotated[
        int | None, _task("--num-fewshot", "-f", text="Number of few-shot examples in the prompt.")
    ] = None,
    limit: Annotated[
        str | None, _task("--limit", "-L", text="First N documents of each task, or a fraction of them (0.1).")
    ] = None,
    repeats: Annotated[
        int | None,
        _task("--repeats", min=1, text="Answers to each prompt (at most 10,000); reports their mean and pass@k."),
    ] = None,
    samples: Annotated[
        str | None, _task("--samples", text='Documents by number, as JSON or a JSON file: {"task": [0, 5]}.')
    ] = None,
    include_path: Annotated[
        str | None, _task("--include-path", text="Folders with additional task files, separated by commas.")
    ] = None,
    data_dir: Annotated[
        str | None,
        _task(
            "--data-dir",
            text="Folder of local data sets, with a manifest.json (docs/data.md).",
            envvar="DARE_BENCH_DATA",
        ),
    ] = None,
    apply_chat_template: Annotated[
        str | None,
        _task(
            "--apply-chat-template",
            metavar="[NAME]",
            text="Apply the chat template, or the template NAME (disable: --no-apply-chat-template).",
        ),
    ] = None,
    fewshot_as_multiturn: Annotated[
        bool | None, _task("--fewshot-as-multiturn/--no-fewshot-as-multiturn", text="Few-shot examples as chat turns.")
    ] = None,
    system_instruction: Annotated[
        str | None, _task("--system-instruction", text="System message for every prompt.")
    ] = None,
    gen_kwargs: Annotated[
        str | None,
        _decoding("--gen-kwargs", text="k=v,k=v: any decoding field of the family (docs/python.md)."),
    ] = None,
    gen_length: Annotated[int | None, _decoding("--gen-length", text="Number of response tokens.")] = None,
    steps: Annotated[int | None, _decoding("--steps", text="Denoising steps (SDAR: denoising_steps).")] = None,
    block_length: Annotated[int | None, _decoding("--block-length", text="Tokens per block.")] = None,
    temperature: Annotated[
        float | None, _decoding("--temperature", text="Sampling temperature; 0 is greedy decoding.")
    ] = None,
    remasking: Annotated[
        str | None, _decoding("--remasking", text="LLaDA: how positions are chosen: low_confidence or random.")
    ] = None,
    cfg_scale: Annotated[
        float | None, _decoding("--cfg-scale", text="LLaDA: classifier-free guidance; 0 is off.")
    ] = None,
    threshold: Annotated[
        float | None, _decoding("--threshold", text="Unmask all positions with at least this confidence.")
    ] = None,
    factor: Annotated[
        float | None, _decoding("--factor", text="LLaDA: Fast-dLLM's factor for parallel unmasking.")
    ] = None,
    cache: Annotated[
        str | None,
        _decoding("--cache", text="none; exact (default of block-causal families); prefix or dual (approximate)."),
    ] = None,
    logits_eos_inf: Annotated[
        bool | None, _decoding("--logits-eos-inf/--no-logits-eos-inf", text="LLaDA: suppress EOS.")
    ] = None,
    confidence_eos_eot_inf: Annotated[
        bool | None,
        _decoding("--confidence-eos-eot-inf/--no-confidence-eos-eot-inf", text="LLaDA: unmask EOS and EOT last."),
    ] = None,
    early_stop: Annotated[
        bool | None,
        _decoding(
            "--early-stop/--no-early-stop",
            text="Stop at EOS in a finished block; on by default if the text is cut there.",
        ),
    ] = None,
    text_after_eos: Annotated[
        str | None, _decoding("--text-after-eos", text="Text after the first EOS: cut or keep.")
    ] = None,
    rng: Annotated[
        str | None, _decoding("--rng", text="Random numbers: ours, or reference (those of the published code; slow).")
    ] = None,
    likelihood_args: Annotated[
        str | None, _decoding("--likelihood-args", text="k=v,k=v: fields of log-likelihoods (mc_num, estimator, ...).")
    ] = None,
    seed: Annotated[
        str | None, _run("--seed", text="One seed, or four: python,numpy,torch,fewshot. (default: 0,1234,1234,1234)")
    ] = None,
    max_rows: Annotated[
        str | None,
        _run(
            "--max-rows",
            "--batch-size",
            "-b",
            text="Maximum number of rows computed together; does not change results.",
        ),
    ] = None,
    devices: Annotated[
        int | None, _run("--devices", min=1, text="Number of worker processes, one per GPU (or on CPU). (default: 1)")
    ] = None,
    executor: Annotated[
        str | None, _run("--executor", text="Where shards run: devices or ray (docs/scale.md).")
    ] = None,
    ray_address: Annotated[
        str | None, _run("--ray-address", text="Ray cluster, host:port. (default: RAY_ADDRESS, or a new local one)")
    ] = None,
    output_path: Annotated[str | None, _run("--output-path", "-o", text="Folder for runs. (default: out)")] = None,
    fresh: Annotated[bool | None, _run("--fresh/--no-fresh", text="Start a new run next to an existing one.")] = None,
    log_samples: Annotated[
        bool | None,
        _run("--log-samples/--no-log-samples", "-s/ ", text="Write samples and unmasking traces. (default: on)"),
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool | None,
        _run("--unsafe-no-sandbox", text="Run generated code even if no sandbox works; the result records it."),
    ] = None,
    dry_run: Annotated[
        bool, _run("--dry-run", text="Print settings, estimated cost and one prompt, without evaluating.")
    ] = False,
    json: Annotated[bool, _run("--json", text="Print one JSON object instead of tables.")] = False,
) -> None:
    """Evaluate a checkpoint on tasks.

    The same command resumes an interrupted run, a larger --limit extends a run, and a finished run is printed again.
    Exit codes: 0 finished, 1 failed, 2 usage error, 4 incomplete (samples failed, or runs of a suite were not made),
    130 interrupted (143 by SIGTERM, 129 by SIGHUP).

    Example: dare-bench eval --model tiny-llada --tasks dare_sudoku --limit 50
    """
    from dare_bench.run_fields import run_fields

    skipped = {"config", "dry_run", "json"}
    fields = run_fields(config, {name: value for name, value in locals().items() if name in _NAMES - skipped})
    _log_to_stderr()
    if dry_run:
        from dare_bench.cli.dry_run import show

        show(fields, json)
        return
    State.resume = "; run the same command to resume" + (" (without --fresh)" if fields.get("fresh") else "")
    from dare_bench.engine.plan import plan

    planned = plan(fields)
    if len(planned) > 1:
        from dare_bench.cli.several import make

        make(planned, json)
        return
    from dare_bench.engine.evaluate import evaluate as work

    run = work(**planned[0].fields)
    if json:
        from dare_bench.cli.summary import record

        say_json(record(run))
    else:
        from dare_bench.cli.summary import print_run

        print_run(run)
    if run.status != "complete":
        from dare_bench.cli.summary import incomplete

        raise incomplete([run])


def with_template_names(words: Sequence[str]) -> list[str]:
    """The words with ``--apply-chat-template`` given a value where no name follows it: typer knows no optional ones."""
    made = []
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        flag = word.replace("_", "-")
        if flag == "--no-apply-chat-template":
            word = "--apply-chat-template=false"
        elif flag == "--apply-chat-template" and following.startswith("-"):
            word = "--apply-chat-template=true"
        made.append(word)
    return made


_NAMES = frozenset(evaluate.__annotations__) - {"return"}


def _log_to_stderr() -> None:
    """Our own messages, as they are, on stderr."""
    logger = logging.getLogger("dare_bench")
    handler = logging.Handler()
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
