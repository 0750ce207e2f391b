"""Reinforcement learning whose completions a served engine samples, through a server that answers with our own sampler:
the training is that of the model in training, bit by bit, and what a server can do wrong ends it in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import command
import pytest
import served_engines
from ranks import on_ranks
from require import need_package
from safetensors.torch import load_file
from served_engines import StandIn

from dare_bench.errors import DareError, DecodingError, EngineError, UsageError
from dare_bench.model_adapters.served import server as http

need_package("accelerate")
BASE = "tiny-sdar-base"
FIELDS: dict[str, Any] = {
    "method": "bgpo", "model": BASE, "task": "dare_arithmetic", "rows": 64, "per_device_train_batch_size": 8,
    "max_steps": 4, "logging_steps": 1, "report_to": (), "save_steps": 1, "learning_rate": 3e-4, "warmup_steps": 0,
    "lr_scheduler_type": "constant", "num_generations": 4, "num_iterations": 2, "num_mc": 3,
}  # fmt: skip
"""Two rollouts of two steps each."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(http, "_LONGEST_WAIT", 0.002)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with served_engines.sampling_sglang(BASE) as running:
        yield running


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A served training that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with served_engines.sampling_sglang(BASE) as running:
        train(out, running)
    return out


def train(out: Path, server: StandIn | None = None, **more: Any) -> Any:
    from dare_bench.training.run import train

    given = {**FIELDS, "output_path": str(out), **({} if server is None else served(server.url)), **more}
    return train(**given)


def served(url: str) -> dict[str, Any]:
    return {"rollout_engine": "sglang", "rollout_engine_url": url, "rollout_engine_args": {"retries": 1}}


def weights(out: Path) -> bytes:
    return next(out.glob("*model.safetensors")).read_bytes()


def rollout(out: Path, step: int) -> dict[str, Any]:
    (part,) = json.loads((out / f"checkpoint-{step}" / "rollout.json").read_text())
    return part


def loaded(server: StandIn) -> list[str]:
    """The versions of the weights that a server was told to load."""
    return [body["weight_version"] for body in server.asked if "weight_version" in body]


@pytest.mark.parametrize(("method", "length"), [("bgpo", 11), ("ebpo", 3)])
def test_a_served_training_is_that_of_the_model_in_training(
    tmp_path: Path, server: StandIn, method: str, length: int
) -> None:
    """Completions that end with an EOS in an early block, and those that their length ends inside one."""
    here, there = tmp_path / "here", tmp_path / "there"
    longer = {"beta": 0.04, "max_completion_length": length, "per_device_train_batch_size": 16}
    train(here, method=method, **longer)
    train(there, server, method=method, **longer)
    lengths = set()
    for step in (1, 3):
        ours, theirs = rollout(here, step), rollout(there, step)
        assert [c["tokens"] for c in theirs["completions"]] == [c["tokens"] for c in ours["completions"]]
        for name in ("texts", "rewards", "advantage", "old", "weights_version"):
            assert theirs[name] == ours[name], name
        assert all(set(c["set_at"]) == {-1} and c["logprobs"] == [] for c in theirs["completions"])
        lengths |= {len(c["tokens"]) for c in ours["completions"]}
    assert len(lengths) > 1 or length == 3, "completions end in different blocks"
    assert weights(there) == weights(here) != weights(here / "checkpoint-2")
    assert [version.partition("-")[0] for version in loaded(server)] == ["1", "2"]
    assert not (there / "rollout-weights").exists()


def test_what_sampled_is_recorded(tmp_path: Path, server: StandIn) -> None:
    trained = train(tmp_path, server, max_steps=1, eval={"tasks": "dare_arithmetic", "limit": 1})
    (run,) = trained.runs
    lineage = run.block.model.lineage
    sampled = lineage["rollout_engine"]
    assert (sampled["name"], sampled["version"], sampled["tier"]) == ("sglang", "0.5.23", None)
    assert (sampled["decoding"]["algorithm"], sampled["decoding"]["temperature"]) == ("Drawn", 0.6)
    assert lineage["settings"]["rollout_engine"] == "sglang" and lineage["forwards"] is None
    assert not any("url" in name for name in lineage["settings"] | lineage["options"])


def test_an_adapter_is_merged_for_the_engine(tmp_path: Path, server: StandIn) -> None:
    lora = {"peft": "lora", "learning_rate": 3e-3}
    train(tmp_path / "here", **lora)
    train(tmp_path / "there", server, **lora)
    ours, theirs = (rollout(tmp_path / name, 3)["completions"] for name in ("here", "there"))
    assert [c["tokens"] for c in theirs] == [c["tokens"] for c in ours] != []
    left, right = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("here", "there"))
    assert all(float((left[name] - right[name]).abs().max()) < 1e-5 for name in left)


