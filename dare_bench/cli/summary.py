"""What commands print about runs, and ``eval --dry-run`` about a run that it only plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dare_bench.cli.plain import echo, plain_console, plain_table
from dare_bench.errors import IncompleteError
from dare_bench.keywords import DECODING_DEFAULTS, DECODING_FOLLOWS
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.text import counted, listed, no_answer, stopping, undecided
from dare_bench.runs.writer import plain
from dare_bench.types import TIER_MEANING, Decoding

if TYPE_CHECKING:
    from rich.console import Console

    from dare_bench.engine.preview import Preview, RunTiming
    from dare_bench.runs.reader import Run
    from dare_bench.runs.schema import Block, Failure
    from dare_bench.runs.scores import Score


_NUMBERS = ("value", "n", "extracted")


def print_run(run: Run, verbose: bool = False) -> None:
    """Print scores, settings (``verbose``: all of them) and cost of a run, and last the path of its results file."""
    console = plain_console()
    block = run.block
    if block is None:
        echo(f"{run.path}: no results yet ({run.status})")
        return
    _print_scores(console, run)
    echo("")
    _print_block_settings(block, verbose)
    model = block.model
    echo(f"model: {model.name}, {model.family}, {model.dtype}, {_seeds(block.seeds)}")
    if origins := list(dict.fromkeys(task.data for task in block.tasks.values() if task.data is not None)):
        echo(f"data: {listed(origins, most=2)}")
    if model.engine is not None:
        echo(f"engine: {model.engine.text}")
    echo(f"cost: {_cost(block)}")
    if block.execution is not None:
        isolation = (
            "WITHOUT A SANDBOX" if block.execution.level == "none" else f"in a sandbox ({block.execution.level})"
        )
        counts = ", ".join(f"{name} {count}" for name, count in sorted(block.execution.statuses.items()))
        echo(f"code: run {isolation}: {counts}")
    for note in (*stopping(block), *undecided(block), *block.notes):
        echo(f"note: {note}")
    if block.failures:
        echo(f"INCOMPLETE: {_failures(block.failures)}")
    if block.recipes:
        _print_published(console, [run])
    echo(run.results_file)


def _seeds(seeds: Sequence[int] | None) -> str:
    """The seeds with what each is for; one number where all are equal."""
    if seeds is None:
        return f"seeds {UNKNOWN}"
    owners: dict[int, list[str]] = {}
    for seed, owner in zip(seeds, ("Python", "NumPy", "PyTorch", "few-shot examples"), strict=True):
        owners.setdefault(seed, []).append(owner)
    if len(owners) == 1:
        return f"seed {seeds[0]}"
    return "seeds " + ", ".join(f"{seed} ({', '.join(names)})" for seed, names in owners.items())


def _failures(failures: Sequence[Failure]) -> str:
    first = failures[0]
    example = f"the first is {first.task} {first.doc_id}: {first.error}"
    return f"{no_answer(len(failures))} left out of the scores; {example}"


def incomplete(runs: Sequence[Run], reasons: Sequence[str] = ()) -> IncompleteError:
    """The error at the end of a command whose runs have samples without an answer. ``reasons``: of the runs that are
    missing."""
    parts = []
    if failures := [failure for run in runs if run.block is not None for failure in run.block.failures]:
        parts.append(_failures(failures))
    if reasons:
        parts.append(f"{counted(len(reasons), 'run')} not made, the first because: {reasons[0]}")
    return IncompleteError("incomplete: " + ("; ".join(parts) or "a run is not complete; run the same command again"))


def print_runs(
    results: Sequence[tuple[str, Run | None, str | None]], verbose: bool = False, *, names: str = "benchmark"
) -> None:
    """Print several runs (``verbose``: with all settings): the headline score of each, the reasons of the missing ones,
    the results files. ``results``: name, run, and the reason why there is none; ``names``: the heading of the names."""
    console = plain_console()
    rows = [
        (
            name,
            f"{score.task} {score.metric},{score.filter}",
            *_values(score),
            _rate(score),
            score.exactness,
            run.status,
        )
        for name, run, _ in results
        if run is not None
        for score in _headlines(run)
    ]
    heads = (names, "score of", "value", "95% interval", "n", "extracted", "tier", "status")
    console.print(plain_table(heads, rows, right=_NUMBERS, optional=("extracted", "tier", "n", "score of")))
    for name, _, reason in results:
        if reason is not None:
            echo(f"NOT RUN: {name}: {reason}")
    runs = [run for _, run, _ in results if run is not None]
    for run in runs if verbose else ():
        if run.block is not None:
            _print_block_settings(run.block, complete=True)
    _print_published(console, [run for run in runs if run.block is not None and run.block.recipes])
    for run in runs:
        echo(run.results_file)


def _headlines(run: Run) -> list[Score]:
    """The headline scores of the run's groups, or of its tasks if it has no groups."""
    from dare_bench.runs.scores import headline

    scores = run.scores()
    names = [score.task for score in scores if score.is_group] or [score.task for score in scores]
    return [score for name in dict.fromkeys(names) if (score := headline(scores, name)) is not None]


