"""Convert the sweep of a page to the committed files: the sweep without weights, the documents that each run solves,
curves, and the tables.

    dare-bench sweep docs/trained/sweep.yaml --output-path out/trained --devices 2
    python scripts/trained.py docs/trained out/trained

Without the sweep's folder, the tables are made again from the committed files.

Intervals are Wilson's, at 95%, over the held-out documents, as on boards. Significance is McNemar's exact test over
them, each trained checkpoint against its base, adjusted by Holm's method over the methods that are trained on a task
and evaluated in one way.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.analysis.intervals import wilson_bounds
from dare_bench.analysis.opening import find_runs
from dare_bench.analysis.paired_tests import holm, mcnemar
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import file_digest

RUNS = Path("leaderboards/examples")
"""The folder of committed runs; each page has one of its own name there."""
BEGIN, END = "<!-- table: made by scripts/trained.py -->", "<!-- end of table -->"
SLOW, END_OF_SLOW = "<!-- slow: made by scripts/trained.py -->", "<!-- end of slow -->"
LIMIT = 600
"""Seconds by the clock after which a training is listed as slow."""
OF_RUN = ("run.json", "done.json", "results_*.json")
"""Files of a run that boards and comparisons read; journals and unmasking traces are left out."""
CONTROL = "with random rewards"
OF_TRAINING = ("lineage.json", "train.json", "trainer_state.json")
SMALL = 300
"""Documents of a task whose samples are committed for all seeds."""
PHASES = ("rollout", "score", "update")
METRICS = {"loss": "loss", "rewards/margins": "reward_margin", "reward": "reward", "accuracy": "accuracy",
           "written_nll": "written_nll", "entropy": "written_nll",
           "completion_length": "completion_length"}  # fmt: skip
"""The columns of ``curves.csv`` for logged metrics. Logs of earlier versions, and committed curves, say ``entropy``."""


@dataclass(frozen=True)
class Against:
    """A trained checkpoint and its base on one task: the shares that they solve, the forwards of the training by phase
    (counted per row), and the documents that only one of them solves (None: what one of the runs solves is not known
    document by document)."""

    base: float
    trained: float
    documents: int
    forwards: dict[str, int]
    lost: int | None = None
    won: int | None = None

    @property
    def p(self) -> float | None:
        """McNemar's exact p, two-sided."""
        return None if self.won is None or self.lost is None else mcnemar(self.won, self.lost)


Outcomes = dict[str, str]
"""A run's id -> one digit for each document in the order of their ids: 1 if the run solves it, else 0."""


def outcomes(runs: list[Run]) -> Outcomes:
    """The outcomes of the runs that have samples."""
    result = {}
    for run in runs:
        (task,) = run.tasks
        if run.samples_file(task) is not None:
            solved = {line["doc_id"]: line["exact_match"] == 1.0 for line in run.samples(task)}
            result[run.run_id] = "".join(str(int(solved[doc])) for doc in sorted(solved))
    return result


def read_outcomes(file: Path) -> Outcomes:
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        return {line["run"]: line["solved"] for line in csv.DictReader(lines)}


def write_outcomes(values: Outcomes, file: Path) -> None:
    rows = (f"{run},{solved}" for run, solved in sorted(values.items()))
    file.write_text("\n".join(["run,solved", *rows]) + "\n")


def against(base: Run, trained: Run, task: str, solved: Outcomes) -> Against:
    """Two runs, document by document.

    Raises:
        ValueError: the runs have different documents.
    """
    shares = [run.results["results"][task]["exact_match,none"] for run in (base, trained)]
    documents = base.results["n-samples"][task]["effective"]
    forwards = (trained.block.model.lineage or {}).get("forwards", {})
    left, right = solved.get(base.run_id), solved.get(trained.run_id)
    if left is None or right is None:
        return Against(*shares, documents, forwards)
    if not len(left) == len(right) == documents:
        raise ValueError(f"{base.run_id} and {trained.run_id} have different documents of {task}")
    pairs = list(zip(left, right, strict=True))
    return Against(*shares, documents, forwards, pairs.count(("1", "0")), pairs.count(("0", "1")))


