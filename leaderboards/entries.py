"""A run's scores and facts for boards. A run of dare-bench is opened again when its page is written, so that boards of
many runs need little memory.

Replicates are runs of one checkpoint, or of seeds of one training recipe, whose settings are equal but for the seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from dare_bench.analysis.names import (
    Checkpoint,
    CheckpointName,
    LineageRecord,
    checkpoint_of,
    full_names,
    trainings,
)
from dare_bench.analysis.published import find_score
from dare_bench.analysis.run_finder import iterate_runs, open_run
from dare_bench.analysis.settings import SEED, PromptContext, RowKey, prompt_context, requested, row_key
from dare_bench.errors import RunError
from dare_bench.formatting import by_task
from dare_bench.leaderboards.rendering import slug, unique_slugs
from dare_bench.leaderboards.site import state
from dare_bench.program import several
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.run_files import RUN_FILE
from dare_bench.runs.schema import UNKNOWN, UNSAFE_ALLOWED, Block, Cost, RecipeBlock
from dare_bench.runs.scores import Score, headline
from dare_bench.runs.text import one_line, without_paths

RECIPE_FACTS = ("method", "peft", "data", "steps", "settings", "options")
"""All facts about a training except its seed, and the rows that the seed draws from the data."""
MOST_APART = 1.5
"""How many times the slowest of replicates the fastest may be, where speeds are still compared."""


def recipe_facts(lineage: LineageRecord) -> str:
    """Equal for two trainings that differ in nothing but their seed and, maybe, their base."""
    return json.dumps([lineage.get(name) for name in RECIPE_FACTS], sort_keys=True, default=str)


def recipe_of(entry: BoardEntry) -> str:
    """Equal for two checkpoints of one training recipe, at one step, from one base; equal to no other's for a
    checkpoint that was not trained here."""
    chain = trainings(entry.lineage)
    if not chain:
        return repr(tuple(entry.checkpoint))
    base = chain[0].get("base_content"), chain[0].get("base_adapter"), entry.dtype
    return repr((base, [(recipe_facts(training), str(training.get("step"))) for training in chain]))


def farthest_apart(groups: Iterable[Sequence[float]]) -> float:
    """The largest ratio between two speeds of one group of replicates; 1 where there are none."""
    return max((max(speeds) / min(speeds) for speeds in groups if len(speeds) > 1), default=1.0)


@dataclass(frozen=True, slots=True)
class ReproducedScore:
    """A recipe's published score (None: no number) and the run's reproduction (None: not measured)."""

    recipe: RecipeBlock
    value: float | None
    reproduced: Score | None

    def fact(self, *names: str) -> str:
        """The first of these facts that the recipe states about the published score; empty if none."""
        return next((str(fact) for name in names if (fact := self.recipe.published.get(name))), "")


@lru_cache(maxsize=4)
def _opened(path: Path, state: str) -> Run:
    """A run that is opened for several of its tasks one after the other is read once, as long as it is unchanged."""
    return open_run(path)


@dataclass
class BoardEntry:
    """A run.

    Attributes:
        checkpoint: equal for two runs of one model.
        name: the unique name of the checkpoint.
        requested: what was requested beyond the defaults.
        decodings: the resolved decoding settings by generated task.
        contexts: the prompt contexts by task and group.
        row: which row of a board the run belongs to.
        state: equal as long as the run's results files are unchanged.
        files: by task with sample lines, the states of its samples file and of its traces file.
        task_nfe: forward passes per request of each task or group, where the run recorded them.
        generated: tasks and groups that were generated, at least in part.
        unsafe: could generated code and scorers run without a sandbox?
        programs: how the programs that answered differ; empty for a single program.
        unknown: what an external result does not record; empty for a run of dare-bench.
        kept: the run itself, of an external result: opening it takes a pass over all its samples.
        edited: tasks whose sample files were changed after the run (filled in when the samples are read).
        command: the command that repeats the run; empty if it is not recorded.
        published: the published scores of the run's recipes.
        checkpoint_page: the page of its weights, by content hash and adapter.
    """

    path: Path
    run_id: str
    model: str
    status: str
    created: str
    state: Any
    name: CheckpointName
    row: RowKey
    checkpoint: Checkpoint
    tasks: list[str]
    top_level: list[str]
    scores: list[Score]
    contexts: dict[str, PromptContext]
    hardware: str
    requested: dict[str, Any]
    unsafe: bool
    results_edited: bool
    files: dict[str, tuple[Any, Any]]
    family: str = ""
    dtype: str = ""
    parameters: int = 0
    harness: str = ""
    decodings: dict[str, dict[str, Any]] = field(default_factory=dict)
    limit: int | float | None = None
    until_halfwidth: float | None = None
    failures: int = 0
    cost: Cost = field(default_factory=Cost)
    lineage: dict[str, Any] | None = None
    rescored: bool = False
    programs: str = ""
    task_nfe: dict[str, float] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    slug: str = ""
    kept: Run | None = None
    edited: list[str] = field(default_factory=list)
    command: str = ""
    published: list[ReproducedScore] = field(default_factory=list)
    checkpoint_page: str = ""

    @property
    def is_external(self) -> bool:
        return bool(self.unknown)

    @property
    def page(self) -> str:
        return f"runs/{self.slug}/index.html"

    def open(self) -> Run:
        """Open the run again, unless it is kept; raises RunError."""
        return self.kept or _opened(self.path, repr(self.state))

    def score(self, task: str, key: str | None = None) -> Score | None:
        """The score of a task or group by its "metric,filter"; by default its headline."""
        if key is None:
            return headline(self.scores, task)
        return next((score for score in self.scores if score.task == task and score.key == key), None)

    @property
    def first_score(self) -> Score | None:
        """The headline of its first task or group that has a score."""
        return next((score for task in self.top_level if (score := self.score(task)) is not None), None)

    def nfe_per_request(self, task: str) -> tuple[float | None, bool]:
        """Forward passes per request, and whether they are those of the task: older runs of several tasks recorded only
        the sum over all tasks."""
        if task in self.task_nfe:
            return self.task_nfe[task], True
        cost = self.cost
        each = cost.nfe / cost.requests if cost.requests and cost.nfe is not None else None
        return each, len(self.tasks) == 1

    @property
    def complete(self) -> bool:
        return self.status == "complete" and not self.failures

    @cached_property
    def settings(self) -> str:
        """How the answers were generated, in short; see :func:`settings_line`."""
        return settings_line([self])

    def settings_of(self, task: str) -> str:
        """The settings of one task; of a group those of all its tasks."""
        return settings_line([self], {task} & self.decodings.keys() or None)

    @property
    def seed(self) -> str:
        """The seeds of the evaluation, in words."""
        return str(self.requested.get(SEED, "default"))

    def shots(self, task: str) -> str:
        """The number of examples before each question of a task or group: "5-shot"; empty if it is not recorded."""
        return self.contexts[task].shots_text


@dataclass(frozen=True, slots=True)
class RunScore:
    """One score and the run that it comes from; of the mean of several ``seeds``, the newest one."""

    score: Score
    entry: BoardEntry
    seeds: tuple[RunScore, ...] = ()

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest score of its seeds."""
        values = [seed.score.value for seed in self.seeds or (self,)]
        return min(values), max(values)

    @property
    def nfe_per_request(self) -> float | None:
        """Forward passes per request of its task, of several seeds their mean; of a run that recorded only the sum over
        its tasks, those of all of them."""
        each = [seed.entry.nfe_per_request(seed.score.task)[0] for seed in self.seeds or (self,)]
        known = [passes for passes in each if passes is not None]
        return fmean(known) if known else None

    @property
    def shots(self) -> str:
        return self.entry.shots(self.score.task)


