"""The workflows of GitHub: their form, and that what they call is there. No runner is started here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from paths import ROOT

from dare_bench.cli import _command

WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").iterdir())}
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTED = re.findall(
    r"^```yaml\n# \.github/workflows/(\S+)\n(.*?)^```", (ROOT / "docs/leaderboard.md").read_text(), re.S | re.M
)
WORKFLOWS |= {f"docs/leaderboard.md {name}": yaml.safe_load(text) for name, text in DOCUMENTED}
EXPRESSION = re.compile(r"\$\{\{\s*([a-z_]+)\.([\w.-]+)\s*\}\}")
CONTEXTS = {"github", "steps", "secrets", "env", "vars", "needs", "matrix", "runner"}


def steps(workflow: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for job in workflow["jobs"].values():
        yield from ((job, step) for step in job["steps"])


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell script with simple lines; a substitution in them is one word."""
    text = EXPRESSION.sub("VALUE", text).replace("\\\n", " ")
    for line in text.splitlines():
        for part in re.split(r"&&|\|\||;|\|", line.partition(" #")[0]):
            yield [word.lstrip("@") for word in shlex.split(re.sub(r"\$\([^)]*\)", "VALUE", part))]


def test_there_are_workflows_and_one_in_the_documentation() -> None:
    assert len(WORKFLOWS) >= 4 and DOCUMENTED


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_the_form_that_github_reads(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert set(workflow) <= {"name", True, "jobs", "permissions", "concurrency", "env"}  # YAML 1.1 reads "on" as true
    assert set(workflow[True]) <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    for trigger in workflow[True].get("schedule", []) if isinstance(workflow[True], dict) else []:
        assert len(trigger["cron"].split()) == 5
    for job in workflow["jobs"].values():
        assert job["runs-on"] in ("ubuntu-latest", "ubuntu-24.04")
        needed = job.get("needs", [])
        assert {needed} if isinstance(needed, str) else {*needed} <= set(workflow["jobs"])
    ids = {step["id"] for _, step in steps(workflow) if "id" in step}
    for job, step in steps(workflow):
        assert ("run" in step) != ("uses" in step), step
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@v\d+", step.get("uses", "actions/checkout@v4")), step
        for context, path in EXPRESSION.findall(str(step) + str(job.get("env", ""))):
            assert context in CONTEXTS and (context != "steps" or path.split(".")[0] in ids), (context, path)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_of_a_workflow_exists(name: str) -> None:
    seen = 0
    for _, step in steps(WORKFLOWS[name]):
        for words in commands(step.get("run", "")):
            for word in words:
                if re.fullmatch(r"(\.ci|scripts)/[\w./-]+", word):
                    assert (ROOT / word).is_file(), words
            if words[:1] == ["make"]:
                target = next(word for word in words[1:] if "=" not in word)
                assert re.search(rf"^{target}:", MAKEFILE, re.M), words
                variables = [word.partition("=")[0] for word in words[1:] if "=" in word]
                assert all(f"$({variable})" in MAKEFILE for variable in variables), words
            seen += bool(words)
            check_command(words)
    assert seen


def test_every_command_of_the_makefile_exists() -> None:
    recipes = re.sub(r"\$\(BIN\)/", "", MAKEFILE.replace("\\\n", " "))
    lines = [
        line for line in recipes.splitlines() if line.startswith("\t") and "dare-bench" in line and "{" not in line
    ]
    assert lines and sum(check_command(words) for line in lines for words in commands(line)) == len(lines)
    scripts = re.findall(r"scripts/[\w/]+\.py", MAKEFILE)
    assert len(scripts) > 5 and all((ROOT / script).is_file() for script in scripts)


def check_command(words: list[str]) -> bool:
    """Is this a command of dare-bench? Its verb and options have to be there."""
    at = next((at for at, word in enumerate(words) if word == "dare-bench" or word.endswith("bin/dare-bench")), None)
    if at is None:
        return False
    command, rest = _command(), words[at + 1 :]
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, words
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= known, words
    return True
