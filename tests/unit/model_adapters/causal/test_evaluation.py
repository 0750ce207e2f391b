"""Autoregressive models through the engine: both harnesses, repeats, resuming, and what a run says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from causal_models import make_llama
from command import forkserver
from paths import ROOT
from require import need_package
from toy_tasks import write_data, write_tasks

from dare_bench import evaluate
from dare_bench.engine.journal import Journal
from dare_bench.engine.preview import preview
from dare_bench.engine.queue import Queue
from dare_bench.engine.validation import validate
from dare_bench.errors import UsageError
from dare_bench.executors import devices
from dare_bench.loading import load
from dare_bench.model_adapters.causal import generation
from dare_bench.model_adapters.causal import model as causal_model
from dare_bench.runs.reader import Run
from dare_bench.training.run import train
from dare_bench.types import Request

need_package("lm_eval")
BENCH = ROOT / "tests" / "data" / "bench"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_llama(tmp_path_factory.mktemp("llama"), positions=8192))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.delenv("COMPASS_DATA_CACHE", raising=False)


def go(llama: str, tmp_path: Path, tasks: str, **fields: Any) -> Run:
    folders = {"include_path": str(write_tasks(tmp_path / "tasks")), "data_dir": str(write_data(tmp_path / "data"))}
    out = str(tmp_path / "out")
    return evaluate(model=llama, tasks=tasks, **{**folders, "output_path": out, "progress": False, **fields})


def answers(run: Run, task: str = "toy_add") -> dict[int, Any]:
    """The answers to each document of a task."""
    return {row["doc_id"]: row["resps"] for row in run.samples(task)}


def test_a_run_of_all_kinds(llama: str, tmp_path: Path) -> None:
    run = go(llama, tmp_path, "toy_add,toy_choice,toy_rolling")
    block = run.block
    assert block is not None and run.status == "complete"
    assert (block.model.family, block.model.lineage) == ("causal", None)
    assert {name: task.tier for name, task in block.tasks.items()} == dict.fromkeys(run.tasks, "E1")
    add = block.tasks["toy_add"]
    assert (add.decoding["temperature"], add.decoding["top_k"], add.decoding["early_stop"]) == (0.0, 0, True)
    assert add.decoding["mask_id"] is None and block.tasks["toy_choice"].likelihood == {"estimator": "exact"}
    assert block.cost.tpf == 1.0
    assert block.cost.nfe == block.cost.tokens + 3 * 5 + 6  # one for each token, choice and text
    perplexity = run.results["results"]["toy_rolling"]["word_perplexity,none"]
    assert perplexity > 1


def test_perplexity_of_a_diffusion_model(tmp_path: Path) -> None:
    """As lm-eval computes it from the sums of each text, whose records have their Monte Carlo errors."""
    run = go("tiny-llada-base", tmp_path, "toy_rolling", likelihood={"estimator": "fast"})
    rows = list(run.samples("toy_rolling"))
    values = [row["dare_bench"][0]["value"] for row in rows]
    words = sum(len(row["doc"]["question"].split()) for row in rows)
    perplexity = run.results["results"]["toy_rolling"]["word_perplexity,none"]
    assert perplexity == pytest.approx(math.exp(-sum(values) / words), rel=1e-6)
    assert all(row["dare_bench"][0]["stderr"] > 0 for row in rows)


def test_repeats_resume_and_rows_change_no_answer(llama: str, tmp_path: Path) -> None:
    fields = {"decoding": {"temperature": 1.0, "top_p": 0.9}, "repeats": 3}
    whole = go(llama, tmp_path / "whole", "toy_add", **fields)
    part = go(llama, tmp_path / "part", "toy_add", limit=2, max_rows=1, **fields)
    assert answers(part) == {doc: resps for doc, resps in answers(whole).items() if doc < 2}
    extended = go(llama, tmp_path / "part", "toy_add", max_rows=4, **fields)
    assert extended.path == part.path and answers(extended) == answers(whole)
    texts = [text for ((*repeats,),) in answers(whole).values() for text in repeats]
    assert len(texts) == 18 and len(set(texts)) > 12
    assert whole.block is not None and whole.block.tasks["toy_add"].tier == "E2"


def test_shards_give_the_same_run_in_batches_of_the_default_size(
    llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = go(llama, tmp_path / "alone", "toy_add,toy_choice")
    monkeypatch.setattr(devices, "get_context", lambda _: forkserver)  # workers that import nothing again
    two = go(llama, tmp_path / "two", "toy_add,toy_choice", devices=2)
    assert answers(two) == answers(alone)
    # Their batches have other sizes, so log-likelihoods may differ in the last bits.
    for doc, choices in answers(alone, "toy_choice").items():
        for ((value, greedy),), ((other, other_greedy),) in zip(choices, answers(two, "toy_choice")[doc], strict=True):
            assert float(other) == pytest.approx(float(value), rel=1e-5) and other_greedy == greedy
    assert two.block is not None
    assert [event.what for event in two.block.events] == ["answered in 2 shards side by side"]

    model, sizes, taken = load(llama).loaded, list[int](), 0
    compute = generation.generate_batch

    def generate_batch(network: Any, rows: Any, *args: Any, **options: Any) -> None:
        sizes.append(len(rows))
        assert taken <= sum(sizes), "a worker takes no more than it answers at once"
        compute(network, rows, *args, **options)

    def pieces() -> Iterator[list[Request]]:
        nonlocal taken
        for i in range(40):
            taken += 1
            yield [Request(f"{i}", "generate", [5, 6, i], decoding={"gen_length": 1}, seed=i)]

    monkeypatch.setattr(causal_model, "generate_batch", generate_batch)
    with Journal(tmp_path / "journal") as journal:
        Queue(model, journal).drain(pieces(), share=40)
    assert sizes == [16, 16, 8] and model.default_rows == 16


def test_opencompass(llama: str, tmp_path: Path) -> None:
    need_package("opencompass")
    fields = {"harness": "opencompass", "data_dir": str(BENCH), "include_path": (), "limit": 1}
    run = go(llama, tmp_path, "gsm8k_gen,hellaswag_ppl", **fields, decoding={"gen_length": 8})
    assert run.status == "complete" and set(run.tasks) == {"gsm8k", "hellaswag"}
    assert run.block is not None and run.block.cost.requests == 5
    chat = go(llama, tmp_path, "gsm8k_gen", **fields, decoding={"gen_length": 8}, apply_chat_template=True)
    (row,) = chat.samples("gsm8k")
    assert row["dare_bench"][0]["nfe"] <= 8


def test_dry_run_counts_and_times(llama: str, tmp_path: Path) -> None:
    seen = preview(llama, tasks="dare_arithmetic", limit=3, output_path=str(tmp_path))
    assert seen.forwards == 3 * 4 and seen.timing.samples == 3
    assert seen.model["mask_id"] is None and seen.model["attention"] == "causal"


def test_validate(llama: str) -> None:
    results = {check.name: check for check in validate(llama)}
    assert results.pop("mask id").passed is None
    assert all(check.passed for check in results.values()), results


def test_trainings_are_refused_with_the_reason(llama: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which no method trains: all methods here train masked diffusion"):
        train(method="sft", model=llama, task="dare_arithmetic", output_path=str(tmp_path / "out"), max_steps=1)
    assert not (tmp_path / "out").exists()
