"""``dare-bench show``: one document of a run with its prompt, answer and score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.analysis.names import unknown_text
from dare_bench.analysis.unmasking import Fold, Unmasking, folded
from dare_bench.cli.plain import echo_json, plain_console, plain_table
from dare_bench.cli.runs import RUN_HELP, open_one
from dare_bench.errors import RunError, UsageError, unknown
from dare_bench.runs.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from dare_bench.analysis.document_view import AnswerView, DocumentView
    from dare_bench.runs.index import Document
    from dare_bench.runs.reader import Run

# 256-color backgrounds from violet (early) to yellow (late).
_SCALE = (54, 61, 67, 31, 37, 36, 71, 107, 149, 185)
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    doc: Annotated[str | None, typer.Option(help="Document id (default: the first document).")] = None,
    task: Annotated[str | None, typer.Option(help="Task, if the run has several.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one document of a run.

    Prints the answer, the score, the unmasking order in color, and the exact prompt.
    """
    from dare_bench.analysis.document_view import document_view

    opened = open_one(run)
    document = _find(opened, task, doc)
    view = document_view(document)
    if json:
        echo_json(_record(opened, document, view))
        return
    console = plain_console()
    if opened.edited(view.task):
        _print(console, f"EDITED: the samples file of {view.task} was changed after the run wrote it", "bold red")
    if doc is None:
        _print_scores(console, opened)
    _print_document(console, view, opened.choice_value)


def _find(run: Run, task: str | None, doc: str | None) -> Document:
    """The first document with the id ``doc`` in the tasks of the run, or its first document.

    Raises:
        UsageError: no such task or document. RunError: the run has no samples, or none of this document.
    """
    block = run.require_block()
    if task is not None and task not in run.tasks:
        raise unknown("task", task, run.tasks, place=run.name)
    tasks = [task] if task is not None else run.tasks
    indexes = [index for index in map(run.index, tasks) if index is not None]
    for index in indexes:
        if index.ids and (doc is None or doc in index.ids):
            return index.document(index.ids[0] if doc is None else doc)
    if not indexes:
        raise RunError(f"{run.path} has no sample lines of {', '.join(tasks)}; {run.without_samples}")
    ids = [doc_id for index in indexes for doc_id in index.ids]
    if not ids:
        raise RunError(f"{run.path} has no documents in its sample lines of {', '.join(tasks)}")
    failed = [f for f in block.failures if str(f.doc_id) == doc and f.task in tasks]
    if failed:
        raise RunError(f"document {doc} of {failed[0].task} has no answer: {failed[0].error}")
    raise UsageError(f"no document {doc!r} in {', '.join(tasks)}; ids go from {ids[0]} to {ids[-1]}")


def _print_scores(console: Console, run: Run) -> None:
    from rich.text import Text

    console.print(Text(visible(f"{run.model} · {run.name} · {run.status_text}"), style="bold"))
    if run.is_external:
        _print(console, unknown_text(run), "dim")
    rows = [
        (score.task, score.metric, score.filter, score.text, score.interval, score.n_text, score.exactness)
        for score in run.scores()
    ]
    names = ("task", "metric", "filter", "value", "95% interval", "n", "tier")
    console.print(plain_table(names, rows, optional=("filter", "tier", "n", "metric")))
    console.print()


def _print_document(console: Console, view: DocumentView, choice_value: str) -> None:
    _print(console, f"{view.task} · document {view.doc_id}", "bold reverse")
    if view.kind == "score":
        _print_choices(console, view, choice_value)
    else:
        for answer in view.answers:
            _print_answer(console, answer, len(view.answers) > 1)
    _section(console, "target", view.target)
    for result in view.filter_results:
        suffix = f" ({result.filter})" if result.filter != "none" else ""
        if view.kind == "generate":
            _section(console, f"filtered answer{suffix}", result.filtered)
        _section(console, f"score{suffix}", "  ".join(f"{name} = {value}" for name, value in result.metrics.items()))
    for prompt in view.prompts:
        _section(console, "prompt", prompt)