def _print_published(console: Console, runs: list[Run]) -> None:
    if runs:
        from dare_bench.analysis.published import comparisons
        from dare_bench.reports.elements import show
        from dare_bench.reports.scores_report import published_elements as elements

        console.print()
        show(elements(comparisons(runs)), console)


def _print_scores(console: Console, run: Run) -> None:
    scores = run.scores()
    has_rates = any(score.extraction_rate is not None for score in scores)
    rows = []
    for score in scores:
        rate = (_rate(score),) if has_rates else ()
        rows.append((score.task, score.metric, score.filter, *_values(score), *rate, score.exactness))
    extracted = ("extracted",) if has_rates else ()
    names = ("task", "metric", "filter", "value", "95% interval", "n", *extracted, "tier")
    optional = ("filter", "extracted", "tier", "metric")
    console.print(plain_table(names, rows, right=_NUMBERS, no_wrap=("value",), optional=optional))
    if has_rates:
        console.print("extracted: the share of answers in which the harness found a value", style="dim")
    for tier in sorted({score.tier for score in scores if score.tier}):
        console.print(f"{tier}: {TIER_MEANING[tier]}", style="dim")


def _values(score: Score) -> tuple[str, str, str]:
    """Value, interval, and number of documents."""
    return score.text, score.interval, score.n_text


def _rate(score: Score) -> str:
    return "" if score.extraction_rate is None else f"{100 * score.extraction_rate:.1f}%"


_ALWAYS = ("gen_length",)
"""Settings that are printed whatever their values."""
_DETAILS = frozenset({"early_stop", *Decoding.id_fields})
"""Settings that a run resolves by itself and that are read only in doubt."""
_OFF: tuple[Any, ...] = (None, False, 0, "none", [])
"""Values of settings that are off."""


def _print_block_settings(block: Block, complete: bool) -> None:
    decoding = {task: evaluated.decoding for task, evaluated in block.tasks.items()}
    _print_settings("decoding", decoding, block.decoding_requested, complete, block.model.family)
    _print_settings("likelihood", {t: e.likelihood for t, e in block.tasks.items()}, complete=complete)


