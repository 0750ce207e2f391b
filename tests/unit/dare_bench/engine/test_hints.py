"""Harnesses of plugins: what their task source must have, and what it gets without having it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy_source
from toy_model import ToyModel
from toy_source import ToySource

from dare_bench.config import run_spec
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.rescore import rescore
from dare_bench.errors import DecodingError, UnknownNameError, UsageError
from dare_bench.protocols import Answer, HarnessResult, TaskSource
from dare_bench.registry import registry
from dare_bench.types import Request


class Small(TaskSource):
    """A source with nothing but the two required methods."""

    def requests(self) -> list[Request]:
        return ToySource(self.spec, self.model).requests()

    def run(self, answer: Answer) -> HarnessResult:
        return ToySource(self.spec, self.model).run(answer)


class Known(Small):
    @staticmethod
    def knows(task: str, spec: Any) -> bool:
        return (task, spec.harness) == ("toygem", "toy")


class Unscored(TaskSource):
    def requests(self) -> list[Request]:
        return []


class Underived:
    """All that the engine calls, without the base class."""

    def __init__(self, spec: Any, model: Any) -> None:
        raise AssertionError("an unsuitable class was used")

    requests, run = Small.requests, Small.run


@pytest.fixture(autouse=True)
def _harnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry(), "_entries", dict(registry()._entries))
    for kind in (Small, Known, Unscored, Underived):
        registry().add("harness", kind.__name__.lower(), f"{__name__}:{kind.__name__}", origin="plugin")
    registry().add("harness", "function", f"{__name__}:go", origin="plugin")
    toy_source.register()


def go(out: Path, harness: str, tasks: str = "toygen,toychoice") -> Any:
    return evaluate(model=ToyModel(), harness=harness, tasks=tasks, limit=3, output_path=str(out), progress=False)


def test_two_methods_are_a_harness(tmp_path: Path) -> None:
    run, toy = go(tmp_path, "small"), go(tmp_path, "toy")
    assert run.status == "complete" and run.path != toy.path
    assert run.results["results"] == toy.results["results"]
    again = rescore(run)
    assert again.same and again.counted == 6


@pytest.mark.parametrize(
    ("harness", "lacking"),
    [
        ("underived", "Underived does not derive from dare_bench.protocols.TaskSource; see docs/plugins.md, A harness"),
        ("unscored", "Unscored does not define run; see docs/plugins.md, A harness"),
        ("function", "go does not derive from dare_bench.protocols.TaskSource"),
    ],
)
def test_another_class_is_refused_before_it_is_used(tmp_path: Path, harness: str, lacking: str) -> None:
    with pytest.raises(UsageError) as error:
        go(tmp_path, harness)
    assert str(error.value).startswith(f"harness {harness!r} of plugin: ") and lacking in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_hint_names_harnesses_that_know_the_task_and_passes_by_unsuitable_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as error:
        go(tmp_path, "toy", tasks="toygem")
    assert str(error.value).endswith("; 'toygem' is known to --harness known")


def test_the_decoding_fields_of_a_plugins_family_are_known_before_it_is_imported() -> None:
    registry().add("family", "sharp", "no_such_module:FAMILY", origin="plugin", fields=["sharpness"])
    settings = {"model": "tiny-llada", "tasks": "toygen", "harness": "toy"}
    assert checked_harness(run_spec(**settings, decoding={"sharpness": 1, "steps": 4})) is ToySource
    for wrong, near in (("stpes", "steps"), ("sharpnes", "sharpness")):
        with pytest.raises(DecodingError, match=f"no model family has a decoding field '{wrong}'; closest: {near}"):
            checked_harness(run_spec(**settings, decoding={wrong: 3}))
    with pytest.raises(DecodingError, match=r"field 'margin'; known: alg, .*sharpness, .*top_p"):
        checked_harness(run_spec(**settings, decoding={"margin": True}))


@pytest.mark.parametrize("name", ["near_tie", "predictions", "trajectory"])
def test_what_an_evaluation_records_itself_is_refused(name: str) -> None:
    settings = run_spec(model="tiny-llada", tasks="toygen", harness="toy", decoding={name: True})
    with pytest.raises(DecodingError, match=f"^{name}=True: an evaluation records what its files need.*; omit it"):
        checked_harness(settings)


# -- Settings that change no answer of a run are named when it begins --------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_what_has_no_effect_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"model": "tiny-llada", "tasks": "dare_sudoku", "limit": 1, "output_path": str(tmp_path), "progress": False}
    usual = evaluate(**given)  # type: ignore[arg-type]
    assert not warnings(caplog)
    more = {"decoding": {"steps": 30}, "likelihood": {"estimator": "fast"}}
    longer = evaluate(**given, **more)  # type: ignore[arg-type]
    assert warnings(caplog) == [
        "estimator=fast: without effect, since no task of this run computes log-likelihoods",
        "dare_sudoku: 30 steps for a block of 20 tokens: each step unmasks at least one token, so that the last 10 "
        "change nothing and are left out",
    ]
    first, second = ([sample["resps"] for sample in run.samples("dare_sudoku")] for run in (usual, longer))
    assert first == second


def test_decoding_of_tasks_that_compare_likelihoods_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1=", "choices": ["2", "3"], "answer": 0}\n')
    (tmp_path / "sums.yaml").write_text(
        "task: sums\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "test_split: test\noutput_type: multiple_choice\n"
        "doc_to_text: question\ndoc_to_choice: choices\ndoc_to_target: answer\ntarget_delimiter: ''\n"
    )
    evaluate(
        model="tiny-llada", tasks="sums", include_path=str(tmp_path), decoding={"steps": 4}, output_path=str(tmp_path),
        likelihood={"estimator": "fast"}, progress=False,
    )  # fmt: skip
    assert warnings(caplog) == ["steps=4: without effect, since no task of this run generates an answer"]


@pytest.mark.parametrize(
    ("family", "fields", "idle"),
    [
        ("llada", {"gen_length": 16, "block_length": 8, "steps": 20}, "10 steps for a block of 8 tokens"),
        ("llada", {"gen_length": 16, "block_length": 8, "steps": 16}, ""),
        ("a2d_mdlm", {"gen_length": 20, "block_length": 8, "steps": 28}, "10 steps for a block of 8 tokens"),
        ("a2d_bd3lm", {"gen_length": 16, "block_length": 8, "steps_per_block": 9}, "9 steps for a block of 8 tokens"),
        ("a2d_bd3lm", {"gen_length": 3, "block_length": 32, "steps": 3}, ""),
        ("sdar", {"gen_length": 16, "block_length": 4, "denoising_steps": 5}, "5 steps for a block of 4 tokens"),
        ("sdar", {"gen_length": 16, "block_length": 4}, ""),
        ("dream", {"gen_length": 16, "steps": 20}, ""),
    ],
)
def test_the_steps_of_a_family_that_unmask_nothing(family: str, fields: dict[str, int], idle: str) -> None:
    from dare_bench.registry import registry

    remark = registry().get("family", family).load().decoding(**fields).remark
    assert remark.startswith(idle) and bool(remark) == bool(idle)
