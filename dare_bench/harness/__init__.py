"""Harnesses provide prompts and scoring: their tasks in, their scores out; nothing else in the program knows them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from dare_bench.errors import UsageError
from dare_bench.protocols import TaskSource

if TYPE_CHECKING:
    from dare_bench.registry import Registry

_MATH = "formula", "the last \\boxed, compared by math-verify; options scheme=exact|d1, unsafe_no_sandbox"
_CODE = "program", "a program passes its tests; options format_weight, timeout, unsafe_no_sandbox"
REWARDS = {
    "gsm8k": ("gsm8k", "the number after ####, in \\boxed, in tags, or the last; option scheme=exact|d1"),
    "math": _MATH,
    "math500": _MATH,
    "code": _CODE,
    "humaneval": _CODE,
    "humanevalplus": _CODE,
    "mbpp": _CODE,
}
"""(module, description) of rewards by name, the ``data_source`` or ``extra_info.task`` of a row; some benchmarks share
one. A module has the reward, a function of the same name, and ``check`` if the reward has requirements."""
REQUIRING = ("formula", "program")
"""Modules of rewards that need a sandbox."""


def register(registry: Registry) -> None:
    """Harness names for ``--harness``, and the rewards of public benchmarks."""
    registry.add("harness", "lm-eval", "dare_bench.harness.lm_eval.source:LmEvalSource", origin=__name__)
    source = "dare_bench.harness.opencompass.source:OpenCompassSource"
    registry.add("harness", "opencompass", source, origin=__name__)
    for name, (module, about) in REWARDS.items():
        place = f"dare_bench.harness.rewards.{module}"
        needs = {"requires": f"{place}:check"} if module in REQUIRING else {}
        registry.add("reward", name, f"{place}:{module}", origin=__name__, about=about, checks_rows=True, **needs)


def task_source(name: str) -> type[TaskSource]:
    """The class of the harness of that name.

    Raises:
        UnknownNameError: no harness of that name. ImportError: its package is not installed.
        UsageError: a plugin's class that does not import, does not derive from ``TaskSource``, or is incomplete.
    """
    from dare_bench.registry import registry

    entry = registry().get("harness", name)
    source = entry.load()
    if not (inspect.isclass(source) and issubclass(source, TaskSource)):
        lacking = "does not derive from dare_bench.protocols.TaskSource"
    elif inspect.isabstract(source):
        lacking = f"does not define {', '.join(sorted(source.__abstractmethods__))}"
    else:
        return source
    raise UsageError(f"harness {name!r} of {entry.origin}: {entry.target} {lacking}; see docs/plugins.md, A harness")
