"""``dare-bench ls``: lists of names. No model is loaded and torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dare_bench.checkpoint_files import read_config
from dare_bench.cli.ls_recipes import recipes
from dare_bench.cli.ls_suites import suites
from dare_bench.cli.plain import say, say_json
from dare_bench.errors import CheckpointError

app = typer.Typer(help="List models, strategies, tasks, suites, recipes, trainers or runs.", no_args_is_help=True)
app.command()(recipes)
app.command()(suites)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def models(json: _Json = False) -> None:
    """List bundled checkpoints and supported families."""
    from dare_bench.registry import registry

    bundled = [_checkpoint(entry.name, Path(entry.target)) for entry in registry().entries("checkpoint")]
    families: list[dict[str, Any]] = [
        {"name": entry.name, "matches": [list(match) for match in entry.about.get("matches", [])]}
        for entry in registry().entries("family")
    ]
    if json:
        say_json({"checkpoints": bundled, "families": families})
        return
    say("bundled checkpoints (use the name as --model):")
    _columns([[c["name"], c["architecture"], f"{c['mb']:.1f} MB", c["path"]] for c in bundled] or [["none"]])
    say("families (recognized by model_type/architecture in config.json):")
    _columns(
        [[f["name"], ", ".join("/".join(match) for match in f["matches"]) or f"--family {f['name']}"] for f in families]
        or [["none"]]
    )


def _checkpoint(name: str, path: Path) -> dict[str, Any]:
    try:
        config = read_config(path)
    except CheckpointError:
        config = {}
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    architecture = next(iter(config.get("architectures") or ["?"]))
    return {
        "name": name,
        "model_type": config.get("model_type"),
        "architecture": architecture,
        "mb": round(size / 1e6, 2),
        "path": str(path),
    }


@app.command()
def tasks(
    pattern: Annotated[
        str | None, typer.Argument(help="A glob (mmlu_*) or part of a name.", show_default=False)
    ] = None,
    include_path: Annotated[
        str | None,
        typer.Option(
            "--include-path", help="Folders with additional task files, separated by commas.", show_default=False
        ),
    ] = None,
    harness: Annotated[
        str, typer.Option("--harness", help="Harness of the tasks: lm-eval or opencompass.")
    ] = "lm-eval",
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", help="Only tasks whose data are in this folder (lm-eval).", show_default=False),
    ] = None,
    json: _Json = False,
) -> None:
    """List tasks, groups and tags for --tasks."""
    from fnmatch import fnmatch

    from dare_bench.errors import UsageError, unknown
    from dare_bench.harness.lm_eval.task_index import TaskIndex

    folders = [part for part in (include_path or "").split(",") if part]
    if harness == "opencompass":
        if data_dir is not None:
            raise UsageError("--data-dir works only for lm-eval's tasks; omit it, or omit --harness opencompass")
        from dare_bench.cli.ls_opencompass import list_configs

        list_configs(pattern, folders, json)
        return
    if harness != "lm-eval":
        raise unknown("harness", harness, ["lm-eval", "opencompass"])
    index = TaskIndex(folders)
    entries = [index.entries[name] for name in index.names()]
    if pattern is not None:
        wanted = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
        entries = [entry for entry in entries if fnmatch(entry.name, wanted)]
        if not entries:
            raise unknown("task", pattern, index.names())
    if data_dir is not None:
        from dare_bench.harness.common.local_data import LocalData

        data = LocalData(data_dir)
        here = {e.name for e in index.entries.values() if e.origin != "lm-eval" or data.lists(*index.data_set(e))}
        leaves = {entry.name: [leaf.name for leaf in index.leaves([entry.name])] for entry in entries}
        entries = [entry for entry in entries if leaves[entry.name] and here.issuperset(leaves[entry.name])]
    if json:
        rows = [{"name": e.name, "kind": e.kind, "origin": e.origin, "path": str(e.path or "")} for e in entries]
        say_json(rows)
        return
    _columns([[entry.name, entry.kind, entry.origin] for entry in entries])


@app.command()
def runs(
    root: Annotated[str, typer.Argument(metavar="DIR", help="Folder to search.")] = "out",
    json: _Json = False,
) -> None:
    """List run directories with their scores."""
    from dare_bench.cli.ls_runs import list_runs

    list_runs(root, json)


@app.command()
def trainers(json: _Json = False) -> None:
    """List training methods and where each is defined."""
    from dare_bench.registry import registry

    names = [
        {"name": entry.name, "about": str(entry.about.get("about", "")), "origin": entry.origin}
        for entry in registry().entries("trainer")
    ]
    if json:
        say_json(names)
        return
    _columns([[entry["name"], entry["about"], entry["origin"]] for entry in names] or [["none registered"]])


@app.command()
def strategies(json: _Json = False) -> None:
    """List decoding strategies with their fields and sources."""
    from dare_bench.registry import registry

    rows: list[dict[str, Any]] = []
    for entry in registry().entries("strategy"):
        kind = entry.load()
        fields = {name: None if field.is_required() else field.default for name, field in kind.model_fields.items()}
        rows.append({"name": entry.name, "fields": fields, "source": kind.source, "origin": entry.origin})
    if json:
        say_json(rows)
        return
    say('use a strategy with --gen-kwargs \'{"strategy": {"name": NAME, FIELD: VALUE}}\'')
    say("documentation: model_adapters/sampling/README.md")
    _columns([[row["name"], ", ".join(row["fields"]), row["source"]] for row in rows])


def _columns(rows: list[list[str]]) -> None:
    """Text in columns, fast for thousands of names."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    say("\n".join("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows))
