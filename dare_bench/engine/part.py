"""A part of a run's documents as a run of its own, scored from the recorded answers, without the model.

The run that has more documents than were requested stays as it is. The part lies beside it, in ``<run>-first-50``: what
reads the results of the command (a script, ``compare``, a board) finds the requested documents and no others.
"""

from __future__ import annotations

import logging

from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.engine.recorded_answers import RecordedAnswers
from dare_bench.engine.rescore import recorded_source, refuse_new_failures
from dare_bench.engine.rescored_run import write_part
from dare_bench.engine.rundir import read_done
from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError
from dare_bench.runs.reader import Run

log = logging.getLogger("dare_bench")


def part_of(run: Run, spec: RunSpec, scope: Scope, content: str) -> Run:
    """The run; or if it has documents beside those of ``scope``, a run of these.

    Args:
        content: the hash of the model, which with ``spec`` tells whether an earlier part is this one.

    Raises:
        RunError: its sample lines are missing or edited.
    """
    done = read_done(run.path)
    if done is None or scope.covers(done.scope, done.totals):
        return run
    folder = run.path.with_name(f"{run.path.name}-{scope.folder_suffix()}")
    log.info("%s has %s; those requested are scored from its recorded answers", run.path, done.scope.text())
    signature, earlier = ident.request_signature(spec, content), read_done(folder)
    if earlier is not None and (earlier.status, earlier.signature, earlier.scope) == ("complete", signature, scope):
        return Run(folder)
    if any(run.samples_file(task) is None for task in run.tasks):
        raise RunError(
            f"{run.path} has {done.scope.text()} but no samples files (--no-log-samples), so that {scope.text()} cannot"
            " be scored alone; add --fresh for a new run"
        )
    if edited := [task for task in run.tasks if run.edited(task)]:
        raise RunError(f"{run.path}: the samples of {edited[0]} were changed after the run; add --fresh for a new run")
    source = recorded_source(run, spec)
    requests = source.requests()
    harness = source.run(RecordedAnswers(run, run.tasks, part=True))
    refuse_new_failures(run, harness.failures)
    return write_part(folder, run, spec, requests, harness, signature)
