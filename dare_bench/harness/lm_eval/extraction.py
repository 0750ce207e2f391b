"""Could the harness read an answer out of each response? A low score means little where it could not.

The status says what the harness did, not whether the answer is right: see :data:`Status`. Tasks without a step that
looks for an answer in a text (likelihoods, code, whole responses compared as they are) have none.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from dare_bench.errors import DareError
from dare_bench.harness.common.extraction_status import (
    NOT_FOUND,
    Reading,
    Status,
    boxed,
    count,
    first_of,
    is_nothing,
    last_number,
    phrases,
    whole,
)
from dare_bench.harness.common.formulas import states_formula
from dare_bench.harness.lm_eval.scorers import is_mathematical, scorer_of

Counts = dict[str, dict[str, dict[str, int]]]
"""By task, then filter, then status."""
Finish = Callable[[str, Any, int, int], str | None]
"""(task, document, instance, repeat) -> why that response ended."""
# Functions by which lm-eval's scorers of mathematics find an answer; they live in the scorer's own module.
_EXTRACTORS = ("get_unnormalized_answer", "extract_answer", "parse_math_answer")

_NO_ANSWER = "~ there is nothing that anybody asked for ~"
"""A text in which no harness can find an answer."""


def of_lm_eval(task: Any, filter_name: str, response: str, filtered: Any, finish_reason: str | None) -> Status | None:
    """The status of one response to a task of lm-eval.

    Args:
        task: the task object.
        filter_name: which of its filter pipelines.
        filtered: what that pipeline made of this response.
        finish_reason: "length" where the response ended by its length alone; None if not known.

    Returns:
        None for a task that looks for no answer in a text.
    """
    if getattr(task, "OUTPUT_TYPE", None) != "generate_until" or not isinstance(response, str):
        return None
    step = _pattern_step(task, filter_name)
    if step is not None:
        reading = _by_pattern(step, response, filtered)
    elif is_mathematical(task):
        reading = _by_scorer(scorer_of(task), response)
    else:
        return None
    return reading.status(finish_reason)


def _pattern_step(task: Any, filter_name: str) -> Any:
    """The step of a pipeline that looks for a pattern: lm-eval's regex filter, or one made from it. None without, or
    where the pattern takes any text as it is ("the first line")."""
    known = vars(task).setdefault("_dare_bench_pattern_steps", {})
    if filter_name not in known:
        pipeline = next((f for f in getattr(task, "_filters", ()) if f.name == filter_name), None)
        steps = [make() for make in pipeline.filters] if pipeline is not None else []
        found = next((step for step in steps if hasattr(step, "regex") and hasattr(step, "fallback")), None)
        known[filter_name] = None if found is not None and _NO_ANSWER in found.regex.findall(_NO_ANSWER) else found
    return known[filter_name]


def _by_pattern(step: Any, text: str, filtered: Any) -> Reading:
    taken = filtered[0] if isinstance(filtered, list) and filtered else filtered
    if is_nothing(taken) or taken == step.fallback:
        return NOT_FOUND
    if step.group_select == -1 and step.regex.fullmatch("7"):  # "the last number", whatever stands before it
        return last_number(text, taken)
    mapped = getattr(step, "regex_to_value", None)
    found = [_group(match) for match in step.regex.findall(step.filter_ignores(text) if mapped else text)]
    if mapped:
        found = [next((value for pattern, value in mapped.items() if pattern.search(v)), v) for v in found if v]
    # None found although something was taken: a later rule of the filter had to help out.
    return Reading([v for v in map(str, found) if v.strip()] or [str(taken)])


def _group(match: str | tuple[str, ...]) -> str:
    return match if isinstance(match, str) else next((part for part in match if part), "")


def _by_scorer(scorer: Any, text: str) -> Reading:
    """What a scorer of mathematics finds. It has no filter: it looks for the answer itself."""
    own, formulas, boxes, dollars = _ways(scorer)
    stated = first_of(boxed(text), phrases(text))
    taken = _read(own, text) if own is not None else None
    if own is not None and not is_nothing(taken):
        last_resort = own.__name__ == "parse_math_answer"  # ends with "the last number"
        return stated if stated.values else Reading([str(taken)], guessed=last_resort and not _bare(text))
    if formulas:
        if stated.values:
            return stated
        with contextlib.suppress(DareError):  # one that takes too long to read is there, too
            if not states_formula(text):
                return NOT_FOUND
        return Reading([text], guessed=not _bare(text))
    if boxes and boxed(text):
        return Reading(boxed(text))
    if dollars and text.count("$") > 1:  # from the first dollar sign to the last one, with all between
        return Reading(re.findall(r"\$([^$]+)\$", text) or [text])
    return NOT_FOUND if own is not None else Reading(whole(text))


def _bare(text: str) -> bool:
    """Is the response a formula and nothing else?"""
    return len(text.split()) == 1


@cache
def _ways(scorer: Any) -> tuple[Callable[[str], Any] | None, bool, bool, bool]:
    """(its module's extractor, does it read formulas with math-verify, boxes, text between dollar signs)."""
    names = scorer.__globals__
    own = next((names[name] for name in _EXTRACTORS if callable(names.get(name))), None)
    source = ""
    with contextlib.suppress(OSError, TypeError):
        source = inspect.getsource(scorer)
    formulas = getattr(names.get("parse"), "__module__", "").startswith("math_verify")
    # Boxes of the reference solution ("boxed...(doc[...])") say nothing on how a response is read.
    boxes = re.search(r"boxed\w*\((?!doc|\w*boxed)", source) is not None
    return own, formulas, boxes, '"$"' in source


def _read(extractor: Callable[[str], Any], text: str) -> Any:
    try:
        return extractor(text)
    except Exception:  # it would fail for the scorer, too
        return None


def annotate(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[dict[str, Any]]], finish: Finish, part: int = 0
) -> None:
    """Write the status of each answer into lm-eval's logged samples (``_answers``, one entry for each request of the
    document in order).

    Args:
        part: which of ``--repeats`` these are: ``finish`` is asked for the repeats from ``part * r`` on, where the task
            itself asks for r.
    """
    for name, rows in samples.items():
        task = tasks.get(name)
        if task is None or getattr(task, "OUTPUT_TYPE", None) != "generate_until":
            continue
        for row in rows:
            statuses = _row_statuses(task, row, name, finish, part)
            if any(status is not None for status in statuses):
                answers = row.setdefault("_answers", [{} for _ in statuses])
                for answer, status in zip(answers, statuses, strict=True):
                    answer |= {} if status is None else {"extraction": status}


