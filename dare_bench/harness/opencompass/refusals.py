"""Data sets of OpenCompass that cannot be run here, and why: said before a model is opened.

Everything is decided by the names of the classes and functions that a configuration gives; nothing of the data set is
built. The lists come from reading OpenCompass 0.5.4; a test reads the installed one for calls of ``exec``, ``eval`` and
``subprocess`` and fails when it finds a file that these lists were not checked against.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from dare_bench.errors import DareError
from dare_bench.harness.common.evaluating_code import EVALUATES
from dare_bench.harness.opencompass.catalog import RequestedConfig, config_files, load_file
from dare_bench.harness.opencompass.programs import runs_code

INFERENCERS = ("GenInferencer", "PPLInferencer")
"""What is taken. OpenCompass has more: agents, chats of several turns, trees of thought, attacks, losses of a text."""

_JUDGES = {
    "ATLASLLMEvaluator",
    "CascadeEvaluator",
    "DingoEvaluator",
    "FakeAlignmentJudgeEvaluator",
    "GenericLLMEvaluator",
    "HealthBenchEvaluator",
    "LMEvaluator",
    "OmniMathEvaluator",
    "ToxicEvaluator",
}
_RUN_CODE = {
    "APPSEvaluator",
    "BigCodeBenchEvaluator",
    "CIBenchEvaluator",
    "CodeCompassEvaluator",
    "CodeEvaluator",
    "CRUXEvalOEvaluator",
    "DS1000Evaluator",
    "DS1000InterpreterEvaluator",
    "DS1000ServiceEvaluator",
    "HumanevalMultiEvaluator",
    "HumanevalXEvaluator",
    "InternSandboxEvaluator",
    "LCBCodeExecutionEvaluator",
    "LCBCodeGenerationEvaluator",
    "LCBProEvaluator",
    "LCBTestOutputEvaluator",
    "LCEvaluator",
    "LCPassKEvaluator",
    "PMMEvalHumanEvalXLEvaluator",
    "SciCodeEvaluator",
    "TACOEvaluator",
}
# Python's eval on the model's answer: in a sandbox it harms no machine, but it could give itself any score.
_EVAL_TEXT = {
    "CMPhysBenchEvaluator",
    "MedCalcOfficial_Evaluator",
    "SRbenchDatasetEvaluator",
    "TheoremQAEvaluatorV3",
    "TheoremQA_postprocess_v3",
    "TheoremQA_postprocess_v4",
    "general_eval_wrapper_postprocess",
    "humaneval_internal_v1_postprocess",
    "korbenchEvaluator",
}

_EVAL_ROWS = {"NaturalQuestionDataset", "TriviaQADataset"}
"""Loaders that run Python's eval on what stands in a data file."""


def why_not(config: Mapping[str, Any], file: Path | None = None) -> str | None:
    """One line that says why a data set cannot be run, None if it can.

    Args:
        config: a data-set configuration, as :meth:`.catalog.ConfigCatalog.load` gives it.
        file: the config file it comes from; where given, the line names another config of the same data that can be
            run: one of OpenCompass's beside it, or one of ours.
    """
    reason = _reason(config)
    if reason is None:
        return None
    other = instead(config, file) if file is not None else None
    ending = f"; take {other} instead" if other else ""
    return f"OpenCompass data set {config.get('abbr', '?')}: {reason}{ending}"


def _reason(config: Mapping[str, Any]) -> str | None:
    inferencer = _kind(config, "infer_cfg", "inferencer")
    if inferencer not in INFERENCERS:
        what = f"its inferencer is {inferencer}" if inferencer else "it has no inferencer"
        return f"{what}; run here: {' and '.join(INFERENCERS)}"
    if found := _family(config.get("type")) & _EVAL_ROWS:
        return f"its loader {found.pop()} runs Python's eval on the rows of its data file, which is not done here"
    evaluator = _kind(config, "eval_cfg", "evaluator")
    if evaluator is None:
        return "it has no evaluator, so nothing could be scored"
    if runs_code(config):
        return _spoilt(config)
    names = _family(config["eval_cfg"]["evaluator"]["type"])
    if names & _JUDGES or config["eval_cfg"]["evaluator"].get("url"):
        return f"{evaluator} asks a second language model or a service to judge the answers, which is not done here"
    if names & _RUN_CODE:
        return (
            f"{evaluator} executes what the model wrote, and not in our sandbox (which has HumanEval, HumanEval+, MBPP"
            " and MBPP+)"
        )
    if "VLMEvalKitEvaluator" in names:
        return "its questions have images, and the models here read text"
    return _spoilt(config)


