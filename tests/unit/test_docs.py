"""The pages of the documentation: links resolve, the index is complete, the README names every command; and the site
that they make."""

from __future__ import annotations

import html
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from paths import ROOT
from require import lacks

import dare_bench
from dare_bench.cli import app, main, train
from dare_bench.cli import eval as eval_command
from dare_bench.recipe_table import markdown

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
CODE = re.compile(r"^```.*\n(?:(?!```).*\n)*```|^(?: {4}.*\n)+", re.MULTILINE)


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
        for page in PAGES
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


BLOCK = re.compile(r"^```(python|python sketch|sh|yaml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUNNABLE = [page for page in PAGES if {kind for kind, _ in BLOCK.findall(page.read_text())} & {"python", "sh"}]


def _run(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "dare-bench", line
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code in (None, 0), line


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_prints_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks ``python`` and ``sh`` run as printed, one after another in an empty folder; trainings in Python for one
    step. A block ``yaml`` or ``python`` is a file where its first line names one, and ``python sketch`` only has to
    parse."""
    train_whole = dare_bench.train

    def train_briefly(**named: Any) -> Any:
        return train_whole(**named | {"max_steps": 1, "eval": named["eval"] | {"limit": 2} if "eval" in named else {}})

    monkeypatch.setattr(dare_bench, "train", train_briefly)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for kind, text in BLOCK.findall(page.read_text()):
        if kind in ("yaml", "python") and (file := re.match(r"# (\S+\.(?:yaml|py))$", text, re.MULTILINE)):
            Path(file[1]).parent.mkdir(exist_ok=True)
            Path(file[1]).write_text(text)
        if kind == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                _run(line)
        elif kind.startswith("python"):
            code = compile(text, f"{page.name}: {text.splitlines()[0]}", "exec")
            if kind == "python":
                exec(code, names)


def test_trainings_of_different_pages_have_different_folders() -> None:
    printed = Counter(
        folder
        for page in PAGES
        for folder in set(
            re.findall(
                r"(?:\btrain \w+ [^`]*?(?:--output-path|-o)[ =]|dare_bench\.train\([^`]*?output_path=\")([\w/.-]+)",
                page.read_text().replace("\\\n", " "),
            )
        )
    )
    assert len(printed) > 5
    assert [folder for folder, pages in printed.items() if pages > 1] == []


SCRIPT = ROOT / "scripts" / "docs_site.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]


@pytest.fixture(scope="module")
def pages(script: dict[str, Any]) -> list[str]:
    return list(script["pages_of"](NAVIGATION))


def test_every_page_of_the_documentation_is_in_the_navigation(pages: list[str]) -> None:
    assert {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")} <= set(pages)
    assert len(set(pages)) == len(pages)


def test_every_tutorial_has_a_small_picture() -> None:
    tutorials = list((ROOT / "docs").glob("tutorial-*.md"))
    assert len(tutorials) == 4
    for page in tutorials:
        pictures = re.findall(r"!\[[^\]]+\]\((\S+\.png)\)", page.read_text())
        assert pictures and all(0 < (page.parent / picture).stat().st_size < 60_000 for picture in pictures), page


def test_all_that_pages_link_to_is_copied(script: dict[str, Any], pages: list[str], tmp_path: Path) -> None:
    script["stage"](pages, tmp_path)
    for page in tmp_path.rglob("*.md"):
        for place in script["linked"](page, page.read_text()):
            assert place.exists() or not place.is_relative_to(tmp_path), (page, place)
        dead = [
            match[2]
            for match in script["LINK"].finditer(script["outside_code"](page, ""))
            if not (page.parent / match[2].partition("#")[0]).exists()
        ]
        assert dead == []
    assert (tmp_path / "docs/published-scores.md").read_text() == markdown()
    assert (tmp_path / "docs/board.png").is_file() and (tmp_path / "tests/toy_source.py.md").is_file()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[boards](../leaderboards/boards) here", "boards here"),
        ("[source](../scripts/baselines.py)", "[source](../scripts/baselines.py.md)"),
        ("[page](compare.md#seeds)", "[page](compare.md#seeds)"),
        ("[part](#part), [web](https://example.org)", "[part](#part), [web](https://example.org)"),
        ("```\n[boards](../leaderboards/boards)\n```", "```\n[boards](../leaderboards/boards)\n```"),
    ],
)
def test_links_to_folders_and_sources_are_rewritten(script: dict[str, Any], line: str, expected: str) -> None:
    assert script["outside_code"](ROOT / "docs" / "page.md", line) == expected


def test_a_page_that_loads_from_elsewhere_is_refused(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "a.html"
    page.write_text('<script src="https://unpkg.com/iframe-worker/shim"></script>')
    script["make_local"](tmp_path)
    assert page.read_text() == '<script src="../assets/iframe-worker.js"></script>'
    assert (tmp_path / "assets/iframe-worker.js").is_file()
    page.write_text('<script src="https://example.org/x.js"></script>')
    with pytest.raises(SystemExit, match=r"loads https://example\.org/x\.js"):
        script["make_local"](tmp_path)


@pytest.mark.slow
def test_it_builds_without_a_warning_and_shows_every_page() -> None:
    if shutil.which("zensical", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        lacks("zensical")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    index = (ROOT / "build/docs/index.html").read_text()
    parts = {title: part for entry in NAVIGATION for title, part in entry.items()}
    path = ("Install", "First run", "Read the board", "Compare two", "Your model", "Train", "Tutorials", "Reference")
    assert tuple(parts) == ("Overview", *path)
    pages = [title for part in parts.values() if isinstance(part, list) for page in part for title in page]
    shown = [html.unescape(text.strip()) for text in re.findall(r'<span class="md-ellipsis">([^<]*)', index)]
    assert [title for title in (*parts, *pages) if title not in shown] == []
