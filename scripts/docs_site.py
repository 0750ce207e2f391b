"""Build the documentation as a site with search, by Zensical: `make docs`, then open build/docs/index.html.

Pages link to files of the whole repository, so those in the navigation of zensical.toml, and all files that they
link to, are copied into one folder with the same paths. A link to a folder becomes text. Warnings (a dead link, a dead
anchor) are errors. The page of published scores is made of the recipes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # dare-bench need not be installed: its recipes need pydantic and pyyaml
from dare_bench.recipe_table import markdown  # noqa: E402

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
ANY_LINK = re.compile(r"\]\(([^)\s]+)\)")
REMOTE = re.compile(r"""<(?:script|link rel="stylesheet"|img)[^>]*(?:src|href)=["']?(https?:[^"' >]+)""")
SHIM = ROOT / "docs/site/iframe-worker-1.0.4/shim.js"
PUBLISHED = "docs/published-scores.md"
SOURCES = (".py", ".yaml", ".toml", "Containerfile")
"""Files that are shown as pages, since a browser would save some of them."""


def pages_of(navigation: object) -> Iterator[str]:
    """The pages that a navigation names."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for value in navigation.values():
            yield from pages_of(value)
    elif isinstance(navigation, list):
        for value in navigation:
            yield from pages_of(value)


def stage(pages: list[str], out: Path) -> int:
    """Copy pages, and all that they link to, into ``out``; returns the number of files."""
    shutil.rmtree(out, ignore_errors=True)
    waiting, done = [ROOT / page for page in pages if page != PUBLISHED], set[Path]()
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        target = out / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
            waiting += linked(source, text)
            target.write_text(outside_code(source, text), encoding="utf-8")
        elif source.name.endswith(SOURCES):
            shown = f"# {source.name}\n\n```` {source.suffix[1:]}\n{source.read_text(encoding='utf-8')}````\n"
            target.with_name(f"{target.name}.md").write_text(shown, encoding="utf-8")
        else:
            shutil.copyfile(source, target)
    (out / PUBLISHED).write_text(markdown(), encoding="utf-8")
    return len(done) + 1


def linked(page: Path, text: str) -> list[Path]:
    """The files of the repository that a page links to."""
    places = [match[1].partition("#")[0] for match in ANY_LINK.finditer(text)]
    files = [Path(os.path.normpath(page.parent / place)) for place in places if place and "://" not in place]
    return [file for file in files if file.is_file() and file.is_relative_to(ROOT)]


def outside_code(page: Path, text: str) -> str:
    """The page with its links changed, except in blocks of code."""
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if at % 2 else LINK.sub(lambda match: rewritten(page, match), part) for at, part in enumerate(parts)
    )


def rewritten(page: Path, match: re.Match[str]) -> str:
    """A link as the site has it: to a folder, its text alone; to a source, that to its page."""
    text, place = match[1], match[2]
    path = place.partition("#")[0]
    target = page.parent / path
    if not path or "://" in place:
        return match[0]
    if target.is_dir():
        return text
    return f"[{text}]({path}.md)" if target.name.endswith(SOURCES) else match[0]


def add_board(board: Path, out: Path) -> None:
    """Put the site of a leaderboard into the documentation, with a link on the page about leaderboards."""
    shutil.copytree(board, out / "board", ignore=shutil.ignore_patterns(".lock"))
    page = out / "docs/leaderboard.md"
    link = "The board that `make demo` builds is [part of this site](../board/index.html).\n"
    page.write_text(page.read_text(encoding="utf-8").replace("\n", f"\n\n{link}", 1), encoding="utf-8")


def make_local(site: Path) -> None:
    """The search of a page that is opened from a disk needs a script that Zensical would load from unpkg.com."""
    place = "assets/iframe-worker.js"
    shutil.copyfile(SHIM, site / place)
    for page in site.rglob("*.html"):
        root = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8").replace("https://unpkg.com/iframe-worker/shim", root + place)
        if remote := REMOTE.search(text):
            raise SystemExit(f"error: {page} loads {remote[1]}; the site loads nothing from elsewhere")
        page.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", type=Path, help="the built site of a leaderboard, to copy into the documentation")
    options = parser.parse_args()
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    count = stage(list(pages_of(config["nav"])), ROOT / config["docs_dir"])
    print(f"{count} files", file=sys.stderr)
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = shutil.which("zensical", path=folders)
    if command is None:
        print("error: zensical is not installed; install the extra docs: pip install -e '.[docs]'", file=sys.stderr)
        return 2
    if options.board:
        add_board(options.board, ROOT / config["docs_dir"])
    code = subprocess.run([command, "build", "--strict", "--clean"], cwd=ROOT).returncode
    if code == 0:
        make_local(ROOT / config["site_dir"])
    return code


if __name__ == "__main__":
    sys.exit(main())
