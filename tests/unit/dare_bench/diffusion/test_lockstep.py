"""Sampling on two ranks whose parameters are sharded: it ends, and every rank gets what one process alone gets.

All that happens on the ranks is in ``at_work``, which is started once: processes cost more than what they do here.
"""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
from ranks import on_ranks

from dare_bench.diffusion.lockstep import Lockstep
from dare_bench.diffusion.plan import Plan
from dare_bench.errors import TrainingError
from dare_bench.loading import load
from dare_bench.types import LoopStats, Request

DECODING = {
    "tiny-llada": {"early_stop": True, "threshold": 0.9, "block_length": 8, "temperature": 0.5},
    "tiny-sdar": {"early_stop": True, "confidence_threshold": 0.9, "temperature": 0.5, "cache": "exact"},
}
LENGTHS = [(3, 8), (19, 8), (7, 16), (33, 8)], [(11, 24)]
"""Rows of rank 0 and rank 1: (prompt, response) tokens."""


def tokens(count, seed):
    return torch.randint(5, 60, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def rows(name, rank):
    return [
        Request(f"{rank}.{i}", "generate", tokens(prompt, i), decoding={"gen_length": n, **DECODING[name]}, seed=i)
        for i, (prompt, n) in enumerate(LENGTHS[rank])
    ]


def pairs(rank):
    """Score requests: exact ones, drawn ones, one with greedy decoding; rank 1 has one."""
    return [
        Request(f"{rank}.{i}", "score", tokens(n, i), tokens(2 * n, i + 9), seed=i, want_greedy=i == 1)
        for i, n in enumerate((3, 1, 5)[: 3 if rank == 0 else 1])
    ]


def generated(model, requests, stats=None):
    return {s.request.key: [s.answer.tokens, s.answer.nfe] for s in model.generate(requests, stats=stats)}


def scored(model, requests):
    return {s.request.key: [s.answer.value, s.answer.is_greedy] for s in model.score(requests)}


def trained(network):
    """One step of AdamW on a batch that is the same on all ranks, then eval mode again; returns the loss."""
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, eps=1e-4)
    ids = torch.tensor(tokens(24, 1))
    at = torch.arange(0, 24, 2)
    loss = network(ids, plan=Plan((8, 16)), logits_at=at, targets=ids[at]).nll.mean()
    loss.backward()
    optimizer.step()
    network.eval()
    return float(loss.detach())


# -- on the ranks ------------------------------------------------------------------------------------------------


def shard(network):
    """As accelerate shards: each layer, the embedding and the head on their own, the rest with the root."""
    from torch.distributed.fsdp import fully_shard

    for layer in layers(network):
        fully_shard(layer)
    fully_shard(network.get_input_embeddings())
    fully_shard(network.get_output_embeddings(), reshard_after_forward=False)
    fully_shard(network)


def layers(network):
    return [module for module in network.modules() if type(module).__name__ in ("Layer", "FSDPLayer")]


