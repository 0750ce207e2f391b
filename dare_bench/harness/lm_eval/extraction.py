"""Did lm-eval extract an answer from each response, as the task's filters report it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dare_bench.harness.common.extraction_status import Status, is_nothing, status_of
from dare_bench.harness.common.time_limits import source_names
from dare_bench.harness.lm_eval.scoring_limits import scorer_of

FinishReason = Callable[[str, Any, int, int], str | None]
"""(task, document, instance, repeat) -> the finish reason of that response."""
_NO_ANSWER = "~ there is nothing that anybody asked for ~"
"""A text in which no harness can find an answer."""


def of_lm_eval(task: Any, filter_name: str, response: str, filtered: Any, finish_reason: str | None) -> Status | None:
    """The status of one response to a task of lm-eval, from the output of one of its filter pipelines; None if the
    pipeline has no step that searches a text for an answer."""
    if getattr(task, "OUTPUT_TYPE", None) != "generate_until" or not isinstance(response, str):
        return None
    step = _pattern_step(task, filter_name)
    return None if step is None else status_of(_answers(step, response, filtered), finish_reason)


def _pattern_step(task: Any, filter_name: str) -> Any:
    """The step of a pipeline that searches for a pattern: lm-eval's regex filter, or one derived from it. None without,
    or if the pattern accepts any text ("the first line")."""
    cached = vars(task).setdefault("_dare_bench_pattern_steps", {})
    if filter_name not in cached:
        pipeline = next((f for f in getattr(task, "_filters", ()) if f.name == filter_name), None)
        steps = [make() for make in pipeline.filters] if pipeline is not None else []
        step = next((step for step in steps if hasattr(step, "regex") and hasattr(step, "fallback")), None)
        accepts_any = step is not None and _NO_ANSWER in step.regex.findall(_NO_ANSWER)
        cached[filter_name] = None if accepts_any else step
    return cached[filter_name]


def _answers(step: Any, text: str, filtered: Any) -> list[str]:
    """The answers that the step's pattern matches; only the selected one if it selects the last of all matches; none if
    the step reports that there is none."""
    selected = filtered[0] if isinstance(filtered, list) and filtered else filtered
    if is_nothing(selected) or selected == step.fallback:
        return []
    matches = step.regex.findall(text) if step.group_select != -1 else []
    groups = (match if isinstance(match, str) else next(filter(None, match), "") for match in matches)
    # No match although there is an answer: it comes from a later rule of the filter.
    return [group for group in groups if group.strip()] or [str(selected)]


def annotate(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[dict[str, Any]]], finish: FinishReason, part: int = 0
) -> None:
    """Write the status of each answer into lm-eval's logged samples (``_answers``, one entry for each request of the
    document in order). ``part``: which of ``--repeats`` these are."""
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


def _row_statuses(task: Any, row: Mapping[str, Any], name: str, finish: FinishReason, part: int) -> list[Status | None]:
    """One for each request: the repeats of the first instance, of the second, ..."""
    statuses: list[Status | None] = []
    for instance, (responses, filtered) in enumerate(zip(row["resps"], row["filtered_resps"], strict=False)):
        # "take_first" leaves one value: it is the first response's, and the others were not read.
        each = filtered if isinstance(filtered, list) and len(filtered) == len(responses) else [filtered]
        for repeat, (response, value) in enumerate(zip(responses, each, strict=False)):
            reason = finish(name, row["doc_id"], instance, part * len(responses) + repeat)
            statuses.append(of_lm_eval(task, row["filter"], response, value, reason))
        statuses += [None] * (len(responses) - len(each))
    return statuses


def unread(tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """A note if one metric of a task reads a set phrase only, and another one, by math-verify, any formula."""
    counts: dict[str, tuple[int, int]] = {}
    for name in samples.keys() & tasks.keys():
        scorer = scorer_of(tasks[name])
        phrase = None if scorer is None else scorer.__globals__.get("get_unnormalized_answer")
        if phrase is None or not source_names(scorer, "math_verify"):
            continue
        texts = [text for row in samples[name] for responses in row["resps"] for text in responses]
        if missing := sum(is_nothing(phrase(text)) for text in texts):
            counts[name] = missing, len(texts)
    if not counts:
        return []
    names = [name for name in samples if name in counts]
    where = f"task {names[0]!r}" + (f" and {len(names) - 1} like it" if len(names) > 1 else "")
    missing, total = map(sum, zip(*counts.values(), strict=True))
    return [
        f"{where}: {missing} of {total} answers lack the phrase that one of its metrics reads"
        " ('Final Answer: The final answer is ...'); the metric by math-verify reads any formula"
    ]
