"""The wheel holds every file of the package and its five linked folders, and works from anywhere."""

from __future__ import annotations

import os
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
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
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
    found = set()
    for base, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f != "__pycache__" and not (Path(base) / f).is_symlink()]
        found |= {str((Path(base) / n).relative_to(folder)) for n in names if not n.endswith(".pyc")}
    return found


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
        asked = [git, "-c", f"safe.directory={ROOT}", "cat-file", "blob", blob]
        to = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
        assert to == f"../{name}"


def test_every_file_is_in_the_wheel(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"dare_bench/{f}" for f in files(ROOT / "dare_bench")}
    for name in LINKED:
        wanted |= {f"dare_bench/{name}/{f}" for f in files(ROOT / name)}
    assert len(wanted) > 80
    assert wanted - packed == set()
    assert not any(name.startswith(("tests/", "tasks/", "scripts/")) for name in packed)


def run(home: Path, *words: str) -> str:
    done = subprocess.run(
        [str(home / "bin" / words[0]), *words[1:]], cwd="/", capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_program_works_from_another_folder(installed):
    where = run(installed, "python", "-c", "import dare_bench; print(dare_bench.__file__)")
    assert str(installed) in where
    assert "dare_sudoku" in run(installed, "dare-bench", "ls", "tasks", "dare_*")
    models = run(installed, "dare-bench", "ls", "models")
    assert "tiny-llada" in models and "tiny-llada-base" in models


def test_a_bundled_checkpoint_opens_from_the_wheel(installed):
    code = "import dare_bench; m = dare_bench.load('tiny-llada'); print(m.generate('1+1=', gen_length=4)[0].nfe)"
    assert int(run(installed, "python", "-c", code)) >= 1
