"""Runs of several decoders (or checkpoints) under several prompt templates of one task, paired by document.

A template is what shapes the prompts of a task: the task itself with its definition (a variant of a task is a task file
that includes the other), the chat template or none, the number of examples and how they are shown, the system
instruction. A decoder is everything else: the checkpoint, the settings that were requested, and the seeds.

Documents are paired by number and content (lm-eval's hash of the document, not of the prompt, which differs by design),
so tasks with the same documents are variants of one task, whatever their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from dare_bench.analysis.intervals import LEVEL
from dare_bench.analysis.names import checkpoint_of, lineage_of, short_names
from dare_bench.analysis.pairing import DocumentValues, require_same_harness
from dare_bench.analysis.settings import distinguishing, prompt_context, requested
from dare_bench.analysis.template_statistics import (
    DecoderPair,
    DecoderScores,
    RankingAgreement,
    adjust,
    decoder_pairs,
    decoder_scores,
    ranking_agreement,
)
from dare_bench.errors import IncompleteError, RunError, UsageError, unknown
from dare_bench.runs.reader import Run
from dare_bench.runs.results import value_range
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import Score, are_shares, headline
from dare_bench.runs.text import listed, one_line
from dare_bench.types import Decoding

_TURNS = "fewshot_as_multiturn"
"""Of the requested settings the one that belongs to a template."""


@dataclass(frozen=True, slots=True)
class Template:
    """A named variant of a task. ``fingerprint``: the task fingerprint of the first decoder's run under it."""

    name: str
    task: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TemplateComparison:
    """Decoders, the best mean first, under the same templates on the same ``n`` documents. ``scores`` are by decoder;
    ``agreement`` is None with one decoder. ``runs`` are by decoder, then by template. ``unpaired`` counts documents
    that not all runs have.
    """

    key: str
    higher_is_better: bool | None
    decoders: tuple[str, ...]
    templates: tuple[Template, ...]
    runs: tuple[tuple[Run, ...], ...]
    n: int
    unpaired: int
    scores: tuple[DecoderScores, ...]
    pairs: tuple[DecoderPair, ...]
    agreement: RankingAgreement | None
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    level: float

    @property
    def title(self) -> str:
        """The tasks of the templates."""
        return ", ".join(dict.fromkeys(template.task for template in self.templates))

    @property
    def is_share(self) -> bool:
        """Are all scores shares, to be shown in percent?"""
        return are_shares(self.key, *(score for decoder in self.scores for score in decoder.scores))


class _TemplateKey(NamedTuple):
    task: str
    chat: bool
    shots: Any
    instruction: Any
    as_turns: Any
    definition: str


@dataclass(frozen=True, slots=True)
class _Cell:
    """A task of a run: its documents, and their values by score."""

    run: Run
    task: str
    documents: frozenset[str]
    values: Mapping[str, DocumentValues]
    scores: Mapping[str, Score]

    @property
    def template(self) -> _TemplateKey:
        context = prompt_context(self.run, self.task)
        definition = self.run.require_block().tasks[self.task].fingerprint.partition(":")[0]
        as_turns = context.examples[1] if context.examples and context.template else None
        return _TemplateKey(
            self.task, bool(context.template), context.shots[0], context.instruction, as_turns, definition
        )

    @property
    def decoder(self) -> str:
        model = self.run.require_block().model
        settings = sorted((name, str(value)) for name, value in requested(self.run).items() if name != _TURNS)
        content = model.name if model.content_hash == UNKNOWN else model.content_hash
        engine = model.engine.label if model.engine is not None else None
        return str((content, model.adapter_hash, model.family, model.dtype, engine, settings))


def compare_templates(
    runs: Sequence[Run], tasks: Sequence[str] | None = None, key: str | None = None, *, level: float = LEVEL
) -> list[TemplateComparison]:
    """Compare the decoders of ``runs`` under their templates: one comparison for each set of tasks with common
    documents. p-values are adjusted over all of them.

    Args:
        tasks: the tasks to read; None: all.
        key: the score as "metric,filter"; None: the headline of the first task among the scores that all share.

    Raises:
        UsageError: fewer than two templates, no document in common, no decoder with all templates, two runs of one
            decoder and template, a score that not all have, or different harnesses.
        RunError: a run without sample lines, or whose score is not the mean of its documents' values.
        IncompleteError: a run without results.
    """
    opened = list({run.path.resolve(): run for run in runs}.values())
    for run in opened:
        run.require_block(IncompleteError)
        require_same_harness(opened[0], run)
    known = {task for run in opened for task in run.tasks}
    for task in tasks or ():
        if task not in known:
            raise unknown("task", task, known)
    cells = [_read(run, task) for run in opened for task in run.tasks if tasks is None or task in tasks]
    groups = _same_documents(cells)
    varied = [group for group in groups if len({cell.template for cell in group}) > 1]
    if not varied:
        raise UsageError(_one_template(cells, groups))
    built = [_compared(group, key, level) for group in varied]
    if alone := sorted({cell.task for group in groups if group not in varied for cell in group}):
        text = f"{listed(alone, 3)}: one template, or no document in common with the others"
        built[-1] = replace(built[-1], left_out=(*built[-1].left_out, text))
    adjusted = iter(adjust([pair for comparison in built for pair in comparison.pairs]))
    return [replace(each, pairs=tuple(islice(adjusted, len(each.pairs)))) for each in built]