def _spoilt(config: Mapping[str, Any]) -> str | None:
    """The reason where a part of the scoring evaluates the model's text as Python."""
    for part in _parts(config.get("eval_cfg")):
        if found := _family(part) & _EVAL_TEXT:
            return f"{found.pop()} runs Python's eval on the model's text, which is not done here"
    return None


def evaluating(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Which of these tasks' scoring reaches something that can evaluate the text of an answer: by task, what and where.

    Evaluators and postprocessors are followed through the functions and classes of their package that they name.
    """
    parts = {name: [_resolved(part) for part in _parts(config.get("eval_cfg"))] for name, config in configs.items()}
    said = {name: next(filter(None, map(evaluates, found)), None) for name, found in parts.items()}
    return {name: reason for name, reason in said.items() if reason is not None}


def _resolved(part: Any) -> Any:
    """A class or function that a configuration may name by a string only."""
    if not isinstance(part, str):
        return part
    from opencompass.registry import ICL_EVALUATORS, TEXT_POSTPROCESSORS

    return ICL_EVALUATORS.get(part) or TEXT_POSTPROCESSORS.get(part)


@functools.cache
def evaluates(part: Any) -> str | None:
    """What a class or function reaches that can evaluate a text as a program, and where; None if nothing is seen."""
    waiting, seen = [part], {part}
    for one in waiting:  # grows while it is read
        for function in _functions(one):
            with contextlib.suppress(OSError, TypeError):
                if match := EVALUATES.search(inspect.getsource(function)):
                    return f"{match[0]} in {function.__qualname__}"
            for named in _named(function, part):
                if inspect.ismodule(named) and EVALUATES.match(named.__name__):
                    return f"{named.__name__} in {function.__qualname__}"
                if (inspect.isfunction(named) or inspect.isclass(named)) and named not in seen:
                    seen.add(named)
                    waiting.append(named)
    return None


def _functions(one: Any) -> Iterator[Any]:
    """A function itself, or the methods of a class and of those it is derived from."""
    given = [one] if not inspect.isclass(one) else [value for base in one.__mro__ for value in vars(base).values()]
    for value in given:
        value = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(value):
            yield value


def _named(function: Any, part: Any) -> Iterator[Any]:
    """What the names in a function stand for: modules, and functions and classes of the package of ``part``."""
    package = str(getattr(part, "__module__", "")).partition(".")[0]
    for name in _names(function.__code__):
        found = function.__globals__.get(name)
        if inspect.ismodule(found) or str(getattr(found, "__module__", "")).partition(".")[0] == package:
            yield found


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _parts(value: Any) -> Iterator[Any]:
    """Everything named by a ``type`` inside a configuration."""
    if isinstance(value, Mapping):
        if "type" in value:
            yield value["type"]
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _parts(inner)


def _kind(config: Mapping[str, Any], *keys: str) -> str | None:
    """The class name under ``keys``."""
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    given = value.get("type") if isinstance(value, Mapping) else None
    return _short(given) if given is not None else None


def _short(given: Any) -> str:
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    return str(name).rpartition(".")[2]


def _family(given: Any) -> set[str]:
    """The names of a class and of those it is derived from."""
    return {_short(given), *(base.__name__ for base in getattr(given, "__mro__", ()))}


def instead(config: Mapping[str, Any], file: Path) -> str | None:
    """The name of a config with the same data as ``config`` that can be run: of OpenCompass's beside ``file`` and
    of ours, the one with the shortest name; None where there is none. A user's files are not looked at."""
    for near in sorted(
        config_files(file.parent), key=lambda path: (path.stem.startswith("deprecated"), len(path.stem))
    ):
        try:
            found = load_file(RequestedConfig(near.stem, near)).values()
        except DareError:
            continue
        if any(_same_data(one, config) and _reason(one) is None for one in found):
            return near.stem
    return None


def _same_data(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in ("path", "name", "file_name"))
