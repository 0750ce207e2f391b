"""Supervised fine-tuning through the method itself: what it is in expectation, and what does not change it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from bundled_training import FAMILIES, opened
from require import need_package
from table_policy import MASK, SHIFTED, SPEC, Table, V, accumulated, elbo, loss_of, masks, tokens
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.masked_copies import masked_copies
from dare_bench.diffusion.plan import Plan
from dare_bench.diffusion.schedules import Noise, cart
from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.sdar.network import SDARConfig, SDARForCausalLM
from dare_bench.protocols import AdapterSettings
from dare_bench.trainers.sft import SFT
from dare_bench.trainers.steps import StepShape
from dare_bench.training.spec import train_spec

ROWS = [([0, 1], [2, 3, 4]), ([1], [0, 4, 4, 2])]


def method(spec=SPEC, canvas=None, **options):
    return SFT(SFT.settle(options, spec), spec, canvas)


def step_of(sft, rows, number=0, shape=None, process=0):
    """Without EOS behind answers: rows are what they say."""
    data = tokens("examples", *[[row] for row in rows], cut=True)
    return sft.source(data, shape or StepShape(len(rows)), 0, process).step(number)


def whole(sft, rows):
    """The first step, which holds all rows, in the order given."""
    step = step_of(sft, rows)
    return step.take(sorted(range(len(rows)), key=lambda i: step.items[i][0].where))


def hidden(sft, step, masked_T, probability_T):
    """The same rows with a mask of one's own, weighed by the method."""
    probability_T = torch.where(masked_T, probability_T, 1.0)
    noise = Noise(step.copies.batch, masked_T, probability_T, sft.schedule.draws)
    weight_N = sft.weigh(noise)[masked_T]
    return replace(step, copies=masked_copies(step.copies.batch, masked_T, MASK), weight_N=weight_N)


def expectation(sft, rows, losses):
    """The mean of the method's loss when each row's count is uniform on 1..L, by enumeration of each row's masks.

    The loss is a sum over rows, so the rows' masks can be enumerated one row at a time, nothing of the others hidden.
    """
    step, total = whole(sft, rows), 0.0
    batch = step.copies.batch
    assert len(batch.lengths) == len(rows)
    for r, (_, answer) in enumerate(rows):
        places = ((batch.row_T == r) & batch.response_T).nonzero()[:, 0]
        for mask, chance in masks(len(answer)):
            masked_T = torch.zeros_like(batch.response_T)
            masked_T[places[mask]] = True
            share = torch.full(masked_T.shape, int(mask.sum()) / len(answer), dtype=torch.float64)
            total += chance * float(loss_of(sft, hidden(sft, step, masked_T, share), losses)[0].detach())
    return total


# Expectations


@pytest.mark.parametrize("noise", ["uniform", "even", "counts", "coupled"])
@pytest.mark.parametrize("normalize", ["row", "token"])
def test_uniform_logits_cost_log_v(noise, normalize):
    sft = method(noise=noise, normalize=normalize, draws=2)
    rows = [([0], [1] * (1 + i % 9)) for i in range(32)]

    def losses(given):
        return torch.full((len(given.at_N),), math.log(V), dtype=torch.float64)

    each = torch.stack([loss_of(sft, step_of(sft, rows, n), losses)[0] for n in range(120)])
    error = float(each.std()) / math.sqrt(120)
    assert error < 0.02 * math.log(V)
    assert float(each.mean()) == pytest.approx(math.log(V), abs=4 * error + 1e-3 * math.log(V))


@pytest.mark.parametrize(("spec", "shift"), [(SPEC, False), (SHIFTED, True)], ids=["llada", "dream"])
def test_the_mean_over_noise_is_the_negative_elbo_per_token(spec, shift):
    table = Table()
    per_row = [-elbo(table, p, a, shift).item() for p, a in ROWS]
    by_row = sum(total / len(a) for total, (_, a) in zip(per_row, ROWS, strict=True)) / len(ROWS)
    by_token = sum(per_row) / sum(len(a) for _, a in ROWS)
    assert expectation(method(spec), ROWS, table.losses) == pytest.approx(by_row, rel=1e-9)
    assert expectation(method(spec, normalize="token"), ROWS, table.losses) == pytest.approx(by_token, rel=1e-9)
    assert by_row != pytest.approx(by_token, rel=1e-3)
    plain = elbo(table, *ROWS[0]).item(), elbo(table, *ROWS[0], shift=True).item()
    assert plain[0] != pytest.approx(plain[1], rel=1e-3), "the shift is no formality"


