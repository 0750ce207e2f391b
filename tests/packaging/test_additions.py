"""How many files an addition touches: a family and an algorithm as plugins, an opening setting in a copy of the
package. Each is then used, from Python or from the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import command
import pytest
from paths import ROOT
from require import need_package

import dare_bench
from dare_bench.registry import load_plugins, registry

FAMILY = {
    "__init__.py": """
def register(registry):
    registry.add("family", "echo", "echo_family.family:FAMILY", origin=__name__, matches=[["echo", "LLaDAModelLM"]],
                 fields=["echoes"])
""",
    "family.py": '''
from dare_bench.model_adapters.llada.family import LLaDA, LLaDADecoding


class EchoDecoding(LLaDADecoding):
    echoes: int = 1
    """The temperature is divided by it."""


class Echo(LLaDA):
    name = "echo"
    decoding = EchoDecoding

    def sampler(self, decoding, spec):
        lower = {"temperature": decoding.temperature / decoding.echoes}
        return super().sampler(decoding.model_copy(update=lower), spec)


FAMILY = Echo()
''',
}
ALGORITHM = {
    "__init__.py": """
def register(registry):
    registry.add("trainer", "damped", "damped_method.method:Damped", origin=__name__, about="d1, damped")
""",
    "method.py": '''
from typing import ClassVar

from pydantic import Field

from dare_bench.trainers.rl.d1 import D1, D1Options


class DampedOptions(D1Options):
    damping: float = Field(1.0, gt=0, description="Values are divided by it.")


class Damped(D1):
    """d1 with damped values."""

    name = "damped"
    Options = DampedOptions
    seen: ClassVar[list[float]] = []

    def actions(self, completions, iteration, shared_key):
        self.seen.append(self.options.damping)
        return super().actions(completions, iteration, shared_key)
''',
}
THREADS = """    threads: int | None = Field(default=None, description="Threads of the processor that compute.")
    quantize: Literal["""
SETTING = {
    "types.py": ("    quantize: Literal[", THREADS),
    "model_adapters/open_native.py": (
        "    given = given_ids(settings)\n",
        "    given = given_ids(settings)\n    torch.set_num_threads(settings.threads or torch.get_num_threads())\n",
    ),
}


def install(site: Path, package: str, files: Mapping[str, str]) -> None:
    """A plugin as pip leaves it in a folder of packages."""
    about = site / f"{package}-1.0.dist-info"
    for folder in (about, site / package):
        folder.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[dare_bench.plugins]\n{package} = {package}:register\n")
    for name, text in files.items():
        (site / package / name).write_text(text)


def python(*words: str, place: Path, **more: str) -> str:
    """What Python prints that finds packages in ``place`` first."""
    environment = {**os.environ, "PYTHONPATH": str(place), **more}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=place, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of packages with both plugins, which this process has too."""
    place = tmp_path_factory.mktemp("site")
    install(place, "echo_family", FAMILY)
    install(place, "damped_method", ALGORITHM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DARE_BENCH_PLUGINS", "echo_family,damped_method")
        patch.syspath_prepend(str(place))
        patch.setattr(registry(), "_entries", dict(registry()._entries))
        patch.setattr(registry(), "plugins", [])
        load_plugins(registry())
        yield place


def test_a_family_touches_one_file_and_its_registration(site: Path, tmp_path: Path) -> None:
    assert len(FAMILY) == 2
    tiny, folder = Path(registry().get("checkpoint", "tiny-llada").target), tmp_path / "echo"
    shutil.copytree(tiny, folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llada"', '"model_type": "echo"'))
    model = dare_bench.load(folder, device="cpu")
    assert model.spec.family == "echo"

    def answers(name: str | Path, **fields: object) -> list[list[int]]:
        given = {"gen_length": 16, "steps": 4, "block_length": 16, **fields}
        return [answer.tokens for answer in dare_bench.load(name, device="cpu").generate([[5, 6]], **given)]  # type: ignore[arg-type]

    assert answers(folder, temperature=2.0, echoes=4) == answers("tiny-llada", temperature=0.5)
    assert answers(folder, temperature=2.0) == answers("tiny-llada", temperature=2.0)
    assert answers("tiny-llada", temperature=0.5) != answers("tiny-llada", temperature=2.0)
    need_package("lm_eval")
    run = dare_bench.evaluate(
        model=str(folder),
        tasks="dare_sudoku",
        limit=1,
        decoding={"echoes": 2},
        output_path=str(tmp_path),
        progress=False,
    )
    block = run.require_block()
    assert block.tasks["dare_sudoku"].decoding["echoes"] == 2


def test_an_algorithm_touches_one_file_and_its_registration(site: Path, tmp_path: Path) -> None:
    need_package("accelerate")
    assert len(ALGORITHM) == 2
    shown = command.run("train", "damped", "--help", env={**os.environ, "PYTHONPATH": str(site)})
    assert "--damping <float>" in shown.stdout, shown.stderr
    options = {"damping": 3.0, "num_generations": 2, "max_completion_length": 8}
    fields = {"model": "tiny-llada-base", "task": "dare_arithmetic", "output_path": str(tmp_path / "out")}
    trained = dare_bench.train(method="damped", rows=4, max_steps=1, **fields, **options)  # type: ignore[arg-type]
    seen = registry().get("trainer", "damped").load().seen
    assert seen and set(seen) == {3.0}
    assert (trained.path / "model.safetensors").is_file()


def test_an_opening_setting_touches_its_list_and_its_use(tmp_path: Path) -> None:
    """The third file is written by ``make keywords``."""
    need_package("lm_eval")
    package, place = ROOT / "dare_bench", tmp_path / "place"
    copied = (".py", ".json", ".yaml", ".j2", ".jsonl")

    def bring(source: str, target: str) -> None:
        if source.endswith(copied):
            shutil.copy(source, target)
        else:
            Path(target).symlink_to(source)

    shutil.copytree(
        package, place / "dare_bench", copy_function=bring, ignore=shutil.ignore_patterns("__pycache__", "examples")
    )
    for name, (before, after) in SETTING.items():
        file = place / "dare_bench" / name
        assert file.read_text().count(before) == 1, name
        file.write_text(file.read_text().replace(before, after))
    # One process: the types of keywords are read by nobody at run time.
    code = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
import dare_bench, torch
from dare_bench.cli import main
try:
    main(["eval", "--help"])
except SystemExit as left:
    print("left", left.code)
dare_bench.load("tiny-llada", device="cpu", threads=2)
print(torch.get_num_threads())
fields = dict(tasks="dare_sudoku", limit=1, progress=False, decoding={"gen_length": 16, "steps": 4})
run = dare_bench.evaluate(model="tiny-llada", threads=3, output_path="out", **fields)
again = dare_bench.evaluate(model=dare_bench.load("tiny-llada", threads=3), output_path="out", **fields)
print(torch.get_num_threads(), again.path == run.path)
"""
    printed = python("-c", code, str(ROOT / "scripts" / "make_keywords.py"), place=place, OMP_NUM_THREADS="1")
    names = [file.relative_to(place / "dare_bench") for file in (place / "dare_bench").rglob("*.py")]
    changed = {str(n) for n in names if (package / n).read_bytes() != (place / "dare_bench" / n).read_bytes()}
    assert len(names) > 400 and changed == {*SETTING, "keywords.py"}
    assert '"threads": int | None' in (place / "dare_bench" / "keywords.py").read_text()
    assert "--threads <int>" in printed and printed.split()[-5:] == ["left", "0", "2", "3", "True"]