Group = tuple[str, str, str, str]
"""Base, method, data, task that is evaluated (with decoding settings that are not the defaults)."""


def evaluated(run: Run) -> tuple[str, str]:
    """The task of a run, alone and with its decoding."""
    (task,) = run.tasks
    decoding = [f"{name}={value}" for name, value in run.block.decoding_requested.items()]
    return task, ", ".join([task, *decoding])


def method_of(lineage: dict[str, Any]) -> str:
    """The method of a training with what sets it apart."""
    control = f" {CONTROL}" if lineage["options"].get("reward", {}).get("random") else ""
    return lineage["method"] + (f" + {lineage['peft']}" if lineage["peft"] else "") + control


def is_shown(run: Run) -> bool:
    """Is the task of this run the one that was trained, or a base's?"""
    lineage = run.block.model.lineage
    return lineage is None or any(task.startswith(lineage["data"]) for task in run.tasks)


def groups(runs: list[Run], solved: Outcomes) -> dict[Group, list[Against]]:
    """Every trained checkpoint against its base, with all seeds in one group."""
    bases = {(run.block.model.name, evaluated(run)[1]): run for run in runs if run.block.model.lineage is None}
    result: dict[Group, list[Against]] = {}
    for run in runs:
        if (lineage := run.block.model.lineage) is not None:
            task, shown = evaluated(run)
            comparison = against(bases[lineage["base"], shown], run, task, solved)
            group = (lineage["base"], method_of(lineage), lineage["data"], shown)
            result.setdefault(group, []).append(comparison)
    return dict(sorted(result.items()))


def largest_p(results: dict[Group, list[Against]]) -> dict[Group, float]:
    """The largest p of each group's seeds, adjusted by Holm's method over the methods of one base, data set, task and
    way of decoding. Controls are not tested; groups with a seed that is untested or not above its base have none."""
    families: dict[tuple[str, ...], dict[Group, float]] = {}
    for group, seeds in results.items():
        base, method, data, task = group
        tests = [seed.p for seed in seeds if seed.p is not None]
        if len(tests) == len(seeds) and CONTROL not in method:
            families.setdefault((base, data, task), {})[group] = max(tests)
    return {
        group: p
        for family in families.values()
        for group, p in zip(family, holm(list(family.values())), strict=True)
        if p is not None and all(seed.trained > seed.base for seed in results[group])
    }


def thousands(seeds: list[Against]) -> str:
    """The forwards of a training by phase, in thousands: the mean of the seeds."""
    phases = [phase for phase in PHASES if any(phase in seed.forwards for seed in seeds)]
    means = (sum(seed.forwards.get(phase, 0) for seed in seeds) / len(seeds) for phase in phases)
    return " + ".join(f"{value / 1000:.0f}" for value in means)