@pytest.mark.parametrize("step", [1, 2])
def test_a_resumed_training_ends_with_the_same_weights(tmp_path: Path, server: StandIn, whole: Path, step: int) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole / f"checkpoint-{step}", out / f"checkpoint-{step}")
    (out / "train.json").write_text((whole / "train.json").read_text().replace('"complete"', '"running"'))
    train(out, server)
    assert weights(out) == weights(whole)
    assert len(loaded(server)) == (2 - (step + 1) // 2), "the rollout in use is in the checkpoint"


def test_a_server_that_dies_within_a_rollout_ends_the_training_and_it_goes_on(
    tmp_path: Path, server: StandIn, whole: Path
) -> None:
    sample, count = server.sample, 0

    def dying(prompt: Sequence[int], params: Mapping[str, Any]) -> list[int]:
        nonlocal count
        count += 1
        server.dead = count > 10  # within the second rollout
        return sample(prompt, params)  # type: ignore[misc]

    server.sample = dying
    out = tmp_path / "out"
    with pytest.raises(EngineError, match=r"SGLang at http://127.0.0.1:\d+: .* does not answer either[^\n]*$"):
        train(out, server)
    assert not (out / "rollout-weights").exists() and (out / "checkpoint-2" / "lineage.json").exists()
    server.dead, server.sample = False, sample
    train(out, server)
    assert weights(out) == weights(whole)


def test_a_finished_training_needs_no_server(tmp_path: Path, server: StandIn) -> None:
    train(tmp_path, server, max_steps=1)
    server.dead = True
    assert train(tmp_path, server, max_steps=1).path == tmp_path
    assert train(tmp_path, server, max_steps=1, rollout_engine_url="http://127.0.0.1:9").path == tmp_path
    with pytest.raises(UsageError, match='holds another training: rollout_engine was "sglang", now null'):
        train(tmp_path, max_steps=1)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_stale_weights_end_the_training(tmp_path: Path, server: StandIn) -> None:
    server.stale = True
    with pytest.raises(EngineError, match=r"states weight version default after it loaded version 1-"):
        train(tmp_path, server)


def test_weights_that_another_program_replaces_within_a_rollout_end_the_training(
    tmp_path: Path, server: StandIn
) -> None:
    sample = server.sample

    def replacing(prompt: Sequence[int], params: Mapping[str, Any]) -> list[int]:
        server.facts["weight_version"] = "theirs"
        return sample(prompt, params)  # type: ignore[misc]

    server.sample = replacing
    with pytest.raises(EngineError, match=r"weights changed from version 1-\w+ to theirs while it answered"):
        train(tmp_path, server)


def test_weights_that_the_server_refuses_end_the_training(tmp_path: Path, server: StandIn) -> None:
    server.loads = lambda body: "shape mismatch"
    with pytest.raises(EngineError, match=r"rollout-weights/saved: SGLang at .* (shape mismatch|did not load it)"):
        train(tmp_path, server)


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (lambda tokens: tokens[:-1], r"answered with \d+ tokens, which end inside a block; .* ignore_eos\?"),
        (lambda tokens: [*tokens[:-1], 10**6], "answered with the token 1000000"),
        (lambda tokens: [*tokens[:-1], 10**18], "has 1000000000000000000 in output_ids where a token id was expected"),
    ],
)
def test_an_answer_that_is_no_completion_ends_the_training(
    tmp_path: Path, server: StandIn, cut: Any, said: str
) -> None:
    sample = server.sample
    server.sample = lambda prompt, params: cut(sample(prompt, params))  # type: ignore[misc]
    with pytest.raises(DareError, match=said):
        train(tmp_path, server, max_completion_length=3)


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"method": "cj_grpo", "num_mc": None}, UsageError, "cj_grpo reads more of a rollout than the tokens"),
        ({"method": "just_grpo", "num_mc": None}, UsageError, "just_grpo reads more of a rollout"),
        (
            {"method": "mdpo", "model": "tiny-llada-base", "num_mc": None},
            UsageError,
            "mdpo reads more of a rollout",
        ),
        (
            {"method": "dtreerpo", "model": "tiny-llada-base", "num_mc": None, "tree_branch_factor": 2},
            UsageError,
            "dtreerpo reads more of a rollout",
        ),
        ({"method": "coupled_grpo", "num_mc": None}, UsageError, "coupled_grpo needs fully masked completions"),
        (
            {"method": "coupled_grpo", "model": "tiny-llada-base", "num_mc": None},
            UsageError,
            "holds a model of family 'sdar' with block-causal attention, and .* family 'llada' with bidirectional",
        ),
        ({"model": "tiny-llada2-base"}, UsageError, "'sdar' with block-causal attention, and .* 'llada2'"),
        ({"rollout_engine": "openai"}, UsageError, "'openai' cannot replace its weights.* engines that can: sglang"),
        ({"rollout_engine": "lmdeploy"}, UsageError, "'lmdeploy' cannot replace its weights"),
        ({"rollout_engine": "slang"}, DareError, "unknown engine 'slang'; closest: sglang"),
        ({"rollout_engine": None}, UsageError, "rollout_engine_url belongs to rollout_engine, which is not given"),
        ({"rollout_engine_url": None}, UsageError, "needs the address of its server: --rollout-engine-url"),
        ({"rollout_engine_args": {"retrys": 1}}, UsageError, "'retrys' is not a field of them"),
        ({"rollout_engine_args": {"tokenizer": BASE}}, UsageError, "tokenizer: it is that of the model in training"),
        ({"rollout": {"stop": "x"}}, DecodingError, "rollout stop: a served completion ends at an EOS"),
        ({"rollout": {"steps": 4}}, DecodingError, "the rollout of bgpo: engine sglang cannot honor steps=4"),
        ({"rollout": {"early_stop": True}}, DecodingError, "early_stop is off where"),
        ({"max_completion_length": 1000}, UsageError, "exceed the model's context of 512"),
        ({"method": "sft", "num_mc": None}, UsageError, "sft has no setting 'rollout_engine"),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_written(
    tmp_path: Path, server: StandIn, more: dict[str, Any], error: type[Exception], said: str
) -> None:
    fields = {**FIELDS, **served(server.url), "output_path": str(tmp_path / "out"), **more}
    if fields["method"] == "sft":
        for name in ("num_generations", "num_iterations"):
            del fields[name]
    from dare_bench.training.run import train

    with pytest.raises(error, match=said) as refused:
        train(**{name: value for name, value in fields.items() if value is not None})
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists() and not loaded(server)


