"""A verdict as JUnit XML, which continuous integration shows: one test case for each task and score."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from dare_bench.analysis.regression import DocumentChange, RegressionVerdict, too_many
from dare_bench.reports.regress import change_line, flip_line, judged_line
from dare_bench.runs.text import counted, visible
from dare_bench.runs.writer import atomic_write_text

# What XML 1.0 has no way to write, not even as a character reference.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: str | Path, verdict: RegressionVerdict) -> None:
    """Raises SaveError."""
    atomic_write_text(path, text(verdict), durable=False)


def text(verdict: RegressionVerdict) -> str:
    """The file. Beside the scores, the answers of each task and the number of excused documents are cases."""
    cases = list(_cases(verdict))
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"dare-bench regress {verdict.run}"),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors="0",
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
    )
    suite.extend(cases)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _cases(verdict: RegressionVerdict) -> Iterator[ElementTree.Element]:
    for score in verdict.scores:
        flips = _of(verdict, score.task, score.key)
        line = flip_line if score.mode == "exact" else change_line
        case = _case(score.task, score.key)
        if score.red:
            _fail(case, score.reason, [judged_line(score), *map(line, flips)])
        elif not score.judged:
            ElementTree.SubElement(case, "skipped", message=_clean(score.reason))
        else:
            _out(case, [judged_line(score), *map(line, flips)])
        yield case
    for task in dict.fromkeys(score.task for score in verdict.scores if score.mode == "exact"):
        case, flips = _case(task, "answers"), [flip for flip in verdict.flips if flip.task == task]
        if any(not flip.excused for flip in flips):
            red = counted(sum(not flip.excused for flip in flips), "document")
            _fail(case, f"{red} not the same as in the baseline", list(map(flip_line, flips)))
        elif flips:
            _out(case, list(map(flip_line, flips)))
        yield case
    if verdict.documents:
        case, excused = _case("all tasks", "ties"), [flip for flip in verdict.flips if flip.excused]
        if message := too_many(len(excused), verdict.documents):
            _fail(case, message, list(map(flip_line, excused)))
        yield case


def _of(verdict: RegressionVerdict, task: str, key: str) -> list[DocumentChange]:
    """The documents whose value of that score differs."""
    both = [*verdict.flips, *verdict.changed]
    return [flip for flip in both if flip.task == task and any(value[0] == key for value in flip.values)]


def _case(task: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_clean(task), name=_clean(name))


def _fail(case: ElementTree.Element, message: str, lines: list[str]) -> None:
    ElementTree.SubElement(case, "failure", message=_clean(message)).text = _clean("\n".join(lines))


def _out(case: ElementTree.Element, lines: list[str]) -> None:
    ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
