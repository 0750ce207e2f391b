"""dare-bench: evaluation of diffusion language models, with training plugins.

    import dare_bench

    model = dare_bench.load("tiny-llada")
    model.generate(["..."], gen_length=64)

Names are imported on first use, so that ``import dare_bench`` (and ``dare-bench --help``) never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dare_bench.version import __version__

if TYPE_CHECKING:
    from dare_bench.engine.evaluate import evaluate
    from dare_bench.errors import DareError
    from dare_bench.loading import load
    from dare_bench.model import Model
    from dare_bench.runs.reader import Run
    from dare_bench.sweeps.run import SweepResult, sweep
    from dare_bench.training.run import Trained, train
    from dare_bench.types import Event, Generation, Likelihood

_HOME = {
    "DareError": "dare_bench.errors",
    "Event": "dare_bench.types",
    "Generation": "dare_bench.types",
    "Likelihood": "dare_bench.types",
    "Model": "dare_bench.model",
    "Run": "dare_bench.runs.reader",
    "SweepResult": "dare_bench.sweeps.run",
    "Trained": "dare_bench.training.run",
    "evaluate": "dare_bench.engine.evaluate",
    "load": "dare_bench.loading",
    "sweep": "dare_bench.sweeps.run",
    "train": "dare_bench.training.run",
}

__all__ = [
    "DareError",
    "Event",
    "Generation",
    "Likelihood",
    "Model",
    "Run",
    "SweepResult",
    "Trained",
    "__version__",
    "evaluate",
    "load",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dare_bench' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
