"""The cache of the block-causal families: the same tokens as recomputing, and only the work that the windows need."""

from __future__ import annotations

import random

import golden
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import open_positions

from dare_bench.model_adapters.backbone.pages import PagePool, RowPages, chain
from dare_bench.model_adapters.sampling import row_cache
from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.strategies.bounded import EntropyBound
from dare_bench.model_adapters.sampling.tokens import propose
from dare_bench.seeds import sample_key
from dare_bench.types import LoopStats, Request

STATIC = {"remasking_strategy": "low_confidence_static", "temperature": 0.0}
DYNAMIC = {"confidence_threshold": 0.5, "temperature": 0.7}
EDITS = {"editing_threshold": 0.5, "threshold": 0.7, "max_post_steps": 2}
SAMPLERS = {
    "sdar": DYNAMIC,
    "sdar_moe": STATIC,
    "llada2": {"threshold": 0.5},
    "llada21": EDITS,
    "fast_dllm_v2": {"threshold": 0.4},
}


def tokens(count, seed=0, vocab=130):
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(count)]


def asked(prompts, **decoding):
    return [
        Request(str(i), "generate", p, decoding={"trajectory": True, **decoding}, seed=sample_key(0, "", i, 0))
        for i, p in enumerate(prompts)
    ]


def told(answer):
    events = [(e.step, e.position, e.token) for e in answer.trajectory]
    return answer.tokens, answer.nfe, answer.reference_nfe, answer.finish_reason, events


def answers(family, requests, rows=8):
    stats = LoopStats()
    result = {
        s.request.key: s.answer for s in golden.model(family).loaded.generate(requests, max_rows=rows, stats=stats)
    }
    assert len(result) == len(requests)
    return [result[r.key] for r in requests], stats


# -- the same tokens ---------


@pytest.mark.parametrize("family", SAMPLERS)
@pytest.mark.parametrize("block", [None, 3, 8])
def test_exact_equals_recomputing(family, block):
    prompts = [tokens(1), tokens(7, 1), tokens(8, 2), tokens(33, 3), tokens(33, 3) + tokens(4, 4)]
    fields = {"gen_length": 13, "block_length": block, **SAMPLERS[family]}
    cached, with_cache = answers(family, asked(prompts, cache="exact", **fields))
    plain, without = answers(family, asked(prompts, cache="none", **fields))
    assert [told(a) for a in cached] == [told(a) for a in plain]
    assert with_cache.row_forwards == without.row_forwards
    assert with_cache.tokens_processed < without.tokens_processed


def test_exact_is_the_default_and_its_tier_is_that_of_the_sampler():
    for family in golden.BLOCK_CAUSAL:
        loaded = golden.model(family).loaded
        assert loaded.resolve({}).cache == "exact"
        answer = golden.model(family).generate([tokens(5)], gen_length=4, temperature=0.0)[0]
        assert answer.tier == "E1"


# -- only the work that is needed ---------


@pytest.mark.parametrize(("prompt", "block"), [(20, 4), (22, 4), (3, 4), (21, 8)])
def test_a_step_computes_its_window_and_nothing_else(prompt, block):
    """A block's first forward commits what stands before it, the others compute the block alone."""
    gen_length = 14
    (answer,), stats = answers("sdar", asked([tokens(prompt)], gen_length=gen_length, block_length=block, **STATIC))
    first, end = prompt // block * block, -(-(prompt + gen_length) // block) * block
    expected, steps = 0, 0
    for begin in range(first, end, block):
        masks = begin + block - max(begin, prompt)
        before = begin if begin == first else block
        expected += before + masks * block
        steps += masks
    assert stats.tokens_processed == expected
    assert answer.nfe == stats.forwards == steps, "the commit rides on a step: no forward of its own"
    blocks = (end - first) // block
    assert answer.reference_nfe == steps + blocks + (prompt >= block), "the published code commits by itself"


