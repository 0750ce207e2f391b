"""Runs whose answers come from a served engine: what they record, what identifies them, what is refused, how they go on
after a server has died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import lmdeploy_engine
import pytest
import served_engines
import toy_source
from served_engines import StandIn

from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import pack, unpack
from dare_bench.engine.preview import preview
from dare_bench.errors import EngineError, UsageError
from dare_bench.model_adapters.served import lmdeploy
from dare_bench.model_adapters.served import server as http
from dare_bench.runs.reader import Run

toy_source.register()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(http, "_LONGEST_WAIT", 0.002)


@pytest.fixture
def openai() -> Iterator[StandIn]:
    with served_engines.openai() as server:
        yield server


@pytest.fixture
def sglang() -> Iterator[StandIn]:
    with served_engines.sglang() as server:
        yield server


def go(out: Path, server: StandIn | None = None, **fields: Any) -> Run:
    fields = {
        "tasks": "toygen", "harness": "toy", "model": "qwen", "engine": "openai", "output_path": str(out), "limit": 8,
        **({"engine_url": server.url, "engine_args": {"retries": 1}} if server is not None else {}), **fields,
    }  # fmt: skip
    return evaluate(progress=False, **fields)


def test_a_run_records_its_engine_and_that_its_content_is_unverified(openai: StandIn, tmp_path: Path) -> None:
    run = go(tmp_path, openai)
    block = run.block
    assert block is not None and run.status == "complete"
    assert block.model.content_hash == "stated:qwen" and block.model.engine is not None
    assert block.model.engine.model_dump() == {"name": "openai", "version": "vllm 0.11.0", "content_verified": False}
    assert [program.parts["engine"] for program in block.programs] == ["openai vllm 0.11.0"]
    task = block.tasks["toygen"]
    assert (task.tier, task.nfe, block.cost.nfe, block.cost.tpf) == (None, None, None, None)
    assert block.cost.tokens_to_eos > 0 and task.decoding["early_stop"] is True
    assert {score.exactness for score in run.scores()} == {"tier unknown, openai vllm 0.11.0"}
    assert block.cost.tokens == block.cost.decoded_tokens == block.cost.tokens_to_eos
    assert [sample["dare_bench"][0]["tier"] for sample in run.samples("toygen")] == [None] * 8


def test_the_address_and_concurrency_are_no_part_of_the_run_but_the_engine_is(tmp_path: Path) -> None:
    with served_engines.openai() as first:
        run = go(tmp_path, first)
    with served_engines.openai() as second:
        assert go(tmp_path, second, max_rows=2, engine_args={"timeout": 9}).path == run.path
        assert not second.asked
        assert go(tmp_path, second, engine_args={"tokenizer": "tiny-llada"}).path != run.path
    with served_engines.sglang() as third:
        third.facts |= {"model_path": "qwen", "served_model_name": "qwen"}
        assert go(tmp_path, third, engine="sglang").path != run.path


def test_a_server_that_dies_loses_nothing(openai: StandIn, tmp_path: Path) -> None:
    openai.faults = [""] * 3 + ["refuse"] * 100
    health = openai.RequestHandlerClass.fact  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(EngineError, match="finished answers are kept"):
        alive = iter([True, True])  # the two questions when it is opened
        patch.setattr(
            openai.RequestHandlerClass, "fact", lambda self, path: health(self, path) if next(alive, False) else None
        )
        go(tmp_path, openai, max_rows=1)
    asked, openai.faults = len(openai.asked), []
    run = go(tmp_path, openai, max_rows=1)
    assert run.status == "complete" and len(openai.asked) == asked + 8 - 3
    assert run.block is not None and run.block.resumed_from[0].samples == 3


def test_an_answer_that_the_journal_cannot_give_back_is_asked_for_again(
    sglang: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an earlier version recorded one whose token ids were out of range."""
    fields = {"engine": "sglang", "model": "SDAR-1.7B-Chat"}
    run = go(tmp_path, sglang, **fields)
    (file,) = (run.path / "journal").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    at, record = next((i, r) for i, line in enumerate(lines) if (r := unpack(line)) and r["type"] == "sample")
    record["answer"]["tokens"] = [10**30]
    file.write_bytes(b"".join([*lines[:at], pack(record), *lines[at + 1 :]]))
    sglang.asked = []
    again = go(tmp_path, sglang, **fields, limit=9)
    assert again.path == run.path and again.status == "complete" and len(sglang.asked) == 2
    assert f"journal {file.name}, line {at + 1} cannot be read; its sample is computed again" in caplog.text


