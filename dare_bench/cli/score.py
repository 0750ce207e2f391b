"""``dare-bench score``: score the recorded answers of a run again, without its model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.plain import echo, echo_json, plain_console, plain_table
from dare_bench.cli.runs import open_runs, run_path
from dare_bench.errors import DareError
from dare_bench.formatting import score_text
from dare_bench.runs.text import counted, listed, one_line

if TYPE_CHECKING:
    from dare_bench.engine.rescore import Rescored, RescoredValue
    from dare_bench.runs.reader import Run

_CHANGED, _INCOMPLETE, _FAILED = 3, 4, 1
_NUMBERS = ("recorded", "again")


def score(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or a folder of runs (a suite).")],
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data sets, if it has moved since the run.")
    ] = None,
    include_path: Annotated[
        list[str] | None, typer.Option(help="Folder of the run's task files; the recorded path is not used.")
    ] = None,
    docs: Annotated[int, typer.Option(min=0, help="Number of differing documents to print.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score the recorded answers of a run again.

    Uses the installed tasks and scorers; the model is not loaded.

    Exit codes: 0 the same scores, 3 scores or documents' values changed, 4 the run is incomplete, 1 it cannot be scored
    again (its prompts changed, or its samples file is missing), 2 usage error.

    Example: dare-bench score out/my-run
    """
    from dare_bench.engine.rescore import refuse_inside

    runs = open_runs(run)
    refuse_inside(run_path(run), include_path or ())
    fields = {"task": task, "data_dir": data_dir, "include_path": include_path}
    single = len(runs) == 1 and runs[0].path == run_path(run)
    results = [_rescored(opened, fields, single=single) for opened in runs]
    if json:
        records = [record for record, _, _ in results]
        echo_json(records[0] if single else records)
    else:
        for opened, (record, rescored, _) in zip(runs, results, strict=True):
            if single and rescored is not None:
                _print(rescored, docs)
            echo(("" if single else f"{opened.name}: ") + _verdict(record))
    codes = {code for _, _, code in results}
    if code := next((code for code in (_CHANGED, _FAILED, 2, _INCOMPLETE) if code in codes), 0):
        raise typer.Exit(code)


def _rescored(run: Run, fields: dict[str, Any], *, single: bool) -> tuple[dict[str, Any], Rescored | None, int]:
    """Record, result and exit code of a run. Among several runs, one that cannot be scored does not stop the others."""
    from dare_bench.engine.rescore import rescore

    try:
        rescored = rescore(run, **fields)
    except DareError as error:
        if single:
            raise
        record = {"run_id": run.run_id, "path": str(run.path), "error": " ".join(str(error).split())}
        return record, None, error.exit_code
    code = _CHANGED if not rescored.same else _INCOMPLETE if run.status != "complete" else 0
    return _record(rescored), rescored, code


def _record(rescored: Rescored) -> dict[str, Any]:
    scores = [{**asdict(score), "same": score.same} for score in rescored.scores]
    for score in scores:
        del score["doc_id"]
    return {
        "run_id": rescored.run.run_id,
        "path": str(rescored.run.path),
        "status": rescored.run.status,
        "same": rescored.same,
        "documents": rescored.counted,
        "edited": rescored.edited,
        "changes": rescored.changes,
        "scores": scores,
        "differing": [asdict(value) for value in rescored.documents],
    }


def _print(rescored: Rescored, limit: int) -> None:
    console, documents = plain_console(), rescored.documents
    rows = [
        (score.task, score.metric, score.filter, *_score_texts(score), "" if score.same else "changed")
        for score in rescored.scores
    ]
    console.print(
        plain_table(("task", "metric", "filter", "recorded", "again", ""), rows, right=_NUMBERS, optional=("filter",))
    )
    if documents:
        console.print()
    if documents and limit:
        columns = ("task", "document", "metric", "filter", "recorded", "again")
        rows = [
            (value.task, str(value.doc_id), value.metric, value.filter, _number(value.recorded), _number(value.again))
            for value in documents[:limit]
        ]
        console.print(plain_table(columns, rows, right=_NUMBERS))
    if len(documents) > limit:
        echo(f"{len(documents) - limit} more values differ; --docs {len(documents)} shows all")
    for change in rescored.changes:
        echo(f"note: {change}")


def _score_texts(score: RescoredValue) -> tuple[str, str]:
    """The recorded and the new score, formatted as usual, or with more digits if the usual ones hide the change."""
    from dare_bench.runs.scores import are_shares

    pair = (score.recorded, score.again)
    share = are_shares(score.metric, *(value for value in pair if isinstance(value, int | float)))
    old, new = (score_text(value, share) if isinstance(value, int | float) else "—" for value in pair)
    return (_number(score.recorded), _number(score.again)) if old == new and not score.same else (old, new)


def _number(value: Any) -> str:
    """A number with all digits that matter; anything else in one short line."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.10g}"
    return "—" if value is None else one_line(str(value), 60)


def _verdict(record: dict[str, Any]) -> str:
    """The result of a run in one line."""
    if "error" in record:
        return f"NOT SCORED: {record['error']}"
    scores, documents = counted(len(record["scores"]), "score"), counted(record["documents"], "document")
    if record["same"]:
        text = f"the same: {scores}, values of {documents}"
    else:
        changed = [f"{s['task']} {s['metric']},{s['filter']}" for s in record["scores"] if not s["same"]]
        differing = list(dict.fromkeys(f"{value['task']} {value['doc_id']}" for value in record["differing"]))
        text = f"CHANGED: {len(changed)} of {scores}" + (f" ({', '.join(changed)})" if changed else "")
        text += f", {len(differing)} of {documents}" + (f" ({listed(differing, 3)})" if differing else "")
    if edited := [task for task, changed in record["edited"].items() if changed]:
        text = f"EDITED after the run: the samples file of {', '.join(edited)}; {text}"
    if record["status"] != "complete":
        text += f"; the run is {record['status']}: its failed documents stay out"
    return text
