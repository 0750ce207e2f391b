"""The estimators of log-probabilities: what they look at, what they score, and what their values are."""

from __future__ import annotations

from itertools import permutations, product

import pytest
import torch
from completions import PROMPT, completion, scored_positions, seen, values
from table_policy import MASK, SPEC, Table, V, elbo

from dare_bench.diffusion.forward import inputs
from dare_bench.diffusion.plan import Plan
from dare_bench.diffusion.schedules import NoiseSchedule
from dare_bench.loading import load
from dare_bench.seeds import sample_key
from dare_bench.trainers.rl import estimators
from dare_bench.trainers.rl.cj_grpo import CJGRPO
from dare_bench.trainers.rl.estimators import coupled, fully_masked, trajectory
from dare_bench.trainers.rl.surrogate import action_weights
from dare_bench.types import Request

ANSWER = (2, 4, 1, 3)
OFFSET = len(PROMPT)
LOG_P = torch.log_softmax(torch.randn(V, generator=torch.Generator().manual_seed(5)).double(), -1)


def without_context(given):
    """-log p of a model that does not look at anything."""
    return -LOG_P[given.targets_N]


def log_p(table, canvas):
    """log p of every token at every position of a canvas, by the table itself: float64 [L, V]."""
    return table(torch.tensor(canvas)).log_softmax(-1)


def many(count, answer=ANSWER, **fields):
    return [completion(answer, key=7919 * i, **fields) for i in range(count)]


# d1: all of the completion masked


def test_without_context_the_value_of_a_completion_is_its_log_probability():
    actions = fully_masked(many(3), MASK, 0, prompt_probability=0.3)
    v_A = values(actions, without_context)
    assert v_A.tolist() == LOG_P[list(ANSWER) * 3].tolist()
    assert actions.sample_A.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_prompt_tokens_are_hidden_at_their_rate_and_never_scored():
    prompt = tuple(i % 5 for i in range(40))
    actions = fully_masked(many(200, prompt=prompt, scored=3), MASK, 0, prompt_probability=0.15)
    assert scored_positions(actions) == [[40, 41, 42]] * 200, "through the end of what counts"
    rows = torch.tensor(seen(actions))
    assert bool((rows[:, 40:] == MASK).all()), "also the tokens that are not scored"
    hidden = rows[:, :40] == MASK
    assert float(hidden.double().mean()) == pytest.approx(0.15, abs=0.015)  # 4 standard errors
    assert torch.equal(rows[:, :40][~hidden], torch.tensor(prompt).expand(200, -1)[~hidden])


def test_prompt_masks_are_a_function_of_key_and_iteration():
    prompt = tuple(range(5)) * 8
    rows = many(5, prompt=prompt)
    first, again, next_one = (seen(fully_masked(rows, MASK, i, 0.15)) for i in (0, 0, 1))
    assert first == again, "the new, the old and the reference policy look at the same masks"
    assert all(a != b for a, b in zip(first, next_one, strict=True)), "fresh for each inner iteration"
    assert len({tuple(row) for row in first}) == 5
    assert seen(fully_masked(rows[3:4], MASK, 0, 0.15)) == first[3:4], "whatever stands beside it"


def test_without_prompt_masks_nothing_changes_between_iterations():
    table = Table()
    first, later = (values(fully_masked(many(2), MASK, i), table.losses) for i in (0, 5))
    assert torch.equal(first, later)
    assert seen(fully_masked(many(1), MASK, 3)) == [[*PROMPT, *[MASK] * 4]]


# coupled-GRPO: a mask and its complement


