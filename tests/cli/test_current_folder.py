"""Nothing in the current folder is executed, whatever it is called: the commands run, in processes of their own, in a
folder with a file for every module that Python or an installed package could import."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from require import lacks, need_package

for package in ("accelerate", "lm_eval"):
    need_package(package)
PROGRAMS = Path(sys.executable).parent
DARE = (str(PROGRAMS / "dare-bench"),)
EVAL = ("eval", "--model", "tiny-llada", "--tasks", "dare_sudoku", "--limit", "2", "--steps", "4", "-o")
TRAINING = "method: sft, task: dare_sudoku, max_steps: 1, rows: 16, report_to: [none]"
SWEEP = f"models: [tiny-llada-base]\ntrain: {{{TRAINING}}}\neval: {{tasks: dare_sudoku, limit: 2, steps: 4}}\n"
CHAINS = {
    "ray": ((*DARE, *EVAL, "../out/ray", "--devices", "2", "--executor", "ray"), (*DARE, "doctor")),
    "sweep": ((*DARE, "sweep", "../sweep.yaml", "-o", "../out/sweep", "--executor", "devices"),),
}
"""A sweep trains and evaluates in the process that a device has; scorers have processes too."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; a file in it that is executed writes its name into ``ran``, beside the folder."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "sweep.yaml").write_text(SWEEP)
    folder = place / "folder"
    folder.mkdir()
    installed = (name for name in packages_distributions() if name.isidentifier())
    for name in {*sys.stdlib_module_names, *installed, "sitecustomize", "usercustomize"}:
        (folder / f"{name}.py").write_text(f"open({str(place / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_of_the_current_folder_runs(hostile: Path, chain: str) -> None:
    if chain == "ray" and find_spec("ray") is None:  # not imported here: its tests set variables that it reads then
        lacks("ray")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in CHAINS[chain]:
        done = subprocess.run(command, cwd=hostile, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert what_ran(hostile) == [], command
        assert done.returncode == 0, done.stderr[-2000:]


def test_the_files_would_run(hostile: Path) -> None:
    """As modules of the current folder, where Python itself searches it."""
    subprocess.run([sys.executable, "-c", "import colorsys"], cwd=hostile, check=False, capture_output=True)
    assert what_ran(hostile)[-1] == "colorsys"


def what_ran(hostile: Path) -> list[str]:
    """The files that were executed since the last call."""
    ran = hostile.with_name("ran")
    names = ran.read_text().split() if ran.exists() else []
    ran.unlink(missing_ok=True)
    return names
