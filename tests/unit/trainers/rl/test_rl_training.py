"""Two optimizer steps of each algorithm through the loop on the bundled bases, and what ends a training."""

from __future__ import annotations

import json
import shutil
from itertools import cycle

import pytest
import torch
from require import need_package
from safetensors.torch import load_file

from dare_bench.errors import DareError, TrainingError
from dare_bench.loading import load
from dare_bench.protocols import AdapterSettings
from dare_bench.registry import registry
from dare_bench.training.rows import TokenRow, Tokens
from dare_bench.training.spec import train_spec
from dare_bench.types import Reward, RewardPrompt

need_package("accelerate")
ALGORITHMS = ("d1", "coupled_grpo", "cj_grpo", "espo", "just_grpo", "bgpo", "ebpo", "spg", "mdpo", "dtreerpo")
RUNS = [
    *((name, "llada") for name in ALGORITHMS if name != "dtreerpo"),  # which has a test of its own
    *((name, "dream") for name in ("mdpo", "just_grpo")),
    ("bgpo", "sdar"),
    ("ebpo", "llada2"),
]  # fmt: skip
FEW = {
    "bgpo": {"num_mc": 3},
    "ebpo": {"num_mc": 3},
    "dtreerpo": {"num_generations": 4, "tree_branch_factor": 2, "distillation": 1.0},
}
WEIGHTS = "model.safetensors"


def logged(folder):
    state = json.loads((folder / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


@pytest.mark.parametrize(("name", "family"), RUNS)
def test_two_steps_on_a_task(name, family, tmp_path):
    """A rollout and its second inner iteration, with the task's own reward and a KL penalty."""
    from dare_bench.training.run import train

    penalty = {} if name == "spg" else {"beta": 0.04}

    base = load(f"tiny-{family}-base", device="cpu").loaded.path
    train(
        method=name, model=f"tiny-{family}-base", task="dare_arithmetic", rows=64, output_path=str(tmp_path),
        per_device_train_batch_size=16, micro_batch_size=16, max_steps=2, logging_steps=1, report_to=(),
        learning_rate=3e-4, lr_scheduler_type="constant", warmup_steps=0,
        options={
            "num_generations": 4, "num_iterations": 2, "reward": {"format_weight": 0.5}, **FEW.get(name, {}), **penalty,
        },
    )  # fmt: skip
    first, second = logged(tmp_path)
    assert 0 < first["informative_groups"] <= 1 and 0 <= first["accuracy"] <= 1
    assert first["accuracy"] < first["reward"] < 1, "partly right answers have half of the partial credit"
    assert first["grad_norm"] > 1e-3 and second["grad_norm"] > 1e-3
    if penalty:
        assert first["clip_fraction"] == 0.0 and first["kl"] < 1e-8
        assert second["kl"] > 1e-6, "the policy has left the reference"
    assert "reward" not in second, "a rollout is reported once"
    before, after = load_file(base / WEIGHTS), load_file(tmp_path / WEIGHTS)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[key].float(), after[key].float()) for key in before)
    lineage = json.loads((tmp_path / "lineage.json").read_text())
    assert lineage["method"] == name and lineage["options"]["num_iterations"] == 2


# Through the loop alone


class ScriptedServices:
    """``Services`` whose rewards come in turn from a list."""

    def __init__(self, rewards):
        self.values = cycle(rewards)

    def open(self, checkpoint):
        return load("tiny-llada-base", device="cpu").loaded

    def rewards(self, prompts, texts, options):
        return [Reward(next(self.values), 0.0) for _ in texts]

    def evaluate(self, checkpoint, step):
        raise AssertionError("no evaluation was requested")

    def lineage(self, folder, step, steps, counts=None, canvas_lengths=None):
        (folder / "lineage.json").write_text(json.dumps({"step": step}))

    def counts(self, folder):
        return None


def prompts(count=4):
    """Token ids that every bundled vocabulary has."""
    items = tuple((TokenRow(tuple(range(20, 23 + i)), (), f"row {i}", i),) for i in range(count))
    records = tuple(RewardPrompt("", "", "scripted", f"row {i}") for i in range(count))
    return Tokens("prompts", items, "hash", "prompts", 4, records)