def share(value: float, documents: int) -> str:
    """A share of the documents in percent, with its interval."""
    low, high = wilson_bounds(value, documents, 0.95)
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first row has the names of the columns."""
    head, *lines = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *lines)).replace(
        " --- ", "---"
    )


COLUMNS = (
    "base",
    "method",
    "trained on",
    "forwards, thousands",
    "evaluated on",
    "documents",
    "base solves, %",
    "seeds",
    "each seed solves, %",
    "largest p",
)


def table(results: dict[Group, list[Against]]) -> str:
    """A Markdown table with one row per group, without columns that are empty."""
    adjusted = largest_p(results)
    rows = [
        (
            f"`{group[0]}`",
            group[1],
            f"`{group[2]}`",
            thousands(seeds),
            f"`{group[3]}`",
            str(seeds[0].documents),
            share(seeds[0].base, seeds[0].documents),
            str(len(seeds)),
            ", ".join(share(seed.trained, seed.documents) for seed in seeds),
            f"{adjusted[group]:.1g}" if group in adjusted else "",
        )
        for group, seeds in results.items()
    ]
    kept = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    return markdown([line[i] for i in kept] for line in (COLUMNS, *rows))


@dataclass(frozen=True)
class Training:
    """A training: its settings, seconds by the clock, and seconds of a step by phase."""

    lineage: dict[str, Any]
    seconds: float
    phases: dict[str, float]

    @property
    def name(self) -> tuple[str, str, str]:
        """What all its seeds share: base, method, data."""
        return self.lineage["base"], method_of(self.lineage), self.lineage["data"]

    @property
    def of_step(self) -> str:
        """Seconds of a step by phase, as in the log."""
        return " + ".join(f"{self.phases[phase]:.1f}" for phase in PHASES if phase in self.phases)


def trainings(trained: Path) -> list[Training]:
    """All trainings of a sweep."""
    result = []
    for folder in sorted(trained.glob("*/")):
        lineage, settings, state = (json.loads((folder / name).read_text()) for name in OF_TRAINING)
        sums, before = dict.fromkeys(PHASES, 0.0), 0
        for entry in state["log_history"]:
            if "loss" in entry:  # a mean over the steps since the last entry
                for phase in PHASES:
                    sums[phase] += entry.get(f"seconds/{phase}", 0.0) * (entry["step"] - before)
                before = entry["step"]
        phases = {phase: total / before for phase, total in sums.items() if total}
        result.append(Training(lineage, settings["seconds"], phases))
    return result


def slow(every: list[Training]) -> str:
    """A Markdown table of the trainings that took more than ``LIMIT`` seconds by the clock, beside the fastest seed of
    the same training (of a control, of the training with its rewards)."""
    head = ("base", "method", "seed", "seconds", "of a step: rollout + update", "fastest seed", "of its step")
    rows = [head]
    for training in every:
        base, method, data = training.name
        if training.seconds > LIMIT:
            alike = (base, method.removesuffix(f" {CONTROL}"), data)
            fastest = min((other for other in every if other.name == alike), key=lambda other: other.seconds)
            seconds, seed = (f"{each.seconds:.0f}" for each in (training, fastest)), str(training.lineage["seed"])
            of, beside = seconds
            rows.append((f"`{base}`", method, seed, of, training.of_step, beside, fastest.of_step))
    return markdown(rows)


def keeps_samples(run: Run) -> bool:
    """Are the samples of a run committed? With the default decoding: those of bases, of seed 0, and of small tasks."""
    (task,), lineage = run.tasks, run.block.model.lineage
    if run.block.decoding_requested or (lineage is not None and CONTROL in method_of(lineage)):
        return False
    small = run.results["n-samples"][task]["effective"] <= SMALL
    return small or lineage is None or lineage["seed"] == 0


def copied(out: Path) -> Iterator[Path]:
    """The files of a sweep that are committed: of nodes, of trainings without weights, and of the shown runs."""
    yield out / "sweep.json"
    yield from (out / "nodes").rglob("node.json")
    yield from (file for name in OF_TRAINING for file in (out / "train").glob(f"*/{name}"))
    for run in find_runs(out / "runs"):
        if is_shown(run):
            patterns = (*OF_RUN, "samples_*.jsonl") if keeps_samples(run) else OF_RUN
            yield from (file for pattern in patterns for file in run.path.glob(pattern))


def copy(out: Path, folder: Path) -> None:
    """Copy a sweep, without absolute paths."""
    shutil.rmtree(folder, ignore_errors=True)
    above, here = out.resolve().parents[1], Path.cwd().resolve()
    places = {str(out.resolve()): f"out/{folder.name}", f"{above}/": "", f"{here}/": ""}
    for file in copied(out):
        text = file.read_text()
        for place, name in places.items():
            text = text.replace(place, name)
        target = folder / file.relative_to(out)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for run in find_runs(out / "runs"):
        if is_shown(run) and run.results_edited is False:  # the copy differs by its paths alone
            own = folder / run.path.relative_to(out)
            done = json.loads((own / "done.json").read_text())
            done["results_sha256"] = file_digest(own / run.results_file.name)
            (own / "done.json").write_text(json.dumps(done, indent=2) + "\n")


@dataclass(frozen=True)
class Curve:
    """The logged metrics of one training: (step, value) by metric."""

    base: str
    method: str
    data: str
    seed: int
    points: dict[str, list[tuple[int, float]]]

    @property
    def name(self) -> str:
        """As in ``curves.csv``."""
        return f"{self.base} {self.method} {self.data} {self.seed}"


def curves(trained: Path) -> list[Curve]:
    """The curves of all trainings."""
    result = []
    for state in sorted(trained.glob("*/trainer_state.json")):
        lineage = json.loads((state.parent / "lineage.json").read_text())
        points: dict[str, list[tuple[int, float]]] = {}
        for entry in json.loads(state.read_text())["log_history"]:
            for metric in METRICS.keys() & entry.keys():
                points.setdefault(METRICS[metric], []).append((entry["step"], entry[metric]))
        result.append(Curve(lineage["base"], method_of(lineage), lineage["data"], lineage["seed"], points))
    return result


def write_curves(lines: list[Curve], file: Path) -> None:
    """One line for each training and logged step; columns that no training has are left out."""
    metrics = [name for name in dict.fromkeys(METRICS.values()) if any(name in line.points for line in lines)]
    rows = [",".join(["training", "step", *metrics])]
    for line in lines:
        values = {metric: dict(line.points.get(metric, ())) for metric in metrics}
        for step in sorted({step for of_metric in values.values() for step in of_metric}):
            shown = (f"{values[metric][step]:.6g}" if step in values[metric] else "" for metric in metrics)
            rows.append(",".join([line.name, str(step), *shown]))
    file.write_text("\n".join(rows) + "\n")


def draw(lines: list[Curve], file: Path) -> None:
    """Plot a curve of every training over its steps (accuracy where it is logged, else the loss), with one panel per
    base, data set and kind of method."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "trained"
    from matplotlib import pyplot

    panels: dict[str, list[Curve]] = {}
    for line in lines:
        kind = " (pairs)" if line.method == "vrpo" else " (control)" if "random" in line.method else ""
        panels.setdefault(f"{line.base}, {line.data}{kind}", []).append(line)
    figure, axes = pyplot.subplots(2, -(-len(panels) // 2), figsize=(11, 5.2), layout="constrained")
    for axis, (title, trainings) in zip(axes.flat, sorted(panels.items()), strict=False):
        metric = "accuracy" if "accuracy" in trainings[0].points else "loss"
        colors = {method: f"C{i}" for i, method in enumerate(sorted({line.method for line in trainings}))}
        for line in sorted(trainings, key=lambda line: (line.method, line.seed)):
            label = line.method if line.seed == 0 else None
            axis.plot(*zip(*line.points[metric], strict=True), color=colors[line.method], linewidth=1, label=label)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylabel(metric, fontsize=8)
        axis.legend(fontsize=7)
    for axis in list(axes.flat)[len(panels) :]:
        axis.remove()
    figure.savefig(file, metadata={"Date": None})


def replaced(text: str, begin: str, end: str, content: str) -> str:
    """The text with another content between two marks; unchanged if it does not have them."""
    before, mark, rest = text.partition(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}" if mark else text


def convert(page: Path, out: Path) -> None:
    """Copy the sweep in ``out``, the documents that its runs solve, and its curves, and plot them."""
    copy(out, RUNS / page.name)
    runs = find_runs(RUNS / page.name)
    # Runs that were committed earlier are in ``out`` without their samples.
    solved = read_outcomes(page / "outcomes.csv") | outcomes(find_runs(out / "runs"))
    write_outcomes({run.run_id: solved[run.run_id] for run in runs if run.run_id in solved}, page / "outcomes.csv")
    lines = curves(out / "train")
    write_curves(lines, page / "curves.csv")
    draw(lines, page / "curves.svg")


def main() -> None:
    """Convert a sweep if one is given, and update the tables in the page."""
    page = Path(sys.argv[1])
    if sys.argv[2:]:
        convert(page, Path(sys.argv[2]))
    runs, text = find_runs(RUNS / page.name), (page / "README.md").read_text()
    text = replaced(text, BEGIN, END, table(groups(runs, read_outcomes(page / "outcomes.csv"))))
    text = replaced(text, SLOW, END_OF_SLOW, slow(trainings(RUNS / page.name / "train")))
    (page / "README.md").write_text(text)


if __name__ == "__main__":
    main()
