"""The configs and data sets that a run requests from OpenCompass, checked before a model is opened; and the data sets
that cannot be run here, with the reason.

What can be run is decided by the names of the classes and functions in a configuration; no data set is built. The
tables come from reading OpenCompass 0.5.4; the scoring code of any other version counts as able to evaluate text. A
test searches the source of the installed version for code that does (``exec``, ``eval``, ``subprocess``, a parser of
sympy, ...) and fails on any that is missing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.errors import DareError, DataError, UsageError
from dare_bench.harness.common.requests import refuse_likelihoods
from dare_bench.harness.common.scoring_process import check_sentence_model
from dare_bench.harness.opencompass.catalog import Config, ConfigCatalog, config_files, load_file
from dare_bench.harness.opencompass.components import class_names, evaluator_name, resolve, short_name, types_in
from dare_bench.harness.opencompass.layout import Layout
from dare_bench.harness.opencompass.programs import runs_code
from dare_bench.harness.opencompass.prompts import kind_of
from dare_bench.program import installed
from dare_bench.types import ADAPTIVE

_SENTENCES = {"IFEvaluator", "IFBenchEvaluator", "MultiIFEvaluator"}
"""Evaluators that split sentences with nltk's model."""

TABLE_VERSION = "0.5.4"
"""The version of OpenCompass whose evaluators and postprocessors the tables below describe."""
INFERENCERS = ("GenInferencer", "PPLInferencer")
"""The supported ones. OpenCompass has more: agents, multi-turn chats, tree of thought, attacks, losses of a text."""
_JUDGES = frozenset(
    {
        *("ATLASLLMEvaluator", "CascadeEvaluator", "DingoEvaluator", "FakeAlignmentJudgeEvaluator"),
        *("GenericLLMEvaluator", "HealthBenchEvaluator", "LMEvaluator", "OmniMathEvaluator", "ToxicEvaluator"),
    }
)
_RUN_CODE = frozenset(
    {
        *("APPSEvaluator", "BigCodeBenchEvaluator", "CIBenchEvaluator", "CodeCompassEvaluator", "CodeEvaluator"),
        *("CRUXEvalOEvaluator", "DS1000Evaluator", "DS1000InterpreterEvaluator", "DS1000ServiceEvaluator"),
        *("HumanevalMultiEvaluator", "HumanevalXEvaluator", "InternSandboxEvaluator", "LCBCodeExecutionEvaluator"),
        *("LCBCodeGenerationEvaluator", "LCBProEvaluator", "LCBTestOutputEvaluator", "LCEvaluator", "LCPassKEvaluator"),
        *("PMMEvalHumanEvalXLEvaluator", "SciCodeEvaluator", "TACOEvaluator"),
    }
)
# Python's eval on the model's answer: a sandbox protects the machine, but the answer could set its own score.
_EVALUATE_ANSWERS = frozenset(
    {
        *("CMPhysBenchEvaluator", "MedCalcOfficial_Evaluator", "SRbenchDatasetEvaluator", "TheoremQAEvaluatorV3"),
        *("TheoremQA_postprocess_v3", "TheoremQA_postprocess_v4", "general_eval_wrapper_postprocess"),
        *("humaneval_internal_v1_postprocess", "korbenchEvaluator"),
    }
)
_EVALUATE_ROWS = frozenset({"NaturalQuestionDataset", "TriviaQADataset"})
"""Loaders that run Python's eval on the content of a data file."""
EVALUATE_TEXT: Mapping[str, str] = {
    "CMP_TSP_D_Evaluator": "eval",
    "Game24Evaluator": "sympy",
    "Hard_TSP_Evaluator": "eval",
    "MATHVerifyEvaluator": "latex2sympy2_extended",
    "MBPPEvaluator": "eval",
    "MBPPEvaluator2": "eval",
    "MBPPPassKEvaluator": "eval",
    "MathEEDEvaluator": "sympy",
    "OlympiadBenchEvaluator": "parse_latex",
    "RNA_Evaluator": "subprocess",
    "followbench_postprocess": "eval",
}
"""The other evaluators and postprocessors whose code can evaluate text as a program, each with what it calls. They run
only where the scoring process has a sandbox."""


