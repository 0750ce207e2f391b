"""From the sweep of docs/trained to what is committed there: slim runs, curves, and the table with its tests.

    dare-bench sweep docs/trained/sweep.yaml --output-path out/trained --devices 2
    python scripts/trained.py out/trained

Significance is McNemar's exact test over the held-out documents, each trained checkpoint against its base.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from dare_bench.analysis.paired_tests import mcnemar
from dare_bench.runs.reader import Run, find_runs

DOCS, RUNS = Path("docs/trained"), Path("leaderboards/examples/trained")
BEGIN, END = "<!-- table: made by scripts/trained.py -->", "<!-- end of table -->"
KEPT = ("run.json", "done.json", "results_*.json", "samples_*.jsonl")
"""Of a run: what boards and comparisons read. Journals and unmasking traces are left out."""


@dataclass(frozen=True)
class Against:
    """One trained checkpoint beside its base on one task: documents solved by each, and by only one of them."""

    base: int
    trained: int
    lost: int
    won: int
    documents: int

    @property
    def p(self) -> float:
        """McNemar's exact p, two-sided."""
        return mcnemar(self.won, self.lost)


def solved(run: Run, task: str) -> dict[str, bool]:
    """Was each document solved? By document."""
    return {str(line["doc_id"]): line["exact_match"] == 1.0 for line in run.samples(task)}


def against(base: Run, trained: Run, task: str) -> Against:
    """Two runs, document by document.

    Raises:
        ValueError: they do not hold the same documents.
    """
    left, right = solved(base, task), solved(trained, task)
    if left.keys() != right.keys():
        raise ValueError(f"{base.run_id} and {trained.run_id} hold other documents of {task}")
    lost = sum(left[doc] and not right[doc] for doc in left)
    won = sum(right[doc] and not left[doc] for doc in left)
    return Against(sum(left.values()), sum(right.values()), lost, won, len(left))


Group = tuple[str, str, str, str]
"""Base, method, data, task that is evaluated."""


def groups(runs: list[Run]) -> dict[Group, list[Against]]:
    """Every trained checkpoint against its base, seeds together."""
    bases = {(run.block.model.name, task): run for run in runs if run.block.model.lineage is None for task in run.tasks}
    found: dict[Group, list[Against]] = {}
    for run in runs:
        lineage = run.block.model.lineage
        if lineage is None:
            continue
        method = lineage["method"] + (f" + {lineage['peft']}" if lineage["peft"] else "")
        for task in (task for task in run.tasks if task == lineage["data"]):
            group = (lineage["base"], method, lineage["data"], task)
            found.setdefault(group, []).append(against(bases[lineage["base"], task], run, task))
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][3] != item[0][2], item[0])))


def table(found: dict[Group, list[Against]]) -> str:
    """Markdown: one line a group."""
    lines = [
        "| base | method | trained on | evaluated on | base solves | seeds solve | largest p |",
        "|---|---|---|---|---|---|---|",
    ]
    for (base, method, data, task), seeds in found.items():
        n = seeds[0].documents
        each = ", ".join(f"{100 * one.trained / n:.1f}" for one in seeds)
        worst = max(one.p for one in seeds)
        start = f"{100 * seeds[0].base / n:.1f} % of {n}"
        lines.append(f"| `{base}` | {method} | `{data}` | `{task}` | {start} | {each} % | {worst:.1g} |")
    return "\n".join(lines)


def copy_runs(runs: list[Run], folder: Path, out: Path) -> None:
    """Slim copies of the runs, without the places where they were made."""
    shutil.rmtree(folder, ignore_errors=True)
    places = {str(out.resolve()): "out/trained", f"{Path.cwd().resolve()}/": ""}
    for run in runs:
        (folder / run.path.name).mkdir(parents=True)
        for file in (file for pattern in KEPT for file in run.path.glob(pattern)):
            text = file.read_text()
            for place, name in places.items():
                text = text.replace(place, name)
            (folder / run.path.name / file.name).write_text(text)


def curves(trained: Path) -> list[tuple[str, int, float, float | None]]:
    """(training, step, loss, reward margin) of every log line."""
    found = []
    for state in sorted(trained.glob("*/trainer_state.json")):
        lineage = json.loads((state.parent / "lineage.json").read_text())
        name = f"{lineage['base']} {lineage['method']} {lineage['peft'] or 'full'} {lineage['data']} {lineage['seed']}"
        for line in json.loads(state.read_text())["log_history"]:
            if "loss" in line:
                found.append((name, line["step"], line["loss"], line.get("rewards/margins")))
    return found


def draw(lines: list[tuple[str, int, float, float | None]], file: Path) -> None:
    """The loss of every training over its steps, one panel a base and data set."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "trained"
    from matplotlib import pyplot

    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, step, loss, _ in lines:
        base, method, peft, data, seed = name.split()
        panel = f"{base}, {data}" + (" (pairs)" if method == "vrpo" else "")
        panels.setdefault(panel, {}).setdefault(f"{method} {peft}/{seed}", []).append((step, loss))
    figure, axes = pyplot.subplots(2, -(-len(panels) // 2), figsize=(11, 5.2), layout="constrained")
    for axis, (title, trainings) in zip(axes.flat, sorted(panels.items()), strict=False):
        for name, points in sorted(trainings.items()):
            colour = "C1" if "lora" in name else "C0"
            label = name.split("/")[0] if name.endswith("/0") else None
            axis.plot(*zip(*points, strict=True), color=colour, linewidth=1, label=label)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylabel("loss", fontsize=8)
        axis.legend(fontsize=7)
    for axis in list(axes.flat)[len(panels) :]:
        axis.remove()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Copy, draw, and put the table into the page."""
    out = Path(sys.argv[1])
    every = find_runs(out / "runs")
    runs = [run for run in every if (told := run.block.model.lineage) is None or told["data"] in run.tasks]
    copy_runs(runs, RUNS, out)
    lines = curves(out / "train")
    rows = [
        f"{name},{step},{loss:.6g},{'' if margin is None else f'{margin:.6g}'}" for name, step, loss, margin in lines
    ]
    (DOCS / "curves.csv").write_text("\n".join(["training,step,loss,reward_margin", *rows]) + "\n")
    draw(lines, DOCS / "curves.svg")
    page = DOCS / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(groups(runs))}\n{END}{after}")
    print(table(groups(runs)))


if __name__ == "__main__":
    main()
