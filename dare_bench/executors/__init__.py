"""Where work runs (``protocols.Executor``): in process, one worker process a device, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dare_bench.protocols import Executor

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """Register the executors, which are imported on first use."""
    for name, target in (("local", "graph:Local"), ("devices", "devices:Devices"), ("ray", "cluster:Ray")):
        registry.add("executor", name, f"{__name__}.{target}", origin=__name__)


def executor(name: str, *, workers: int = 1, device: str | None = None, address: str | None = None) -> Executor:
    """The executor of that name.

    Args:
        name: ``local``, ``devices``, ``ray``, or what a plugin registers.
        workers: number of concurrent jobs; for ``ray``, 1 means as many as the cluster has GPUs (else CPUs).
        device: ``cpu`` if no job needs a GPU; ``cuda`` or None: one GPU for each job if there are GPUs.
        address: of a Ray cluster; None uses ``RAY_ADDRESS``, else starts a cluster on this machine.

    Raises:
        UnknownNameError: no executor of that name. UsageError: more workers than GPUs, Ray is not installed.
    """
    from dare_bench.registry import registry

    create: Callable[..., Executor] = registry().get("executor", name).load()
    return create(workers=workers, device=device, address=address)
