"""Which scoring code of OpenCompass can evaluate text as a program: the table is held to the installed version."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest
from require import need_package

from dare_bench.harness.lm_eval.code_tasks import EVALUATES
from dare_bench.harness.opencompass import selection
from dare_bench.harness.opencompass.catalog import opencompass_folder
from dare_bench.harness.opencompass.programs import runs_code
from dare_bench.harness.opencompass.selection import EVALUATE_TEXT, evaluating, why_not

need_package("opencompass")

# The evaluators and postprocessors of OpenCompass 0.5.4 that reach exec, eval, compile, subprocess, os.system, pickle
# or a parser of sympy. All of them run in the scoring process, and only where that has a sandbox. These are
# not run at all, or have a sandbox of their own for each answer.
NOT_RUN = {
    *("APPSEvaluator", "BigCodeBenchEvaluator", "CIBenchEvaluator", "CMPhysBenchEvaluator", "CRUXEvalOEvaluator"),
    *("CodeCompassEvaluator", "DS1000Evaluator", "DS1000ServiceEvaluator", "HumanevalMultiEvaluator"),
    *("HumanevalXEvaluator", "LCBCodeExecutionEvaluator", "LCBCodeGenerationEvaluator", "LCBTestOutputEvaluator"),
    *("LCEvaluator", "LCPassKEvaluator", "MBPPEvaluator", "MBPPEvaluator2", "MBPPPassKEvaluator"),
    *("MedCalcOfficial_Evaluator", "SRbenchDatasetEvaluator", "SciCodeEvaluator", "TACOEvaluator"),
    *("TheoremQAEvaluatorV3", "general_eval_wrapper_postprocess", "humaneval_internal_v1_postprocess"),
}
# Their comments in EVALUATE_TEXT: the two TSP evaluators evaluate the data set's text, RNA_Evaluator starts a program
# on files, and followbench_postprocess reads a judge's text (its data sets are refused for their judge).


def test_every_evaluator_that_can_evaluate_text_is_known() -> None:
    """A class or function of a new version that is in neither list has to be read before it scores answers."""
    import opencompass.datasets
    import opencompass.evaluator  # noqa: F401
    from opencompass.registry import TEXT_POSTPROCESSORS
    from opencompass.utils import text_postprocessors

    result: dict[str, str] = {}
    postprocessors = {*TEXT_POSTPROCESSORS.module_dict.values(), *filter(callable, vars(text_postprocessors).values())}
    for name, module in list(sys.modules.items()):
        for word, part in list(vars(module).items()) if name.startswith("opencompass.") else ():
            scores = inspect.isclass(part) and callable(getattr(part, "score", None))
            reads = inspect.isfunction(part) and ("postprocess" in word or part in postprocessors)
            if (scores or reads) and part.__module__.startswith("opencompass.") and (what := evaluates(part)):
                result[part.__name__] = what
    assert {name: what for name, what in result.items() if name not in NOT_RUN} == {
        name: what for name, what in EVALUATE_TEXT.items() if name not in NOT_RUN
    }
    assert result.keys() >= NOT_RUN
    refused = [name for name in NOT_RUN if why_not(scored_by(name)) is not None or runs_code(scored_by(name))]
    assert set(refused) == NOT_RUN
    assert evaluating({name: scored_by(name) for name in EVALUATE_TEXT}).keys() == EVALUATE_TEXT.keys()


def test_scoring_code_of_another_version_may_evaluate_text(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"gsm8k": scored_by("AccEvaluator")}
    assert evaluating(config) == {}
    monkeypatch.setattr(selection, "installed", lambda _: "0.6.0")
    assert "OpenCompass 0.6.0" in evaluating(config)["gsm8k"]


@functools.cache
def evaluates(part: Any) -> str | None:
    """What can evaluate a text as a program in the code that a class or function reaches through the names of its
    package; None if nothing is seen."""
    pending, seen = [part], {part}
    for current in pending:  # grows during the loop
        for function in functions_of(current):
            with contextlib.suppress(OSError, TypeError):
                if match := EVALUATES.search(inspect.getsource(function)):
                    return match[0]
            for value in named_in(function, part):
                if inspect.ismodule(value) and EVALUATES.match(value.__name__):
                    return value.__name__
                if (inspect.isfunction(value) or inspect.isclass(value)) and value not in seen:
                    seen.add(value)
                    pending.append(value)
    return None


def functions_of(part: Any) -> Iterator[Any]:
    """A function itself, or the methods of a class and of its bases."""
    values = [part] if not inspect.isclass(part) else [value for base in part.__mro__ for value in vars(base).values()]
    for value in values:
        value = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(value):
            yield value


def named_in(function: Any, part: Any) -> Iterator[Any]:
    """The modules named in a function, and the functions and classes of the package of ``part``."""
    package = str(getattr(part, "__module__", "")).partition(".")[0]
    for name in names_of(function.__code__):
        value = function.__globals__.get(name)
        if inspect.ismodule(value) or str(getattr(value, "__module__", "")).partition(".")[0] == package:
            yield value


def names_of(code: CodeType) -> set[str]:
    inner = (names_of(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def test_a_user_s_own_scoring_code_needs_a_sandbox() -> None:
    """Nobody has read it."""

    class Mine:
        def score(self, predictions: list[str], references: list[str]) -> dict[str, float]:
            return {"score": 0.0}

    selected = {"eval_cfg": {"evaluator": {"type": Mine}}}
    assert evaluating({"accuracy": scored_by("AccEvaluator"), "mine": selected}).keys() == {"mine"}


def scored_by(name: str) -> dict[str, Any]:
    """A configuration with that evaluator or postprocessor."""
    scoring = {"pred_postprocessor": {"type": name}} if name.endswith("postprocess") else {}
    evaluator = "AccEvaluator" if scoring else name
    return {
        "abbr": "x",
        "infer_cfg": {"inferencer": {"type": "GenInferencer"}},
        "eval_cfg": {"evaluator": {"type": evaluator}, **scoring},
    }


# Files of OpenCompass 0.5.4 that call exec, eval, subprocess or os.system, each read for dare_bench's refusals.
EXECUTES = {
    "datasets/LCBench.py",
    "datasets/MedCalc_Bench.py",
    "datasets/PMMEval/humanevalxl.py",
    "datasets/SciReasoner/uncond_RNA.py",  # programs of bioinformatics, on files
    "datasets/TheoremQA/main.py",
    "datasets/TheoremQA/number_utils.py",
    "datasets/TheoremQA/utils.py",
    "datasets/apps.py",
    "datasets/cibench.py",
    "datasets/cmphysbench/SEED/SEED.py",
    "datasets/codecompass/executor.py",
    "datasets/cruxeval.py",
    "datasets/ds1000.py",
    "datasets/humaneval.py",
    "datasets/humaneval_multi.py",
    "datasets/humanevalx.py",
    "datasets/korbench/korbench_utils.py",
    "datasets/livecodebench/evaluator.py",
    "datasets/livecodebench/execute_utils.py",
    "datasets/mbpp.py",
    "datasets/scicode.py",
    "datasets/subjective/followbench.py",
    "datasets/supergpqa/supergpqa_utils.py",  # its evaluator uses load_yaml alone
    "utils/text_postprocessors.py",
    # Only what the data set itself holds, or a name of a slice:
    "datasets/NPHardEval/cmp_TSP_D.py",
    "datasets/NPHardEval/hard_TSP.py",
    "datasets/agieval/agieval.py",
    "datasets/lawbench/evaluation_functions/wsjd.py",
    "datasets/natural_question.py",
    "datasets/teval/evaluators/planning_evaluator.py",
    "datasets/triviaqa.py",
    "datasets/vlmevalkit/dataset.py",
    "openicl/icl_dataset_reader.py",
    "utils/network.py",
}


def test_opencompass_executes_text_only_where_the_refusals_were_checked() -> None:
    """A new version of OpenCompass with a new such call has to be read before its data sets are run."""
    root = opencompass_folder().parents[1]
    result = set()
    for folder in ("datasets", "evaluator", "openicl", "utils"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in ("exec(", "eval(", "subprocess", "os.system")) and _executes(text):
                result.add(path.relative_to(root).as_posix())
    assert result - EXECUTES == set()


def _executes(text: str) -> bool:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("exec", "eval", "os.system") or name.startswith("subprocess."):
                return True
    return False
