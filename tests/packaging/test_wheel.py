"""The wheel holds every file of the package and its five linked folders, and works from anywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from require import need

ROOT = Path(__file__).parents[2]
LINKED = ("model_adapters", "tasks", "trainers", "leaderboards", "reports")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    return build(ROOT, out)


def build(source: Path, out: Path) -> Path:
    """A wheel by the command of docs/install.md, without fetching hatchling again."""
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh venv with the wheel alone in it, and this environment's packages beside it on the path.

    The environment's own .pth files are not read that way, so its editable install of the project stays out of sight.
    """
    home = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=240)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "environment.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home


def files(folder: Path) -> set[str]:
    """Files below a folder, links into the sibling folders not followed, caches left out."""
    result = set()
    for base, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f != "__pycache__" and not (Path(base) / f).is_symlink()]
        result |= {str((Path(base) / n).relative_to(folder)) for n in names if not n.endswith(".pyc")}
    return result


def test_the_links_are_links():
    for name in LINKED:
        link = ROOT / "dare_bench" / name
        assert link.is_symlink() and link.resolve() == ROOT / name


def test_git_holds_the_links_as_links():
    """A clone gets what git holds: mode 120000 is a link, and its whole content is where it points."""
    git = need("git")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    paths = [f"dare_bench/{name}" for name in LINKED]
    listing = subprocess.run(
        [git, "-c", f"safe.directory={ROOT}", "ls-files", "-s", "--", *paths],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    held = {line.split("\t")[1]: line.split()[:2] for line in listing.stdout.splitlines()}
    assert {path: mode for path, (mode, _) in held.items()} == dict.fromkeys(paths, "120000")
    for name in LINKED:
        blob = held[f"dare_bench/{name}"][1]
        requested = [git, "-c", f"safe.directory={ROOT}", "cat-file", "blob", blob]
        to = subprocess.run(requested, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
        assert to == f"../{name}"


def test_every_file_is_in_the_wheel(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"dare_bench/{f}" for f in files(ROOT / "dare_bench")}
    for name in LINKED:
        wanted |= {f"dare_bench/{name}/{f}" for f in files(ROOT / name) if not f.startswith("examples/")}
    assert len(wanted) > 80
    assert wanted - packed == set()
    assert not any(name.startswith(("tests/", "tasks/", "scripts/")) for name in packed)
    assert not any("/examples/" in name for name in packed)  # 12 MB of runs


def test_the_container_file_copies_all_that_the_wheel_is_made_of(wheel, tmp_path):
    """No image is built here: the files of its first stage are laid out as it says, and a wheel is made of them."""
    lines = [line.split() for line in (ROOT / "Containerfile").read_text().splitlines() if line.startswith("COPY")]
    copies = [words[1:] for words in lines if not words[1].startswith("--")]
    source = tmp_path / "src"
    source.mkdir()
    for *names, to in copies:
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source / name)
    assert held(build(source, tmp_path / "dist")) == held(wheel)


def held(wheel: Path) -> dict[str, int]:
    """The files of a wheel with the checksums of their contents."""
    return {item.filename: item.CRC for item in zipfile.ZipFile(wheel).infolist()}


FROM_REGISTRY = re.compile(r"""\b(?:pip3?|pipx|uv)\s(?:[^\n`]*\s)?install\b[^\n`]*?[\s'"]dare[-_]bench(?![-\w./])""")
"""An installation of dare-bench by its name alone, and not from a path."""


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install dare-bench", True),
        ("run: pip install -U 'dare-bench[eval]'", True),
        ("uv pip install dare_bench", True),
        ("pipx install dare-bench", True),
        ("pip install ./dare-bench", False),
        ("pip install -c dare-bench/constraints.txt './dare-bench[eval]'", False),
        ("pipx install './dist/dare_bench-0.1.0-py3-none-any.whl[eval]'", False),
        ("pip install -e '.[eval]'", False),
    ],
)
def test_installations_by_name_are_told_from_those_of_a_path(line, wrong):
    assert (FROM_REGISTRY.search(line) is not None) == wrong


def test_no_page_installs_dare_bench_from_a_registry():
    """It is in none, so anybody could give that name to a package."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), ROOT / "Containerfile"]
    result = [f"{page.name}: {hit[0]}" for page in pages for hit in FROM_REGISTRY.finditer(page.read_text())]
    assert result == []


def run(home: Path, *words: str) -> str:
    done = subprocess.run(
        [str(home / "bin" / words[0]), *words[1:]], cwd="/", capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_program_works_from_another_folder(installed):
    assert "dare_sudoku" in run(installed, "dare-bench", "ls", "tasks", "dare_*")
    models = run(installed, "dare-bench", "ls", "models")
    assert "tiny-llada" in models and "tiny-llada-base" in models


def test_a_bundled_checkpoint_opens_from_the_wheel(installed):
    code = "import dare_bench; m = dare_bench.load('tiny-llada'); print(m.generate('1+1=', gen_length=4)[0].nfe)"
    forwards, where = run(installed, "python", "-c", f"{code}; print(dare_bench.__file__)").splitlines()
    assert int(forwards) >= 1 and str(installed) in where
