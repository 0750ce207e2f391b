"""``dare-bench ls``: lists of names. No model is loaded and torch is not imported."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.checkpoint_files import read_config
from dare_bench.cli.guard import echo_problem
from dare_bench.cli.plain import echo, echo_columns, echo_error, echo_json, terminal_width
from dare_bench.cli.runs import MAKE_ONE
from dare_bench.errors import CheckpointError, UsageError, unknown
from dare_bench.keywords import STRATEGIES
from dare_bench.registry import Kind, registry

if TYPE_CHECKING:
    from dare_bench.recipes import Recipe
    from dare_bench.runs.reader import Run

app = typer.Typer(
    help="List models, strategies, tasks, suites, recipes, trainers, rewards or runs.", no_args_is_help=True
)
BEST_KNOWN = frozenset({
    "aime24", "aime25", "arc_challenge", "arc_easy", "bbh", "boolq", "ceval-valid", "cmmlu", "commonsense_qa",
    "drop", "gpqa_diamond_zeroshot", "gpqa_main_n_shot", "gsm8k", "gsm8k_cot", "hellaswag", "hendrycks_math",
    "humaneval", "humaneval_instruct", "ifeval", "lambada_openai", "mbpp", "mbpp_instruct", "minerva_math",
    "minerva_math500", "mmlu", "mmlu_pro", "openbookqa", "piqa", "race", "truthfulqa_mc2", "winogrande",
})  # fmt: skip
"""The tasks of lm-eval that papers on language models report most; ``ls tasks`` shows them with dare-bench's."""
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def recipes(
    checkpoint: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (llada-8b-instruct) or one of its recipes (llada-8b-instruct/gsm8k)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the complete recipe files as JSON.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all scores by source, including those without a recipe.")
    ] = False,
) -> None:
    """List published scores whose settings eval --recipe can run."""
    from dare_bench.recipes import find

    if markdown:
        if checkpoint is not None or json:
            raise UsageError("--markdown prints all scores by source; omit the checkpoint and --json")
        from dare_bench.recipe_table import markdown as document

        echo(document().rstrip("\n"), whole=True)
        return
    names = registry().names("recipe") if checkpoint is None else [checkpoint]
    groups = [find(name) for name in names]
    if json:
        files = [group[0].file.model_dump(mode="json") for group in groups]
        for file, group in zip(files, groups, strict=True):
            file["scores"] = {recipe.entry_name: recipe.entry.model_dump(mode="json") for recipe in group}
        echo_json(files if checkpoint is None else files[0])
        return
    for number, group in enumerate(groups):
        echo(f"{chr(10) if number else ''}{group[0].file.checkpoint} ({group[0].file.model})")
        echo_columns([_recipe_row(recipe) for recipe in group], indent="  ")
    if checkpoint is not None and "/" in checkpoint:
        _recipe_details(groups[0][0])


def _recipe_row(recipe: Recipe) -> list[str]:
    published, run = recipe.entry.published, recipe.entry.run
    source = published.source
    value = f"{published.value:g}" + ("%" if published.unit == "percent" else "")
    return [
        recipe.name,
        value if published.measures == "accuracy" else f"{value} ({published.measures})",
        f"{run.harness}:{','.join(run.tasks)}" if run else "cannot be run",
        recipe.entry.settings,
        f"{source.title}, {source.table}" if source.table else source.title,
    ]


def _recipe_details(recipe: Recipe) -> None:
    """Source, test set, missing settings and doubts of one score."""
    entry = recipe.entry
    echo(f"  source: {entry.published.source.text()}")
    echo(f"  test set: {entry.published.test_set.id}, {entry.published.test_set.documents or 'unknown'} documents")
    for label, texts in (("not recorded", entry.missing), ("doubt", entry.doubts)):
        for text in texts:
            echo(f"  {label}: {text}")


@app.command()
def suites(
    name: Annotated[str | None, typer.Argument(help="Name of one suite (dare).")] = None, json: _Json = False
) -> None:
    """List suites and what each of their benchmarks runs."""
    from dare_bench.suites import load

    selected = [load(suite) for suite in (registry().names("suite") if name is None else [name])]
    if json:
        echo_json([suite.model_dump(mode="json") for suite in selected])
        return
    for number, suite in enumerate(selected):
        echo(f"{chr(10) if number else ''}{suite.name}: {suite.about.strip()}")
        rows = [
            (entry.name, f"{entry.harness}:{','.join(entry.tasks)}", str(entry.documents or ""), ", ".join(entry.needs))
            for entry in suite.entries
        ]
        echo_columns(rows, indent="  ")


