"""The canvases of a user's rows: their distribution, what they do not depend on, and the weight of EOS tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from bundled_training import FAMILIES, UNBUNDLED, opened
from table_policy import EOS, SPEC, tokens

from dare_bench.diffusion.masked_copies import pack
from dare_bench.seeds import key
from dare_bench.trainers.noised import EXPONENT, Canvases, eos_factors, grid
from dare_bench.trainers.preference import VRPO
from dare_bench.trainers.sft import SFT
from dare_bench.trainers.steps import StepShape
from dare_bench.training.rows import Data, Example, TokenRow, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenize

WIDE = replace(SPEC, context_limit=4096)
KEYS = [key("test", i) for i in range(4000)]


def row(prompt, answer, cut=False):
    return TokenRow((0,) * prompt, (1,) * answer, "row", 0, cut)


def sft(data, spec=WIDE, **options):
    return SFT(SFT.settle(options, spec), spec, data.canvas)


def steps(method, data, count, process=0, processes=1, rows=4, first=0):
    source = method.source(data, StepShape(rows // processes, 1, processes), 0, process)
    return [source.step(number) for number in range(first, first + count)], source


@pytest.mark.parametrize("prompt", [4, 130, 600])
def test_the_distribution_of_the_lengths(prompt):
    """P(canvas >= k) = (n / k)^1.5 at each length of the grid, by 4,000 draws, whatever the prompt; the rest is on the
    longest."""
    canvases, item = Canvases("drawn", 60, 4096, EOS), (row(prompt, 6),)
    lengths = Counter(canvases.drawn(item, k) - prompt for k in KEYS)
    assert set(lengths) == set(grid(7, 60)) == {8, 12, 16, 24, 32, 48, 60}
    for length in grid(7, 60)[1:]:
        share = sum(count for n, count in lengths.items() if n >= length) / len(KEYS)
        assert share == pytest.approx((7 / length) ** EXPONENT, abs=0.02)


def test_nothing_is_longer_than_the_limit_and_nothing_is_cut():
    canvases = Canvases("drawn", 1000, 40, EOS)
    for answer in (1, 10, 35):
        drawn = {canvases.drawn((row(4, answer),), k) for k in KEYS}
        assert answer + 5 <= min(drawn) and max(drawn) == 40
    assert {canvases.drawn((row(4, 50),), k) for k in KEYS[:50]} == {55}, "an answer that is too long keeps its EOS"
    assert canvases.fill([(row(4, 6, cut=True),)], KEYS[:1]) == ((row(4, 6, cut=True),),)


def test_rows_end_at_few_lengths():
    """So that an attention call serves many rows."""
    canvases = Canvases("drawn", 256, 4096, EOS)
    items = [(row(5, 1 + i % 12),) for i in range(60)]
    lengths = {len(r.prompt) + len(r.answer) for (r,) in canvases.fill(items, KEYS[:60])}
    assert len(lengths) <= 12


def test_a_canvas_depends_on_seed_row_and_epoch_alone():
    data = tokens("examples", *[[([0], [1] * (1 + i % 5))] for i in range(8)])
    method = sft(data)
    whole, source = steps(method, data, 6)
    by_key = {}
    for step in whole:
        by_key |= dict(zip(step.keys, step.items, strict=True))
    for process in (0, 1):
        parts, other = steps(method, data, 6, process, 2)
        assert all(by_key[k] == item for step in parts for k, item in zip(step.keys, step.items, strict=True))
        assert other.canvas_lengths == source.canvas_lengths
    assert steps(method, data, 2, first=4)[0][1].items == whole[5].items, "as after a resume"
    lengths = [[len(r.answer) for (r,) in sorted(s.items, key=lambda i: i[0].key)] for s in whole]
    assert lengths[0] + lengths[1] != lengths[2] + lengths[3], "another epoch, other canvases"


@pytest.mark.parametrize("fresh", [True, False])
def test_both_answers_of_a_pair_have_one_canvas(fresh):
    pairs = [[([0, 1], [2] * n), ([0, 1], [3] * (9 - n))] for n in (1, 3, 7, 8)]
    data = tokens("pairs", *pairs)
    method = VRPO(VRPO.settle({"fresh_noise": fresh}, WIDE), WIDE, None)
    made, _ = steps(method, data, 12)
    seen = {}
    for step in made:
        for item in step.items:
            assert len(item[0].answer) == len(item[1].answer) >= 9 - min(1, len(item[0].answer))
            seen.setdefault(item[0].where, set()).add(len(item[0].answer))
    assert any(len(lengths) > 1 for lengths in seen.values()) == fresh, "the reference is computed once without"


def test_longest_makes_the_rows_of_a_step_equal():
    data = tokens("examples", [([0] * 3, [1, 1])], [([0], [1] * 9)], [([0] * 2, [1])])
    (step,), _ = steps(sft(data, padding="longest"), data, 1, rows=3)
    assert {len(r.prompt) + len(r.answer) for (r,) in step.items} == {11}


def test_eos_tokens_weigh_half_of_a_row_at_most():
    batch = pack([((0,), (1, 2, *[EOS] * 30)), ((0,), (1, EOS, 2, 3, EOS)), ((EOS,), (1, 2)), ((0,), (EOS, EOS))])
    factor_T = eos_factors(batch, EOS)
    first, second, third, fourth = factor_T.split(list(batch.lengths))
    assert first[3:].sum().item() == pytest.approx(2) and first[:3].tolist() == [1, 1, 1]
    assert second.tolist() == [1] * 6, "one EOS behind four tokens; EOS within an answer is the answer's"
    assert third.tolist() == [1, 1, 1]
    assert fourth[1:].sum().item() == pytest.approx(1)


@pytest.mark.parametrize("normalize", ["row", "token", "mask"])
def test_a_long_answer_does_not_make_others_learn_eos(normalize):
    """One answer of 400 tokens among 60 rows: the share of the loss that is of EOS tokens."""
    data = tokens("examples", *[[([0], [1] * (400 if i == 30 else 1 + i % 12))] for i in range(60)])
    (step,), source = steps(sft(data, normalize=normalize, weight="plain"), data, 1, rows=60)
    is_eos_N = step.copies.target_N == EOS
    assert step.weight_N.sum() > 0.1
    assert step.weight_N[is_eos_N].sum() / step.weight_N.sum() < 0.55
    assert is_eos_N.float().mean() < 0.8 and source.canvas_lengths[1] >= 401


def test_the_expected_loss_is_that_of_the_weighed_row():
    """Each token's expected weight over many draws of noise: 1 / (answer + as much EOS) of its row, ELBO or not."""
    data = tokens("examples", [([0], [1, 2])])
    method = sft(data, draws=4000, canvas_length=16, padding="drawn")
    (step,), _ = steps(method, data, 1, rows=1)
    weight_T = torch.zeros(4000, step.copies.batch.lengths[0], dtype=torch.float64)
    weight_T.view(-1)[step.copies.at_N] = step.weight_N
    mean_L = weight_T.sum(0)[1:]
    pads = len(mean_L) - 2
    assert mean_L.sum().item() == pytest.approx(1, abs=0.05)
    assert mean_L[:2].sum().item() == pytest.approx(2 / (2 + min(pads, 2)), abs=0.05)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNBUNDLED])