def check_flags(spec: RunSpec) -> None:
    """Refuse flags that have no meaning here."""
    if spec.num_fewshot is not None:
        raise UsageError(
            f"--num-fewshot {spec.num_fewshot}: an OpenCompass config fixes the examples; name another "
            "config of that data set (dare-bench ls tasks --harness opencompass lists them)"
        )
    if spec.likelihood.get("estimator") == ADAPTIVE:
        raise UsageError(
            "--estimator adaptive stops when the best choice is known by sum and per character, but OpenCompass"
            " compares choices per token; give --estimator fast, or --harness lm-eval"
        )
    if not spec.fewshot_as_multiturn:
        raise UsageError("--fewshot-as-multiturn false: an OpenCompass config fixes the turns; leave the flag out")
    if isinstance(spec.apply_chat_template, str):
        raise UsageError(
            f"--apply-chat-template {spec.apply_chat_template}: the opencompass harness takes the tokenizer's default"
            " template; leave the name out"
        )
    if spec.system_instruction is not None and not spec.apply_chat_template:
        raise UsageError(
            "--system-instruction: OpenCompass has no place for it in plain text; add --apply-chat-template"
        )


def configs_of(spec: RunSpec) -> dict[str, tuple[Config, dict[str, Any]]]:
    """By task: its config, and its configuration. Refuses data sets that cannot be run here."""
    catalog = ConfigCatalog(spec.include_path)
    configs: dict[str, tuple[Config, dict[str, Any]]] = {}
    for config in catalog.match(spec.tasks):
        for cfg in catalog.load(config):
            name = str(cfg["abbr"])
            if name in configs and configs[name][0] != config:
                other = configs[name][0]
                way = "name it once" if other.path == config.path else "run them apart"
                raise UsageError(f"{other.word} and {config.word} both hold a data set {name!r}: {way}")
            if reason := why_not(cfg, config.path):
                raise UsageError(reason)
            if kind_of(cfg) == "ppl":
                refuse_likelihoods(spec.engine, [name])
            if evaluator_name(cfg) in _SENTENCES:
                check_sentence_model(f"config {config.name}")
            if spec.apply_chat_template and kind_of(cfg) == "ppl":
                raise UsageError(
                    f"config {config.name} compares whole texts (PPL), which OpenCompass does in plain text only:"
                    " leave --apply-chat-template out, or use the _gen variant of the config"
                )
            configs[name] = (config, cfg)
    return configs


