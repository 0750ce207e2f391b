"""Packs that ranks compute together: every family's logits, losses and gradients are those of one rank.

All that happens on the ranks is in ``at_work``, which is started once: processes cost more than what they do here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import golden
import pytest
import torch
from ranks import on_ranks

from dare_bench.diffusion.forward import Inputs, inputs
from dare_bench.diffusion.masked_copies import MaskedCopies, masked_copies, pack
from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.diffusion.sequence_parallel import SequenceGroup, sequence_group
from dare_bench.errors import DareError, SaveError
from dare_bench.loading import load

FAMILIES = ("llada", "llada_moe", "dream", "sdar", "sdar_moe", "llada2", "llada22", "fast_dllm_v2")
RANKS = 4
SIZES = {"2": 2, "4": 4, "4, checkpointed": 4, "2, chunked": 2, "2, one token": 2, "2, nothing scored": 2}
"""Ranks of a group, by case. All of these families have four heads, most of them two of keys: of four ranks, two have
the same."""


def opened(family: str):
    """A tiny random network in the published layout."""
    ids = golden.special_ids(family)
    folder = golden.with_weights(family, "llada21") if family == "llada22" else golden.PARITY / family
    return load(folder, device="cpu", dtype="float32", **ids).loaded


def copies(mask_id: int, case: str) -> MaskedCopies:
    """Rows of unequal length, 23 tokens in all: neither they nor their two copies divide into four parts."""
    if case.endswith("one token"):
        return masked_copies(pack([((), (7,))]), torch.ones(1, dtype=torch.bool), mask_id)
    rows = [((5, 6, 7), (8, 9, 10, 11, 12, 13)), ((20, 21), (22, 23, 24, 25, 26, 27, 28)), ((31,), (32, 33, 34, 35))]
    batch = pack(rows)
    drawn_T = torch.rand(23, generator=torch.Generator().manual_seed(3)) < 0.6
    return masked_copies(batch, drawn_T & batch.response_T & (not case.endswith("nothing scored")), mask_id)


def computed(model, case: str, group: SequenceGroup | None = None) -> dict[str, torch.Tensor]:
    """Logits of all tokens, losses, and the gradient of an uneven sum of them, by parameter."""
    network = model.network
    given: Inputs = inputs(copies(model.spec.mask_id, case), model.spec)
    given = replace(given, plan=replace(given.plan, sequence=group))
    network.train()
    network.gradient_checkpointing = case.endswith("checkpointed")
    with torch.no_grad():
        logits = network(given.tokens_U, given.positions_U, given.plan).logits
    network.zero_grad()
    nll_N = network(**given.arguments()).nll
    (nll_N * torch.linspace(0.5, 2, len(nll_N))).sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values()), "DDP waits for every parameter"
    return {"logits": logits, "nll": nll_N.detach(), **gradients}


def at_work(families: tuple[str, ...]) -> dict[str, Any]:
    from dare_bench.model_adapters.backbone import network

    groups = {size: sequence_group(size) for size in sorted(set(SIZES.values()))}
    result: dict[str, Any] = {}
    for family in families:
        model = opened(family)
        for case, size in SIZES.items():
            network.CHUNK_ELEMENTS = 3 * model.spec.vocab_size if case.endswith("chunked") else 1 << 25
            result[f"{family}: {case}"] = computed(model, case, groups[size])
    result["shares"] = groups[RANKS].divided(range(7), list)
    try:
        groups[2].divided(range(2), failing)
    except DareError as error:
        result["error"] = f"{type(error).__name__}: {error}"
    return result


def failing(items: Sequence[int]) -> None:
    if 1 in items:
        raise SaveError("a fault")


@pytest.fixture(scope="module")
def ranks():
    return on_ranks(at_work, RANKS, FAMILIES)


def near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """To 2e-5 of the largest number; an exact zero may be rounded."""
    largest = float(wanted.abs().max()) if wanted.numel() else 0.0
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=0, atol=2e-5 * largest + 5e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_equal_one(family, ranks):
    model = opened(family)
    for case, size in SIZES.items():
        wanted, got = computed(model, case), [rank[f"{family}: {case}"] for rank in ranks]
        for rank in got:
            assert near(rank["logits"], wanted["logits"]) and near(rank["nll"], wanted["nll"]), case
        for name in wanted.keys() - {"logits", "nll"}:
            for first in range(0, RANKS, size):
                total = sum(rank[name] for rank in got[first : first + size])
                assert near(total, wanted[name]), f"{case}: {name}"


def test_every_rank_has_the_results_of_all_shares(ranks):
    for rank in ranks:
        assert rank["shares"] == [[0, 4], [1, 5], [2, 6], [3]]


def test_an_error_of_one_rank_is_raised_by_all(ranks):
    own, other = "SaveError: a fault", "TrainingError: process 1 of the sequence-parallel group failed: a fault"
    assert [rank["error"] for rank in ranks] == [other, own, other, own]


# -- one rank alone ----------------------------------------------------------------------------------------------------


def test_a_plan_that_reads_a_cache_has_no_group():
    cached = Cached(store=None, slots=(), write_at=torch.zeros(0), write_to=torch.zeros(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give one of them"):
        Plan((3,), cached=cached, sequence=SequenceGroup(None))  # type: ignore[arg-type]
