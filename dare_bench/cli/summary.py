"""What ``eval`` prints about a run or a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dare_bench.cli.plain import plain_console, plain_table, say
from dare_bench.errors import IncompleteError
from dare_bench.runs.text import counted, no_answer
from dare_bench.types import TIER_MEANING, Decoding

if TYPE_CHECKING:
    from rich.console import Console

    from dare_bench.engine.preview import Preview, RunTiming
    from dare_bench.runs.reader import Run
    from dare_bench.runs.schema import Block
    from dare_bench.runs.scores import Score


_NUMBERS = ("value", "n", "extracted")


def print_run(run: Run) -> None:
    """Scores, settings and cost of a run; the last line is the path of its results file."""
    console = plain_console()
    block = run.block
    if block is None:
        console.print(f"{run.path}: no results yet ({run.status})")
        return
    _print_scores(console, run)
    console.print()
    settings = {"decoding": {t: e.decoding for t, e in block.tasks.items()}}
    settings["likelihood"] = {t: e.likelihood for t, e in block.tasks.items()}
    for kind, by_task in settings.items():
        _print_settings(console, kind, by_task, block.decoding_requested if kind == "decoding" else ())
    facts = f"{block.model.name}, {block.model.family}, {block.model.dtype}, seeds {','.join(map(str, block.seeds))}"
    console.print(f"model: {facts}", soft_wrap=True)
    console.print(f"cost: {_cost(block)}", soft_wrap=True)
    if block.execution is not None:
        how = "WITHOUT A SANDBOX" if block.execution.level == "none" else f"in a sandbox ({block.execution.level})"
        counts = ", ".join(f"{name} {count}" for name, count in sorted(block.execution.statuses.items()))
        console.print(f"code: run {how}: {counts}", soft_wrap=True)
    for note in block.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if block.failures:
        first = block.failures[0]
        console.print(
            f"INCOMPLETE: {no_answer(len(block.failures))} left out of the scores; "
            f"the first is {first.task} {first.doc_id}: {first.error}",
            soft_wrap=True,
        )
    if block.recipes:
        _print_published(console, [run])
    say(run.results_file)


def incomplete(runs: Sequence[Run], not_made: Sequence[str] = ()) -> IncompleteError:
    """What a command ends with whose runs have samples without an answer, or could not be made (the reasons)."""
    said = []
    if failures := [failure for run in runs if run.block is not None for failure in run.block.failures]:
        first = failures[0]
        told = f"the first is {first.task} {first.doc_id}: {first.error}"
        said.append(f"{no_answer(len(failures))} left out of the scores; {told}")
    if not_made:
        said.append(f"{counted(len(not_made), 'run')} not made, the first because: {not_made[0]}")
    return IncompleteError("incomplete: " + ("; ".join(said) or "a run is not complete; run the same command again"))


def print_runs(made: Sequence[tuple[str, Run | None, str | None]]) -> None:
    """Several runs: the headline score of each, then what was not run and why, then the results files."""
    console = plain_console()
    rows = []
    for name, run, _ in made:
        for score in _stands_for(run) if run is not None else ():
            count = f"{score.n} of {score.n_total}" if score.limited and score.n_total else str(score.n)
            rate = "" if score.extraction_rate is None else f"{100 * score.extraction_rate:.1f} %"
            what = f"{score.task} {score.metric},{score.filter}"
            status = run.status if run is not None else ""
            rows.append((name, what, score.text, score.interval, count, rate, score.tier or "", status))
    names = ("benchmark", "score of", "value", "95 % interval", "n", "extracted", "tier", "status")
    console.print(plain_table(names, rows, right=_NUMBERS))
    for name, _, reason in made:
        if reason is not None:
            console.print(f"NOT RUN: {name}: {reason}", soft_wrap=True)
    runs = [run for _, run, _ in made if run is not None]
    _print_published(console, [run for run in runs if run.block is not None and run.block.recipes])
    for run in runs:
        say(run.results_file)


def _stands_for(run: Run) -> list[Score]:
    """The headline of each thing that was asked for: a group's where there is one, else the tasks' own."""
    from dare_bench.runs.scores import headline

    scores = run.scores()
    groups = [score.task for score in scores if score.is_group]
    names = list(dict.fromkeys(groups or [score.task for score in scores]))
    found = [headline(scores, name) for name in names]
    return [score for score in found if score is not None]


def _print_published(console: Console, runs: list[Run]) -> None:
    """The published scores beside these runs' own."""
    if runs:
        from dare_bench.analysis.published import comparisons
        from dare_bench.reports.elements import show
        from dare_bench.reports.published import elements

        console.print()
        show(elements(comparisons(runs)), console)