@app.command()
def models(json: _Json = False) -> None:
    """List bundled checkpoints and supported families; --json has the folders of the checkpoints."""
    bundled = [_checkpoint(entry.name, Path(entry.target)) for entry in registry().entries("checkpoint")]
    families: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "matches": [list(match) for match in entry.about.get("matches", [])],
            "shares": [list(match) for match in entry.about.get("shares", [])],
            "named": entry.about.get("named"),
            "endings": list(entry.about.get("endings", ())),
        }
        for entry in registry().entries("family")
    ]
    if json:
        echo_json({"checkpoints": bundled, "families": families})
        return
    echo("bundled checkpoints (use the name as --model):")
    echo_columns([[c["name"], c["architecture"], f"{c['mb']:.1f} MB"] for c in bundled])
    echo("families (recognized by model_type/architecture in config.json):")
    echo_columns([[f["name"], _recognized(f)] for f in families])


def _recognized(family: dict[str, Any]) -> str:
    """How a family is recognized, or chosen."""
    if family["endings"]:
        return f"autoregressive; any other *{', *'.join(family['endings'])} that transformers has"
    if family["shares"]:
        shared = ", ".join(map("/".join, family["shares"]))
        return f"{family['named']!r} in the checkpoint's name, or --family {family['name']}: {shared}"
    return ", ".join(map("/".join, family["matches"])) or f"--family {family['name']}"


def _checkpoint(name: str, path: Path) -> dict[str, Any]:
    try:
        config = read_config(path)
    except CheckpointError:
        config = {}
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return {
        "name": name,
        "model_type": config.get("model_type"),
        "architecture": next(iter(config.get("architectures") or ["?"])),
        "mb": round(size / 1e6, 2),
        "path": str(path),
    }


@app.command()
def tasks(
    pattern: Annotated[str | None, typer.Argument(help="A glob (mmlu_*) or part of a name.")] = None,
    include_path: Annotated[
        str | None, typer.Option(help="Folders with additional task files, separated by commas.")
    ] = None,
    harness: Annotated[str, typer.Option(help="Harness of the tasks: lm-eval or opencompass.")] = "lm-eval",
    data_dir: Annotated[str | None, typer.Option(help="Only tasks whose data are in this folder (lm-eval).")] = None,
    every: Annotated[bool, typer.Option("--all", help="All names, not only bundled and best-known tasks.")] = False,
    json: _Json = False,
) -> None:
    """List tasks, groups and tags for --tasks: bundled and best-known ones, or all that match.

    Example: dare-bench ls tasks gsm8k
    """
    folders = [folder for folder in (include_path or "").split(",") if folder]
    if harness == "opencompass":
        if data_dir is not None:
            raise UsageError("--data-dir works only for lm-eval's tasks; omit it, or omit --harness opencompass")
        _configs(pattern, folders, json)
        return
    if harness != "lm-eval":
        raise unknown("harness", harness, ["lm-eval", "opencompass"])
    from dare_bench.harness.lm_eval.task_index import LM_EVAL, TaskIndex

    index = TaskIndex(folders)
    entries = [index.entries[name] for name in _matching("task", sorted(index.entries), pattern)]
    if data_dir is not None:
        from dare_bench.harness.common.local_data import LocalData

        data = LocalData(data_dir)
        local = {e.name for e in index.entries.values() if e.origin != "lm-eval" or data.lists(*e.data_set)}
        leaves = {entry.name: [leaf.name for leaf in index.leaves([entry.name])] for entry in entries}
        entries = [entry for entry in entries if leaves[entry.name] and local.issuperset(leaves[entry.name])]
        if not entries:
            echo_error(f"{data_dir} has the data of none of these tasks")
    if json:
        echo_json([{"name": e.name, "kind": e.kind, "origin": e.origin, "path": str(e.path or "")} for e in entries])
        return
    is_short = pattern is None and data_dir is None and not every
    shown = [entry for entry in entries if not is_short or entry.origin != LM_EVAL or entry.name in BEST_KNOWN]
    shown.sort(key=lambda entry: entry.origin == LM_EVAL)  # those of dare-bench first
    echo_columns([[entry.name, entry.kind, entry.origin] for entry in shown])
    if len(shown) < len(entries):
        echo(f"and {len(entries) - len(shown):,} more: dare-bench ls tasks PART_OF_A_NAME, or --all")


