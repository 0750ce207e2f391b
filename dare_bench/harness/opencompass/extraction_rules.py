"""Could OpenCompass read an answer out of a response? By what the data set's postprocessor reports.

A postprocessor returns a bare string, and many give back the first sentence or the whole text where they find no
answer. So only those that report it have a status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from dare_bench.harness.common.extraction_status import Status, is_nothing, status_of

REPORTING = frozenset(
    {
        "first_option_postprocess",
        "last_option_postprocess",
        "first_capital_postprocess",
        "last_capital_postprocess",
        "match_answer_pattern",
        "GPQA_Simple_Eval_postprocess",
        "math_judement_preprocess",
        "xml_tag_postprocessor",
        "gsm8k_postprocess",
    }
)
"""Postprocessors of OpenCompass 0.5.4 that return one of :data:`NOTHING` where they find no answer; a test runs the
installed ones."""


def of_opencompass(cfg: Mapping[str, Any], prediction: Any, extracted: Any, finish_reason: str | None) -> Status | None:
    """The status of one response to a data set of OpenCompass.

    Args:
        cfg: the data set's configuration, or its ``eval_cfg``.
        prediction: the raw response.
        extracted: what the data set's postprocessor made of it (the response itself where there is none).
        finish_reason: "length" where the response ended by its length alone; None if not known.

    Returns:
        None for a data set whose postprocessor does not say when it finds nothing.
    """
    scoring = cfg.get("eval_cfg", cfg)
    evaluator = scoring.get("evaluator") or {}
    own = evaluator.get("pred_postprocessor") if isinstance(evaluator, Mapping) else None
    post = scoring.get("pred_postprocessor") or own or {}
    if not isinstance(prediction, str) or _function_name(post.get("type")) not in REPORTING:
        return None
    return status_of([] if is_nothing(extracted) else [str(extracted)], finish_reason)


def _function_name(kind: Any) -> str:
    """A configuration's ``type``: a function, a class, its dotted path, or a name in OpenCompass's registry."""
    if not isinstance(kind, str):
        return str(getattr(kind, "__name__", ""))
    if "." not in kind:
        with contextlib.suppress(ImportError):
            from opencompass.registry import TEXT_POSTPROCESSORS

            return str(getattr(TEXT_POSTPROCESSORS.get(kind), "__name__", kind))
    return kind.rpartition(".")[2]