def groups_of(configs: Mapping[str, tuple[Config, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """The data sets of each config that has several in this run, under ``CONFIG``, ``CONFIG:ABBR`` or, if several words
    name parts of one config, ``CONFIG:ABBR+ABBR``."""
    words: dict[Path, dict[Config, list[str]]] = {}
    for name, (config, _) in configs.items():
        words.setdefault(config.path, {}).setdefault(config, []).append(name)
    groups: dict[str, list[str]] = {}
    for parts in words.values():
        first, *rest = parts
        group = "+".join([first.word, *(other.only or other.name for other in rest)])
        groups[group] = [name for names in parts.values() for name in names]
    return {group: names for group, names in groups.items() if len(names) > 1}


def check_data(spec: RunSpec, configs: Mapping[str, tuple[Config, Mapping[str, Any]]], layout: Layout) -> None:
    """Refuse data sets without any file, before a model is opened. Nothing is built, so a file that only the data set's
    loader knows is not checked; raises DataError."""
    missing = {name: reason for name, (_, cfg) in configs.items() if (reason := layout.missing(cfg)) is not None}
    for name, reason in missing.items():
        config = configs[name][0]
        here = [other for other, (c, _) in configs.items() if c.path == config.path and other not in missing]
        if here:
            tasks = f"--harness opencompass --tasks '{','.join(f'{config.name}:{other}' for other in here[:3])}'"
            replacing = "in place of --recipe " if spec.recipe is not None else ""
            many = f"{len(here)} of its config's data sets are" if len(here) > 1 else "one of its config's data sets is"
            reason += f"; {many} here: {tasks} {replacing}runs {'three of them' if len(here) > 3 else 'what is here'}"
        raise DataError(reason)


def why_not(config: Mapping[str, Any], file: Path | None = None) -> str | None:
    """One line with the reason why a data set cannot be run, None if it can. For a ``file`` that it comes from, the
    line names another config of the same data that can be run."""
    reason = _reason(config)
    if reason is None:
        return None
    other = alternative(config, file) if file is not None else None
    ending = f"; use {other} instead" if other else ""
    return f"OpenCompass data set {config.get('abbr', '?')}: {reason}{ending}"


def _reason(config: Mapping[str, Any]) -> str | None:
    inferencer = _type_of(config, "infer_cfg", "inferencer")
    if inferencer not in INFERENCERS:
        seen = f"its inferencer is {inferencer}" if inferencer else "it has no inferencer"
        return f"{seen}; run here: {' and '.join(INFERENCERS)}"
    if loaders := class_names(config.get("type")) & _EVALUATE_ROWS:
        return f"its loader {loaders.pop()} runs Python's eval on the rows of its data file, which is not done here"
    evaluator = _type_of(config, "eval_cfg", "evaluator")
    if evaluator is None:
        return "it has no evaluator, so nothing could be scored"
    names = class_names(config["eval_cfg"]["evaluator"]["type"])
    if not runs_code(config):
        if names & _JUDGES or config["eval_cfg"]["evaluator"].get("url"):
            return f"{evaluator} judges answers by a second language model or a service, which is not supported"
        if names & _RUN_CODE:
            return (
                f"{evaluator} executes what the model wrote, and not in our sandbox (which has HumanEval, HumanEval+,"
                " MBPP and MBPP+)"
            )
        if "VLMEvalKitEvaluator" in names:
            return "its questions have images, and the models here read text"
    for component in types_in(config["eval_cfg"]):
        if unsafe := class_names(component) & _EVALUATE_ANSWERS:
            return f"{unsafe.pop()} runs Python's eval on the model's text, which is not done here"
    return None


def _type_of(config: Mapping[str, Any], *keys: str) -> str | None:
    """The class name under ``keys``."""
    value: Any = config
    for key in (*keys, "type"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return short_name(value) if value is not None else None


def evaluating(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By task, the code of its scoring that can evaluate the text of an answer as a program. Code that is neither ours
    nor OpenCompass's counts as such."""
    reasons: dict[str, str] = {}
    for task, config in configs.items():
        for component in types_in(config["eval_cfg"]):
            if reason := _evaluates(component):
                reasons.setdefault(task, reason)
    return reasons


def _evaluates(component: Any) -> str | None:
    for name in class_names(component) & EVALUATE_TEXT.keys():
        return f"{EVALUATE_TEXT[name]} in {name}"
    part = resolve(component, "ICL_EVALUATORS", "TEXT_POSTPROCESSORS")
    package = str(getattr(part, "__module__", "opencompass")).partition(".")[0]
    if package == "opencompass" and (version := installed("opencompass")) != TABLE_VERSION:
        return f"{short_name(component)} of OpenCompass {version}, which is not known here"
    return None if package in ("opencompass", "dare_bench") else f"{short_name(component)} of {package}"


def alternative(config: Mapping[str, Any], file: Path) -> str | None:
    """The config with the shortest name that has the same data as ``config`` and can be run, among those of OpenCompass
    in the folder of ``file`` and ours; None if there is none. A user's files are not read."""
    by_name = sorted(config_files(file.parent), key=lambda path: (path.stem.startswith("deprecated"), len(path.stem)))
    for path in by_name:
        try:
            candidates = load_file(Config(path.stem, path)).values()
        except DareError:
            continue
        for candidate in candidates:
            same_data = all(candidate.get(key) == config.get(key) for key in ("path", "name", "file_name"))
            if same_data and _reason(candidate) is None:
                return path.stem
    return None