def test_a_request_that_stays_unanswered_is_a_failure_with_its_cause(openai: StandIn, tmp_path: Path) -> None:
    openai.faults = ["nonsense", "bad"]
    run = go(tmp_path, openai, max_rows=1)
    assert run.status == "incomplete" and run.block is not None
    assert sorted(failure.error for failure in run.block.failures) == [
        "the server: it answered 8 < 9 where JSON was expected",
        "the server: status 400: the grammar is \x1b[31mbroken",
    ]
    again = go(tmp_path, openai)
    assert again.path == run.path and again.status == "complete" and len(openai.asked) == 8 + 2


def test_weights_that_changed_are_another_run(sglang: StandIn, tmp_path: Path) -> None:
    fields = {"engine": "sglang", "model": "SDAR-1.7B-Chat", "limit": 2}
    run = go(tmp_path, sglang, **fields)
    sglang.facts["weight_version"] = "7"
    assert go(tmp_path, sglang, **fields).path != run.path


def test_likelihood_tasks_are_refused_before_anything_runs(openai: StandIn, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"log-likelihoods.*--engine native"):
        go(tmp_path, openai, tasks="toygen,toychoice")
    assert not openai.asked and not list(tmp_path.rglob("results_*"))


def test_workers_of_ours_do_not_divide_a_servers_requests(openai: StandIn, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--devices and --executor divide work"):
        go(tmp_path, openai, devices=2)
    with pytest.raises(UsageError, match="unknown engine 'vlm'"):
        go(tmp_path, openai, engine="vlm")


def test_a_preview_of_a_served_run(openai: StandIn, tmp_path: Path) -> None:
    fields = {"tasks": "toygen", "harness": "toy", "output_path": str(tmp_path), "limit": 2}
    found = preview(model="qwen", engine="openai", engine_url=openai.url, **fields)
    assert found.requests == {"toygen": 2} and found.model["engine_version"] == "vllm 0.11.0"
    assert found.timing.seconds is None and found.timing.samples == 2
    json.dumps(found.plain())


def test_lmdeploy_reads_the_folder_whose_content_is_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = lmdeploy_engine.stand_in()
    monkeypatch.setattr(lmdeploy, "MASK_ID", golden.cases("sdar")["meta"]["mask_id"])
    monkeypatch.setattr(lmdeploy, "_package", lambda: package)
    monkeypatch.setattr(toy_source.ToySource, "_of", _token_prompts(toy_source.ToySource._of))
    run = go(tmp_path, model=str(golden.PARITY / "sdar"), engine="lmdeploy", limit=3, decoding={"gen_length": 4})
    block = run.block
    assert block is not None and run.status == "complete" and block.model.content_hash.startswith("sha256:")
    assert block.model.engine is not None and block.model.engine.content_verified
    assert block.tasks["toygen"].tier == "A" and block.tasks["toygen"].decoding["denoising_steps"] == 4
    native = go(
        tmp_path, model=str(golden.PARITY / "sdar"), engine="native", dtype="bfloat16", limit=3,
        decoding={"gen_length": 4},
    )  # fmt: skip
    assert native.path != run.path and native.block is not None
    assert {s.fingerprint for s in native.scores()} != {s.fingerprint for s in run.scores()}


def _token_prompts(original: Any) -> Any:
    """The toy's requests with token ids, for a checkpoint without a tokenizer."""

    def of(self: Any, task: str, doc: int) -> Any:
        from dataclasses import replace

        return [replace(request, prompt=[doc, 5, 6, 7]) for request in original(self, task, doc)]

    return of