def _read(run: Run, task: str) -> _Cell:
    """One pass over the sample lines of a task."""
    run.require_samples(task)
    scores = {score.key: score for score in run.scores() if score.task == task}
    values = {key: DocumentValues(key, score.value) for key, score in scores.items()}
    documents = set()
    for row in run.samples(task):
        if not row["doc_hash"]:
            raise RunError(f"{run.path} does not record the content of the documents of {task}, which pairs templates")
        documents.add(document := f"{row['doc_id']} {row['doc_hash']}")
        for key, score in scores.items():
            values[key].add_line(score, row, document)
    return _Cell(run, task, frozenset(documents), values, scores)


def _same_documents(cells: Iterable[_Cell]) -> list[list[_Cell]]:
    """The cells in groups that have documents in common."""
    groups: list[list[_Cell]] = []
    for cell in cells:
        joined = [group for group in groups if any(not cell.documents.isdisjoint(other.documents) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(other for group in joined for other in group), cell])
    return groups


def _one_template(cells: Sequence[_Cell], groups: Sequence[Sequence[_Cell]]) -> str:
    """Why nothing can be compared."""
    templates = {cell.template for cell in cells}
    if len(templates) < 2:
        only = f", found one ({_template_names(list(templates))[0]})" if templates else ""
        return f"--templates needs runs under at least two templates{only}; see docs/compare.md, Prompt templates"
    tasks = listed(sorted({cell.task for cell in cells}), 3)
    return (
        f"no two of the {len(templates)} templates of {tasks} have a document in common (same number and content):"
        " variants of a task must keep its documents"
    )


def _template_names(keys: Sequence[_TemplateKey]) -> list[str]:
    """The name of each template, of what distinguishes them; of a single one its task."""
    parts = [
        (
            key.task,
            "chat template" if key.chat else "no chat template",
            "shots not recorded" if key.shots is None else f"{key.shots}-shot",
            f"instruction {one_line(str(key.instruction), 40)!r}" if key.instruction else "no instruction",
            "" if key.as_turns is None else "examples as turns" if key.as_turns else "examples in one turn",
            f"definition {key.definition[:8]}",
        )
        for key in keys
    ]
    varied = [len({key[at] for key in keys}) > 1 or (at == 0 and len(keys) == 1) for at in range(len(parts[0]))]
    if varied[-1]:  # another task has another definition anyway
        varied[-1] = len({key[:-1] for key in keys}) < len(keys)
    varied[4] = len({key.as_turns for key in keys if key.as_turns is not None}) > 1
    return [", ".join(part for part, shown in zip(own, varied, strict=True) if shown and part) for own in parts]


def _decoder_names(runs: Sequence[Run]) -> list[str]:
    """The name of each decoder by its checkpoint and settings, as far as they distinguish it."""
    checkpoints = [checkpoint_of(run) for run in runs]
    short = short_names((checkpoint, lineage_of(run)) for checkpoint, run in zip(checkpoints, runs, strict=True))
    several = len(set(checkpoints)) > 1 or len(runs) == 1
    names = [
        ", ".join(filter(None, [short[checkpoint] if several else "", settings]))
        for checkpoint, settings in zip(checkpoints, distinguishing(runs), strict=True)
    ]
    return [name if name and names.count(name) == 1 else run.name for name, run in zip(names, runs, strict=True)]