def fitted(name, folder, rewards=(1.0, 0.0, 0.0, 0.5), model=None, options=None, **fields):
    """The model after two steps on one rollout of two pairs of completions."""
    model = model or load("tiny-llada-base", device="cpu").loaded
    kind = registry().get("trainer", name).load()
    given = {"num_generations": 2, "num_iterations": 2, **FEW.get(name, {}), **(options or {})}
    if name != "spg":
        given.setdefault("beta", 0.0)
    spec = train_spec(
        **{"method": name, "model": "m", "data": "d", "output_path": str(folder), "max_steps": 2, "logging_steps": 1,
           "report_to": "none", "per_device_train_batch_size": 4, "learning_rate": 1e-4, "weight_decay": 0.0,
           "lr_scheduler_type": "constant", "warmup_steps": 0, **fields}
    )  # fmt: skip
    method = kind(kind.settle(given, model.spec), model.spec, 4)
    method.fit(spec, model, prompts(), folder, ScriptedServices(rewards))
    return model


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.network.parameters()])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_rewards_leave_the_same_bits(name, tmp_path):
    before = weights(load("tiny-llada-base", device="cpu").loaded)
    assert torch.equal(weights(fitted(name, tmp_path, rewards=(0.3,))), before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """name -> the weights after a training with one forward a step, and its folder with a checkpoint of each step."""
    made = {}

    def trained(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("whole")
            made[name] = weights(fitted(name, folder, **settings_of(name))), folder
        return made[name]

    return trained


def settings_of(name):
    return {"options": {} if name == "spg" else {"beta": 0.05}, "adam_epsilon": 1e-3, "save_steps": 1}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_division_into_forwards_does_not_change_the_training(name, whole, tmp_path):
    """One forward, two at least, and accumulation by the same batch in two."""
    wanted, folder = whole(name)
    moved = float((wanted - weights(load("tiny-llada-base", device="cpu").loaded)).norm())
    some = 2 if name == "dtreerpo" else 3  # of three copies, or of at least four
    divisions = {"micro_batch_size": some}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    for i, fields in enumerate(divisions):
        trained = weights(fitted(name, tmp_path / str(i), **settings_of(name), **fields))
        norms, expected = ([entry["grad_norm"] for entry in logged(of)] for of in (tmp_path / str(i), folder))
        assert norms == pytest.approx(expected, rel=1e-3)
        assert float((trained - wanted).norm()) < 1e-3 * moved
    assert moved > 1e-4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_training_resumed_inside_a_rollout_ends_with_the_same_bits(name, whole, tmp_path):
    """From the checkpoint after the first of two steps on a rollout, as a kill leaves it. Other rewards show that the
    rollout is read and not sampled again."""
    whole, out = whole(name)[1], tmp_path
    saved = whole / "checkpoint-1"
    assert (saved / "rollout.json").exists()
    shutil.copytree(saved, out / saved.name)
    fitted(name, out, rewards=(0.3,), **settings_of(name))
    assert (out / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes() != (saved / WEIGHTS).read_bytes()
    assert [entry["loss"] for entry in logged(out)] == [entry["loss"] for entry in logged(whole)]


def test_the_default_schedule_of_coupled_grpo_ends_at_a_tenth_of_the_learning_rate(tmp_path):
    """``cosine_with_min_lr`` with ``min_lr_rate`` 0.1, as published: half way down it is 0.55 of the peak."""
    fitted("coupled_grpo", tmp_path, lr_scheduler_type=None, warmup_steps=0)
    assert [entry["learning_rate"] for entry in logged(tmp_path)] == pytest.approx([1e-4, 0.55e-4])


# What is not finite


@pytest.mark.parametrize(
    ("name", "beta", "clip"), [("d1", 0.0, 1.0), ("d1", 0.1, 0.0), ("cj_grpo", 0.0, 0.0), ("cj_grpo", 0.1, 1.0)]
)
def test_nan_in_the_learner_names_the_rows_and_changes_nothing(name, beta, clip, tmp_path, monkeypatch):
    """Also where no value is needed for the loss, and where gradients are not clipped."""
    model = load("tiny-llada-base", device="cpu").loaded
    before, forward = weights(model), model.network.forward

    def broken(*args, **kwargs):
        result = forward(*args, **kwargs)
        if kwargs.get("targets") is not None and torch.is_grad_enabled():
            result.nll = result.nll * float("nan")
        return result

    monkeypatch.setattr(model.network, "forward", broken)
    with pytest.raises(TrainingError, match=r"step 1: .* nan; rows of the last batch: row \d, .*lower --learning-rate"):
        fitted(name, tmp_path, model=model, options={"beta": beta}, max_grad_norm=clip)
    assert torch.equal(weights(model), before)
    assert not (tmp_path / WEIGHTS).exists()


def test_only_a_training_with_a_checkpoint_advises_to_start_from_it(tmp_path, monkeypatch):
    """The third step breaks; a checkpoint was kept after the second one."""
    losses = registry().get("trainer", "d1").load().loss

    def broken(self, step, nll_N, reference):
        loss, metrics = losses(self, step, nll_N, reference)
        return loss * (float("nan") if step.number == 2 else 1.0), metrics

    monkeypatch.setattr(registry().get("trainer", "d1").load(), "loss", broken)
    for save_steps, advice in ((2, f"check these rows, or start another training from {tmp_path / '2'}/checkpoint-2"),
                               (500, "check these rows")):  # fmt: skip
        with pytest.raises(TrainingError, match="step 3: the loss is nan") as error:
            fitted("d1", tmp_path / str(save_steps), max_steps=3, save_steps=save_steps)
        assert str(error.value).endswith(advice)


def test_nan_in_the_rollout_names_the_cause(tmp_path):
    model = load("tiny-llada-base", device="cpu").loaded
    with torch.no_grad():
        next(iter(model.network.parameters())).fill_(float("nan"))
    with pytest.raises(DareError, match="logits must be finite"):
        fitted("cj_grpo", tmp_path, model=model)


# Passes without gradients


def score_forwards(folder):
    return sum(entry.get("forwards/score", 0.0) for entry in logged(folder))


LORA = {"peft": "lora", "lora_dropout": 0.1}


@pytest.mark.parametrize(
    ("name", "lora"),
    [("cj_grpo", {}), *((name, LORA) for name in ("d1", "bgpo", "dtreerpo"))],
)
def test_a_divided_step_needs_no_pass_for_its_own_values(name, lora, tmp_path, monkeypatch):
    """A loss that is a sum over copies is settled forward by forward: the same losses and weights, up to rounding, as
    with all values before the first forward (a pass without gradients rounds differently), also with a KL penalty."""
    options = {"beta": 0.05}
    size = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "adam_epsilon": 1e-3}
    kind, made = registry().get("trainer", name).load(), {}
    for way in (True, False):
        monkeypatch.setattr(kind, "sums_over_copies", way)
        model = load("tiny-llada-base", device="cpu").loaded
        if lora:
            model.add_adapter(AdapterSettings(8, 16.0, 0.1, ("attention",), 0))
        fitted(name, folder := tmp_path / str(way), model=model, options=options, **size, **lora)
        made[way] = [entry["loss"] for entry in logged(folder)], weights(model), score_forwards(folder)
    losses, trained, passes = zip(*made.values(), strict=True)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5, abs=1e-6)
    assert any(abs(loss) > 1e-4 for loss in losses[0])
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-6)
    updates = sum(entry["forwards/update"] for entry in logged(tmp_path / "True"))
    assert passes[1] - passes[0] == updates, "one copy each without a gradient, only to know its values"