def _print(console: Console, text: str, style: str = "") -> None:
    """Print text without wrapping. Rich would drop some of the control characters that :func:`visible` shows (BEL)."""
    from rich.text import Text

    console.print(Text(visible(text), style=style), soft_wrap=True)


def _section(console: Console, heading: str, text: str) -> None:
    console.print()
    _print(console, heading, "bold cyan")
    _print(console, text)


def _print_answer(console: Console, answer: AnswerView, several: bool) -> None:
    _section(console, f"answer {answer.index}.{answer.repeat}" if several else "answer", answer.text)
    if record := answer.record:
        passes = f"{record['nfe']} forward passes" if record.get("nfe") else "forward passes not reported"
        facts = (
            f"{passes}, {record.get('tokens_to_eos')} tokens to the first EOS"
            f" of {record.get('tokens')}, {record.get('finish_reason')}, tier {record.get('tier') or 'unknown'}"
        )
        _print(console, facts, "dim")
        if status := record.get("extraction"):
            _print(console, f"extraction: {status.replace('_', ' ')}", "dim")
        if tests := record.get("verdict"):
            seconds = tests.get("seconds", 0.0)
            _print(console, f"its tests: {tests['status']} ({tests['level']}, {seconds:.1f} s)", "dim")
    if answer.order is not None:
        console.print()
        title = f"unmasking order (superscripts: the step that wrote the token, 1 to {answer.order.steps})"
        _print(console, title, "bold cyan")
        console.print(colored(answer.order), soft_wrap=True)


def colored(order: Unmasking) -> Text:
    """The response with each token in the color of its step, followed by the number of the step."""
    from rich.text import Text

    text = Text()
    for piece in folded(order.pieces):
        if isinstance(piece, Fold):
            text.append(f" {visible(piece.text)} ×{piece.count} (steps {piece.first_step}–{piece.last_step}) ", "dim")
            continue
        shown = visible(piece.text).replace("\n", "⏎\n").replace("\t", "→") or "∅"
        foreground = "white" if piece.level < 5 else "black"
        body, newline, rest = shown.partition("\n")
        style = "dim" if piece.step is None else f"{foreground} on color({_SCALE[piece.level]})"
        text.append(body, style=style)
        text.append("·" if piece.step is None else str(piece.step).translate(_SUPERSCRIPT), style="dim")
        text.append(newline + rest)
    return text


def _print_choices(console: Console, view: DocumentView, choice_value: str) -> None:
    console.print()
    _print(console, "scored continuations", "bold cyan")
    rows = []
    for answer in view.answers:
        mark = ("likeliest " if answer.best else "") + ("right" if answer.gold else "")
        value = "—" if answer.value is None else f"{answer.value:.3f}"
        error, draws = answer.record.get("stderr"), answer.record.get("draws")
        estimator = f"{answer.record.get('estimator', '')}" + (f", {draws} draws" if draws else "")
        rows.append((mark, visible(answer.text, 400), value, "—" if error is None else f"{error:.3f}", estimator))
    names = ("", "continuation", choice_value, "± Monte Carlo", "estimator")
    console.print(plain_table(names, rows))


def _record(run: Run, document: Document, view: DocumentView) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "model": run.model,
        "status": run.status,
        "task": view.task,
        "edited": run.edited(view.task),
        "doc_id": view.doc_id,
        "kind": view.kind,
        **({"value_is": run.choice_value} if view.kind == "score" else {}),
        "target": view.target,
        "answers": [
            {"index": a.index, "repeat": a.repeat, "text": a.text, "value": a.value, "settings": dict(a.settings)}
            for a in view.answers
        ],
        "verdicts": [
            {"filter": result.filter, "filtered": result.filtered, "metrics": dict(result.metrics)}
            for result in view.filter_results
        ],
        "records": document.answers,
        "traces": list(document.traces.values()),
        "prompts": view.prompts,
    }