def test_the_pair_partitions_the_response_and_predicts_every_token_once():
    rows = many(40)
    actions = coupled(rows, MASK, 0, level_key=3)
    places, copies = scored_positions(actions), seen(actions)
    response = list(range(OFFSET, OFFSET + 4))
    assert len(actions.copies) == 120 and actions.sample_R.tolist() == [*range(40)] * 3
    kinds = set()
    for i in range(40):
        full, inside, outside = (places[i + 40 * part] for part in range(3))
        assert full == response and sorted(inside + outside) == response
        kinds.add(len(inside))
        for part, hidden in enumerate((full, inside, outside)):
            row = [MASK if at in hidden else token for at, token in enumerate((*PROMPT, *ANSWER))]
            assert copies[i + 40 * part] == row, "hidden is what is scored; the prompt is seen"
    assert kinds >= {1, 2, 3}, "masks are drawn token by token"


def test_the_value_of_a_token_is_equation_6():
    table, rows = Table(), many(6)
    actions = coupled(rows, MASK, 1, level_key=3)
    places = scored_positions(actions)
    level = float(0.5 / actions.coefficient_N[actions.copies.copy_N == 6 + 0][0]) if places[6] else None
    assert level is not None and 0.2 < level < 0.8
    v_A = values(actions, table.losses).detach().view(6, 4)
    for i in range(6):
        canvases = [[MASK if at in places[i + 6 * part] else token for at, token in enumerate((*PROMPT, *ANSWER))]
                    for part in range(3)]  # fmt: skip
        full, inside, outside = (log_p(table, canvas).detach() for canvas in canvases)
        for n, token in enumerate(ANSWER):
            at = OFFSET + n
            pair = inside[at, token] / level if at in places[i + 6] else outside[at, token] / (1 - level)
            assert float(v_A[i, n]) == pytest.approx(0.5 * float(full[at, token] + pair), rel=1e-9)


def test_without_context_the_expectation_is_one_and_a_half_log_p():
    """It is not a log-probability; the normalized variant is, in this case."""
    rows = many(6000)
    for normalized, wanted in ((False, 1.5), (True, 1.0)):
        actions = coupled(rows, MASK, 0, level_key=11, normalized=normalized)
        v_US = values(actions, without_context).view(6000, 4)
        ratio_US = v_US / LOG_P[list(ANSWER)]
        error = float(ratio_US.mean(1).std()) / 6000**0.5
        assert float(ratio_US.mean()) == pytest.approx(wanted, abs=4 * error)
        assert error < 0.01


def test_at_level_one_half_mask_and_complement_have_the_same_weight():
    actions = coupled(many(20), MASK, 0, level_key=0, band=(0.5, 0.5))
    full_N = actions.copies.copy_N < 20
    assert actions.coefficient_N[full_N].tolist() == [0.5] * 80
    assert actions.coefficient_N[~full_N].tolist() == [1.0] * 80


def test_the_level_is_one_for_a_step_and_masks_are_fresh():
    def level(iteration, key=4):
        actions = coupled(many(30), MASK, iteration, level_key=key)
        inside_N = (actions.copies.copy_N >= 30) & (actions.copies.copy_N < 60)
        (coefficient,) = set(actions.coefficient_N[inside_N].tolist())
        return 0.5 / coefficient

    levels = [level(i) for i in range(20)] + [level(0, key) for key in range(10, 30)]
    assert len(set(levels)) == 40 and min(levels) > 0.2 and max(levels) < 0.8
    assert max(levels) - min(levels) > 0.4, "0.5837 is not the level of every step"
    first, again, other = (seen(coupled(many(30), MASK, i, 4)) for i in (0, 0, 1))
    assert first == again and first != other
    alone = seen(coupled(many(30)[7:8], MASK, 0, 4))
    assert alone == [first[7], first[37], first[67]]


# CJ-GRPO: the sampler's own canvases


def test_copies_are_the_canvases_before_each_forward_and_their_tokens_partition_the_response():
    actions = trajectory([completion(ANSWER, (5, 0, 5, 2))], MASK)
    assert scored_positions(actions) == [[3], [5], [2, 4]]
    assert seen(actions) == [
        [*PROMPT, MASK, MASK, MASK, MASK],
        [*PROMPT, MASK, 4, MASK, MASK],
        [*PROMPT, MASK, 4, MASK, 3],
    ]
    assert actions.transition_A.tolist() == [0, 1, 2, 2]
    assert actions.sample_A.tolist() == [0] * 4


