"""Write the committed files of a page from its sweep: which documents each run solves, curves, and the table of the
page.

    dare-bench sweep docs/trained/sweep.yaml --output-path out/trained --devices 2
    python scripts/trained.py docs/trained out/trained

Without the sweep's folder, the table is made again from the committed files.

Intervals are Wilson's, at 95%, over the held-out documents, as on boards. Significance is McNemar's exact test over
them, each trained checkpoint against its base, adjusted by Holm's method over the methods that are trained on a task
and evaluated in one way.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.analysis.intervals import wilson_bounds
from dare_bench.analysis.paired_tests import holm, mcnemar
from dare_bench.analysis.run_finder import find_runs
from dare_bench.runs.reader import Run

BEGIN, END = "<!-- table: made by scripts/trained.py -->", "<!-- end of table -->"
OUTCOMES, CURVES = "outcomes.csv", "curves.csv"
CONTROL = "with random rewards"
PHASES = ("rollout", "score", "update")
METRICS = {"loss": "loss", "rewards/margins": "reward_margin", "reward": "reward", "accuracy": "accuracy",
           "written_nll": "written_nll", "entropy": "written_nll",
           "completion_length": "completion_length"}  # fmt: skip
"""The columns of ``curves.csv`` for logged metrics. Logs of earlier versions, and committed curves, say ``entropy``."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation, a line of ``outcomes.csv``.

    A base has no method, data and seed. ``base_content`` is the hash of the base's files, and ``evaluated`` the task
    with decoding settings that are not the defaults. ``accuracy`` is the share of its documents that are solved.
    ``forwards`` are those of the training by phase, counted per row. ``solved`` has one digit for each document in the
    order of their ids, 1 if it is solved; it is empty where the run's samples are gone.
    """

    run: str
    base: str
    base_content: str
    method: str
    data: str
    seed: str
    evaluated: str
    documents: int
    accuracy: float
    forwards: dict[str, int]
    solved: str

    @classmethod
    def of(cls, run: Run, known: str) -> Evaluated:
        """``known``: what the run solves, where its samples are gone."""
        (task,), model = run.tasks, run.block.model
        lineage = model.lineage or {}
        decoding = [f"{name}={value}" for name, value in run.block.decoding_requested.items()]
        if run.samples_file(task) is not None:
            right = {line["doc_id"]: line["exact_match"] == 1.0 for line in run.samples(task)}
            known = "".join(str(int(right[doc])) for doc in sorted(right))
        return cls(
            run.run_id,
            lineage.get("base", model.name),
            lineage.get("base_content", model.content_hash),
            method_of(lineage) if lineage else "",
            lineage.get("data", ""),
            str(lineage.get("seed", "")),
            ", ".join([task, *decoding]),
            run.results["n-samples"][task]["effective"],
            run.results["results"][task]["exact_match,none"],
            lineage.get("forwards", {}),
            known,
        )


def method_of(lineage: dict[str, Any]) -> str:
    """The method of a training with what sets it apart."""
    control = f" {CONTROL}" if lineage["options"].get("reward", {}).get("random") else ""
    return lineage["method"] + (f" + {lineage['peft']}" if lineage["peft"] else "") + control


def is_shown(run: Run) -> bool:
    """Is the task of this run the one that was trained, or a base's?"""
    lineage = run.block.model.lineage
    return lineage is None or any(task.startswith(lineage["data"]) for task in run.tasks)


# The committed files


def read_outcomes(page: Path) -> list[Evaluated]:
    """The evaluations of a page, none if it has no file yet."""
    file, result = page / OUTCOMES, []
    for line in csv.DictReader(file.read_text().splitlines()) if file.exists() else ():
        counts = {phase: line.pop(f"{phase}_forwards") for phase in PHASES}
        forwards = {phase: int(count) for phase, count in counts.items() if count}
        numbers = {"documents": int(line.pop("documents")), "accuracy": float(line.pop("accuracy"))}
        result.append(Evaluated(**line, **numbers, forwards=forwards))  # type: ignore[arg-type]
    return result


def convert(page: Path, out: Path) -> None:
    """Write a page's files from the sweep in ``out``. What a run solves is kept from the page where its samples are
    gone."""
    known = {outcome.run: outcome.solved for outcome in read_outcomes(page)}
    runs = [run for run in find_runs(out / "runs") if is_shown(run)]
    outcomes = [Evaluated.of(run, known.get(run.run_id, "")) for run in runs]
    with (page / OUTCOMES).open("w", newline="") as file:
        columns = [name for name in Evaluated.__dataclass_fields__ if name != "forwards"]
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*columns, *(f"{phase}_forwards" for phase in PHASES)])
        for outcome in sorted(outcomes, key=lambda outcome: outcome.run):
            values = [getattr(outcome, name) for name in columns]
            texts = [f"{value:.6g}" if isinstance(value, float) else value for value in values]
            writer.writerow([*texts, *(outcome.forwards.get(phase, "") for phase in PHASES)])
    lines = curves(sorted((out / "train").glob("*/")))
    write_curves(lines, page / CURVES)
    draw(lines, page / "curves.svg")


# Trained checkpoints against their bases


@dataclass(frozen=True)
class Against:
    """A trained checkpoint and its base on one task: the shares that they solve, and the forwards of the training by
    phase, counted per row. ``lost`` and ``won`` count the documents that only one of them solves; None: it is not known
    which documents one of the runs solves."""

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


def against(base: Evaluated, trained: Evaluated) -> Against:
    """Two runs, document by document.

    Raises:
        ValueError: the runs have different documents.
    """
    known = (base.accuracy, trained.accuracy, base.documents, trained.forwards)
    left, right = base.solved, trained.solved
    if not left or not right:
        return Against(*known)
    if not len(left) == len(right) == base.documents:
        raise ValueError(f"{base.run} and {trained.run} have different documents of {base.evaluated}")
    pairs = list(zip(left, right, strict=True))
    return Against(*known, pairs.count(("1", "0")), pairs.count(("0", "1")))


Group = tuple[str, str, str, str]
"""Base, method, data, task that is evaluated (with decoding settings that are not the defaults)."""


def groups(outcomes: list[Evaluated]) -> dict[Group, list[Against]]:
    """Every trained checkpoint against its base, with all seeds in one group."""
    bases = {(outcome.base, outcome.evaluated): outcome for outcome in outcomes if not outcome.method}
    result: dict[Group, list[Against]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.seed):
        if outcome.method:
            group = (outcome.base, outcome.method, outcome.data, outcome.evaluated)
            result.setdefault(group, []).append(against(bases[outcome.base, outcome.evaluated], outcome))
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


# Curves


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


def curves(trained: Iterable[Path]) -> list[Curve]:
    """The curves of the trainings in these folders."""
    result = []
    for folder in trained:
        lineage = json.loads((folder / "lineage.json").read_text())
        points: dict[str, list[tuple[int, float]]] = {}
        for entry in json.loads((folder / "trainer_state.json").read_text())["log_history"]:
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


def main() -> None:
    """Convert a sweep if one is given, and update the table in the page."""
    page = Path(sys.argv[1])
    if sys.argv[2:]:
        convert(page, Path(sys.argv[2]))
    text = (page / "README.md").read_text()
    (page / "README.md").write_text(replaced(text, BEGIN, END, table(groups(read_outcomes(page)))))


if __name__ == "__main__":
    main()