def _sizes(names: Iterable[str]) -> list[str]:
    """The decoding fields that set lengths and numbers of steps, lengths first. They are always shown, since tasks set
    them too; each family has other names for them."""
    sizes = [name for name in names if name.endswith(("_length", "steps")) and not name.startswith("max_")]
    return sorted(sizes, key=lambda name: (name != "gen_length", not name.endswith("_length")))


def settings_line(entries: Sequence[BoardEntry], tasks: Collection[str] | None = None, seed: bool = True) -> str:
    """Family, dtype, harness and decoding settings of the runs of a row, in all or only in some ``tasks``, with or
    without the ``seed`` of the evaluation. The values are the resolved ones: tasks and families may set or change them.
    """
    first = entries[0]
    requests = {name: value for entry in entries for name, value in entry.requested.items() if seed or name != SEED}
    decodings = [own for entry in entries for task, own in entry.decodings.items() if tasks is None or task in tasks]
    recorded = (name for decoding in decodings for name in decoding)
    shown = []
    for name in dict.fromkeys([*_sizes([*recorded, *requests]), *requests]):
        used = [decoding[name] for decoding in decodings if name in decoding]
        used = used or [requests.get(name)]
        if name in requests or used != [None]:
            shown.append(f"{name} {by_task(used)}")
    template = (
        "chat template" if any(context.template for entry in entries for context in entry.contexts.values()) else ""
    )
    harnesses = " and ".join(dict.fromkeys(entry.harness for entry in entries))
    facts = [one_line(fact, 40) for fact in (first.family, first.dtype, harnesses) if fact != UNKNOWN]
    rest = "other settings unknown" if first.is_external else ""
    return ", ".join(filter(None, [*facts, template, one_line(", ".join(shown), 120), rest]))


