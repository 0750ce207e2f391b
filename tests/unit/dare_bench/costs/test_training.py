"""The forwards of a step as the methods' own sources make them, memory and time of an 8B, and the advice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dare_bench
from dare_bench.costs.rehearsal import rows_of
from dare_bench.costs.trace import GPUS, UTILIZATION
from dare_bench.costs.training import StepEstimate, estimate
from dare_bench.errors import CheckpointError, DataError, UnknownNameError, UsageError
from dare_bench.sweeps import costs
from dare_bench.training.spec import TrainSpec, train_spec

LLADA, SDAR = "GSAI-ML/LLaDA-8B-Instruct", "JetLM/SDAR-8B-Chat"
WEIGHTS = 8_015_581_184


def asked(processes: int = 8, gpu: str = "H100", method: str = "coupled_grpo", **more: Any) -> StepEstimate:
    fields = {"model": LLADA, "task": "gsm8k", "peft": "lora", "max_steps": 100, **more}
    options = {name: fields.pop(name) for name in list(fields) if name not in TrainSpec.model_fields}
    return estimate(train_spec(method=method, output_path="-", options=options, **fields), processes, gpu)


# -- forwards of a step ------------------------------------------------------------------------------------------------

RL = {
    "model": "tiny-llada-base",
    "task": "dare_arithmetic",
    "rows": 20,
    "peft": None,
    "max_steps": None,
    "num_train_epochs": 2,
    "num_generations": 4,
    "num_iterations": 4,
    "per_device_train_batch_size": 8,
    "rollout": {"steps": 4},
}


@pytest.mark.parametrize(
    ("method", "more", "expected"),
    [
        # A canvas of 4 tokens takes 4 forwards, used for 4 steps; 3 of 4 steps need old values, all the reference's.
        ("d1", {}, (1.0, 1.75, 1.0)),
        ("d1", {"beta": 0.0}, (1.0, 0.75, 1.0)),
        ("d1", {"rollout": {}}, (0.5, 1.75, 1.0)),  # its paper's: half as many forwards as tokens
        ("d1", {"peft": "lora"}, (1.0, 1.75, 1.0)),  # the reference does not part its values from the update
        ("coupled_grpo", {"beta": 0.0, "gradient_accumulation_steps": 2}, (1.0, 4.5, 3.0)),
        ("espo", {"num_iterations": 1, "num_mc": 3, "beta": 0.0}, (4.0, 0.0, 6.0)),
        # Its copies are the same in all steps, so that old values are computed once.
        ("cj_grpo", {"rollout": {"steps": 2, "block_length": 4}}, (0.5, 2.5, 2.0)),
        # A tree of 2 x 2 has 6 segments of 2 forwards for 4 leaves, and 3 copies.
        ("dtreerpo", {"tree_branch_factor": 2, "distillation": 0.0}, (0.75, 0.75 * 1.25, 0.75)),
        # Values of the policy in each step, where an update is divided, unless each copy has a loss of its own.
        ("spg", {"num_iterations": 1, "gradient_accumulation_steps": 2}, (4.0, 2.0, 2.0)),
        (
            "mdpo",
            {"num_iterations": 1, "beta": 0.0, "confidence_weights": True, "micro_batch_size": 3},
            (4.0, 0.0, 4.0),
        ),
        ("cj_grpo", {"num_iterations": 1, "beta": 0.0, "importance_cap": 2.0, "micro_batch_size": 3}, (4.0, 0.0, 4.0)),
        # Blocks of 4, in as many forwards; the learner sees all blocks of a forward at once.
        ("just_grpo", {"model": "tiny-sdar-base", "num_iterations": 1, "rollout": {}}, (8.0, 0.0, 4.0)),
        ("bgpo", {"model": "tiny-sdar-base", "num_iterations": 1, "rollout": {}}, (8.0, 0.0, 16.0)),
    ],
)
def test_a_completion_takes_the_forwards_of_sampler_old_values_reference_and_copies(
    method: str, more: dict[str, Any], expected: tuple[float, float, float]
) -> None:
    step = asked(1, method=method, **{**RL, **more})
    counts = step.sampled, step.scored, len(step.copies)
    accumulated = 8 * step.spec.gradient_accumulation_steps
    assert tuple(count / accumulated for count in counts) == pytest.approx(expected)


def test_processes_share_a_group_and_an_epoch_counts_each_use() -> None:
    two = asked(2, **{**RL, "num_generations": 8, "per_device_train_batch_size": 4}, method="d1")
    assert len(two.copies) == 4 and two.items == 8
    assert two.steps == 2 * 20 * 8 * 4 // 8, "two epochs of 20 prompts, 8 completions of each, 4 steps on each"
    with pytest.raises(UsageError, match=r"12 completions of an optimizer step .* multiple of --num-generations 10"):
        asked(3, per_device_train_batch_size=4)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"prompt": "2+2=", "chosen": "4", "rejected": "5"}) + "\n")
    return str(tmp_path / "pairs.jsonl")


def test_noised_rows_and_pairs(pairs: str) -> None:
    sft = asked(method="sft", bf16=True, peft=None, fsdp=True)
    assert list(sft.phases) == ["update"] and sft.fits
    lengths = sft.copies.batch.lengths
    assert len(lengths) == 8 and min(lengths) > 93, "a prompt, and canvases whose length is drawn"
    assert sft.about.startswith(f"64 items with rows of {sum(lengths) / 8:.0f} tokens (the mean lengths of openai/")
    dpo = asked(method="dpo", task=None, data=pairs, bf16=True)
    assert len(dpo.copies) == 8 * 2
    assert dpo.scored == 2 * 8 * 2, "the adapter is off for the reference, so values come apart"
    assert len(asked(method="vrpo", task=None, data=pairs, bf16=True).copies) == 8 * 16


# -- rows --------------------------------------------------------------------------------------------------------------

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "12+34="},
    {"role": "assistant", "content": "46"},
    {"role": "user", "content": "2+2="},
    {"role": "assistant", "content": "4"},
]


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A dialogue with two answers, so two examples."""
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    return str(tmp_path / "chat.jsonl")


