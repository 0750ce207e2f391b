"""Builds every request of lm-eval's tasks by the tasks' methods, with the settings that lm-eval's
``simple_evaluate`` sets before it calls the model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.utils import set_torch_seed

from dare_bench.config import RunSpec
from dare_bench.errors import DataError
from dare_bench.harness.lm_eval.lm import AnsweringLM


def build_requests(
    tasks: Mapping[str, Any], spec: RunSpec, lm: AnsweringLM, samples: Mapping[str, Sequence[int]] | None
) -> None:
    """Fill ``task.instances`` of every task, by name.

    Args:
        lm: renders chat templates.
        samples: the documents to request, by task; None: the first ``spec.limit`` of each.

    Raises:
        DataError: a task asks about images or sound, or its metric is not one of lm-eval's.
    """
    for name, task in tasks.items():
        _check(name, task)
    random.seed(spec.seeds[0])
    numpy.random.seed(spec.seeds[1])
    set_torch_seed(spec.seeds[2])
    for task in tasks.values():
        _configure(task, spec)
    for name, task in tasks.items():
        task.build_all_requests(
            limit=get_sample_size(task, spec.limit),
            samples=None if samples is None else samples.get(name),
            rank=0,
            world_size=1,
            cache_requests=False,
            rewrite_requests_cache=False,
            system_instruction=spec.system_instruction,
            apply_chat_template=bool(spec.apply_chat_template),
            fewshot_as_multiturn=spec.fewshot_as_multiturn,
            chat_template=lm.apply_chat_template if spec.apply_chat_template else None,
            tokenizer_name=lm.tokenizer_name if spec.apply_chat_template else "",
        )


def _check(name: str, task: Any) -> None:
    if getattr(task, "MULTIMODAL", False):
        raise DataError(f"task {name!r} has images or sound, which the models here cannot read")
    metrics = getattr(task, "_metric_fn_list", {})  # None: not found, or not needed where the task has a scorer
    missing = [str(metric) for metric, compute in metrics.items() if compute is None]
    if missing and task.get_config("output_type") == "generate_until" and task.get_config("process_results") is None:
        raise DataError(
            f"task {name!r}: lm-eval has no metric {missing[0]!r}, and scripts of the evaluate library are never run; "
            "use a metric of lm-eval (exact_match, ...), or leave out the task"
        )


def _configure(task: Any, spec: RunSpec) -> None:
    if spec.decoding and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value=dict(spec.decoding), update=True)
    shots = task.get_config("num_fewshot")
    if shots is None or (spec.num_fewshot is not None and shots != 0):
        task.set_config(key="num_fewshot", value=spec.num_fewshot or 0)
    task.set_fewshot_seed(seed=spec.seeds[3])