def _print_settings(
    kind: str,
    by_task: Mapping[str, Mapping[str, Any]],
    requested: Iterable[str] = (),
    complete: bool = False,
    family: str = "",
) -> None:
    """Print resolved settings, the requested ones first, with one line for all tasks that share them. Without
    ``complete``, those that were not requested and are off or at the defaults of ``family`` are only counted."""
    names = {Decoding.aliases.get(name, name) for name in requested}
    groups: dict[str, list[str]] = {}
    for task, values in by_task.items():
        if values:
            texts = {name: f"{name}={value}" for name, value in values.items() if name not in Decoding.hidden}
            shown = [name for name in texts if name not in names and (complete or _matters(name, values, family))]
            others = " ".join(texts[name] for name in shown)
            explicit = " ".join(text for name, text in texts.items() if name in names)
            line = f"requested: {explicit}; others: {others}" if explicit else others
            if left_out := len(texts.keys() - names - {*shown}):
                line += f" ({left_out} more with -v)"
            groups.setdefault(line, []).append(task)
    for text, tasks in groups.items():
        echo(f"{kind} ({listed(tasks, 4)}): {text}")


def _matters(name: str, values: Mapping[str, Any], family: str) -> bool:
    """Is that a setting to see at every run: one that is not at its default? A default may be the value of another
    field. What else a known family computes counts as default; of an unknown family, what is off does."""
    value, defaults, followed = values[name], DECODING_DEFAULTS.get(family, {}), DECODING_FOLLOWS.get(family, {})
    if name in defaults:
        at_default = value == plain(defaults[name])
    elif name in followed:
        at_default = value == values.get(followed[name])
    else:
        common = Decoding.model_fields[name].default if name in Decoding.model_fields else None
        at_default = bool(defaults) or value in _OFF or value == common
    return name in _ALWAYS or not (name in _DETAILS or at_default)


def _cost(block: Block) -> str:
    from dare_bench.formatting import duration

    cost = block.cost
    optional = (
        (cost.tokens_to_eos or None, "{} tokens to the first EOS"),
        (cost.tokens_per_s, "{:.1f} tokens/s"),
        (cost.tpf, "{:.2f} tokens/forward"),
        (cost.occupancy, "{:.0%} batch occupancy"),
        (cost.peak_memory_mb, "{:.0f} MiB"),
    )
    passes = "forward passes not reported"
    if cost.nfe is not None and cost.requests:
        passes = f"{cost.nfe / cost.requests:.1f} forward passes per request (NFE; {cost.nfe} in all)"
    parts = [counted(cost.requests, "request"), passes, duration(cost.seconds)]
    return ", ".join([*parts, *(text.format(value) for value, text in optional if value is not None)])


def record(run: Run) -> dict[str, Any]:
    """The JSON record of a run."""
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "results_path": str(run.results_file) if run.results_file else None,
        "status": run.status,
        "scores": [asdict(score) for score in run.scores()],
        "dare_bench": run.block.model_dump(mode="json") if run.block else None,
    }


def print_preview(preview: Preview, verbose: bool = False) -> None:
    """Print what a run would be: settings (``verbose``: all of them), requests, one prompt."""
    for name, value in preview.spec.items():
        if value not in (None, {}, []):
            echo(f"{name}: {value}")
    echo(f"run: {preview.run_path}{' (exists; would be resumed or extended)' if preview.exists else ''}")
    echo(f"content: {preview.model['content_hash']}")
    _print_settings("decoding", preview.decoding, preview.spec["decoding"], verbose, preview.model["family"])
    _print_settings("likelihood", preview.likelihood, preview.spec["likelihood"], verbose)
    counts = ", ".join(f"{task} {count}" for task, count in preview.requests.items())
    echo(f"requests: {sum(preview.requests.values())} ({counts})")
    echo(f"forward passes: at most {preview.forwards}, summed over rows")
    plain_console().print("first prompt:", style="bold")
    echo(preview.prompt, whole=True)


def print_timing(timing: RunTiming) -> None:
    """Print how long a run would take on this machine."""
    from dare_bench.formatting import duration

    if timing.seconds is None:
        echo("time: unknown, no forward pass could be timed")
        return
    samples = f"{counted(timing.samples, 'sample')} answered" if timing.samples else "no sample finished"
    passes = f"{timing.forwards:,} forward passes in {timing.took:.1f}s, {samples}"
    echo(f"time: about {duration(timing.seconds)} at the speed of a sample measured now: {passes}")