def _print_scores(console: Console, run: Run) -> None:
    scores = run.scores()
    extracted = ("extracted",) if any(score.extraction_rate is not None for score in scores) else ()
    rows, tiers = [], []
    for score in scores:
        count = f"{score.n} of {score.n_total}" if score.limited and score.n_total else str(score.n)
        cells = [score.task, score.metric, score.filter, score.text, score.interval, count]
        if extracted:
            cells.append("" if score.extraction_rate is None else f"{100 * score.extraction_rate:.1f} %")
        rows.append((*cells, score.tier or ""))
        if score.tier and score.tier not in tiers:
            tiers.append(score.tier)
    names = ("task", "metric", "filter", "value", "95 % interval", "n", *extracted, "tier")
    console.print(plain_table(names, rows, right=_NUMBERS, whole=("value",)))
    if extracted:
        console.print("extracted: the share of answers in which the harness found a value", style="dim")
    for tier in sorted(tiers):
        console.print(f"{tier}: {TIER_MEANING[tier]}", style="dim")


def _print_settings(
    console: Console, kind: str, by_task: Mapping[str, Mapping[str, Any]], given: Iterable[str]
) -> None:
    """Resolved settings, tasks with equal ones together: first what was given for the run."""
    names = {Decoding.aliases.get(name, name) for name in given}
    groups: dict[str, list[str]] = {}
    for task, values in by_task.items():
        if values:
            shown = {name: value for name, value in values.items() if name not in Decoding.hidden}
            asked = " ".join(f"{name}={value}" for name, value in shown.items() if name in names)
            others = " ".join(f"{name}={value}" for name, value in shown.items() if name not in names)
            text = f"requested: {asked}; defaults: {others}" if asked else others
            groups.setdefault(text, []).append(task)
    for text, tasks in groups.items():
        shown_tasks = ", ".join(tasks[:4]) + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else "")
        console.print(f"{kind} ({shown_tasks}): {text}", soft_wrap=True)


def _cost(block: Block) -> str:
    from dare_bench.engine.progress import duration

    cost = block.cost
    parts = [f"{cost.requests} requests", f"{cost.nfe} forward passes (NFE)", duration(cost.seconds)]
    if cost.tokens_to_eos:
        parts.append(f"{cost.tokens_to_eos} tokens to the first EOS")
    if cost.tokens_per_s is not None:
        parts.append(f"{cost.tokens_per_s:.1f} tokens/s")
    if cost.tpf is not None:
        parts.append(f"{cost.tpf:.2f} tokens/forward")
    if cost.occupancy is not None:
        parts.append(f"{cost.occupancy:.0%} batch occupancy")
    if cost.peak_memory_mb is not None:
        parts.append(f"{cost.peak_memory_mb:.0f} MiB")
    return ", ".join(parts)


def record(run: Run) -> dict[str, Any]:
    """A run for ``--json``."""
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "results_path": str(run.results_file) if run.results_file else None,
        "status": run.status,
        "scores": [asdict(score) for score in run.scores()],
        "dare_bench": run.block.model_dump(mode="json") if run.block else None,
    }


def print_preview(seen: Preview) -> None:
    """What a run would be: settings, requests, one prompt."""
    from dare_bench.runs.text import visible

    console = plain_console()
    spec = {name: value for name, value in seen.spec.items() if value not in (None, {}, [])}
    for name, value in spec.items():
        console.print(f"{name}: {value}", soft_wrap=True)
    console.print(
        f"run: {seen.run_path}{' (exists; would be resumed or extended)' if seen.exists else ''}", soft_wrap=True
    )
    console.print(f"content: {seen.model['content_hash']}", soft_wrap=True)
    _print_settings(console, "decoding", seen.decoding, seen.spec["decoding"])
    _print_settings(console, "likelihood", seen.likelihood, seen.spec["likelihood"])
    counts = ", ".join(f"{task} {count}" for task, count in seen.requests.items())
    console.print(f"requests: {sum(seen.requests.values())} ({counts})", soft_wrap=True)
    console.print(f"forward passes: at most {seen.forwards}, summed over rows")
    console.print("first prompt:", style="bold")
    console.print(visible(seen.prompt), soft_wrap=True)


def print_timing(timing: RunTiming) -> None:
    """How long a run would take here."""
    from dare_bench.engine.progress import duration

    if timing.seconds is None:
        say("time: unknown, no forward pass could be timed")
        return
    whole = f"{counted(timing.samples, 'sample')} answered" if timing.samples else "no sample finished"
    passes = f"{timing.forwards:,} forward passes in {timing.took:.1f}s, {whole}"
    say(f"time: about {duration(timing.seconds)} on this machine (timed: {passes})")
