"""Seconds of the phases of an optimizer step, when a served engine pays, and what a dry run says."""

from __future__ import annotations

from typing import Any

import pytest

from dare_bench.costs import step_report
from dare_bench.costs.recipe import GPUS, UTILIZATION
from dare_bench.costs.serving import DeviceRollout
from dare_bench.costs.step import StepEstimate, estimate
from dare_bench.errors import CheckpointError, UnknownNameError, UsageError
from dare_bench.training.spec import train_spec

LLADA, SDAR = "GSAI-ML/LLaDA-8B-Instruct", "JetLM/SDAR-8B-Chat"
ROLLOUT = DeviceRollout(completions=10, forwards=256, seconds_per_forward=0.01, weight_bytes=16e9, bandwidth=160e9)


def asked(
    processes: int = 8, gpu: str = "H100", method: str = "coupled_grpo", speedup: float | None = None, **more: Any
) -> StepEstimate:
    fields = {"model": LLADA, "task": "gsm8k", "peft": "lora", "max_steps": 100, **more}
    return estimate(train_spec(method=method, output_path="-", **fields), processes, gpu, speedup)


def seconds(*given: Any, **more: Any) -> dict[str, float]:
    found = asked(*given, **more).seconds
    assert found is not None
    return {str(phase): value for phase, value in found.items()}


# -- seconds -----------------------------------------------------------------------------------------------------------


def test_the_phases_are_their_operations_at_a_share_of_the_peak() -> None:
    """Ten completions of 93 + 256 tokens, 256 forwards for two steps, three looks. The reference is the network with
    its adapter off: its values, the policy's own, and half of the time old ones, are passes without gradients."""
    tokens = 10 * (63 + 30 + 256)
    rate = 989.4e12 * UTILIZATION / (2 * 8_015_581_184)  # tokens a second in a forward
    assert seconds() == pytest.approx(
        {"rollout": 128 * tokens / rate, "score": 7.5 * tokens / rate, "update": 3 * 2 * tokens / rate}
    )
    full = seconds(peft=None, bf16=True)
    assert full["update"] == pytest.approx(3 * 3 * tokens / rate)
    assert full["score"] == pytest.approx(4.5 * tokens / rate), "its values come from the forward of the update"
    assert seconds(gradient_checkpointing=True)["update"] == pytest.approx(3 * 3 * tokens / rate)