def test_what_was_written_after_the_end_is_seen_but_not_scored():
    actions = trajectory([completion(ANSWER, (2, 1, 3, 0), scored=2)], MASK)
    assert scored_positions(actions) == [[3], [2]]
    assert seen(actions) == [[*PROMPT, MASK, MASK, MASK, 3], [*PROMPT, MASK, 4, MASK, 3]]


def test_one_forward_for_all_tokens_is_d1_without_prompt_masks():
    table = Table()
    replay = trajectory([completion(ANSWER, (0, 0, 0, 0))], MASK)
    assert torch.equal(values(replay, table.losses), values(fully_masked(many(1), MASK, 0), table.losses))


@pytest.mark.parametrize("order", permutations(range(3)))
def test_one_token_a_forward_is_the_exact_log_probability_of_an_order(order):
    """Chain rule: for a fixed order, the probabilities of all answers sum to 1."""
    table = Table()
    answers = [completion(answer, order) for answer in product(range(V), repeat=3)]
    actions = trajectory(answers, MASK)
    total_S = torch.zeros(len(answers)).double().index_add(0, actions.sample_A, values(actions, table.losses).detach())
    assert float(total_S.exp().sum()) == pytest.approx(1.0, rel=1e-12)
    canvas, by_hand = [*PROMPT, *[MASK] * 3], 0.0
    for n in sorted(range(3), key=lambda i: order[i]):
        by_hand += float(log_p(table, canvas)[OFFSET + n, ANSWER[n]].detach())
        canvas[OFFSET + n] = ANSWER[n]
    place = list(product(range(V), repeat=3)).index(ANSWER[:3])
    assert float(total_S[place]) == pytest.approx(by_hand, rel=1e-12)


def test_two_tokens_a_forward_are_another_value_than_one():
    """Merging forwards hides tokens that the sampler saw."""
    table = Table()
    replay, merged = (
        values(trajectory([completion(ANSWER, order)], MASK), table.losses).sum().detach()
        for order in ((0, 1, 2, 3), (0, 0, 1, 1))
    )
    assert abs(float(replay - merged)) > 0.01


def test_blocks_of_two_three_and_one_forwards_weigh_their_six_transitions_equally():
    row = completion(range(1, 10), (0, 0, 1, 2, 3, 4, 5, 5, 5), prompt=(0, 0, 0))
    actions = trajectory([row], SPEC.mask_id, block_length=3)
    assert scored_positions(actions) == [[3, 4, 6, 9, 10, 11], [5, 7], [8]], "as many copies as the slowest block has"
    weight_A = action_weights("transition", actions.sample_A, actions.transition_A, 1, 9, 9)
    by_transition = torch.zeros(6).double().index_add(0, actions.transition_A, weight_A)
    assert by_transition.tolist() == pytest.approx([1 / 6] * 6)
    assert torch.bincount(actions.transition_A).sort().values.tolist() == [1, 1, 1, 1, 2, 3]
    merged_A = action_weights("transition", actions.sample_A, actions.copies.copy_N, 1, 9, 9)
    assert not torch.allclose(weight_A, merged_A), "forward j of all blocks is not one transition"


def test_a_first_block_that_holds_prompt_tokens_is_a_block():
    actions = trajectory([completion(ANSWER, (0, 1, 2, 3), prompt=(0, 0, 0))], MASK, block_length=4)
    assert scored_positions(actions) == [[3, 4], [5], [6]], "position 3 is the last of the first block"
    assert len(actions.transition_A.unique()) == 4


# CJ-GRPO on real rollouts of a block-causal network