def _configs(pattern: str | None, folders: list[str], json: bool) -> None:
    """OpenCompass's data-set configs, grouped by the folder that contains them."""
    from dare_bench.harness.opencompass.catalog import KIND, ConfigCatalog

    catalog = ConfigCatalog(folders)
    configs = [catalog.entries[name] for name in _matching(KIND, sorted(catalog.entries), pattern)]
    configs.sort(key=lambda config: (config.origin, config.folder, config.name))
    if json:
        echo_json([{key: str(getattr(c, key)) for key in ("name", "folder", "origin", "path")} for c in configs])
        return
    for (origin, folder), group in groupby(configs, key=lambda config: (config.origin, config.folder)):
        echo("\n".join([origin if folder == "." else f"{origin}: {folder}", *(f"  {c.name}" for c in group)]))


def _matching(kind: str, names: list[str], pattern: str | None) -> list[str]:
    """The names that match a glob or contain a text; raises UnknownNameError if none does."""
    if pattern is None:
        return names
    glob = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
    matches = [name for name in names if fnmatch(name, glob)]
    if not matches:
        raise unknown(kind, pattern, names)
    return matches


@app.command()
def runs(
    root: Annotated[str, typer.Argument(metavar="DIR", help="Folder to search.")] = "out",
    json: _Json = False,
) -> None:
    """List runs and external results with their scores, and the settings in which they differ."""
    from dare_bench.analysis.run_finder import find_runs
    from dare_bench.analysis.settings import distinguishing
    from dare_bench.runs.text import one_line

    listed = find_runs(root, echo_problem)
    if json:
        echo_json([_run_record(run) for run in listed])
        return
    if not listed:
        echo(f"no runs in {Path(root).absolute()}; {MAKE_ONE}")
        return
    settings = [one_line(text, 60) for text in distinguishing(listed)]
    names = ["run", "model", "status", "date", "settings", "scores"]
    rows = [dict(zip(names, row, strict=True)) for row in (names, *map(_run_row, listed, settings))]
    if not any(settings):
        names.remove("settings")
    terminal = terminal_width() or 10_000
    for name in ("date", "model", "status"):  # left out of a narrow terminal: no path is folded
        if sum(2 + max(len(row[column]) for row in rows) for column in names) - 2 > terminal:
            names.remove(name)
    if sum(2 + max(len(row[column]) for row in rows) for column in names) - 2 > terminal:
        for row in rows[1:]:
            echo(row["run"], whole=True)
            for column in names[1:]:
                if row[column]:
                    echo(f"  {row[column]}")
        return
    echo_columns([[row[column] for column in names] for row in rows], cut=False)


def _run_row(run: Run, settings: str) -> tuple[str, ...]:
    headlines = ((task, run.headline(task)) for task in run.top_level()[:6])
    scores = "  ".join(f"{task} {score.text} (n={score.n})" if score else task for task, score in headlines)
    return str(run.path), run.model, run.status_text, run.created[:16].replace("T", " "), settings, scores


def _run_record(run: Run) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "run_id": run.run_id,
        "model": run.model,
        "status": run.status,
        "created": run.created,
        "tasks": run.tasks,
        "scores": [asdict(score) for score in run.scores()],
    }


@app.command()
def trainers(json: _Json = False) -> None:
    """List training methods and where each is defined."""
    _abouts("trainer", json)


def _abouts(kind: Kind, json: bool) -> None:
    """Name, description and origin of each entry of a kind."""
    rows = [
        {"name": entry.name, "about": str(entry.about.get("about", "")), "origin": entry.origin}
        for entry in registry().entries(kind)
    ]
    if json:
        echo_json(rows)
        return
    echo_columns([list(row.values()) for row in rows])


@app.command()
def rewards(json: _Json = False) -> None:
    """List rewards for reinforcement learning, with their options."""
    _abouts("reward", json)


@app.command()
def strategies(json: _Json = False) -> None:
    """List decoding strategies: rule, exactness, benchmarks with published settings, source, and fields."""
    facts = dict(STRATEGIES)
    for entry, kind in registry().plugged_in("strategy"):
        facts[entry.name] = kind.facts()
    rows: list[dict[str, Any]] = [
        {"name": entry.name, **facts[entry.name], "origin": entry.origin}
        for entry in registry().entries("strategy")
        if entry.name in facts
    ]
    if json:
        echo_json(rows)
        return
    echo("use one with --strategy NAME, which takes the published settings of family and")
    echo("benchmark if there are any, or with --strategy '{\"name\": NAME, FIELD: VALUE}'")
    echo('"as X": the tokens of its published sampler; "approximate": others')
    echo("documentation: model_adapters/sampling/README.md")
    echo_columns([_strategy_row(row) for row in rows])


def _strategy_row(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        f"as {row['exact']}" if row["exact"] else "approximate",
        row["rule"],
        "; ".join(f"{family}: {', '.join(names)}" for family, names in row["published"].items()),
        row["source"],
        ", ".join(row["fields"]),
    ]