@pytest.mark.parametrize("family", golden.BLOCK_CAUSAL)
@pytest.mark.parametrize("rows", [1, 6])
def test_few_shot_prefixes_are_computed_once(family, rows):
    block, few_shot = 8, tokens(64, 9)
    fields = {"gen_length": 8, "block_length": block, **SAMPLERS[family]}
    requests = asked([few_shot + tokens(3 + i, 20 + i) for i in range(6)], **fields)
    apart = [answers(family, [request]) for request in requests]
    alone = sum(stats.tokens_processed for _, stats in apart)
    together, stats = answers(family, requests, rows)
    assert [told(a) for a in together] == [told(a) for ((a,), _) in apart]
    assert stats.tokens_processed == alone - 5 * len(few_shot)
    assert stats.row_forwards == sum(a.nfe for a in together)


def test_rows_wait_a_forward_for_a_prefix_that_is_being_committed():
    """The first row commits the prefix alone; the others, one forward later, start from it. A stranger
    does not wait."""
    few_shot = tokens(16, 9)
    stranger = tokens(18, 1)
    prompts = [[*few_shot, 1], [*few_shot, 2], stranger, [*few_shot, 3]]
    result, stats = answers("sdar", asked(prompts, gen_length=7, block_length=8, **STATIC))
    assert [a.nfe for a in result] == [7, 7, 14, 7]
    # Turn 1: rows 0 and 2. Turns 2 to 7: all. Turn 8: rows 1, 2 and 3. Then the stranger's second block.
    assert (stats.forwards, stats.row_forwards) == (14, 35)
    window = 7 * 8
    assert stats.tokens_processed == 16 + 4 * window + 16 + (8 + window)


def test_a_prefix_that_is_there_already_is_not_waited_for():
    few_shot = tokens(16, 9)
    requests = asked([[*few_shot, 1], [*few_shot, 2], [*few_shot, 3]], gen_length=7, block_length=8, **STATIC)
    _, stats = answers("sdar", requests, rows=1)
    assert (stats.forwards, stats.tokens_processed) == (21, 16 + 21 * 8)


def test_a_store_that_has_to_grow_changes_nothing(monkeypatch):
    requests = asked([tokens(30, i) for i in range(6)], gen_length=12, block_length=4, **STATIC)
    want, _ = answers("sdar", requests)
    monkeypatch.setattr(row_cache, "FIRST_SLOTS", 8)
    result, _ = answers("sdar", requests)
    assert [told(a) for a in result] == [told(a) for a in want]


# -- memory that runs out ---------


class Failing:
    """The network, out of memory in the given calls; all else passes through."""

    def __init__(self, network, calls):
        self.network, self.calls, self.made = network, calls, 0

    def __getattr__(self, name):
        return getattr(self.network, name)

    def __call__(self, *args, **rest):
        self.made += 1
        if self.made in self.calls:
            raise torch.OutOfMemoryError("out of memory")
        return self.network(*args, **rest)


FAST = {
    "llada": {"cache": "dual", "threshold": 0.5, "block_length": 4},
    "dream": {"cache": "prefix", "alg": "confidence_threshold", "threshold": 0.5, "block_length": 4},
}


@pytest.mark.parametrize(("family", "calls"), [*((family, (1, 5)) for family in (*SAMPLERS, *FAST)), ("sdar", (3, 4))])
def test_out_of_memory_in_the_middle_changes_no_token(family, calls, monkeypatch):
    few_shot = tokens(16, 9, 120)
    prompts = [[*few_shot, i] for i in range(4)] + [tokens(5 + i, i, 120) for i in range(3)]
    fields = {"block_length": 8, **{**SAMPLERS, **FAST}[family]}
    requests = asked(prompts, gen_length=12, **fields)
    want, _ = answers(family, requests)
    model = golden.model(family)
    monkeypatch.setattr(model.loaded, "network", Failing(model.network, calls))
    result, stats = answers(family, requests, rows=7)
    assert [told(a) for a in result] == [told(a) for a in want]
    assert len(stats.halvings) == len(calls)


# -- who owns which slots ---------


def committed(pool, prompt, length):
    """A row that has read what there was and committed the rest of its prompt."""
    row_pages = RowPages()
    assert pool.admit(row_pages, prompt, length)
    pages = [pool.take(length) for _ in range(row_pages.columns, len(prompt), length)]
    pool.commit(row_pages, pages, prompt[row_pages.columns :], length)
    return row_pages