@pytest.mark.parametrize("model", ["tiny-llada-base", "tiny-sdar-base"])
def test_rows_have_the_tokens_of_the_chat_template(model: str, data: str) -> None:
    loaded = dare_bench.load(model, device="cpu").loaded
    pairs = ((CHAT[:2], CHAT[2]), (CHAT[:4], CHAT[4]))
    tokens = sum(len(loaded.encode(p)) + len(loaded.encode(a["content"])) + 1 for p, a in pairs) / 2
    step = asked(1, method="sft", model=model, task=None, data=data, peft=None, padding="masked_out")
    assert step.rows.count == 2 and step.rows.source == "its tokenizer"
    assert tokens - 1 <= step.copies.batch.lengths[0] <= tokens + 2, "what a template puts behind an answer"


def test_rows_that_the_training_leaves_out_or_refuses_are_no_rows(data: str) -> None:
    loaded = dare_bench.load("tiny-llada-base", device="cpu").loaded
    long = train_spec(method="sft", model="tiny-llada-base", data=data, output_path="-", max_length=60)
    with pytest.raises(DataError, match="1 of 2 rows are longer than 60 tokens"):
        rows_of(long, "examples", loaded)
    assert rows_of(long.model_copy(update={"overlong": "drop"}), "examples", loaded).count == 1


def test_without_the_checkpoint_an_estimate_says_how_it_counts(data: str) -> None:
    rows = asked(1, method="sft", task=None, data=data, peft=None).rows
    lengths = [(len(row.prompt), len(row.answer)) for (row,) in rows.some.items]
    assert lengths == [(round(15 / 3.5 + 30), round(2 / 3.5)), (round(21 / 3.5 + 30), round(1 / 3.5))]
    assert rows.source == "characters / 3.5" and rows.count == 2


def test_rows_that_are_nowhere_are_unknown() -> None:
    with pytest.raises(UsageError, match=r"the lengths of the rows of org/chat are unknown: .* give a local file"):
        asked(1, method="sft", task=None, data="org/chat")


# -- memory and time of an 8B ------------------------------------------------------------------------------------------


def test_seconds_are_near_two_operations_per_parameter_and_token() -> None:
    """Ten completions of 93 + 256 tokens, 256 forwards for two steps, three copies; without gradients 7.5 forwards."""
    step, rate = asked(), 989.4e12 * UTILIZATION / (2 * WEIGHTS) / (10 * 349)
    by_hand = {"rollout": 128 / rate, "score": 7.5 / rate, "update": 3 * 2 / rate}
    assert step.seconds == pytest.approx(by_hand, rel=0.12), "less the last layer and the head of unscored tokens"
    slow = asked(gpu="A100").seconds
    assert slow["rollout"] == pytest.approx(step.seconds["rollout"] * 989.4 / 312)