def test_sdars_mean_is_the_block_wise_elbo_per_token():
    """Each block's own ELBO given the clean blocks before it, over all learned tokens of the step."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"num_key_value_heads": 1, "vocab_size": V, "max_position_embeddings": 64, "initializer_range": 0.3}
    network = SDARForCausalLM(SDARConfig(head_dim=8, block_size=2, **sizes, **more)).eval()
    spec = replace(SPEC, attention="block-causal", block_length=2)
    sft = method(spec, normalize="token")
    rows = [([0, 1], [2, 3, 4]), ([3], [0, 4, 4])]  # blocks of 2 and 1; of 1 and 2, since the prompt ends within one

    def losses(given):
        return network(**given.arguments()).nll

    expected = 0.0
    with torch.no_grad():
        got = expectation(sft, rows, losses)
        for prompt, answer in rows:
            row = torch.tensor([*prompt, *answer])
            for start in range(len(prompt) // 2 * 2, len(row), 2):
                columns = [c for c in range(start, min(start + 2, len(row))) if c >= len(prompt)]
                for mask, chance in masks(len(columns)):
                    at = torch.tensor(columns)[mask]
                    canvas = row[: columns[-1] + 1].clone()
                    canvas[at] = MASK
                    logits = network(canvas, None, Plan((len(canvas),), 2)).logits
                    nll = cross_entropy(logits[at], row[at], reduction="sum")
                    expected += chance * float(nll) * len(columns) / int(mask.sum()) / 6
    assert got == pytest.approx(expected, rel=1e-4)


def test_everything_hidden_is_plain_cross_entropy():
    table, sft = Table(), method()
    step = whole(sft, ROWS)
    everything = hidden(sft, step, step.copies.batch.response_T, torch.ones(10, dtype=torch.float64))
    got = float(loss_of(sft, everything, table.losses)[0].detach())
    wanted = 0.0
    for prompt, answer in ROWS:
        canvas = torch.tensor([*prompt, *[MASK] * len(answer)])
        wanted += float(cross_entropy(table(canvas)[len(prompt) :], torch.tensor(answer)).detach()) / 2
    assert got == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("spec", "shift"), [(SPEC, 0), (SHIFTED, 1)], ids=["llada", "dream"])
def test_only_states_that_predict_hidden_tokens_have_a_gradient(spec, shift):
    sft = method(spec, noise="counts")
    step = whole(sft, ROWS)
    logits_TV = torch.randn(10, V, dtype=torch.float64, requires_grad=True)

    def losses(given):
        assert torch.equal(given.tokens_U == MASK, (step.copies.seen_T == MASK))
        return cross_entropy(logits_TV[given.at_N], given.targets_N, reduction="none")

    loss_of(sft, step, losses)[0].backward()
    touched = logits_TV.grad.abs().sum(-1) > 0
    assert torch.equal(touched.nonzero()[:, 0], (step.copies.seen_T == MASK).nonzero()[:, 0] - shift)
    assert touched.any()
    assert not touched.all()


def test_cart_stands_in_place_of_the_level():
    table, sft = Table(), method(SHIFTED, weight="cart")
    step = whole(sft, ROWS)
    masked_T = torch.tensor([0, 0, 1, 1, 0, 0, 1, 0, 1, 0], dtype=torch.bool)
    level_T = torch.full((10,), 0.01, dtype=torch.float64)
    selected = hidden(sft, step, masked_T, level_T)
    nll_N = table.losses(sft.inputs(selected.copies)).detach()
    wanted = torch.dot(
        nll_N, cart(selected.copies.batch, masked_T)[masked_T] / (2 * torch.tensor([3.0, 3, 4, 4]).double())
    )
    torch.testing.assert_close(loss_of(sft, selected, table.losses)[0].detach(), wanted)
    dark = ([], [1, 2, 3])
    item = whole(sft, [dark])
    nothing = hidden(sft, item, torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.float64))
    assert float(loss_of(sft, nothing, table.losses)[0].detach()) == 0.0


def test_the_rate_of_cart_is_a_setting():
    default, changed = (whole(method(SHIFTED, noise="counts", weight="cart", **o), ROWS) for o in ({}, {"cart_q": 0.1}))
    masked_T = default.copies.seen_T == MASK
    ratio_N = changed.weight_N / default.weight_N
    wanted_N = cart(default.copies.batch, masked_T, 0.1)[masked_T] / cart(default.copies.batch, masked_T)[masked_T]
    torch.testing.assert_close(ratio_N, wanted_N)
    assert len(ratio_N) and not torch.equal(ratio_N, torch.ones_like(ratio_N))


def test_the_plain_mean_is_over_all_hidden_tokens_of_a_step():
    sft = method(noise="band", weight="plain", normalize="mask")
    rows = [([0], [1] * (1 + i % 9)) for i in range(8)]
    parts = [step_of(sft, rows, shape=StepShape(2, 1, 4), process=process) for process in range(4)]
    hidden_tokens = sum(len(part.copies.at_N) for part in parts)
    for part in parts:
        assert torch.allclose(part.weight_N, torch.tensor(1 / hidden_tokens).double())


# Cuts


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_and_its_gradients_do_not_depend_on_the_cut(family):
    loaded = opened(family)
    check_cuts(loaded, SFT(SFT.settle({"draws": 2}, loaded.spec), loaded.spec, 12))


@pytest.mark.parametrize(
    "options", [{"weight": "cart", "normalize": "token"}, {"noise": "even"}, {"noise": "band", "weight": "plain"}]
)
def test_whatever_weighs(options):
    loaded = load("tiny-dream-base", device="cpu").loaded
    check_cuts(loaded, SFT(SFT.settle(options, loaded.spec), loaded.spec, 12))


def check_cuts(loaded, sft):
    network = loaded.network.train()
    rows = [(list(range(5, 8 + i)), list(range(9, 10 + (i * 5) % 8))) for i in range(4)]

    def losses(given):
        return network(**given.arguments()).nll

    result = []
    for processes, count in ((1, 1), (1, 2), (1, 4), (2, 2), (4, 1)):
        network.zero_grad()
        shape = StepShape(4 // processes, 1, processes)
        parts = [step_of(sft, rows, shape=shape, process=process) for process in range(processes)]
        total = sum(accumulated(sft, part, losses, count)[0] for part in parts)
        result.append((total, torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])))
    for total, gradient in result[1:]:
        assert total == pytest.approx(result[0][0], rel=1e-6)
        assert float((gradient - result[0][1]).norm()) <= 1e-5 * max(1.0, float(result[0][1].norm()))
    assert float(result[0][1].norm()) > 1e-3


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_loop_lowers_the_loss_of_fast_dllm_v2_and_its_checkpoint_opens(tmp_path, lora):
    """Of rows that end inside a block, and of rows of two blocks."""
    need_package("accelerate")
    loaded, before = opened("fast_dllm_v2"), opened("fast_dllm_v2")
    if lora:
        need_package("peft")
        loaded.add_adapter(AdapterSettings(r=4, alpha=8.0))
    spec = train_spec(
        method="sft", model="m", data="d", output_path="out", max_steps=30, learning_rate=3e-3, warmup_steps=0,
        lr_scheduler_type="constant", per_device_train_batch_size=4, logging_steps=10, report_to="none",
        peft="lora" if lora else None,
    )  # fmt: skip
    data = tokens("examples", *[[([5, 6, 7 + i], list(range(20, 40 + 5 * i)))] for i in range(4)])
    sft = SFT(SFT.settle({}, loaded.spec), loaded.spec, None)

    def lineage(folder, step, steps, counts=None, canvas_lengths=None):
        (folder / "lineage.json").write_text("{}")

    sft.fit(spec, loaded, data, tmp_path, SimpleNamespace(counts=lambda folder: None, lineage=lineage))
    entries = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[-1] < losses[0] - (0.1 if lora else 1)
    if not lora:
        ids = {"mask_id": before.spec.mask_id, "eos_id": before.spec.eos_ids[0]}
        again = load(tmp_path, device="cpu", dtype="float32", **ids).loaded
        step = step_of(sft, [([5, 6, 7], list(range(20, 40)))])
        given = sft.inputs(step.copies).arguments()
        with torch.no_grad():
            trained, read, old = (model.network(**given).nll for model in (loaded, again, before))
        assert torch.equal(trained, read) and float(trained.mean()) < float(old.mean()) - 1


def test_an_update_with_nothing_hidden_is_no_update():
    sft, table = method(), Table()
    step = whole(sft, ROWS)
    none = hidden(sft, step, torch.zeros(10, dtype=torch.bool), torch.ones(10, dtype=torch.float64))
    loss = loss_of(sft, none, table.losses)[0]
    loss.backward()
    assert loss.item() == 0
    assert float(table.mix.grad.abs().max()) == 0


# Options


def test_families_bring_what_their_authors_use():
    def settled(family, **given):
        return SFT.settle(given, opened(family).spec)

    for family in ("llada", "dream"):
        o = settled(family)
        assert (o.noise, o.weight, o.normalize, o.eps) == ("uniform", "elbo", "row", 1e-3)
    o = settled("sdar")
    assert (o.noise, o.weight, o.normalize, o.eps) == ("uniform", "elbo", "token", 1e-3)
    o = settled("llada2")
    assert (o.noise, o.band, o.weight, o.normalize) == ("band", (0.3, 0.8), "plain", "mask")
    o = settled("fast_dllm_v2")
    assert (o.noise, o.draws, o.weight, o.normalize) == ("coupled", 2, "plain", "mask")
    o = settled("llada2", noise="counts", weight="elbo", normalize="row")
    assert (o.noise, o.weight, o.normalize) == ("counts", "elbo", "row")


@pytest.mark.parametrize(
    ("canvas", "options", "response"),
    [
        (None, {}, [1, 2]),  # each step draws the rest
        (6, {}, [1, 2, 5, 5, 5, 5]),
        (6, {"padding": "masked_out"}, [1, 2, 5]),
        (6, {"canvas_length": 4}, [1, 2, 5, 5]),
        (6, {"padding": "longest"}, [1, 2]),
        (1, {}, [1, 2, 5]),
        (None, {"padding": "eos_supervised", "canvas_length": 2}, [1, 2, 5]),
    ],
)
def test_the_room_behind_an_answer(canvas, options, response):
    sft = SFT(SFT.settle(options, SPEC), SPEC, canvas)
    ((row,),) = sft.items(tokens("examples", [([0], [1, 2])]))
    assert list(row.answer) == response
    assert row.prompt == (0,)


def test_the_record_of_the_room_behind_an_answer():
    def record(canvas, block_length, **options):
        resolved = SFT.settle(options, SPEC).resolved(canvas, block_length)
        return resolved.padding, resolved.canvas_length

    assert record(16, None) == ("eos_supervised", 16)
    assert record(16, None, canvas_length=24) == record(None, None, canvas_length=24) == ("eos_supervised", 24)
    assert record(None, 4) == ("eos_supervised", None)
    assert record(16, 4) == ("eos_supervised", 16)
    assert record(16, None, padding="masked_out") == ("masked_out", None)
    assert record(None, None) == ("drawn", None)
    assert record(None, None, padding="drawn", canvas_length=64) == ("drawn", 64)
    with pytest.raises(UsageError, match="padding='drawn': rows of a block-causal model end with the block"):
        record(None, 4, padding="drawn")


def test_a_canvas_ends_on_the_grid_of_blocks():
    spec = replace(SPEC, attention="block-causal", block_length=4)
    sft = SFT(SFT.settle({}, spec), spec, 6)
    ((row,),) = sft.items(tokens("examples", [([0, 3], [1, 2])]))
    assert len(row.prompt) + len(row.answer) == 8
    ((other,),) = sft.items(tokens("examples", [([0, 3, 3], [1, 2])]))
    assert len(other.prompt) + len(other.answer) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drawz": 2}, "sft has no setting 'drawz'; closest: draws"),
        ({"noise": "band"}, "not an ELBO"),
        ({"cart_q": 0.1}, "cart_q=0.1 belongs to weight='cart'"),
        ({"cart_q": 1.0, "weight": "cart"}, "cart_q=1.0"),
        ({"noise": "cosine"}, "noise"),
        ({"block_length": 4}, "no attention blocks"),
        ({"band": "0.3"}, "band"),
        ({"band": "0.8,0.3"}, "band=0.8,0.3"),
        ({"noise": "coupled", "draws": 3}, "complementary pairs"),
        ({"noise": "blocks"}, "noise='blocks' needs block_length"),
        ({"padding": "left"}, "padding"),
        ({"max_pads": 2}, "max_pads'; removed: .* tells the answer's length"),
        ({"padding": "eos_supervised"}, "needs the length of the canvas; give canvas_length"),
        ({"padding": "longest", "canvas_length": 9}, "canvas_length=9 belongs to padding='eos_supervised' or 'drawn'"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        SFT(SFT.settle(options, SPEC), SPEC, None).resolved_options()
    assert "\n" not in str(caught.value)


def test_a_band_comes_as_text_too():
    assert SFT.settle({"band": "0.1,0.9"}, SPEC).band == (0.1, 0.9)
