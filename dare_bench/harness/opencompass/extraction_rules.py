"""How well OpenCompass could read an answer out of a response: by the name of a data set's postprocessor or evaluator.

Its postprocessors return a bare string, and most fall back on something when they find nothing: the first sentence, any
capital letter, the whole text. So each is judged by what it looks for; of an unknown one nothing is said.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from dare_bench.errors import DareError
from dare_bench.harness.common.extraction_status import (
    NOT_FOUND,
    Reading,
    Status,
    boxed,
    first_of,
    is_nothing,
    last_number,
    option,
    phrases,
    stands_alone,
    whole,
)
from dare_bench.harness.common.formulas import states_formula

Rule = Callable[[str, Any, Mapping[str, Any]], Reading]
"""(response, what the postprocessor returned, its arguments) -> reading"""
_ALL_OPTIONS = "ABCDEFGHIJKLMNOP"


def of_opencompass(cfg: Mapping[str, Any], prediction: Any, extracted: Any, finish_reason: str | None) -> Status | None:
    """The status of one response to a data set of OpenCompass.

    Args:
        cfg: the data set's configuration, or its ``eval_cfg``.
        prediction: the raw response.
        extracted: what the data set's postprocessor made of it (the response itself where there is none).
        finish_reason: "length" where the response ended by its length alone; None if not known.

    Returns:
        None for a data set that looks for no answer in a text.
    """
    scoring = cfg.get("eval_cfg", cfg)
    evaluator = scoring.get("evaluator") or {}
    if isinstance(evaluator, Mapping):
        post = scoring.get("pred_postprocessor") or evaluator.get("pred_postprocessor") or {}
    else:
        post, evaluator = scoring.get("pred_postprocessor") or {}, {"type": evaluator}
    if not isinstance(prediction, str):
        return None
    name = _name(post.get("type"))
    if not name:
        rule = _EVALUATORS.get(_name(evaluator.get("type")))
        return rule(prediction, extracted, {}).status(finish_reason) if rule else None
    # Another one may clean the text, cut code out of it, hand it to a judge, or give it back where it finds nothing.
    rule = _POSTPROCESSORS.get(name)
    return rule(prediction, extracted, post).status(finish_reason) if rule else None


def _name(kind: Any) -> str:
    """A configuration's ``type``: a function, a class, its dotted path, or a name in OpenCompass's registry."""
    if not isinstance(kind, str):
        return getattr(kind, "__name__", "") if kind is not None else ""
    if "." in kind:
        return kind.rpartition(".")[2]
    with contextlib.suppress(ImportError):
        from opencompass.registry import TEXT_POSTPROCESSORS

        found = TEXT_POSTPROCESSORS.get(kind)
        return getattr(found, "__name__", kind)
    return kind


def _option(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    return option(text, taken, str(given.get("options", _ALL_OPTIONS)))


def _pattern(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    if is_nothing(taken):
        return NOT_FOUND
    found = re.findall(str(given.get("answer_pattern", "")), text)
    values = [match if isinstance(match, str) else match[0] for match in found]
    return Reading([v for v in values if v.strip()] or [str(taken)])


def _gpqa(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    return _pattern(text, taken, {"answer_pattern": r"(?i)ANSWER\s*:\s*([A-D])"})


def _answer_line(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    return _pattern(text, taken, {"answer_pattern": r"(?i)ANSWER\s*:\s*([^\n]+)"})


def _tag(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    if is_nothing(taken):
        return NOT_FOUND
    tag = str(given.get("tag", ""))
    return Reading(re.findall(rf"{re.escape(tag)}(.*?)</{re.escape(tag[1:-1])}>", text, re.DOTALL) or [str(taken)])


def _gsm8k(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    return last_number(text.split("Question:")[0], taken)


def _math_v1(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    """It takes the first sentence with "final answer", else the first sentence."""
    return first_of([str(taken)] if "final answer" in text.lower() else (), whole(text))


def _math_v2(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    """The last box, else the first sentence with "answer is", else the first sentence."""
    said = re.search("final answer|answer is", text.lower()) is not None
    return first_of(boxed(text), phrases(text), [str(taken)] if said else (), whole(text))


def _bbh_choice(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    """The first option behind "answer is", else the first one in brackets, else any capital letter."""
    if not re.fullmatch(r"[A-Z]", str(taken)):
        return NOT_FOUND  # it gave the text back
    _, *behind = text.split("answer is ")
    named = [match for part in behind for match in re.findall(r"^\W*([A-Z])(?![A-Za-z'])", part)]
    return first_of(named, re.findall(r"\(([A-Z])\)", text), [str(taken)] if stands_alone(str(taken), text) else ())


def _bbh_freeform(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    """What follows the last "answer is", else the first line."""
    return first_of(phrases(text), whole(text))


def _olympiad(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    said = "所以最终答案是(.*)" if given.get("is_chinese") else "So the final answer is (.*)"
    return first_of(boxed(text), (v for v in re.findall(said, text) if v.strip()), whole(text))


def _formula(text: str, taken: Any, given: Mapping[str, Any]) -> Reading:
    """math-verify on the whole response: a box, or a formula that is announced as the answer."""
    if boxed(text):
        return Reading(boxed(text))
    with contextlib.suppress(DareError):
        if not states_formula(text):
            return NOT_FOUND
    return first_of(phrases(text), whole(text))


_POSTPROCESSORS: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "first_option_postprocess",
            "last_option_postprocess",
            "first_capital_postprocess",
            "last_capital_postprocess",
        ),
        _option,
    ),
    "match_answer_pattern": _pattern,
    "GPQA_Simple_Eval_postprocess": _gpqa,
    "math_judement_preprocess": _answer_line,
    "xml_tag_postprocessor": _tag,
    "gsm8k_postprocess": _gsm8k,
    "math_postprocess": _math_v1,
    "math_postprocess_v2": _math_v2,
    "bbh_mcq_postprocess": _bbh_choice,
    "bbh_freeform_postprocess": _bbh_freeform,
    "olympiadbench_postprocess_v2": _olympiad,
}
_EVALUATORS: dict[str, Rule] = {
    "BBHEvaluator": _bbh_freeform,
    "MATHVerifyEvaluator": _formula,
    "MATHEvaluator": lambda text, taken, given: Reading(whole(text)),
}