def test_fsdp_holds_a_share_and_gathers_the_weights_in_every_forward() -> None:
    small = {"model": SDAR, "method": "cj_grpo", "per_device_train_batch_size": 2, "num_generations": 2}
    whole, sharded = asked(**small), asked(fsdp=True, **small)
    gathered = sharded.parameters * 2 * 7 / 8 / (GPUS["H100"].link_gb_per_s * 1e9 * UTILIZATION)
    assert sharded.seconds["rollout"] == pytest.approx(sharded.sampled / 2 * gathered)
    assert whole.seconds["rollout"] < sharded.seconds["rollout"]
    assert sharded.held["weights"] * 8 == pytest.approx(whole.held["weights"])
    assert whole.held["gradients"] == sharded.held["gradients"] * 8, "DDP holds a copy that it reduces"


def test_devices_that_compute_the_same_rows_divide_what_rows_need(data: str) -> None:
    sft = {"method": "sft", "task": None, "data": data, "peft": None, "bf16": True}
    alone, four = asked(**sft), asked(**sft, sequence_parallel_size=4)
    assert four.phases["update"].peak == alone.phases["update"].peak / 4 and four.held == alone.held
    assert four.phases["update"].flop == alone.phases["update"].flop / 4 and four.items * 4 == alone.items
    with pytest.raises(UsageError, match=r"does not divide the number of processes, 8; give 1, 2, 4, 8"):
        asked(sequence_parallel_size=3)
    with pytest.raises(UsageError, match=r"does not divide the 32 attention heads \(8 of keys\) of sdar"):
        asked(9, model=SDAR, method="cj_grpo", sequence_parallel_size=3)


def test_the_base_is_held_in_its_dtype_and_an_adapter_in_float32() -> None:
    step = asked(2, gpu="A100", fsdp=True)
    assert (step.parameters, step.trained) == (WEIGHTS, 83_886_080) and step.gpu.name == "A100 80GB SXM"
    assert step.held["weights"] == WEIGHTS + 83_886_080 * 4 / 2
    assert step.seconds.keys() == step.needed.keys() - {"loading"}


def test_the_advice_makes_it_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPUS, "A100", GPUS["A100"]._replace(memory_gb=24.0))
    hard = asked(1, "A100", gradient_checkpointing=True, per_device_train_batch_size=20)
    changes = hard.least_changes()
    assert not hard.fits and changes is not None and list(changes) == ["micro_batch_size"]
    size = changes["micro_batch_size"]
    small, large = (replace(hard, spec=hard.spec.model_copy(update={"micro_batch_size": n})) for n in (size, 2 * size))
    assert small.fits and not large.fits
    assert asked(fsdp=True).least_changes() == {"gradient_checkpointing": True}
    assert asked(1, peft=None).advice() == "it does not fit; it fits with --gradient-checkpointing --peft lora"


def test_a_checkpoint_of_which_nothing_is_known_and_refused_settings() -> None:
    with pytest.raises(CheckpointError, match=r"'GSAI-ML/LLaDA-8B-Instruc' is not on .*; closest: GSAI-ML/LLaDA-8B-In"):
        asked(model="GSAI-ML/LLaDA-8B-Instruc")
    with pytest.raises(UsageError, match="fsdp shards a model over several processes, and this is one"):
        asked(1, fsdp=True)
    with pytest.raises(UnknownNameError, match="unknown GPU 'B200'"):
        asked(gpu="B200")
    with pytest.raises(UsageError, match="needs fully masked completions"):
        asked(model=SDAR)


def test_a_sweep_adds_the_operations_of_all_steps(tmp_path: Path) -> None:
    train = {"method": "d1", **{name: v for name, v in RL.items() if v is not None and name != "model"}, "max_steps": 6}
    built = costs.estimate({"models": "tiny-llada-base", "train": {**train, "seed": [0, 1]}}, tmp_path / "out")
    (cost,) = {cost for node, cost in built if node.kind == "train"}
    assert "6 steps of 8 completions in rows of 10 tokens" in cost.text
    assert "forwards of a device: rollout 8, score 14, update 8; " in cost.text
    step = asked(1, **{**RL, "max_steps": 6}, method="d1")
    assert cost.hours == pytest.approx(6 * sum(step.seconds.values()) / 3600)
    assert not (tmp_path / "out").exists()
