"""The public names, and that asking for help imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dare_bench


def test_all_is_sorted_and_every_name_is_there():
    assert dare_bench.__all__ == sorted(dare_bench.__all__, key=lambda n: (n.islower(), n))
    for name in dare_bench.__all__:
        assert getattr(dare_bench, name) is not None
    assert set(dare_bench._HOME) | {"__version__"} == set(dare_bench.__all__)


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match="it has DareError, Event, Generation"):
        _ = dare_bench.lode


def test_import_brings_no_torch():
    code = "import dare_bench, dare_bench.protocols, dare_bench.registry, sys; dare_bench.registry.registry(); "
    code += "sys.exit('torch' in sys.modules or 'transformers' in sys.modules or 'lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0


ANSWERS = """
import sys, dare_bench
from dare_bench.analysis.intervals import wilson
model = dare_bench.load("tiny-llada2")
assert model.generate([[5, 6, 7]], gen_length=4)[0].nfe and model.loglikelihood([([5], [6])])[0].value < 0
assert wilson(3, 4).lo > 0
slow = ("sympy", "torch._dynamo", "torch.distributed.fsdp", "transformers.modeling_utils", "scipy.stats", "statsmodels")
print([name for name in slow if name in sys.modules])
"""


def test_answers_need_nothing_of_what_training_imports():
    """Each of these takes half a second to three seconds of every evaluation."""
    done = subprocess.run([sys.executable, "-c", ANSWERS], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_folders_refuse_to_be_imported_twice():
    """From the repo root ``import tasks`` would be a second copy of dare_bench.tasks."""
    from pathlib import Path

    root = Path(dare_bench.__file__).parents[1]
    for name in ("model_adapters", "tasks", "trainers", "leaderboards", "reports"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"], cwd=root, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 1
        assert f"import dare_bench.{name}, not {name}" in done.stderr
