"""The pages of the documentation: links resolve, the index is complete, and the README names every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from paths import ROOT

from dare_bench.cli import app, train
from dare_bench.cli import eval as eval_command

FOLDERS = ("docs", "leaderboards", "model_adapters", "tasks", "trainers", "reports", "scripts")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or (bool(anchor) and anchor not in _anchors(target))


def test_every_relative_link_resolves() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(_prose(page)) if not re.match(r"[a-z]+:", link)]
    assert len(links) > 100
    assert [(str(page.relative_to(ROOT)), link) for page, link in links if _is_broken(page, link)] == []


def test_the_index_links_every_page_of_the_documentation() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in LINK.findall(_prose(index))}
    assert {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {index.resolve()} <= linked


def test_the_table_of_commands_is_the_commands() -> None:
    table = _prose(ROOT / "README.md").partition("## Commands")[2].partition("\n## ")[0]
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(commands)


COMMAND = re.compile(r"^ *(?:\$ |(?:- )?run: )?(?:\.venv/bin/)?dare-bench ((?:.*\\\n)*.*)$", re.MULTILINE)
CODE = re.compile(r"^```(?:yaml)?\n(?:(?!```).*\n)*|^(?: {4}.*\n)+", re.MULTILINE)


def _arguments(text: str) -> list[str]:
    """The arguments of a printed command, without its comment, what it is piped to, and placeholders."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;()<>"):
            break
        words.append(word)
    return [word for at, word in enumerate(words) if word != "..." or words[at - 1].startswith("--")]


def _parse(words: list[str]) -> None:
    """Parse a command as the program does, without running it."""
    if words[:1] == ["train"]:
        train.add_commands(words[1])
    command, name = typer.main.get_command(app), "dare-bench"
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"{name} has no command {words[:1]}"
        command, name, words = command.commands[words[0]], f"{name} {words[0]}", words[1:]
    command.make_context(name, eval_command.with_template_names(words) if name.endswith(" eval") else list(words))


def test_every_printed_command_is_a_valid_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # parsing begins the reports of regress
    printed = {
        line
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        if page.name != "CHANGELOG.md"
        for block in CODE.findall(page.read_text())
        for line in COMMAND.findall(block)
    }
    assert len(printed) > 30
    for line in sorted(printed):
        words = _arguments(line)
        try:
            _parse(words)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"dare-bench {line}: {error!r}") from error