@pytest.fixture(scope="module")
def sdar():
    """tiny-sdar, six sampled answers with the block in which they end, and their records."""
    model = load("tiny-sdar-base", device="cpu").loaded
    method = CJGRPO(CJGRPO.settle({"score_after_eos": True, "max_completion_length": 13}, model.spec), model.spec, 13)
    prompts = [list(range(20, 20 + n)) for n in (3, 4, 6, 5, 7, 8)]
    requests = [
        Request(str(i), "generate", prompt, decoding=method.request(prompt), seed=sample_key(0, "t", i, 0))
        for i, prompt in enumerate(prompts)
    ]
    answers = {sample.request.key: sample.answer for sample in model.generate(requests, max_rows=6)}
    assert all(answer.trajectory for answer in answers.values())
    rows = [method.completion(prompt, answers[str(i)], i, f"row {i}") for i, prompt in enumerate(prompts)]
    return model, rows, [answers[str(i)] for i in range(len(rows))]


def replayed(model, rows, block_length):
    """log p of every written token by block-parallel replay: by (completion, index)."""
    actions = trajectory(rows, model.spec.mask_id, block_length)
    given = inputs(actions.copies, model.spec)
    with torch.no_grad():
        v_A = actions.logprobs(model.network(**given.arguments()).nll)
    columns_A = actions.copies.batch.column_T[actions.copies.at_N]
    places = [(s, c - len(rows[s].prompt)) for s, c in zip(actions.sample_A.tolist(), columns_A.tolist(), strict=True)]
    return dict(zip(places, v_A.tolist(), strict=True))


