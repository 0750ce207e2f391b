"""Optimizer steps: what they hold does not depend on how they are cut, on processes, or on where one begins; their
forwards, metrics, and what a training tells of them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_bench.diffusion.schedules import NoiseSchedule, weights
from dare_bench.trainers.forwards import divide
from dare_bench.trainers.objective import averages
from dare_bench.trainers.phases import Phases
from dare_bench.trainers.progress import TrainingProgress, log_line
from dare_bench.trainers.steps import NoisedRows, StepShape, balanced_parts, permutation, redraw
from dare_bench.training.rows import TokenRow

SCHEDULES = [
    NoiseSchedule("uniform", 2),
    NoiseSchedule("even", 2),
    NoiseSchedule("counts", 3),
    NoiseSchedule("coupled", 2),
    NoiseSchedule("blocks", 2, block_length=2),
]
MASK = 99
SHAPES = [StepShape(8), StepShape(2, 4), StepShape(4, 1, 2), StepShape(2, 2, 2), StepShape(1, 1, 8)]


def row(i, role=0):
    """Rows of many lengths; those of one pair share the prompt."""
    return TokenRow((i,) * (i % 4), tuple(range(1 + (i * 7 + role * 3) % 5)), f"row {i}", 1000 * i + role)


ROWS = [(row(i),) for i in range(11)]
PAIRS = [(row(i), row(i, 1)) for i in range(11)]


def elbo(noise):
    """Weights of which each depends on the whole step, as normalizers do."""
    return weights(noise, "elbo") / noise.masked_T.sum()


def steps(items=ROWS, schedule=SCHEDULES[0], shape=SHAPES[0], process=0, seed=3, fresh=True):
    return NoisedRows(items, schedule, elbo, MASK, shape, seed, process, fresh)


def copies(step):
    """Each copy of a part: its row, mask and weights. Draws are told apart by their order."""
    copies = step.copies
    lengths = list(copies.batch.lengths)
    weight_T = torch.zeros(len(copies.seen_T), dtype=torch.float64)
    weight_T[copies.at_N] = step.weight_N
    assert torch.equal(copies.target_N, copies.batch.tokens_T[copies.at_N])
    parts = (x.split(lengths) for x in (copies.batch.tokens_T, copies.seen_T == MASK, weight_T))
    reported = zip(step.item_R.tolist(), step.role_R.tolist(), *parts, strict=True)
    return [
        (step.items[i][role].key, tuple(tokens.tolist()), tuple(mask.tolist()), tuple(weight.tolist()))
        for i, role, tokens, mask, weight in reported
    ]


def of_step(n, shape, **fields):
    """The parts of a step, from the processes' own sources."""
    return [steps(shape=shape, process=process, **fields).step(n) for process in range(shape.processes)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("items", [ROWS, PAIRS], ids=["rows", "pairs"])
def test_every_division_gives_the_same_copies_masks_and_weights(schedule, items):
    wanted = Counter(copies(steps(items, schedule).step(1)))
    assert sum(wanted.values()) == 8 * len(items[0]) * schedule.draws
    for shape in SHAPES[1:]:
        parts = of_step(1, shape, items=items, schedule=schedule)
        assert Counter(copy for part in parts for copy in copies(part)) == wanted
        assert {part.step_items for part in parts} == {8}
        assert {len(part.items) for part in parts} == {8 // shape.processes}


def test_a_step_is_a_function_of_its_number():
    source = steps(shape=StepShape(2, 2, 2))
    in_order = [copies(source.step(i)) for i in range(12)]
    assert copies(steps(shape=StepShape(2, 2, 2)).step(9)) == in_order[9], "a resumed training begins anywhere"
    assert len({str(part) for part in in_order}) == 12


def test_epochs_cover_every_row_once_in_orders_of_their_own():
    epochs = [permutation(11, 3, epoch) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert permutation(11, 4, 0) != epochs[0]
    seen = Counter(item[0].key for n in range(11) for item in steps().step(n).items)
    assert set(seen.values()) == {8}, "eleven steps of eight are eight epochs of eleven"


def by_row(n, **fields):
    reported = {}
    for step in range(n):
        for copy in copies(steps(**fields).step(step)):
            reported.setdefault(copy[0], []).append(copy[2])
    return reported


def test_noise_is_new_in_each_epoch_unless_it_is_kept():
    items = [(TokenRow((), tuple(range(20)), "", i),) for i in range(8)]
    fresh, kept = (by_row(2, items=items, schedule=NoiseSchedule("uniform", 2), fresh=fresh) for fresh in (True, False))
    for key in range(8):
        assert len(set(fresh[key])) == 4
        assert kept[key][:2] == kept[key][2:] == fresh[key][:2]
    other = by_row(2, items=items, schedule=NoiseSchedule("uniform", 2), seed=4)
    assert all(other[key] != fresh[key] for key in range(8))


def test_kept_noise_has_kept_names():
    def names(fresh):
        return [set(steps(fresh=fresh).step(n).keys) for n in range(11)]

    assert len(set().union(*names(False))) == 11
    assert len(set().union(*names(True))) == 88


def test_copies_know_their_rows():
    step = steps(PAIRS, NoiseSchedule("counts", 3)).step(0)
    lengths = step.copies.batch.lengths
    assert len(lengths) == 8 * 2 * 3
    cut = step.copies.batch.tokens_T.split(list(lengths))
    for i, role, tokens in zip(step.item_R.tolist(), step.role_R.tolist(), cut, strict=True):
        of = step.items[i][role]
        assert tuple(tokens.tolist()) == of.prompt + of.answer


def test_sums_are_by_item_and_role():
    step = steps(PAIRS, NoiseSchedule("counts", 2)).step(0)
    g = torch.Generator().manual_seed(0)
    loss_N = torch.rand(len(step.copies.at_N), generator=g, requires_grad=True)
    sums = step.sums(loss_N)
    wanted = torch.zeros(8, 2, dtype=torch.float64)
    for n, copy in enumerate(step.copies.copy_N.tolist()):
        wanted[step.item_R[copy], step.role_R[copy]] += loss_N[n].double() * step.weight_N[n]
    torch.testing.assert_close(sums, wanted)
    assert torch.allclose(torch.autograd.grad(sums.sum(), loss_N)[0].double(), step.weight_N)
    part = step.take([5, 2])
    copies_of = [copy for item in (5, 2) for copy in (step.item_R == item).nonzero()[:, 0].tolist()]
    of_part = torch.cat([loss_N[step.copies.copy_N == copy] for copy in copies_of])
    torch.testing.assert_close(part.sums(of_part), wanted[[5, 2]])
    assert part.items == (step.items[5], step.items[2])
    assert part.keys == (step.keys[5], step.keys[2])


def test_the_answers_of_a_pair_are_hidden_independently_even_when_they_are_alike():
    """Same key, same text: the role alone tells them apart."""
    same = TokenRow((1,), tuple(range(30)), "", 7)
    micro = steps([(same, same)], NoiseSchedule("uniform", 2), StepShape(1)).step(0)
    masks = [copy[2] for copy in copies(micro)]
    assert len(set(masks)) == 4


def test_pairs_that_share_an_answer_have_names_of_their_own():
    item, other = row(1), row(2)
    pairs = [(item, other), (item, row(3)), (item, row(4))]
    micro = steps(pairs, shape=StepShape(3), fresh=False).step(0)
    assert len(set(micro.keys)) == 3


@pytest.mark.parametrize(
    "schedule", [schedule for schedule in SCHEDULES if schedule.name != "even"], ids=lambda schedule: schedule.name
)
def test_another_policys_own_noise_is_independent_and_the_same_in_every_cut(schedule):
    items = [
        (TokenRow((1,), tuple(range(20 + i)), "", 2 * i), TokenRow((1,), tuple(range(25)), "", 2 * i + 1))
        for i in range(8)
    ]
    whole = redraw(steps(items, schedule).step(0), schedule, MASK)
    wanted = Counter(copies(whole))
    first = steps(items, schedule).step(0)
    assert not set(whole.keys) & set(first.keys)
    parts = [redraw(part, schedule, MASK) for part in of_step(0, StepShape(2, 2, 2), items=items, schedule=schedule)]
    assert Counter(copy for part in parts for copy in copies(part)) == wanted
    agree = [a[2] == b[2] for a, b in zip(copies(first), copies(whole), strict=True)]
    assert sum(agree) <= 1, "two masks of twenty tokens are the same where both hide all of them"


def test_levels_of_a_whole_step_are_not_drawn_again_for_a_part():
    with pytest.raises(ValueError, match="even"):
        redraw(steps(schedule=NoiseSchedule("even")).step(0), NoiseSchedule("even"), MASK)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8).flatmap(lambda s: st.tuples(st.just(s), st.integers(1, 6))))
@settings(max_examples=100, deadline=None)
def test_dealing_gives_everyone_as_many_and_about_as_much(given_):
    some, hands = given_
    sizes = (some * hands)[: len(some) * hands]
    dealt = balanced_parts(sizes, hands)
    assert sorted(card for hand in dealt for card in hand) == list(range(len(sizes)))
    assert {len(hand) for hand in dealt} == {len(some)}
    sums = [sum(sizes[card] for card in hand) for hand in dealt]
    assert max(sums) - min(sums) <= max(sizes)


def test_the_size_of_a_step_is_said_with_its_factors():
    assert StepShape(8, 2, 1).describe() == "8 per device x 2 accumulated x 1 process = 16"
    assert StepShape(8, 1, 2, 4).describe() == "8 per group x 1 accumulated x 2 groups of 4 processes = 16"


def copies_of_pairs():
    """Three masked copies of each row of eight pairs, whose rows have many lengths; those of one pair share the
    prompt."""
    pairs = [
        tuple(
            TokenRow((i,) * (i % 4), tuple(range(1 + (i * 7 + role * 3) % 5)), f"row {i}", 1000 * i + role)
            for role in range(2)
        )
        for i in range(11)
    ]
    source = NoisedRows(
        pairs, NoiseSchedule("counts", 3), lambda noise: weights(noise, "elbo"), MASK, StepShape(8), seed=3
    )
    return source.step(0).copies


@pytest.mark.parametrize("count", [1, 2, 5, 48, 60])
def test_forwards_hold_every_copy_and_scored_token_once(count):
    copies = copies_of_pairs()
    parts = divide(copies, count)
    assert len(parts) == count
    index_N = torch.cat([index_M for _, index_M in parts])
    assert torch.equal(index_N.sort().values, torch.arange(len(copies.at_N)))
    for part, index_M in parts:
        assert torch.equal(part.target_N, copies.target_N[index_M])
        assert torch.equal(part.at_N, part.at_N.sort().values)
        lengths = list(part.batch.lengths)
        assert lengths == sorted(lengths, reverse=True)
        assert bool((part.seen_T[part.at_N] == MASK).all())
    sizes = [len(part) for part, index_M in parts if len(index_M)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(copies)


def test_averages_are_ratios_of_sums_over_processes_with_different_names() -> None:
    values = ([1.0, 2.0, 3.0], [6.0])
    parts = [
        {"reward": (sum(v), len(v)), "reward_square": (sum(x * x for x in v), len(v)), f"only/{len(v)}": (1.0, 2.0)}
        for v in values
    ]
    result = averages([*parts, {}])
    assert result["reward"] == 3.0
    assert result["reward_std"] == pytest.approx(3.5**0.5)  # the mean of 4, 1, 0 and 9
    assert result["only/3"] == result["only/1"] == 0.5
    assert "reward_square" not in result
    assert averages([{"nothing": (0.0, 0.0)}]) == {}


def test_an_inner_phase_takes_no_time_of_the_outer() -> None:
    phases = Phases({})
    phases.steps = 2
    with phases.measure("update") as update:
        update.forwards, update.tokens = 6, 60
        with phases.measure("score"):
            time.sleep(0.05)
    metrics = phases.take(processes=4)
    assert metrics["seconds/score"][0] >= 0.05 > metrics["seconds/update"][0]
    assert metrics["forwards/update"] == (6.0, 0.5), "6 in this process in 2 steps: 12 in a step of all four"
    assert "forwards/score" not in metrics
    assert phases.take(processes=4) == {}


LOGS = {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-5, "rewards/margins": 0.25, "epoch": 1.0}


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool) -> str:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    state = SimpleNamespace(global_step=0, max_steps=4, is_world_process_zero=True)
    progress = TrainingProgress(8)
    progress.on_train_begin(None, state, None)
    for step in range(1, 5):
        state.global_step = step
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, logs=dict(LOGS))
    progress.on_train_end(None, state, None)
    return capsys.readouterr().err.replace("\r", "\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_every_entry_of_the_log_has_a_line_of_its_own(monkeypatch, capsys, terminal):
    lines = shown(monkeypatch, capsys, terminal).splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.partition(":")[0] for line in steps] == ["step 1/4", "step 2/4", "step 3/4", "step 4/4"]
    assert all("rewards/margins 0.2500" in line and "rows/s" in line for line in steps)
    assert [" left" in line for line in steps] == [True, True, True, False] and "1s left" in steps[2]


def test_the_bar_has_the_loss_alone(monkeypatch, capsys):
    bars = [line for line in shown(monkeypatch, capsys, True).splitlines() if line.startswith("train:")]
    assert "4/4" in bars[-1] and "loss 0.5000" in bars[-1] and "margins" not in bars[-1]


def test_a_line_has_the_main_figures_first_and_as_many_as_fit():
    phases = {f"{name}/update": 12.0 for name in ("forwards", "seconds", "tokens_per_second")}
    others = {f"reward/part{number}": 0.0 for number in range(9)}
    logs = {
        **others,
        **phases,
        "kl": 0.5,
        "kl_std": 0.1,
        "only_std": 1.0,
        "reward_std": 0.25,
        "reward": 0.5,
        "loss": 0,
        "epoch": 1.0,
    }
    main = "loss 0, reward 0.5000 (std 0.2500), kl 0.5000"
    assert log_line(logs, len(main)) == log_line(logs, len(main) + 5) == main
    assert log_line(logs, 70) == f"{main}, reward/part0 0" and log_line(logs, 0) == "loss 0"
    assert log_line(logs, 500).endswith("reward/part8 0, only_std 1.0000")