def test_shared_blocks_are_counted():
    pool = PagePool(9, lambda total: None)
    first = committed(pool, [1, 2, 3, 4], 2)
    second = committed(pool, [1, 2, 5, 6], 2)
    assert second.slots[:2].tolist() == first.slots[:2].tolist()
    assert set(second.slots[2:].tolist()).isdisjoint(first.slots.tolist())
    assert [b.readers for b in first.pages] == [2, 1]
    assert pool.hits == 2
    pool.release(first)
    assert [b.readers for b in second.pages] == [1, 1]
    assert first.columns == 0 and not first.pages
    pool.release(second)
    third = committed(pool, [1, 2, 5, 6], 2)
    assert pool.hits == 6, "blocks that nobody reads stay until their slots are wanted"
    assert [b.readers for b in third.pages] == [1, 1]


def test_a_block_is_known_by_all_that_stands_before_it():
    assert chain([1, 2, 3, 4, 5], 2) == [*chain([1, 2], 2), *chain([3, 4], 2, chain([1, 2], 2)[0])]
    assert len(chain([1, 2, 3, 4, 5], 2)) == 2
    assert chain([3, 4], 2) != chain([1, 2, 3, 4], 2)[1:]
    assert chain([1, 23], 2) != chain([12, 3], 2)
    assert chain([1, 2, 3, 4], 4) != chain([1, 2, 3, 4], 2)[:1]


def test_the_longest_unused_go_first_and_a_prefix_after_what_builds_on_it():
    grown = []
    pool = PagePool(7, grown.append)
    old = committed(pool, [1, 2, 3, 4], 2)
    new = committed(pool, [5, 6], 2)
    places = old.slots.tolist(), new.slots.tolist()
    pool.release(old)
    pool.release(new)
    assert sorted(pool.take(2).slots) == sorted(places[0][2:])
    assert sorted(pool.take(2).slots) == sorted(places[0][:2])
    assert sorted(pool.take(2).slots) == sorted(places[1])
    assert grown == []
    pool.take(2)
    assert grown == [14]


def test_who_wants_what_another_is_about_to_commit_waits():
    pool = PagePool(9, lambda total: None)
    first, second, other = RowPages(), RowPages(), RowPages()
    assert pool.admit(first, [1, 2, 3, 4], 2)
    assert not pool.admit(second, [1, 2], 2)
    assert second.columns == 0 and not second.promised
    assert pool.admit(other, [3, 4], 2), "the same tokens at another place are another block"
    pool.release(first)
    assert pool.admit(second, [1, 2], 2), "a promise ends with its row"


def test_slots_of_a_failed_forward_come_back():
    grown = []
    pool = PagePool(5, grown.append)
    for _ in range(3):
        pool.give_back([pool.take(2), pool.take(2)])
    assert grown == []


actions = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "commit", "fail", "write", "leave"]),
        st.integers(0, 5),
        st.lists(st.integers(0, 1), max_size=8),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions, st.integers(1, 3), st.integers(2, 12))