def tally(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Counts:
    """The statuses in ``_answers`` of logged samples, counted."""
    counts: Counts = {}
    for name, rows in samples.items():
        by_filter: dict[str, list[Status]] = {}
        for row in rows:
            found = [answer["extraction"] for answer in row.get("_answers", ()) if "extraction" in answer]
            by_filter.setdefault(row["filter"], []).extend(found)
        if any(by_filter.values()):
            counts[name] = {name: count(statuses) for name, statuses in by_filter.items() if statuses}
    return counts


def _row_statuses(task: Any, row: Mapping[str, Any], name: str, finish: Finish, part: int) -> list[Status | None]:
    """One for each request: the repeats of the first instance, of the second, ..."""
    statuses: list[Status | None] = []
    for instance, (responses, filtered) in enumerate(zip(row["resps"], row["filtered_resps"], strict=False)):
        # "take_first" leaves one value: it is the first response's, and the others were not read.
        each = filtered if isinstance(filtered, list) and len(filtered) == len(responses) else [filtered]
        for repeat, response in enumerate(responses):
            if repeat < len(each):
                why = finish(name, row["doc_id"], instance, part * len(responses) + repeat)
                statuses.append(of_lm_eval(task, row["filter"], response, each[repeat], why))
            else:
                statuses.append(None)
    return statuses


def unread(tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """A note where one metric does not find answers that another reads: minerva_math and its like score twice,
    ``exact_match`` on a set phrase and another metric by math-verify."""
    missed, asked = 0, 0
    names: list[str] = []
    for name in [name for name in samples if name in tasks and is_mathematical(tasks[name])]:
        own, formulas, _, _ = _ways(scorer_of(tasks[name]))
        if own is None or not formulas:
            continue
        texts = [text for row in samples[name] for responses in row["resps"] for text in responses]
        without = sum(is_nothing(_read(own, text)) for text in texts)
        if without:
            missed, asked, names = missed + without, asked + len(texts), [*names, name]
    if not names:
        return []
    where = f"task {names[0]!r}" + (f" and {len(names) - 1} like it" if len(names) > 1 else "")
    return [
        f"{where}: {missed} of {asked} answers lack the phrase that one of its metrics reads"
        " ('Final Answer: The final answer is ...'); the metric by math-verify reads any formula"
    ]
