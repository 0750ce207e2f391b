"""Generating and scoring during a training whose parameters are sharded (FSDP2).

Every forward is collective then, so a rank that calls the network once more than the others would wait forever. In
lockstep each forward is announced first, and a rank without work runs null packs (one token, no gradient, no effect)
until no rank has work. The samples of a rank do not depend on the others. Plain DDP does not need this: give the
samplers the network itself. The cost is one gather of all weights for every forward.
"""

from __future__ import annotations

import contextlib
import traceback
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import TrainingError

NOTHING, WORK, AGAIN, FAILED = 0, 1, 2, 3
"""The state that a rank announces before a forward; the highest state of all ranks counts. AGAIN: its last forward was
interrupted, so it lost gathered weights that other ranks may still hold; a forward follows. A rank that failed
announces FAILED + its number."""


def is_sharded(module: nn.Module) -> bool:
    """Was ``fully_shard`` applied to it? ``FSDPModule`` has this method; to import that class takes a second."""
    return hasattr(type(module), "unshard")


class Lockstep:
    """A sharded network whose calls are announced. A context manager, which all ranks of ``group`` enter and leave
    together: leaving it waits for the other ranks' forwards. In between each may run any number of them, or none.

    Attributes are the network's. Call it under ``torch.no_grad``, not ``torch.inference_mode``: FSDP keeps the buffers
    of gathered weights for training, which cannot use inference tensors.

    Args:
        network: the root module that ``fully_shard`` was applied to, on all ranks.
        group: the ranks that share its forwards (default: all).
    """

    def __init__(self, network: Any, group: dist.ProcessGroup | None = None) -> None:
        self.network, self.group = network, group
        self._units = _units(network)
        self._entered: set[int] = set()
        self._state = torch.zeros((), dtype=torch.long, device=_device(group))
        self._interrupted = self._over = False
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
            self._announce_failure()
            raise
        else:
            if error is not None:
                self._announce_failure()
        finally:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._reshard()  # gathered weights are stale after the next optimizer step, and take memory

    def _drain(self) -> None:
        """Run null packs until no rank has work."""
        token = torch.zeros(1, dtype=torch.long, device=next(self.network.parameters()).device)
        while self._agree(NOTHING) != NOTHING:
            with torch.no_grad():
                self._forward(token, plan=Plan((1,)), logits_at=token)

    def _announce_failure(self) -> None:
        if not self._over:
            with contextlib.suppress(Exception):  # the error being raised matters more than a lost connection
                self._agree(FAILED + dist.get_rank(self.group))

    def _agree(self, state: int) -> int:
        """The highest state of all ranks. Raises TrainingError when another rank failed."""
        self._state.fill_(max(state, AGAIN) if self._interrupted else state)
        try:
            dist.all_reduce(self._state, dist.ReduceOp.MAX, group=self.group)
        except BaseException:
            self._over = True
            raise
        highest = int(self._state)
        if highest >= FAILED:
            self._over = True
            if state < FAILED:
                raise TrainingError(
                    f"rank {highest - FAILED} failed, so rank {dist.get_rank(self.group)} stops; see its error"
                )
        elif highest == AGAIN:
            self._reshard()
            self._interrupted = False
        return highest

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self._entered.clear()
        try:
            return self.network(*args, **kwargs)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # free their tensors: the error may be missing memory
            failure = error
        self._complete_gathers(failure)
        raise failure

    def _complete_gathers(self, failure: BaseException) -> None:
        """A forward was interrupted here while other ranks continue it: take part in their remaining gathers."""
        try:
            for state, module in self._units.items():
                if state not in self._entered:
                    module.unshard()
                    module.reshard()
        except BaseException:
            self._over = True  # the other ranks wait inside the forward: they cannot be notified
            raise
        if not hasattr(self.network, "reset_iter_state"):
            raise TrainingError(
                f"a forward under FSDP was interrupted ({failure}); torch {torch.__version__} cannot continue: "
                "use torch>=2.13, or fewer rows at once"
            ) from failure
        self.network.reset_iter_state()
        self._interrupted = True

    def _reshard(self) -> None:
        for module in self._units.values():
            module.reshard()


def _units(network: nn.Module) -> dict[int, Any]:
    """One module of each unit that FSDP gathers at once, in the order of the forward, by the unit's state."""
    units: dict[int, Any] = {}
    module: Any
    for module in network.modules():
        if is_sharded(module):
            units.setdefault(id(module._get_fsdp_state()), module)
    return units


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """A device on which the group can reduce a number: the host if possible, to avoid waiting for the GPU."""
    if "cpu" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")