def test_no_slot_has_two_owners_and_no_row_reads_what_is_not_its_own(steps, length, slots):
    """Rows join, commit their prompts, write generated pages and leave in any order. A model of the store keeps what
    stands in each slot: all tokens up to it. What a row reads must be its own text."""
    size = [slots]
    pool = PagePool(slots, lambda total: size.__setitem__(0, total))
    rows: list[tuple[RowPages, list[int]]] = []
    store: dict[int, tuple[int, ...]] = {}
    for action, which, text in steps:
        if action == "join":
            row_pages, prompt = RowPages(), text[: len(text) // length * length]
            if pool.admit(row_pages, prompt, length):
                rows.append((row_pages, prompt))
            continue
        if not rows:
            continue
        row_pages, prompt = rows[which % len(rows)]
        if action == "leave":
            pool.release(row_pages)
            rows.remove((row_pages, prompt))
        elif action == "write" and row_pages.columns == len(prompt):
            prompt += ([*text, 0, 0, 0])[:length]
        if action in ("write", "commit", "fail") and row_pages.columns < len(prompt):
            start = row_pages.columns
            pages = [pool.take(length) for _ in range(start, len(prompt), length)]
            if action == "fail":
                pool.give_back(pages)
            else:
                for column, slot in enumerate((s for b in pages for s in b.slots), start):
                    store[slot] = tuple(prompt[: column + 1])
                pool.commit(row_pages, pages, prompt[start:], length)
        check(pool, rows, store, size[0])


def check(pool, rows, store, size):
    pages = {id(b): b for row_pages, _ in rows for b in row_pages.pages}
    idle = {id(b): b for b in pool._idle.values()}
    assert pages.keys().isdisjoint(idle)
    owned = [s for b in (*pages.values(), *idle.values()) for s in b.slots]
    assert sorted(owned + pool._free) == list(range(1, size)), "each slot once, and slot 0 never"
    for block in pages.values():
        assert block.readers == sum(block in row_pages.pages for row_pages, _ in rows)
    assert all(block.readers == 0 for block in idle.values())
    for row_pages, prompt in rows:
        assert row_pages.slots.tolist() == [s for page in row_pages.pages for s in page.slots]
        assert [store[s] for s in row_pages.slots.tolist()] == [
            tuple(prompt[: i + 1]) for i in range(row_pages.columns)
        ]


# -- SDAR's entropy_bounded ---------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(0.01, 3.0), max_size=6), min_size=1, max_size=4), st.floats(0.0, 4.0))
def test_entropies_are_taken_while_those_before_stay_in_the_bound(rows, bound):
    """The lowest always; each next one while the sum of those taken before it is at most the bound."""
    score = torch.tensor([-e for row in rows for e in row], dtype=torch.float64)
    at = open_positions([i for i, row in enumerate(rows) for _ in row], [0] * len(rows))
    count = EntropyBound(bound=bound).count(rank(score, at), at)
    for row, n in zip(rows, count.tolist(), strict=True):
        spent, want = 0.0, 0
        for entropy in sorted(row):
            if want and abs(spent - bound) < 1e-9:
                return  # a tie in float arithmetic
            if want and spent > bound:
                break
            spent, want = spent + entropy, want + 1
        assert n == want


def test_a_mask_token_is_neither_chosen_nor_counted():
    mask, loaded = 3, golden.model("sdar").loaded
    decoding = loaded.resolve({"remasking_strategy": "entropy_bounded", "temperature": 0.0, "mask_id": mask})
    sampler = loaded.family.sampler(decoding, loaded.family.with_ids(loaded.spec, decoding))
    assert (sampler.tokens.suppressed, sampler.strategy.bound) == ((mask,), 0.35)
    logits = torch.tensor([[1.0, 2.0, 0.0, 9.0]])
    built = propose(logits, sampler.tokens, sampler.strategy.score, open_positions([0]))
    assert built.token_N.tolist() == [1]
    p = torch.softmax(logits[0, :3].double(), -1)
    assert built.score_N[0].item() == pytest.approx((p * p.log()).sum().item(), abs=1e-6)


@pytest.mark.parametrize("bound", [0.0, 2.5, 100.0])
def test_entropy_bounded_step_by_step(bound):
    """The whole sampler against a loop over positions, through ``model.logits`` alone."""
    model, prompt, block, gen_length = golden.model("sdar"), tokens(9, 4), 4, 11
    mask, canvas, forwards = model.spec.mask_id, [*tokens(9, 4), *[golden.model("sdar").spec.mask_id] * 11], 0
    for begin in range(len(prompt) // block * block, len(canvas), block):
        while mask in (part := canvas[begin : begin + block]):
            logits = model.logits(canvas[: begin + block], block_length=block)[begin:]
            logits[:, mask] = float("-inf")
            p = torch.softmax(logits.double(), -1)
            entropy = torch.special.entr(p).sum(-1).tolist()
            spent, taken = 0.0, 0
            for i in sorted((i for i, token in enumerate(part) if token == mask), key=lambda i: entropy[i]):
                if taken and spent > bound:
                    break
                canvas[begin + i] = int(p[i].argmax())
                spent, taken = spent + entropy[i], taken + 1
            forwards += 1
    answer = model.generate(
        [prompt],
        gen_length=gen_length,
        block_length=block,
        remasking_strategy="entropy_bounded",
        eb_threshold=bound,
        temperature=0.0,
    )[0]
    assert answer.tokens == canvas[len(prompt) :]
    assert answer.nfe == forwards
    assert forwards == {0.0: 11, 100.0: 3}.get(bound, forwards)
