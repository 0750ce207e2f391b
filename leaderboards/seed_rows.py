"""Seeds of one training recipe as one row of a board."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import fmean

from dare_bench.analysis.names import trainings
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.entries import RunScore
from dare_bench.leaderboards.replicates import recipe_of


def fold_seeds(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """The rows, those of several seeds of one recipe with the same settings and questions as one. Of several rows of
    one checkpoint, each is in another row."""
    groups: dict[Hashable, list[list[BoardRow]]] = {}
    for row in rows:
        alike = groups.setdefault(_recipe(row), [])
        checkpoint = row.main.checkpoint
        free = next((group for group in alike if all(other.main.checkpoint != checkpoint for other in group)), None)
        if free is None:
            alike.append([row])
        else:
            free.append(row)
    return [_folded(group) if len(group) > 1 else group[0] for alike in groups.values() for group in alike]


def _recipe(row: BoardRow) -> Hashable:
    """Equal for rows that may be folded; of a checkpoint that was not trained here, for itself alone."""
    main = row.main
    if not trainings(main.lineage):
        return id(row)
    asked = tuple(cell and (cell.score.key, cell.score.task_fingerprint, cell.score.n) for cell in row.cells)
    states = tuple(sorted((entry.status, str(entry.limit)) for entry in row.entries))
    return recipe_of(main), row.settings, main.hardware, asked, states


def _folded(rows: Sequence[BoardRow]) -> BoardRow:
    cells = [_mean_of([row.cells[at] for row in rows]) for at in range(len(rows[0].cells))]
    members = sorted(rows, key=lambda row: (_seed(row).zfill(9), row.created))
    return BoardRow([entry for row in rows for entry in row.entries], cells, members=members)


def _seed(row: BoardRow) -> str:
    return str((row.main.lineage or {}).get("seed"))


def _mean_of(cells: Sequence[RunScore | None]) -> RunScore | None:
    """The mean of the seeds' scores. All seeds answered the same documents, so its interval, like its documents, is not
    larger than theirs: it has their mean bounds."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return None
    scores = [cell.score for cell in known]
    newest = max(known, key=lambda cell: cell.entry.created)
    rates = [score.extraction_rate for score in scores if score.extraction_rate is not None]
    score = replace(
        newest.score,
        value=fmean(score.value for score in scores),
        stderr=None,
        lo=_mean_bound([score.lo for score in scores]),
        hi=_mean_bound([score.hi for score in scores]),
        method=f"mean bounds of {len(known)} seeds",
        extraction_rate=min(rates, default=None),
    )
    return RunScore(score, newest.entry, tuple(known))


def _mean_bound(bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return fmean(known) if len(known) == len(bounds) else None