def test_the_length_of_a_row_does_not_tell_the_length_of_its_answer(family):
    """The copy task as a user's own data, which states no canvas: an answer's length is learned, by its EOS tokens."""
    model = opened(family)
    texts = ["7", "42", "314", "27182", "31415926535"]
    rows = tuple(Example("12+34=", text, f"rows.jsonl:{i}") for i, text in enumerate(texts, 1))
    spec = TrainSpec(method="sft", model="x", data="rows.jsonl", output_path="o")
    data = tokenize(Data("examples", rows, digest(rows), "rows.jsonl"), model, spec)
    made, source = steps(sft(data, model.spec), data, 100, rows=5)
    eos, block = model.spec.eos_ids[0], model.spec.block_length
    answers_of: dict[int, set[int]] = {}
    for (item,) in (items for step in made for items in step.items):
        length = len(item.answer)
        answer = next(r.answer for (r,) in data.items if r.where == item.where)
        assert item.answer == (*answer, *[eos] * (length - len(answer))) and length > len(answer)
        answers_of.setdefault(length, set()).add(len(answer))
        assert block is None or (len(item.prompt) + length) % block == 0
    if block is None:
        assert any(len(found) == len(texts) for found in answers_of.values())
        assert all(len(found) > 1 for length, found in answers_of.items() if 4 < length < 48), "longer ones are rare"
        assert source.canvas_lengths == (min(answers_of), max(answers_of))
    else:
        assert source.canvas_lengths is None, "decoding does not depend on the number of blocks"
