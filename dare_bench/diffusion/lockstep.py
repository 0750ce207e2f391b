"""Generating and scoring inside a training whose parameters are sharded (FSDP2).

There every forward is collective: each layer's weights are gathered from all ranks when it runs, so a rank that calls
the network once more than the others waits for them for ever. Rows end at different steps, so ranks want different
numbers of forwards. In lockstep each forward is announced first, and a rank that has none left runs null packs (one
token, no gradient, no effect) until nobody has. What a rank samples does not depend on the others.

Under plain DDP nothing of this is needed: its forward is collective in training only. Hand the samplers the network
itself, not the DDP wrapper around it.

The price is one gather of all weights for every forward, hidden behind the computation of large packs. Where memory
holds all weights at once, gathering them once a phase into a second, unsharded model is faster.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import TrainingError

NOTHING, WORK, AGAIN, FAILED = 0, 1, 2, 3
"""What a rank says before a forward; the highest word counts. AGAIN: its last forward broke off, so it lost gathered
weights that the others may still hold; a forward follows. A rank that failed says FAILED + its number."""


class _HasNetwork(Protocol):
    network: Any


Model = TypeVar("Model", bound=_HasNetwork)


@contextlib.contextmanager
def lockstep(model: Model, group: dist.ProcessGroup | None = None) -> Iterator[Model]:
    """``with lockstep(model): samples = list(model.generate(requests))``: every rank of ``group`` enters and leaves
    together, and between does as much as it likes, or nothing.

    Does nothing where ``model.network`` is not sharded. Sets neither ``eval()`` nor ``train()``.

    Raises:
        TrainingError: another rank raised an error inside; it is raised here instead of waiting for that rank.
    """
    network = model.network
    if not any(isinstance(module, FSDPModule) for module in network.modules()):
        yield model
        return
    with Lockstep(network, group) as together:
        model.network = together
        try:
            yield model
        finally:
            model.network = network


class Lockstep:
    """A sharded network whose calls are announced. A context manager: leaving it waits for the other ranks' forwards.

    Attributes are the network's own. Call it under ``torch.no_grad``, not under ``torch.inference_mode``: what FSDP
    gathers into is kept for training, which takes no inference tensors.

    Args:
        network: the root that ``fully_shard`` was applied to (or accelerate did), on all ranks alike.
        group: the ranks that share its forwards; all unless given.
    """

    def __init__(self, network: Any, group: dist.ProcessGroup | None = None) -> None:
        self.network, self.group = network, group
        self._units = _units(network)
        self._entered: set[int] = set()
        self._word = torch.zeros((), dtype=torch.long, device=_device(group))
        self._broke_off = self._over = False
        self._hooks: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["network"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One forward on every rank. Raises what the network raises, or TrainingError when another rank failed."""
        self._agree(WORK)
        return self._forward(*args, **kwargs)

    def __enter__(self) -> Lockstep:
        for state, module in self._units.items():

            def note(_module: nn.Module, _args: Any, state: int = state) -> None:
                self._entered.add(state)

            self._hooks.append(module.register_forward_pre_hook(note))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._drain()
        except BaseException:
            self._tell_failure()
            raise
        else:
            if error is not None:
                self._tell_failure()
        finally:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._reshard()  # gathered weights would grow stale with the next optimizer step, and take memory

    def _drain(self) -> None:
        """Null packs until no rank has work."""
        token = torch.zeros(1, dtype=torch.long, device=next(self.network.parameters()).device)
        while self._agree(NOTHING) != NOTHING:
            with torch.no_grad():
                self._forward(token, plan=Plan((1,)), logits_at=token)

    def _tell_failure(self) -> None:
        if not self._over:
            with contextlib.suppress(Exception):  # the error on its way says more than one of a lost connection
                self._agree(FAILED + dist.get_rank(self.group))

    def _agree(self, word: int) -> int:
        """The highest word of all ranks. Raises TrainingError when another rank failed."""
        self._word.fill_(max(word, AGAIN) if self._broke_off else word)
        try:
            dist.all_reduce(self._word, dist.ReduceOp.MAX, group=self.group)
        except BaseException:
            self._over = True
            raise
        said = int(self._word)
        if said >= FAILED:
            self._over = True
            if word < FAILED:
                raise TrainingError(
                    f"rank {said - FAILED} failed, so rank {dist.get_rank(self.group)} stops; see its error"
                )
        elif said == AGAIN:
            self._reshard()
            self._broke_off = False
        return said

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self._entered.clear()
        try:
            return self.network(*args, **kwargs)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # their tensors: memory may be what was missing
            failure = error
        self._make_up(failure)
        raise failure

    def _make_up(self, failure: BaseException) -> None:
        """A forward broke off here while the others go on with it: take part in what they still gather."""
        try:
            for state, module in self._units.items():
                if state not in self._entered:
                    module.unshard()
                    module.reshard()
        except BaseException:
            self._over = True  # the others wait in the middle of the forward: they cannot be told, only lost
            raise
        if not hasattr(self.network, "reset_iter_state"):
            raise TrainingError(
                f"a forward under FSDP broke off ({failure}); torch {torch.__version__} cannot go on from there: "
                "use torch>=2.13, or fewer rows at once"
            ) from failure
        self.network.reset_iter_state()
        self._broke_off = True

    def _reshard(self) -> None:
        for module in self._units.values():
            module.reshard()


def _units(network: nn.Module) -> dict[int, Any]:
    """What FSDP gathers at once, in the order of the forward: a module each, by the state that its unit shares."""
    units: dict[int, Any] = {}
    for module in network.modules():
        if isinstance(module, FSDPModule):
            units.setdefault(id(module._get_fsdp_state()), module)
    return units


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group can reduce a number: on the host if it can, so that nobody waits for the GPU."""
    if "cpu" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")