def read_entries(roots: Iterable[str | Path], problem: Callable[[str], None]) -> list[BoardEntry]:
    """The runs at or below ``roots``, each folder once, oldest first; ``problem`` receives what cannot be read.

    Raises:
        RunError: a root that does not name a folder.
    """
    by_path: dict[Path, BoardEntry] = {}
    for root in roots:
        for run in iterate_runs(root, problem):
            try:
                by_path.setdefault(run.path.resolve(), _entry(run))
            except RunError as error:
                problem(f"left out: {error}")
    entries = sorted(by_path.values(), key=lambda entry: (entry.created, entry.run_id, str(entry.path)))
    names = full_names((entry.checkpoint, entry.lineage) for entry in entries)
    for entry, place in zip(entries, unique_slugs(entry.run_id for entry in entries), strict=True):
        entry.name, entry.slug = names[entry.checkpoint], place
    _place_checkpoints(entries)
    return entries


def _place_checkpoints(entries: Sequence[BoardEntry]) -> None:
    """Give equal weights one page, named after the hashes of content and adapter."""
    names: dict[tuple[str, ...], str] = {}
    for entry in entries:
        hashes = [digest.removeprefix("sha256:")[:12] for digest in entry.checkpoint[1:3] if digest]
        names.setdefault(_weights(entry), slug("-".join(hashes) or entry.model))
    places = dict(zip(names, unique_slugs(names.values()), strict=True))
    for entry in entries:
        entry.checkpoint_page = f"checkpoints/{places[_weights(entry)]}.html"


def _weights(entry: BoardEntry) -> tuple[str, ...]:
    """Equal for runs of the same weights; runs without results have only a name."""
    name, content, adapter, _ = entry.checkpoint
    return (content, adapter) if content else (name,)


def _entry(run: Run) -> BoardEntry:
    block, scores = run.block, run.scores()
    environment = block.environment if block and not block.model.on_server else None
    machine = (environment.gpu or environment.cpu or "") if environment else ""
    entry = BoardEntry(
        path=run.path,
        run_id=run.run_id,
        model=run.model,
        status=run.status,
        created=run.created,
        state=([state(file) for file in run.result_files], state(run.path / RUN_FILE), run.status),
        name=CheckpointName(run.model),
        row=row_key(run, machine),
        checkpoint=checkpoint_of(run),
        tasks=run.tasks,
        top_level=run.top_level(),
        scores=scores,
        contexts={task: prompt_context(run, task) for task in dict.fromkeys(score.task for score in scores)},
        hardware=machine,
        requested=requested(run),
        unknown=run.unknown,
        unsafe=_unsafe(run),
        results_edited=bool(run.results_edited),
        files={
            task: (state(file), state(run.traces_file(task)))
            for task in run.tasks
            if (file := run.samples_file(task)) is not None
        },
    )
    if block is not None:
        _add_block(entry, run, block)
    if run.is_external:
        entry.kept = run
    return entry


def _add_block(entry: BoardEntry, run: Run, block: Block) -> None:
    model = block.model
    entry.family, entry.dtype, entry.harness = model.family, model.dtype, block.harness.name
    entry.parameters = model.parameters
    entry.lineage = without_paths(model.lineage)
    entry.limit, entry.until_halfwidth = block.limit, block.until_halfwidth
    entry.failures, entry.cost = len(block.failures), block.cost
    entry.decodings = {name: task.decoding for name, task in block.tasks.items() if task.decoding}
    entry.rescored = any("scored again" in event.what for event in block.events)
    entry.programs = several(block.programs)
    entry.command = without_paths(block.command)
    entry.published = [_published(run, recipe) for recipe in block.recipes]
    for name in entry.contexts:
        tasks = [block.tasks[task] for task in members(run.results, name) if task in block.tasks]
        if (passes := run.nfe_per_request(name)) is not None:
            entry.task_nfe[name] = passes
        if any(task.decoding for task in tasks):
            entry.generated |= {name}


def _published(run: Run, recipe: RecipeBlock) -> ReproducedScore:
    value = recipe.published.get("value")
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return ReproducedScore(recipe, number, find_score(run, recipe.score))


def _unsafe(run: Run) -> bool:
    """Could any session of the run use no sandbox?"""
    if run.requested.get("unsafe_no_sandbox"):
        return True
    block = run.block
    return block is not None and (
        (block.execution is not None and block.execution.unsafe)
        or any(event.what == UNSAFE_ALLOWED for event in block.events)
    )
