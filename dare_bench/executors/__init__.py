"""Where work runs (``protocols.Executor``): in process, one worker process a device, or a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dare_bench.protocols import Executor

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """Name the three; each is imported when it is used."""
    for name, target in (("local", "local:Local"), ("devices", "devices:Devices"), ("ray", "cluster:Ray")):
        registry.add("executor", name, f"{__name__}.{target}", origin=__name__)


def executor(name: str, *, workers: int = 1, device: str | None = None, address: str | None = None) -> Executor:
    """The executor of that name.

    Args:
        name: ``local``, ``devices``, ``ray``, or what a plugin registers.
        workers: jobs at a time; ``ray`` takes 1 for as many as the cluster has GPUs (else CPUs).
        device: ``cpu`` where no job needs a GPU; ``cuda`` or None for one GPU a job where there are some.
        address: of a Ray cluster; None asks ``RAY_ADDRESS``, and starts one on this machine if that is not set.

    Raises:
        UnknownNameError: no executor of that name. UsageError: more workers than GPUs, Ray is not installed.
    """
    from dare_bench.registry import registry

    made: Executor = registry().get("executor", name).load()(workers=workers, device=device, address=address)
    return made
