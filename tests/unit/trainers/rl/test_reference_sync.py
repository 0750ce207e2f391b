"""A reference that follows the policy: the update, and its weights in a checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dare_bench.errors import TrainingError
from dare_bench.trainers.reference_policy import FILE, ReferenceSync


def network(seed: int, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 2)).requires_grad_(False)


def synced(every: int = 2, alpha: float = 0.6) -> ReferenceSync:
    sync = ReferenceSync(every, alpha)
    sync.attach(network(0))
    return sync


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in network.parameters()])


def test_the_reference_becomes_a_mixture_every_so_many_steps():
    sync, policy, start = synced(), network(1), flat(network(0))
    for step, expected in ((1, start), (2, 0.4 * start + 0.6 * flat(policy)), (3, None)):
        before = flat(sync.network)
        state = type("State", (), {"global_step": step})
        sync.on_step_end(None, state, None, model=policy)
        torch.testing.assert_close(flat(sync.network), before if expected is None else expected)
    assert torch.equal(flat(policy), flat(network(1))), "the policy stays"


def test_with_alpha_one_it_is_the_policy():
    sync = synced(alpha=1.0)
    sync.mix(network(1))
    assert torch.equal(flat(sync.network), flat(network(1)))


def test_a_checkpoint_restores_its_bits(tmp_path):
    sync, other = synced(alpha=0.3), synced()
    sync.mix(network(1))
    sync.save(tmp_path)
    other.load(tmp_path, 2)
    assert torch.equal(flat(other.network), flat(sync.network))
    assert not torch.equal(flat(other.network), flat(network(0)))


def test_before_the_first_update_nothing_is_read(tmp_path):
    sync = synced()
    sync.load(tmp_path, 1)
    assert torch.equal(flat(sync.network), flat(network(0)))


def test_missing_and_damaged_weights_are_named(tmp_path):
    with pytest.raises(TrainingError, match=r"reference/model\.safetensors is damaged \(.*; remove .* to resume from"):
        synced().load(tmp_path, 2)
    other = ReferenceSync(2, 0.5)
    other.attach(network(0, width=4))
    other.save(tmp_path)
    with pytest.raises(TrainingError, match="it is of another network"):
        synced().load(tmp_path, 2)
    (tmp_path / FILE).write_bytes(b"no tensors")
    with pytest.raises(TrainingError, match="is damaged"):
        synced().load(tmp_path, 2)