def _compared(group: Sequence[_Cell], key: str | None, level: float) -> TemplateComparison:
    """The comparison of cells with common documents, whose pairs have no adjusted p yet."""
    table = _table(group)
    templates = sorted(
        {cell.template for cell in group},
        key=lambda key: (key.task, key.chat, key.shots or 0, str(key.instruction or ""), str(key)),
    )
    complete = [row for row in table.values() if len(row) == len(templates)]
    representatives = [next(iter(row.values())).run for row in table.values()]
    names = dict(zip(table, _decoder_names(representatives), strict=True))
    lacking = list(_lacking(table, templates, names))
    if not complete:
        raise UsageError(f"no decoder has all {len(templates)} templates: {lacking[0]}; run what is missing")
    rows = [[row[template] for template in templates] for row in complete]
    cells = [cell for row in rows for cell in row]
    score = _shared_score(cells, key)
    rows.sort(key=lambda row: -sum(cell.scores[score.key].goodness for cell in row))
    first = cells[0].values[score.key]
    ids = [each for each in first.parts if all(each in cell.values[score.key].parts for cell in cells)]
    if not ids:
        raise UsageError(f"{score.task}: no document has a value of {score.key} in all {len(cells)} runs")
    values = [[cell.values[score.key].of(ids) for cell in row] for row in rows]
    lower = score.higher_is_better is False
    means = [sum(each) / len(each) for row in values for each in row]
    limits = value_range(score.key, *means)
    pairs = decoder_pairs(values, lower_is_better=lower, level=level)
    return TemplateComparison(
        key=score.key,
        higher_is_better=score.higher_is_better,
        decoders=tuple(names[cells[0].decoder] for cells in rows),
        templates=tuple(
            Template(name, cell.task, cell.run.require_block().tasks[cell.task].fingerprint)
            for name, cell in zip(_template_names(templates), rows[0], strict=True)
        ),
        runs=tuple(tuple(cell.run for cell in row) for row in rows),
        n=len(ids),
        unpaired=len(frozenset().union(*(cell.documents for cell in cells))) - len(ids),
        scores=tuple(decoder_scores(row, lower_is_better=lower, limits=limits, level=level) for row in values),
        pairs=tuple(pairs),
        agreement=ranking_agreement(pairs),
        left_out=tuple(lacking),
        warnings=tuple(dict.fromkeys(_warnings(rows, score.key, names))),
        level=level,
    )


def _table(group: Sequence[_Cell]) -> dict[str, dict[_TemplateKey, _Cell]]:
    """The cells by decoder and template; raises UsageError where there are two of one."""
    table: dict[str, dict[_TemplateKey, _Cell]] = {}
    for cell in group:
        row = table.setdefault(cell.decoder, {})
        if (other := row.get(cell.template)) is not None:
            raise UsageError(
                f"{other.run.path} and {cell.run.path} have the same decoder and the same template of {cell.task};"
                " give one of them"
            )
        row[cell.template] = cell
    return table


def _lacking(
    table: Mapping[str, Mapping[_TemplateKey, _Cell]], templates: Sequence[_TemplateKey], names: Mapping[str, str]
) -> Iterator[str]:
    titles = dict(zip(templates, _template_names(templates), strict=True))
    for decoder, row in table.items():
        if missing := [titles[template] for template in templates if template not in row]:
            yield f"{names[decoder]} has no run under: {listed(missing, 3)}"


def _shared_score(cells: Sequence[_Cell], key: str | None) -> Score:
    """The score to compare, as the first cell has it. Raises UsageError: not all have it; RunError: it is not the mean
    of the documents' values."""
    shared = {name: score for name, score in cells[0].scores.items() if all(name in cell.scores for cell in cells)}
    if key is not None and key not in shared:
        raise unknown("score", key, shared, place="all of the runs")
    score = shared[key] if key is not None else headline(shared.values(), cells[0].task)
    if score is None:
        raise UsageError(f"{cells[0].task}: the runs have no score in common")
    for cell in cells:
        if (text := cell.values[score.key].problem()) is not None:
            raise RunError(f"{cell.task} of {cell.run.path}: {text}")
    return score


def _warnings(rows: Sequence[Sequence[_Cell]], key: str, names: Mapping[str, str]) -> Iterator[str]:
    for row in rows:
        for cell in row:
            if cell.run.status not in ("complete", "external"):
                yield f"{cell.run.name} is {cell.run.status}: documents are missing"
            if cell.run.edited(cell.task) or cell.run.results_edited:
                yield f"{cell.run.name} was changed after the run"
            if cell.values[key].redrawn:
                yield "log-likelihoods are drawn: the noise of draws is not part of these intervals and tests"
        resolved = [cell.run.require_block().tasks[cell.task].decoding for cell in row]
        for name in dict.fromkeys(name for each in resolved for name in each if name not in Decoding.hidden):
            if len(texts := {str(each.get(name)) for each in resolved}) > 1:
                yield f"{names[row[0].decoder]}: {name} differs between the templates ({listed(sorted(texts), 3)})"
