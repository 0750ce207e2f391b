"""The public names and the keywords of their calls: type checkers know those that schemas have, no others, and
asking for help imports nothing heavy."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from paths import ROOT
from pydantic import BaseModel, Field, field_validator
from require import need_package

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


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_keywords", ROOT / "scripts" / "make_keywords.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_current(script: ModuleType) -> None:
    assert script.FILE.read_text() == script.text(), "run: make keywords"


class Inner(BaseModel):
    x: int


class One(BaseModel):
    count: int = Field(default=1, ge=1)
    share: float | None = None
    kind: Literal["a", "b"] | None = None
    names: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    docs: dict[str, list[int]] = {}
    free: Any = None
    inner: Inner
    folder: Path

    @field_validator("names", mode="before", json_schema_input_type=str | Sequence[str])
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value


class Two(BaseModel):
    kind: Literal["b", "c"] = "c"
    count: str = ""


def test_types_are_what_the_fields_accept(script: ModuleType) -> None:
    types = {name: script.union(kinds) for name, kinds in script.of_models(One, Two).items()}
    assert types == {
        "count": "int | str",
        "share": "float | None",
        "kind": 'Literal["a", "b", "c"] | None',
        "names": "str | Sequence[str]",
        "pair": "tuple[int, float]",
        "docs": "Mapping[str, Sequence[int]]",
        "free": "Any",
        "inner": "Mapping[str, Any]",
        "folder": "Path",
    }


def test_a_definition_is_written_in_lines_that_fit(script: ModuleType) -> None:
    names = [f"setting_{i}" for i in range(40)]
    text = script.written("Keywords", {name: ["str", "None"] for name in names})
    space: dict[str, Any] = {}
    exec("from typing import TypedDict\n" + text, space)
    assert list(space["Keywords"].__annotations__) == names and not space["Keywords"].__required_keys__
    assert set(space["Keywords"].__annotations__.values()) == {str | None}
    assert max(map(len, text.splitlines())) <= 120


CALLS = """
from pathlib import Path
from typing import Any

from dare_bench import evaluate, load, train

model = load("tiny-llada", adapter=Path("lora"), eos_id=[1, 2], quantize="int8", max_memory={0: "70GB", "cpu": 1})
evaluate(model=model, tasks="gsm8k", limit=0.5, seeds=7, decoding={"steps": 8}, likelihood={"mc_num": 16})
train(method="sft", model="tiny-llada-base", task="dare_sudoku", output_path="out", noise="counts", peft="lora")
model.generate(["1+1="], gen_length=16, remasking="random", stop=["x"], seed=1)
model.loglikelihood([("a", "b")], estimator="exact", mc_num=16, batch_size=4)
more: dict[str, Any] = {}
model.generate("of a plugin's family", **more)
"""
WRONG = {
    'load("tiny-llada", atention="sdpa")': 'Unexpected keyword argument "atention" for "load"',
    'load("tiny-llada", quantize="int2")': 'Argument "quantize"',
    'evaluate(model=3, tasks="t")': 'Argument "model"',
    'evaluate(model=model, tasks="t", limmit=3)': 'Unexpected keyword argument "limmit" for "evaluate"',
    'evaluate(model=model, tasks="t", num_fewshot="five")': 'Argument "num_fewshot"',
    'train(method="sft", peft="dora")': 'Argument "peft"',
    'train(method="sft", learning_rat=1e-3)': 'Unexpected keyword argument "learning_rat" for "train"',
    'model.generate("x", step=8)': 'Unexpected keyword argument "step" for "generate" of "Model"',
    'model.generate("x", remasking="entropy")': 'Argument "remasking"',
    "model.loglikelihood([], mc=1)": 'Unexpected keyword argument "mc" for "loglikelihood" of "Model"',
}


CONFIG = """
[mypy]
follow_imports = skip
[mypy-dare_bench.*]
follow_imports = silent
"""
"""The types of other packages do not matter here, and reading torch takes most of the time."""


def test_mypy_checks_calls(tmp_path: Path) -> None:
    need_package("mypy")
    file, config = tmp_path / "calls.py", tmp_path / "mypy.ini"
    file.write_text(CALLS + "\n".join(WRONG) + "\n")
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--no-pretty", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    errors = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error:" in line}
    first = CALLS.count("\n") + 1
    assert sorted(errors) == list(range(first, first + len(WRONG))), done.stdout + done.stderr
    for line, message in zip(sorted(errors), WRONG.values(), strict=True):
        assert message in errors[line]
