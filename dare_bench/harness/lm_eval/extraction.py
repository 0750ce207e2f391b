"""Could lm-eval read an answer out of each response? By what the task's own filters report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dare_bench.harness.common.extraction_status import Status, count, is_nothing, status_of
from dare_bench.harness.lm_eval.scorers import is_mathematical, scorer_of

Counts = dict[str, dict[str, dict[str, int]]]
"""By task, then filter, then status."""
Finish = Callable[[str, Any, int, int], str | None]
"""(task, document, instance, repeat) -> why that response ended."""
_PHRASE_EXTRACTOR = "get_unnormalized_answer"
"""The function by which minerva_math's scorer, and those made from it, read the phrase for ``exact_match``."""
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
        None where the pipeline has no step that looks for an answer in a text.
    """
    if getattr(task, "OUTPUT_TYPE", None) != "generate_until" or not isinstance(response, str):
        return None
    step = _pattern_step(task, filter_name)
    return None if step is None else status_of(_answers(step, response, filtered), finish_reason)


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


def _answers(step: Any, text: str, filtered: Any) -> list[str]:
    """The answers that the step's pattern matches; only the one taken where it takes the last one of all; none where
    the step reports that there is none."""
    taken = filtered[0] if isinstance(filtered, list) and filtered else filtered
    if is_nothing(taken) or taken == step.fallback:
        return []
    matches = [_group(match) for match in step.regex.findall(text)] if step.group_select != -1 else []
    # No match although something was taken: a later rule of the filter took it.
    return [match for match in matches if match.strip()] or [str(taken)]


def _group(match: str | tuple[str, ...]) -> str:
    return match if isinstance(match, str) else next((part for part in match if part), "")


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
        scorer_module = getattr(scorer_of(tasks[name]), "__globals__", {})
        extractor, parse = scorer_module.get(_PHRASE_EXTRACTOR), scorer_module.get("parse")
        if not callable(extractor) or not getattr(parse, "__module__", "").startswith("math_verify"):
            continue
        texts = [text for row in samples[name] for responses in row["resps"] for text in responses]
        if without := sum(is_nothing(extractor(text)) for text in texts):
            missed, asked, names = missed + without, asked + len(texts), [*names, name]
    if not names:
        return []
    where = f"task {names[0]!r}" + (f" and {len(names) - 1} like it" if len(names) > 1 else "")
    return [
        f"{where}: {missed} of {asked} answers lack the phrase that one of its metrics reads"
        " ('Final Answer: The final answer is ...'); the metric by math-verify reads any formula"
    ]
