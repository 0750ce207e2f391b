"""Preference optimization on the bundled bases: every family, either kind of reference, through the loop."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from bundled_training import FAMILIES
from bundled_training import opened as opened_family
from require import need_package
from table_policy import accumulated, loss_of

from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.protocols import AdapterSettings
from dare_bench.trainers.preference import DPO, VRPO
from dare_bench.trainers.reference_policy import open_reference_policy
from dare_bench.trainers.steps import StepShape
from dare_bench.training.rows import TokenRow, Tokens
from dare_bench.training.spec import train_spec

LORA = AdapterSettings(r=4, alpha=8.0)


def cpu():
    return need_package("accelerate").Accelerator(cpu=True)


def opened(family, lora=False):
    model = opened_family(family)
    if lora:
        need_package("peft")
        model.add_adapter(LORA)
    return model


class Bench:
    """``Services`` for one family; counts what is opened and what it is called."""

    def __init__(self, family):
        self.family, self.opened, self.forwards = family, [], 0

    def open(self, checkpoint):
        self.opened.append(checkpoint)
        model = opened_family(self.family) if checkpoint is None else load(checkpoint, device="cpu").loaded
        model.network.register_forward_hook(self._count)
        return model

    def _count(self, *_):
        self.forwards += 1

    def evaluate(self, checkpoint, step):
        raise AssertionError("nothing was asked for")

    def counts(self, folder):
        return None

    def lineage(self, folder, step, steps, counts=None, canvas_lengths=None):
        (folder / "lineage.json").write_text(json.dumps({"step": step}))


def pairs(count=4):
    """Token ids that every bundled vocabulary has; answers of unlike lengths."""
    return Tokens(
        "pairs",
        tuple(
            (
                TokenRow(tuple(range(20, 24 + i)), tuple(range(30, 35 + i)), f"row {i}", 2 * i),
                TokenRow(tuple(range(20, 24 + i)), tuple(range(50, 53)), f"row {i}", 2 * i + 1),
            )
            for i in range(count)
        ),
        "hash",
        "pairs",
        8,
    )


def spec(**fields):
    given = {"method": "vrpo", "model": "m", "data": "d", "output_path": "out", "max_steps": 2, "logging_steps": 1}
    return train_spec(**{**given, "report_to": "none", "per_device_train_batch_size": 2, **fields})


def method(model, kind=VRPO, **options):
    return kind(kind.settle({"draws": 2, **options}, model.spec), model.spec, 8)


def step_of(dpo, pairs_=None, number=0, shape=None, process=0):
    return dpo.source(pairs_ or pairs(), shape or StepShape(4), 0, process).step(number)


def reference_of(dpo, requested, model, bench, accelerator=None):
    """The reference as the loop opens it, each step in one forward."""
    accelerator = accelerator or cpu()

    def values(network, step):
        with torch.no_grad(), accelerator.autocast():
            return network(**dpo.inputs(step.copies).arguments()).nll.float()

    return open_reference_policy(dpo, requested, model, bench, accelerator, values)


def policy_of(model):
    def losses(given):
        return model.network(**given.arguments()).nll

    return losses


def moved(model):
    """The adapter no longer changes nothing."""
    torch.manual_seed(0)
    for name, weight in model.network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_off_is_the_base_opened_a_second_time(family):
    model, bench = moved(opened(family, lora=True)), Bench(family)
    dpo = method(model)
    off = reference_of(dpo, spec(peft="lora"), model, bench)
    assert bench.opened == [], "costs no memory"
    second = reference_of(dpo, spec(), model, bench)
    assert bench.opened == [None]
    step = step_of(dpo)
    assert torch.equal(off(step), second(step))
    with torch.no_grad():
        own = step.sums(policy_of(model)(dpo.inputs(step.copies)))
    assert float((own - step.sums(off(step))).abs().min()) > 1e-3, "the policy is another, also afterwards"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_at_the_start_every_pair_costs_log_2_and_the_gradient_is_not_zero(family, lora):
    model = opened(family, lora)
    model.network.train()
    dpo = method(model)
    reference = reference_of(dpo, spec(peft="lora" if lora else None), model, Bench(family))
    loss, figures = loss_of(dpo, step_of(dpo), policy_of(model), reference)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-5)
    assert figures["rewards/margins"][0] == pytest.approx(0, abs=1e-4)
    loss.backward()
    trained = {n: p for n, p in model.network.named_parameters() if p.requires_grad}
    assert any(p.grad is not None and float(p.grad.abs().max()) > 1e-4 for p in trained.values())
    assert all(("lora_" in name) is lora for name in trained)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_and_its_gradients_do_not_depend_on_the_cut(family):
    model, bench = moved(opened(family, lora=True)), Bench(family)
    dpo = method(model, draws=4, noise="coupled")
    reference = reference_of(dpo, spec(peft="lora"), model, bench)
    result = []
    for processes, count in ((1, 1), (1, 3), (2, 2)):
        model.network.zero_grad()
        parts = [step_of(dpo, shape=StepShape(4 // processes, 1, processes), process=p) for p in range(processes)]
        total = sum(accumulated(dpo, part, policy_of(model), count, reference)[0] for part in parts)
        grads = [p.grad.flatten() for p in model.network.parameters() if p.requires_grad]
        result.append((total, torch.cat(grads)))
    for total, grad in result[1:]:
        assert total == pytest.approx(result[0][0], rel=1e-5)
        assert float((grad - result[0][1]).norm()) <= 1e-5 * float(result[0][1].norm())


@pytest.mark.parametrize(
    ("family", "kind", "lora"),
    [("llada", DPO, False), ("llada", VRPO, True), ("fast_dllm_v2", VRPO, False), ("fast_dllm_v2", DPO, True)],
)
def test_the_loop_raises_the_margin_of_the_preferred_answers(kind, lora, family, tmp_path):
    model, bench = opened(family, lora), Bench(family)
    dpo = method(model, kind, draws=4, noise="counts")
    requested = spec(
        peft="lora" if lora else None, max_steps=6, learning_rate=6e-3 if lora else 6e-4, lr_scheduler_type="constant",
        warmup_steps=0, per_device_train_batch_size=4,
    )  # fmt: skip
    dpo.fit(requested, model, pairs(), tmp_path, bench)
    assert bench.opened == ([] if lora else [None])
    base, trained = opened(family), model
    margins = []
    for policy in (base, trained):
        judge = method(base, draws=8)
        reference = reference_of(judge, spec(), base, bench)
        with torch.no_grad():
            figures = loss_of(judge, step_of(judge, number=3), policy_of(policy), reference)[1]
        margins.append(figures["rewards/margins"][0] / 4)
    assert margins[0] == pytest.approx(0, abs=1e-4)
    assert margins[1] > 0.1


def test_kept_noise_costs_one_pass_of_the_reference(tmp_path):
    model, bench = opened("llada"), Bench("llada")
    dpo = method(model, fresh_noise=False)
    dpo.fit(spec(max_steps=6), model, pairs(), tmp_path / "kept", bench)
    assert bench.forwards == 4, "four pairs; twelve were asked for"
    again = Bench("llada")
    model = opened("llada")
    method(model).fit(spec(max_steps=6), model, pairs(), tmp_path / "fresh", again)
    assert again.forwards == 6, "one a step"


def test_what_is_logged(tmp_path):
    model = opened("sdar")
    method(model).fit(spec(save_steps=1), model, pairs(), tmp_path, Bench("sdar"))
    state = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())
    (entry,) = [entry for entry in state["log_history"] if "loss" in entry]
    assert entry["loss"] == pytest.approx(math.log(2), abs=1e-3)
    names = {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"}
    assert names | {"logps/chosen", "logps/rejected"} <= set(entry)
    assert entry["logps/chosen"] < -1


def test_figures_after_a_resume_are_the_mean_of_the_steps_since(tmp_path):
    requested, result = spec(max_steps=4, save_steps=2, logging_steps=2), []
    for _ in range(2):  # the second time from checkpoint-2
        model = opened("llada")
        method(model).fit(requested, model, pairs(), tmp_path, Bench("llada"))
        state = json.loads((tmp_path / "trainer_state.json").read_text())
        logged = [entry for entry in state["log_history"] if "loss" in entry]
        result.append([{k: v for k, v in entry.items() if "second" not in k} for entry in logged])
    assert [entry["step"] for entry in result[1]] == [1, 2, 4]
    assert result[1] == result[0]


def test_the_reference_may_be_another_checkpoint_of_the_family():
    model, bench = opened("llada"), Bench("llada")
    dpo = method(model, reference="tiny-llada")
    reference = reference_of(dpo, spec(), model, bench)
    assert bench.opened == ["tiny-llada"]
    own = reference_of(method(model), spec(), model, bench)
    assert not torch.allclose(reference(step_of(dpo)), own(step_of(dpo)), atol=0.1)
    lora = opened("llada", lora=True)
    reference_of(dpo, spec(peft="lora"), lora, bench)
    assert bench.opened[-1] == "tiny-llada", "also under LoRA"


def test_a_reference_of_other_tokens_is_refused():
    model = opened("llada")
    dpo = method(model, reference="tiny-dream")
    with pytest.raises(UsageError, match="reference='tiny-dream' has family='dream', the model 'llada'"):
        reference_of(dpo, spec(), model, Bench("llada"))


def test_a_sharded_network_is_asked_as_often_by_every_process():
    """Kept sums would let one process skip a forward in which the others wait for its shard."""
    model, bench = opened("llada", lora=True), Bench("llada")
    dpo = method(model, fresh_noise=False)
    assert reference_of(dpo, spec(peft="lora", fsdp=True), model, bench).cache is None
    assert reference_of(dpo, spec(peft="lora"), model, bench).cache == {}
    assert reference_of(dpo, spec(fsdp=True), model, bench).cache == {}


def test_the_reference_computes_in_the_precision_of_the_training():
    model, seen = opened("llada"), []
    accelerator = SimpleNamespace(device=torch.device("cpu"), autocast=lambda: torch.autocast("cpu", torch.bfloat16))

    class Typed(Bench):
        def open(self, checkpoint):
            other = super().open(checkpoint)
            layer = next(m for m in other.network.modules() if isinstance(m, torch.nn.Linear))
            layer.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
            return other

    dpo = method(model)
    reference_of(dpo, spec(), model, Typed("llada"), accelerator)(step_of(dpo))
    assert set(seen) == {torch.bfloat16}
