"""Our models from lm-eval's side: the model class ``dare``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command
import pytest
from toy_model import ToyModel
from toy_tasks import answer_with, for_plain_lm_eval, write_data, write_tasks

from dare_bench import lm_eval as dare_lm
from dare_bench.analysis.run_finder import open_run
from dare_bench.config import run_spec
from dare_bench.errors import DareError, DecodingError, UsageError
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.runs.schema import UNKNOWN

Evaluate = Callable[..., Any]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What ``load`` was called with; it gives toys."""
    calls: list[dict[str, Any]] = []

    def load(checkpoint: str, **fields: Any) -> Any:
        model = ToyModel(fail_on=(lambda r: r.doc_id == 2) if checkpoint == "failing" else None)
        calls.append({"checkpoint": checkpoint, "model": model, **fields})
        return SimpleNamespace(loaded=model)

    monkeypatch.setattr(dare_lm, "load", load)
    return calls


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[dict[str, Any]]) -> Evaluate:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)  # seconds of looking at the machine
    folder = for_plain_lm_eval(tmp_path / "plain", write_data(tmp_path / "data"), monkeypatch)
    manager = TaskManager(include_path=str(folder), include_defaults=False)

    def run(model_args: Any, tasks: str, **named: Any) -> Any:
        return simple_evaluate(
            "dare", model_args=model_args, tasks=tasks.split(","), task_manager=manager, bootstrap_iters=1000, **named
        )

    return run


def test_both_ways_in_score_the_same(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = "toy_add,toy_twice,toy_choice,toy_words"
    reference = evaluate("pretrained=toy,steps=16,gen_length=16", tasks)
    monkeypatch.undo()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    spec = run_spec(
        model="toy",
        tasks=tasks,
        include_path=str(write_tasks(tmp_path / "tasks")),
        data_dir=str(tmp_path / "data"),
        decoding={"steps": 16, "gen_length": 16},
    )
    ours = LmEvalSource(spec, ToyModel()).run(answer_with(ToyModel()))
    assert reference["results"] == ours.results["results"]
    resps = [[row["resps"] for row in reference["samples"][task]] for task in ("toy_add", "toy_twice")]
    assert resps == [[row["resps"] for row in ours.samples[task]] for task in ("toy_add", "toy_twice")]
    assert len({str(r) for r in resps[1][0][0]}) == 3  # repeats are draws of their own


def test_settings_reach_load_and_decoding(evaluate: Evaluate, opened: list[dict[str, Any]]) -> None:
    evaluate("pretrained=toy,dtype=float32,mask_id=7,mc_num=4,steps=8,gen_length=8", "toy_add", batch_size=3, limit=1)
    call = opened[0]
    assert {k: call[k] for k in ("checkpoint", "dtype", "mask_id", "device")} == {
        "checkpoint": "toy",
        "dtype": "float32",
        "mask_id": 7,
        "device": None,
    }
    lm = dare_lm.DareLM("toy", batch_size="auto", mc_num=4, steps=8, gen_length=8)
    assert lm._builder.user == {"steps": 8, "gen_length": 8} and lm._builder.likelihood == {"mc_num": 4}
    assert lm._rows is None and dare_lm.DareLM("toy", batch_size=3)._rows == 3
    assert lm._builder.decoding("t", {"max_gen_toks": 64})["gen_length"] == 8
    assert lm._builder.decoding("t", {})["early_stop"] is True


def test_a_setting_that_is_nothing(opened: list[dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match=r"model_args: 'step' is not a field .*closest: steps"):
        dare_lm.DareLM("toy", step=3)
    with pytest.raises(DecodingError, match="gen_length=10 is not a multiple of block_length=4"):
        dare_lm.DareLM("toy", gen_length=10, block_length=4)._builder.decoding("t", {})


def test_a_request_without_an_answer_stops_it(evaluate: Evaluate) -> None:
    with pytest.raises(DareError, match="task 'toy_add', document 2: the toy was told to fail"):
        evaluate("pretrained=failing", "toy_add")


def test_chat_template_and_rolling(evaluate: Evaluate) -> None:
    result = evaluate("pretrained=toy", "toy_add", limit=1, apply_chat_template=True)
    assert result["samples"]["toy_add"][0]["arguments"][0][0] == "[user]Q: 1 plus 2\nA:[assistant]"
    with pytest.raises(UsageError, match="toy_rolling"):
        evaluate("pretrained=toy", "toy_rolling")


def test_what_lm_eval_writes_is_read_as_an_external_result(evaluate: Evaluate, tmp_path: Path) -> None:
    """By lm-eval's own code: the layout that its command leaves behind."""
    from lm_eval.loggers import EvaluationTracker

    result = evaluate("pretrained=toy", "toy_add")
    samples = result.pop("samples")
    tracker = EvaluationTracker(output_path=str(tmp_path / "results"))
    tracker.general_config_tracker.log_experiment_args("dare", "pretrained=toy", None, None, False)
    tracker.save_results_aggregated(results=result, samples=samples)
    tracker.save_results_samples("toy_add", samples["toy_add"])
    run = open_run(tmp_path / "results")
    row = result["results"]["toy_add"]
    assert run.is_external and run.model == "toy"
    assert {score.key: score.value for score in run.scores()} == {
        key: value for key, value in row.items() if "," in key and "_stderr," not in key
    }
    assert len(list(run.documents("toy_add"))) == run.scores()[0].n == 6
    assert len(list(run.samples("toy_add"))) == len(samples["toy_add"]) == 12  # two filters
    assert run.require_block().harness.version == UNKNOWN  # add_env_info, which records it, is replaced in these tests


def test_the_module_registers_and_is_a_command(tmp_path: Path) -> None:
    register, run = tmp_path / "register.py", tmp_path / "run.py"
    register.write_text(
        "import dare_bench.lm_eval\nfrom lm_eval.api.registry import get_model\n"
        "print(get_model('dare') is dare_bench.lm_eval.DareLM)\n"
    )
    run.write_text(
        "import runpy, sys\nassert 'dare_bench.lm_eval' not in sys.modules\n"
        "runpy.run_module('dare_bench.lm_eval', run_name='__main__', alter_sys=True)\n"
    )
    assert command.run(script=register).stdout.strip() == "True"
    shown = command.run("run", "--help", script=run)
    assert shown.returncode == 0 and "--model_args" in shown.stdout, shown.stderr


def test_lm_evals_own_device_gives_way(opened: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's command adds cuda:0 of itself: without a GPU the CPU is taken, and ``model_args`` win in any case."""
    added = {"device": "cuda:0", "batch_size": 4, "max_batch_size": None}
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    dare_lm.DareLM.create_from_arg_string("pretrained=toy", added)
    dare_lm.DareLM.create_from_arg_obj({"pretrained": "toy", "device": "meta", "batch_size": 2}, added)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    dare_lm.DareLM.create_from_arg_obj({"pretrained": "toy"}, added)
    assert [call["device"] for call in opened] == ["cpu", "meta", "cuda:0"]
