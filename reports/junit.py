"""A verdict as JUnit XML for continuous integration: one test case for each task and score."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from dare_bench.analysis.regression import RegressionVerdict, excess_ties_message
from dare_bench.reports.regression_report import change_line, flip_line, judged_line
from dare_bench.runs.text import counted, visible
from dare_bench.runs.writer import atomic_write_text

# Characters that XML 1.0 cannot represent, not even by a reference.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: str | Path, text: str) -> None:
    """Raises SaveError."""
    atomic_write_text(path, text, durable=False)


def text(verdict: RegressionVerdict) -> str:
    """The file's text. The cases are the scores, the answers of each task, and the number of excused documents."""
    return _suite(verdict.run, list(_cases(verdict)))


def error_text(run: str, reason: str) -> str:
    """The file's text where a run could not be judged."""
    case = ElementTree.Element("testcase", classname="dare-bench regress", name=_clean(run))
    ElementTree.SubElement(case, "error", message=_clean(reason))
    return _suite(run, [case])


def _suite(run: str, cases: Sequence[ElementTree.Element]) -> str:
    outcomes = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    counts = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in outcomes}
    name = _clean(f"dare-bench regress {run}")
    suite = ElementTree.Element("testsuite", {"name": name, "tests": str(len(cases)), **counts})
    suite.extend(cases)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _cases(verdict: RegressionVerdict) -> Iterator[ElementTree.Element]:
    for score in verdict.scores:
        line = flip_line if score.mode == "exact" else change_line
        flips = [flip for flip in (*verdict.flips, *verdict.changed) if flip.task == score.task]
        of_score = [flip for flip in flips if any(key == score.key for key, _, _ in flip.values)]
        lines = [judged_line(score), *map(line, of_score)]
        if score.judged or score.regressed:
            yield _case(score.task, score.key, lines, failure=score.reason if score.regressed else "")
        else:
            yield _case(score.task, score.key, skipped=score.reason)
    for task in dict.fromkeys(score.task for score in verdict.scores if score.mode == "exact"):
        flips = [flip for flip in verdict.flips if flip.task == task]
        red = sum(not flip.excused for flip in flips)
        failure = f"{counted(red, 'document')} not the same as in the baseline" if red else ""
        yield _case(task, "answers", list(map(flip_line, flips)), failure)
    if verdict.documents:
        excused = [flip for flip in verdict.flips if flip.excused]
        failure = excess_ties_message(len(excused), verdict.documents)
        yield _case("all tasks", "ties", list(map(flip_line, excused)) if failure else (), failure)


def _case(task: str, name: str, lines: Sequence[str] = (), failure: str = "", skipped: str = "") -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_clean(task), name=_clean(name))
    if skipped:
        ElementTree.SubElement(case, "skipped", message=_clean(skipped))
    elif failure:
        ElementTree.SubElement(case, "failure", message=_clean(failure)).text = _clean("\n".join(lines))
    elif lines:
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))
    return case


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