@pytest.mark.parametrize(("name", "fixed"), [("cj_grpo", True), ("just_grpo", True), ("mdpo", True), ("d1", False)])
def test_equal_copies_are_scored_once_for_all_later_iterations(name, fixed, tmp_path, monkeypatch):
    """The old values of a rollout that is used three times."""
    kind, made = registry().get("trainer", name).load(), {}
    for way in dict.fromkeys((fixed, False)):
        if fixed:
            monkeypatch.setattr(kind, "fixed_copies", way)
        model = fitted(name, folder := tmp_path / str(way), options={"num_iterations": 3}, max_steps=3)
        made[way] = [entry["loss"] for entry in logged(folder)], weights(model), score_forwards(folder)
    copies = logged(tmp_path / "False")[0]["forwards/update"]
    assert made[False][2] == 2 * copies
    if fixed:
        assert made[True][2] == copies
        assert made[True][0] == made[False][0] and torch.equal(made[True][1], made[False][1])


def test_a_method_whose_actions_span_copies_is_not_settled_forward_by_forward(tmp_path, monkeypatch):
    monkeypatch.setattr(registry().get("trainer", "coupled_grpo").load(), "sums_over_copies", True)
    with pytest.raises(
        TrainingError, match="coupled_grpo is declared sums_over_copies, and an action has tokens of several"
    ):
        fitted("coupled_grpo", tmp_path)