def test_twice_the_completions_take_twice_the_time_and_processes_share_a_step() -> None:
    one, two = seconds(), seconds(per_device_train_batch_size=20)
    assert two == pytest.approx({phase: 2 * value for phase, value in one.items()})
    accumulated = seconds(gradient_accumulation_steps=2)
    assert accumulated["rollout"] == pytest.approx(2 * one["rollout"])
    for processes in (1, 16):
        assert seconds(processes) == pytest.approx(one)
    epoch = {"max_steps": None, "num_train_epochs": 1}  # 7,473 prompts, ten completions of each, two steps on each
    assert [asked(n, **epoch).steps for n in (1, 8)] == [2 * 7473, -(-2 * 7473 // 8)]


def test_a_slower_gpu_takes_longer_by_its_peak_and_small_passes_by_its_memory() -> None:
    assert seconds(gpu="A100")["rollout"] == pytest.approx(seconds()["rollout"] * 989.4 / 312)
    blocks = {"model": SDAR, "method": "cj_grpo", "per_device_train_batch_size": 2, "num_generations": 2}
    blocks["options"] = {"num_generations": blocks.pop("num_generations")}
    slow, fast = seconds(gpu="H100", **blocks), seconds(gpu="H200", **blocks)
    assert slow["rollout"] == pytest.approx(fast["rollout"] * 4.8 / 3.35), "a forward reads all weights for 8 tokens"


def test_fsdp_gathers_the_weights_in_every_forward() -> None:
    small = {"model": SDAR, "method": "cj_grpo", "per_device_train_batch_size": 2, "options": {"num_generations": 2}}
    whole, sharded = asked(**small), asked(fsdp=True, **small)
    assert sharded.seconds is not None and whole.seconds is not None and sharded.work is not None
    gathered = sharded.training.size.parameters * 2 * 7 / 8 / (450e9 * UTILIZATION)  # type: ignore[operator]
    assert sharded.seconds["rollout"] == pytest.approx(sharded.work["rollout"].forwards * gathered)
    assert whole.seconds["rollout"] < sharded.seconds["rollout"]
    assert seconds(fsdp=True)["rollout"] == seconds()["rollout"], "hidden behind the operations of ten rows"


def test_float32_products_have_no_time() -> None:
    silent = asked(peft=None)
    assert silent.seconds is None and silent.rollout is None and silent.memory is not None
    assert any("products are float32 (give --bf16)" in note for note in step_report.unknown(silent))


# -- a served engine ---------------------------------------------------------------------------------------------------


def test_an_engine_pays_from_where_it_saves_more_than_sending_takes() -> None:
    assert (ROLLOUT.in_place, ROLLOUT.sending) == (25.6, 0.1)
    pays = ROLLOUT.pays_from
    assert pays == pytest.approx(25.6 / 25.5)
    assert ROLLOUT.served(pays) == pytest.approx(ROLLOUT.in_place)
    assert ROLLOUT.served(1.1 * pays) < ROLLOUT.in_place < ROLLOUT.served(0.9 * pays)


def test_an_engine_pays_from_as_many_completions_as_save_the_time_of_sending() -> None:
    slow = DeviceRollout(completions=1, forwards=1, seconds_per_forward=0.01, weight_bytes=16e9, bandwidth=160e9)
    assert slow.pays_from is None, "sending takes ten times as long"
    count = slow.completions_from(2)
    assert count == pytest.approx(20)
    many = DeviceRollout(count, 1, 0.01, 16e9, 160e9)
    assert many.served(2) == pytest.approx(many.in_place) and many.pays_from == pytest.approx(2)
    assert slow.completions_from(1) is None


def test_the_rollout_of_the_estimate_is_that_of_all_steps_on_it() -> None:
    two = asked()
    assert two.rollout is not None and two.seconds is not None
    assert two.rollout.in_place == pytest.approx(2 * two.seconds["rollout"]) and two.rollout.forwards == 256
    assert two.rollout.sending == 8_015_581_184 * 2 / (GPUS["H100"].link_gb_per_s * 1e9 * UTILIZATION)
    assert two.at_peak == pytest.approx(1 / UTILIZATION)


# -- what is said ------------------------------------------------------------------------------------------------------


def test_the_text_says_memory_time_and_on_what_it_stands() -> None:
    text = step_report.text(asked(fsdp=True, speedup=2.0))
    assert "8,015,581,184 parameters, 83,886,080 trained" in text
    assert "a step: 80 completions in rows of about 349 tokens" in text
    assert "30 masked copies in 1 forward of at most 10,470 tokens" in text
    assert "it does not fit; it fits with --gradient-checkpointing" in text
    assert "a served engine pays if it is at least 1.002 times as fast" in text and "at a speed-up of 2: " in text
    assert "the mean lengths of openai/gsm8k main, test" in text and "40% of the H100 SXM's data sheet" in text
    assert "unknown: the time of the adapter's float32 products" in text and "not counted: rewards" in text
    assert max(map(len, text.splitlines())) <= 125


def test_the_advice_makes_it_fit() -> None:
    assert step_report.advice(asked(fsdp=True, gradient_checkpointing=True)) == ""
    hard = asked(1, "A100", gradient_checkpointing=True, per_device_train_batch_size=160, looks_per_forward=480)
    assert not hard.fits() and step_report.advice(hard).startswith("it fits with --looks-per-forward ")
    limit = int(step_report.advice(hard).split()[-1])
    less = {"gradient_checkpointing": True, "per_device_train_batch_size": 160}
    assert asked(1, "A100", looks_per_forward=limit, **less).fits()
    assert not asked(1, "A100", looks_per_forward=2 * limit, **less).fits()
    assert step_report.advice(asked(1, peft=None)) == "it fits with --gradient-checkpointing --peft lora"
    assert asked(1, peft="lora", gradient_checkpointing=True).fits() and not asked(1, peft="lora").fits()
    assert step_report.advice(asked(8, peft=None)) == "it fits with --gradient-checkpointing --fsdp"


def test_the_record_holds_the_numbers_of_the_text() -> None:
    built = asked(fsdp=True)
    record = step_report.record(built)
    assert built.memory is not None
    assert record["memory"]["peak"] == built.memory.needed("update") and record["fits"] is False
    assert sum(record["seconds"].values()) == pytest.approx(20.0, abs=0.1)
    assert record["rollout"]["pays_from"] == pytest.approx(1.0025, abs=1e-4)


def test_supervised_and_preference_methods_have_no_rollout() -> None:
    sft = asked(method="sft", bf16=True, peft=None, fsdp=True)
    assert sft.seconds is not None and list(sft.seconds) == ["update"] and sft.rollout is None
    assert sft.fits()
    assert "a step: 64 items with rows of 221 tokens" in step_report.text(sft), "93 of a prompt, a canvas of 128"
    dpo = asked(method="dpo", task=None, data="org/pairs", bf16=True)
    assert dpo.seconds is not None and dpo.training.division is not None
    assert dpo.training.division.looks == 8 * 2
    # The reference is the network with its adapter off, so that the policy's values take a pass of their own.
    assert dpo.seconds["score"] == pytest.approx(dpo.seconds["update"])
    assert asked(method="vrpo", task=None, data="org/pairs", bf16=True).training.division.looks == 8 * 16  # type: ignore[union-attr]


def test_a_checkpoint_of_which_nothing_is_known_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"'GSAI-ML/LLaDA-8B-Instruc' is not on .*; closest: GSAI-ML/LLaDA-8B-In"):
        asked(model="GSAI-ML/LLaDA-8B-Instruc")
    with pytest.raises(CheckpointError, match=r"the checkpoint 'checkpoints/none' is not on this machine, and no rec"):
        asked(model="checkpoints/none")


def test_a_local_checkpoint_is_counted_by_its_files() -> None:
    built = asked(1, model="tiny-llada", task="dare_sudoku", dtype="bfloat16")
    assert built.training.size.parameters == 898_688
    assert "rows of 44 tokens (its tokenizer)" in list(step_report.assumed(built))


def test_settings_that_a_training_refuses_are_refused() -> None:
    with pytest.raises(UsageError, match=r"12 completions of an optimizer step .* multiple of --num-generations 10"):
        asked(3, per_device_train_batch_size=4)
    with pytest.raises(UsageError, match="fsdp shards a model over several processes, and this is one"):
        asked(1, fsdp=True)
    with pytest.raises(UnknownNameError, match="unknown GPU 'B200'"):
        asked(gpu="B200")
    with pytest.raises(UsageError, match="needs fully masked completions"):
        asked(model=SDAR)


# -- sequence parallelism ----------------------------------------------------------------------------------------------

SFT = {
    "method": "sft",
    "task": None,
    "data": "org/chat",
    "peft": None,
    "bf16": True,
    "per_device_train_batch_size": 64,
}


def test_devices_that_compute_the_same_rows_divide_activations_and_operations() -> None:
    alone, four = asked(**SFT), asked(**SFT, sequence_parallel_size=4)
    assert alone.memory is not None and four.memory is not None
    whole, quarter = (estimate.memory.phases["update"]["activations"] for estimate in (alone, four))
    assert 1 / 4 < quarter / whole < 0.28, "the result of attention is held before and after it is exchanged"
    assert four.memory.held == alone.memory.held
    tokens = alone.training.division.tokens / 4  # type: ignore[union-attr]
    assert four.training.division.tokens == tokens  # type: ignore[union-attr]
    exchanged = 2 * tokens * 32 * 4 * 4096 * 2 * 3 / 4 / (450e9 * UTILIZATION)
    assert four.seconds == pytest.approx({"update": alone.seconds["update"] / 4 + exchanged})  # type: ignore[index]
    assert "a step: 128 items" in step_report.text(four) and "on a group of 4 devices 64" in step_report.text(four)


def test_devices_that_compute_the_same_rows_divide_the_samples() -> None:
    alone, two = asked(), asked(sequence_parallel_size=2)
    assert two.seconds is not None and alone.seconds is not None
    assert two.seconds["rollout"] == pytest.approx(alone.seconds["rollout"] / 2)
    assert two.training.division.samples == 5  # type: ignore[union-attr]
    assert asked(sequence_parallel_size=2, max_steps=None).steps == 2 * asked(max_steps=None).steps


def test_groups_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"does not divide the number of processes, 8; give 1, 2, 4, 8"):
        asked(sequence_parallel_size=3)
    with pytest.raises(UsageError, match=r"does not divide the 32 attention heads \(8 of keys\) of sdar"):
        asked(9, model=SDAR, method="cj_grpo", sequence_parallel_size=3)
