"""How many tokens a sweep's estimate takes for the rows of a training: as many as the training makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dare_bench
from dare_bench.costs import sweep as sweep_costs
from dare_bench.costs.sizes import rows_of
from dare_bench.errors import DataError
from dare_bench.training.spec import TrainSpec, train_spec

SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "12+34="},
    {"role": "assistant", "content": "46"},
    {"role": "user", "content": "2+2="},
]
ANSWER = {"role": "assistant", "content": "4"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dialogue with two answers, so two examples."""
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": [*SAID, ANSWER]}) + "\n")
    return file


def asked(model: str, data: Path, **more: Any) -> TrainSpec:
    return train_spec(method="sft", model=model, data=str(data), output_path="-", **{"max_steps": 2, **more})


@pytest.mark.parametrize("model", ["tiny-llada-base", "tiny-dream-base", "tiny-sdar-base", "tiny-llada2-base"])
def test_chat_rows_have_the_tokens_of_the_chat_template(
    model: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = dare_bench.load(model, device="cpu").loaded
    answers = [(SAID[:2], SAID[2]), (SAID, ANSWER)]
    least = sum(len(loaded.encode(prompt)) + len(loaded.encode(turn["content"])) for prompt, turn in answers) / 2
    seen = rows_of(asked(model, data, options={"padding": "masked_out"}), loaded)
    assert seen.count == 2
    assert least + 1 <= seen.tokens <= least + 3, "EOS, and what a template puts behind an answer: a token or two"
    seen = rows_of(asked(model, data), loaded)
    block = loaded.spec.block_length
    if block is None:
        assert least + 1 <= seen.tokens <= least + 60, "the mean of drawn canvases"
        fixed = rows_of(asked(model, data, options={"canvas_length": 30}), loaded)
        assert fixed.tokens == sum(len(loaded.encode(prompt)) + 30 for prompt, _ in answers) / 2
    else:
        assert (2 * seen.tokens) % block == 0
        assert least + 1 <= seen.tokens <= least + 2 + block, "the rest of the block in which the answer ends"
    content = sum(len(loaded.encode(turn["content"])) for turn in SAID)
    assert seen.tokens > 2 * content
    sweep = {"models": model, "train": {"method": "sft", "data": str(data), "max_steps": 2}}
    for largest in (sweep_costs.SMALL, 0):  # above this size weights are not read
        monkeypatch.setattr(sweep_costs, "SMALL", largest)
        built = sweep_costs.SweepEstimates.of(sweep, tmp_path / "out")
        assert f"rows of {seen.tokens:.0f} tokens (its tokenizer)" in built.costs[f"train/{model}-sft"].text


def test_rows_that_the_training_leaves_out_or_refuses_are_no_rows(data: Path) -> None:
    loaded = dare_bench.load("tiny-llada-base", device="cpu").loaded
    long = asked("tiny-llada-base", data, max_length=60, max_steps=None, num_train_epochs=1)
    with pytest.raises(DataError, match="1 of 2 rows are longer than 60 tokens"):
        rows_of(long, loaded)
    kept = rows_of(long.model_copy(update={"overlong": "drop"}), loaded)
    assert (kept.count, kept.tokens < 60) == (1, True)


def test_without_the_checkpoint_an_estimate_says_how_it_counts(data: Path) -> None:
    seen = rows_of(asked("tiny-llada-base", data))
    assert seen.source == "characters / 3.5, 30 for a chat template"
    texts = [("Be brief.12+34=", "46"), ("Be brief.12+34=462+2=", "4")]
    assert seen.tokens == sum(round(len(p) / 3.5 + 30) + round(len(a) / 3.5) for p, a in texts) / 2


RL = {
    "task": "dare_arithmetic",
    "rows": 20,
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
        ("d1", {"peft": "lora"}, (1.0, 1.75, 1.0)),
        ("espo", {"peft": "lora"}, (1.0 * 4 / 4, 4 * 2.75, 4.0)),  # its units span looks: its own values too
        ("coupled_grpo", {"beta": 0.0, "gradient_accumulation_steps": 2}, (1.0, 4.5, 3.0)),
        ("espo", {"num_iterations": 1, "num_mc": 3, "beta": 0.0}, (4.0, 0.0, 6.0)),
        # Equal looks in all 4 steps: old values once.
        ("cj_grpo", {"rollout": {"steps": 2, "block_length": 4}}, (0.5, 2.5, 2.0)),
        # A tree of 2 x 2 has 6 segments of 2 forwards for 4 leaves, and 3 looks.
        ("dtreerpo", {"tree_branch_factor": 2}, (0.75, 0.75 * 1.25, 0.75)),
        # Values of the policy in each step, where an update is divided and units span looks.
        ("spg", {"num_iterations": 1, "gradient_accumulation_steps": 2}, (4.0, 2.0, 2.0)),
        (
            "mdpo",
            {"num_iterations": 1, "beta": 0.0, "confidence_weights": True, "looks_per_forward": 3},
            (4.0, 0.0, 4.0),
        ),
        ("cj_grpo", {"num_iterations": 1, "beta": 0.0, "importance_cap": 2.0, "looks_per_forward": 3}, (4.0, 0.0, 4.0)),
    ],
)
def test_the_estimate_of_a_rollout_counts_sampler_old_values_and_reference(
    method: str, more: dict[str, Any], expected: tuple[float, float, float], tmp_path: Path
) -> None:
    loaded = dare_bench.load("tiny-llada-base", device="cpu").loaded
    options = {name: value for name, value in {**RL, **more}.items() if name not in TrainSpec.model_fields}
    fields = {name: value for name, value in {**RL, **more}.items() if name in TrainSpec.model_fields}
    spec = train_spec(
        method=method, model="tiny-llada-base", output_path="-", num_train_epochs=2, options=options, **fields
    )
    rows = rows_of(spec, loaded)
    assert rows.count == 20 * 4 * options.get("num_iterations", 4), "each use of a completion"
    assert rows.tokens == 10, "a prompt of 6 tokens and a canvas of 4"
    assert rows.forwards == pytest.approx(expected)


def test_the_estimate_of_a_sweep_knows_rollouts(tmp_path: Path) -> None:
    train = {"method": "d1", "max_steps": 6, "per_device_train_batch_size": 8, **RL}
    built = sweep_costs.SweepEstimates.of({"models": "tiny-llada-base", "train": train}, tmp_path / "out")
    cost = built.costs["train/tiny-llada-base-d1"]
    assert "6 steps of 8 completions in rows of about 10 tokens" in cost.text
    assert "forwards of each in a step: 1 + 1.75 + 1" in cost.text
    assert cost.forwards == 6 * 8 * 3.75
    parameters = built._sizes["tiny-llada-base"].active
    assert cost.flop == pytest.approx(6 * 8 * 10 * parameters * (2 * 1 + 2 * 1.75 + 6 * 1))