def whole(network):
    """All weights on rank 0, as accelerate gathers them; nothing on the others."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(network, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


@contextlib.contextmanager
def lockstep(model):
    """The model's forwards in step with the other ranks'."""
    network = model.network
    try:
        with Lockstep(network) as model.network:
            yield
    finally:
        model.network = network


@contextlib.contextmanager
def breaking(network, error, most=0):
    """A layer in the middle raises when it gets more than ``most`` tokens."""

    def check(_module, args):
        if len(args[0]) > most:
            raise error

    hook = layers(network)[2].register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


def failing(model, requests, rank, inside):
    """Rank 1 raises an error, between forwards or inside one; what each rank then sees, and how soon."""
    started = time.monotonic()
    fault = breaking(model.network, ValueError("a fault")) if rank == 1 and inside else contextlib.nullcontext()
    try:
        with lockstep(model), fault:
            for _ in model.generate(requests):
                if rank == 1:
                    raise ValueError("a fault")
    except (TrainingError, ValueError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - started
    return "nothing", 0.0


def at_work(folder):
    import torch.distributed as dist

    rank, result = dist.get_rank(), {}
    for name in ("tiny-llada", "tiny-sdar"):
        model = load(name, device="cpu").loaded
        shard(model.network)
        selected, stats, here = rows(name, rank), LoopStats(), {}
        with lockstep(model):
            here["generated"] = generated(model, selected)
            here["scored"] = scored(model, pairs(rank))
        with lockstep(model):
            here["one rank alone"] = generated(model, selected if rank == 0 else [])
        with lockstep(model):
            here["the other alone"] = generated(model, selected if rank == 1 else [])
        full = breaking(model.network, torch.OutOfMemoryError("out of memory"), most=60)
        with lockstep(model), full if rank == 0 else contextlib.nullcontext():
            here["out of memory"] = generated(model, selected, stats)
        here["halvings"] = len(stats.halvings)
        here["loss"], here["weights"] = trained(model.network), whole(model.network)
        with lockstep(model):
            here["after training"] = scored(model, pairs(rank))
        here["error"] = failing(model, selected, rank, inside=False)
        here["error inside"] = failing(model, selected, rank, inside=True)
        with lockstep(model):
            here["after errors"] = scored(model, pairs(rank))
        result[name] = here
    model = load("tiny-llada2", device="cpu").loaded
    shard(model.network)
    loss, weights = trained(model.network), whole(model.network)
    if rank == 0:
        model.save(folder, weights)
    result["tiny-llada2"] = {"loss": loss, "weights": weights}
    return result


# -- here --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved") / "model"


@pytest.fixture(scope="module")
def ranks(folder):
    return on_ranks(at_work, 2, str(folder))


@pytest.fixture(scope="module", params=["tiny-llada", "tiny-sdar"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def alone(name):
    """The same in one process, without FSDP."""
    model, result = load(name, device="cpu").loaded, [{}, {}]
    for rank in (0, 1):
        result[rank] = {"generated": generated(model, rows(name, rank)), "scored": scored(model, pairs(rank))}
    loss = trained(model.network)
    for rank in (0, 1):
        result[rank] |= {"loss": loss, "after training": scored(model, pairs(rank))}
    return result, {key: value.detach() for key, value in model.network.state_dict().items()}


def same_scores(found, expected):
    assert found.keys() == expected.keys() != set()
    for key, (logprob, greedy) in expected.items():
        assert found[key][0] == pytest.approx(logprob, rel=1e-5) and found[key][1] is greedy


def test_rows_of_unequal_count_and_length(name, ranks, alone):
    steps = []
    for rank in (0, 1):
        expected = alone[0][rank]["generated"]
        assert ranks[rank][name]["generated"] == expected
        steps.append(max(nfe for _, nfe in expected.values()))
    assert steps[0] != steps[1]  # else nobody had to wait


def test_scores(name, ranks, alone):
    for rank in (0, 1):
        same_scores(ranks[rank][name]["scored"], alone[0][rank]["scored"])


def test_a_rank_without_rows(name, ranks, alone):
    for case, busy in (("one rank alone", 0), ("the other alone", 1)):
        assert ranks[busy][name][case] == alone[0][busy]["generated"]
        assert ranks[1 - busy][name][case] == {}


def test_memory_runs_out_on_one_rank_in_the_middle_of_a_forward(name, ranks, alone):
    for rank in (0, 1):
        assert ranks[rank][name]["out of memory"] == alone[0][rank]["generated"]
    assert ranks[0][name]["halvings"] > 0 == ranks[1][name]["halvings"]


def test_a_training_step_after_sampling(name, ranks, alone):
    for rank in (0, 1):
        assert ranks[rank][name]["loss"] == pytest.approx(alone[0][rank]["loss"], rel=1e-5)
        same_scores(ranks[rank][name]["after training"], alone[0][rank]["after training"])
        same_scores(ranks[rank][name]["after errors"], alone[0][rank]["after training"])
    weights = ranks[0][name]["weights"]
    assert weights.keys() == alone[1].keys() and ranks[1][name]["weights"] == {}
    for key, value in alone[1].items():
        torch.testing.assert_close(weights[key], value, atol=2e-5, rtol=0)


@pytest.mark.parametrize("where", ["error", "error inside"])
def test_a_rank_that_fails_stops_the_other(name, ranks, where):
    (other, seconds), (own, _) = (ranks[rank][name][where] for rank in (0, 1))
    assert other.startswith("TrainingError: rank 1 failed") and seconds < 20
    assert own == "ValueError: a fault"


def test_a_sharded_network_is_saved_in_the_published_layout(ranks, folder):
    weights = ranks[0]["tiny-llada2"]["weights"]
    saved, model = load(folder, device="cpu", dtype="float32"), load("tiny-llada2", device="cpu")
    before = model.logits(tokens(24, 2))
    assert trained(model.network) == pytest.approx(ranks[0]["tiny-llada2"]["loss"], rel=1e-5)
    for key, value in saved.network.state_dict().items():
        torch.testing.assert_close(value, weights[key], atol=0, rtol=0)
    result, expected = saved.logits(tokens(24, 2)), model.logits(tokens(24, 2))
    torch.testing.assert_close(result, expected, atol=2e-3, rtol=0)
    assert (result - before).abs().max() > 0.02