def step_by_step(model, row):
    """The same by one forward of the clean prefix and the block for every forward of the sampler."""
    size, mask_id, offset = model.spec.block_length, model.spec.mask_id, len(row.prompt)
    result = {}
    for step in sorted({step for step in row.set_at if step >= 0}):
        written = [i for i, at in enumerate(row.set_at) if at == step]
        stop = ((offset + written[0]) // size + 1) * size
        answer = [t if 0 <= at < step else mask_id for t, at in zip(row.tokens, row.set_at, strict=True)]
        canvas = torch.tensor([*row.prompt, *answer])[:stop]
        plan = Plan((len(canvas),), size)
        at_N = torch.tensor([offset + i for i in written])
        with torch.no_grad():
            logits_NV = model.network(canvas, plan.positions(), plan, logits_at=at_N).logits
        chosen = logits_NV.double().log_softmax(-1)[range(len(written)), [row.tokens[i] for i in written]]
        result |= dict(zip(written, chosen.tolist(), strict=True))
    return result


def test_block_parallel_replay_is_sequential_replay_and_what_the_sampler_recorded(sdar):
    model, rows, answers = sdar
    parallel = replayed(model, rows, model.spec.block_length)
    actions = trajectory(rows, model.spec.mask_id, model.spec.block_length)
    forwards = sum(len(set(row.set_at)) for row in rows)
    assert len(actions.copies) < forwards, "several blocks in one copy"
    for s, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        sequential = step_by_step(model, row)
        assert sequential.keys() == {i for r, i in parallel if r == s} == set(range(len(row.tokens)))
        recorded = {event.position: event.logprob for event in answer.trajectory}
        for i, wanted in sequential.items():
            assert parallel[s, i] == pytest.approx(wanted, abs=1e-4)
            assert parallel[s, i] == pytest.approx(recorded[i], abs=1e-4)


def test_merging_the_forwards_of_a_block_changes_the_value(sdar):
    """From the canvas at the block's start, as a published shortcut scores it: a biased value, not this one."""
    model, rows, _ = sdar
    size = model.spec.block_length
    merged = [
        completion(r.tokens, [(len(r.prompt) + i) // size for i in range(len(r.tokens))], r.prompt, r.scored)
        for r in rows
    ]
    parallel, shortcut = (replayed(model, chosen, size) for chosen in (rows, merged))
    assert max(abs(parallel[place] - shortcut[place]) for place in parallel) > 0.1


def test_the_whole_terminal_block_is_replayed(sdar):
    """An answer stops at the EOS inside a block; the tokens that the sampler wrote behind it are seen and scored."""
    model, rows, answers = sdar
    size = model.spec.block_length
    assert all((len(row.prompt) + len(row.tokens)) % size == 0 for row in rows), "whole blocks"
    assert all(row.scored == len(row.tokens) for row in rows)
    hidden = [(r, a) for r, a in zip(rows, answers, strict=True) if len(a.tokens) < len(r.tokens)]
    assert hidden, "an answer ends inside a block"
    for row, answer in hidden:
        assert list(row.tokens[: len(answer.tokens)]) == list(answer.tokens)
        assert model.spec.mask_id not in row.tokens


# ESPO: the ELBO


def espo(rows, draws=2, iteration=0):
    return estimators.elbo(rows, MASK, iteration, NoiseSchedule("coupled", draws))


@pytest.mark.parametrize("answer", [(2,), (2, 4), ANSWER])
def test_the_expectation_is_the_exact_elbo_over_the_length(answer):
    table = Table()
    v_A = values(espo(many(4000, answer)), table.losses).detach()
    exact = float(elbo(table, PROMPT, answer).detach()) / len(answer)
    error = float(v_A.std()) / 4000**0.5
    assert float(v_A.mean()) == pytest.approx(exact, abs=4 * error + 1e-9)
    assert error < 0.01 * abs(exact)


def test_one_token_is_exact_in_every_draw():
    table = Table()
    v_A = values(espo(many(30, (2,))), table.losses).detach()
    assert v_A.tolist() == pytest.approx([float(elbo(table, PROMPT, (2,)).detach())] * 30, rel=1e-12)


def test_mask_and_complement_together_vary_less_than_either():
    table = Table()
    actions = espo(many(4000))
    nll_N = table.losses(inputs(actions.copies, SPEC)).detach()
    half_R = torch.zeros(8000).double().index_add(0, actions.copies.copy_N, -nll_N * actions.coefficient_N)
    single, pair = 2 * half_R.view(4000, 2), half_R.view(4000, 2).sum(1)
    assert float(pair.var()) < 0.5 * float(single.var(0).mean()), "also at equal cost: two independent masks"
    assert float(torch.corrcoef(single.T)[0, 1]) < -0.2
    more = values(espo(many(4000), draws=8), table.losses).detach()
    assert float(more.var()) == pytest.approx(float(pair.var()) / 4, rel=0.15), "pairs are independent"


def test_nothing_masked_and_everything_masked_have_finite_weights():
    actions = espo(many(200))
    counts = torch.bincount(actions.copies.copy_N, minlength=400).view(200, 2)
    assert bool((counts.sum(1) == 4).all()), "a pair masks every token once"
    edges = ((counts == 0) | (counts == 4)).all(1)
    assert int(edges.sum()) > 40, "two of five counts"
    assert bool(actions.coefficient_N.isfinite().all())
    assert len(actions.copies) == 400, "a copy without a mask is one"
    table = Table()
    only = [row for row, edge in zip(many(200), edges.tolist(), strict=True) if edge]
    wanted = values(fully_masked(only[:1], MASK, 0), table.losses).sum() * 5 / 4 / 2 / 4
    torch.testing.assert_close(values(espo(only), table.losses), wanted.expand(len(only)))


def test_draws_are_a_function_of_key_and_iteration():
    first, again, other = (seen(espo(many(20), 4, i)) for i in (0, 0, 1))
    assert first == again and first != other
    assert seen(espo(many(20)[5:6], 4)) == first[20:24]
    assert any(first[i : i + 2] != first[i + 2 : i + 4] for i in range(0, 80, 4)), "the pairs of a completion differ"


# No action


def test_a_completion_that_no_forward_wrote_has_no_action():
    actions = trajectory([completion(ANSWER, (-1,) * 4)], MASK)
    assert values(actions, Table().losses).tolist() == []
    assert len(actions.copies) == 1