@pytest.mark.parametrize("field", [{"steps": 4}, {"stop": "x"}, {"temperature": 1}])
def test_a_field_that_no_server_has_is_refused_before_it_is_asked(
    tmp_path: Path, server: StandIn, field: dict[str, Any]
) -> None:
    server.dead = True
    with pytest.raises(DecodingError, match=next(iter(field))):
        train(tmp_path / "out", server, rollout=field)


def test_servers_that_cannot_sample_for_a_rollout_are_refused(tmp_path: Path, server: StandIn) -> None:
    server.started["dllm_algorithm"] = "LowConfidence"
    with pytest.raises(DecodingError, match=r"the rollout of bgpo: .*LowConfidence always takes the most probable"):
        train(tmp_path / "out", server)
    server.started["dllm_algorithm"] = None
    with pytest.raises(UsageError, match="family 'sdar' with causal attention"):
        train(tmp_path / "out", server)
    server.dead = True
    with pytest.raises(EngineError, match="is it running"):
        train(tmp_path / "out", server)
    assert not (tmp_path / "out").exists()


# -- processes and commands --------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "sequence parallel": {"max_steps": 3, "per_device_train_batch_size": 8, "sequence_parallel_size": 2},
    "fsdp2": {"max_steps": 3, "fsdp": True},
    "lora and fsdp2": {"max_steps": 3, "fsdp": True, "peft": "lora"},
}


def _train_on_rank(folder: str, url: str) -> int:
    from accelerate.state import AcceleratorState

    from dare_bench.training.run import train

    for name, case in CASES.items():
        AcceleratorState._reset_state()
        fields = {**FIELDS, "per_device_train_batch_size": 4, "output_path": f"{folder}/{name}", **served(url), **case}
        train(**fields)
    return 0


def test_two_processes_have_the_completions_of_one(tmp_path: Path, server: StandIn) -> None:
    on_ranks(_train_on_rank, 2, str(tmp_path), server.url, timeout=240)
    assert len(loaded(server)) == 2 * len(CASES), "one process alone talks to the server"
    train(tmp_path / "full", server, max_steps=3)
    train(tmp_path / "lora", server, max_steps=3, peft="lora")
    for name, case in CASES.items():
        alone = tmp_path / case.get("peft", "full")
        one = rollout(alone, 1)
        parts = json.loads((tmp_path / name / "checkpoint-1" / "rollout.json").read_text())
        assert [text for part in parts for text in part["texts"]] == one["texts"]
        assert len(parts) == (1 if "sequence_parallel_size" in case else 2)
        left, right = (load_file(next(f.glob("*model.safetensors"))) for f in (alone, tmp_path / name))
        assert all(float((left[key] - right[key]).abs().max()) < 2e-5 for key in left)


def test_the_command(tmp_path: Path, server: StandIn) -> None:
    words = ["train", "bgpo", "--model", BASE, "--task", "dare_arithmetic", "--rows", "16", "--max-steps", "1"]
    words += ["--num-generations", "4", "--num-mc", "2", "--report-to", "none", "-o", str(tmp_path / "out")]
    flags = ["--rollout-engine", "sglang", "--rollout-engine-url", server.url, "--rollout-engine-args", "retries=0"]
    result = command.run(*words, *flags)
    assert result.returncode == 0 and result.stdout.splitlines()[-1] == str(tmp_path / "out"), result.stderr
    assert f"completions are sampled by sglang 0.5.23 at {server.url}; its exactness tier is unknown" in result.stderr
    shown = command.run("rl", "replay", str(tmp_path / "out"), "--step", "1")
    assert shown.returncode == 0 and "sampled from the table completions/step-000001.jsonl" in shown.stdout
    (tmp_path / "out/completions/step-000001.jsonl").unlink()
    refused = command.run("rl", "replay", str(tmp_path / "out"), "--step", "1")
    assert refused.returncode == 2 and "engine sglang sampled, whose random numbers" in refused.stderr
