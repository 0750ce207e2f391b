"""Runs under several templates: what is a template, a decoder and a document, what is refused, what is reported."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_factory import alter, make_run

from dare_bench.analysis.templates import compare_templates
from dare_bench.cli.compare import compare
from dare_bench.errors import RunError, UsageError
from dare_bench.reports import templates_report as report
from dare_bench.reports.elements import show
from dare_bench.runs.reader import Run

GOOD, BAD = [1.0, 1.0, 1.0, 0.0] * 15, [1.0, 0.0, 0.0, 0.0] * 15


def _run(root: Path, steps: int, shots: int, values: list[float], **more: Any) -> Run:
    """A run of the decoder ``steps`` under the template ``shots``."""
    more = {"documents": "same", **more}
    name = f"steps-{steps}-shots-{shots}-{len(list(root.iterdir()))}"
    folder = make_run(root, name, values={"s": values}, decoding={"steps": steps}, **more)
    alter(folder, results={"n-shot": {"s": shots}})
    return Run(folder)


def _reversed(root: Path) -> list[Run]:
    """Two decoders that change places under the second of two templates."""
    return [
        _run(root, 4, 0, GOOD), _run(root, 8, 0, BAD), _run(root, 4, 2, BAD), _run(root, 8, 2, GOOD),
    ]  # fmt: skip


def test_a_reversal_is_reported(tmp_path: Path) -> None:
    (found,) = compare_templates(_reversed(tmp_path))
    assert found.decoders == ("steps 4", "steps 8") and found.n == 60 and found.unpaired == 0
    assert [template.name for template in found.templates] == ["0-shot", "2-shot"]
    assert [scores.scores for scores in found.scores] == [(0.75, 0.25), (0.25, 0.75)]
    (pair,) = found.pairs
    assert pair.is_reversed and (pair.better, pair.worse, pair.ahead) == ([0], [1], 0.5)
    assert found.agreement is not None and found.agreement.mean == found.agreement.hi == -1.0
    console = Console(width=80, file=io.StringIO(), markup=False, highlight=False, force_terminal=True)
    show(report.elements([found]), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "REVERSAL: A is better than B under 1 (+50.0, Holm p < 0.0001)" in " ".join(text.split())


def test_the_best_decoder_and_the_fewest_examples_come_first(tmp_path: Path) -> None:
    runs = [_run(tmp_path, steps, shots, BAD if steps == 4 else GOOD) for shots in (10, 2) for steps in (4, 8)]
    (found,) = compare_templates(runs)
    assert found.decoders == ("steps 8", "steps 4") and [each.name for each in found.templates] == ["2-shot", "10-shot"]
    (pair,) = found.pairs
    assert (pair.ahead, pair.better, pair.is_reversed) == (1.0, [0, 1], False)


def test_the_chat_template_and_the_instruction_are_templates(tmp_path: Path) -> None:
    runs = [_run(tmp_path, 4, 0, GOOD) for _ in range(3)]
    alter(runs[1].path, results={"chat_template_sha": "abc"})
    alter(runs[2].path, results={"system_instruction": "Think first."})
    (found,) = compare_templates([Run(run.path) for run in runs])
    assert [template.name for template in found.templates] == [
        "no chat template, no instruction",
        "no chat template, instruction 'Think first.'",
        "chat template, no instruction",
    ]
    assert found.pairs == () and found.agreement is None and len(found.decoders) == 1


def test_two_tasks_are_templates_of_one_where_their_documents_are_the_same(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", values={"s": GOOD, "words": BAD, "other": GOOD}, documents="same")
    (kept,), (changed,) = folder.glob("samples_s_*"), folder.glob("samples_words_*")
    of_document = [json.loads(line)["doc_hash"] for line in kept.read_text().splitlines()]
    lines = [json.loads(line) for line in changed.read_text().splitlines()]
    changed.write_text("".join(
        json.dumps(line | {"doc_hash": content}) + "\n" for line, content in zip(lines, of_document, strict=True)
    ))  # fmt: skip
    (found,) = compare_templates([Run(folder)])
    assert [template.name for template in found.templates] == ["s", "words"] and found.scores[0].mean == 0.5
    assert found.warnings == ("a was changed after the run",)
    assert found.left_out == ("other: one template, or no document in common with the others",)
    with pytest.raises(UsageError, match=r"^no two of the 2 templates of other, s have a document in common"):
        compare_templates([Run(folder)], ["s", "other"])


def test_seeds_are_decoders_and_turns_are_templates(tmp_path: Path) -> None:
    runs = [_run(tmp_path, 4, shots, GOOD) for shots in (2, 2, 2, 2)]
    for at, run in enumerate(runs):
        alter(
            run.path, seeds=(at % 2, 1234, 1234, at % 2),
            results={"chat_template_sha": "abc", "fewshot_as_multiturn": at > 1},
        )  # fmt: skip
    (found,) = compare_templates([Run(run.path) for run in runs])
    assert found.decoders == ("seed 0,1234,1234,0", "seed 1,1234,1234,1")
    assert [each.name for each in found.templates] == ["examples in one turn", "examples as turns"]


def test_documents_that_not_all_runs_have_are_left_out(tmp_path: Path) -> None:
    runs = [_run(tmp_path, 4, 0, GOOD), _run(tmp_path, 4, 2, BAD[:40])]
    (found,) = compare_templates(runs)
    assert (found.n, found.unpaired) == (40, 20) and found.scores[0].scores == (0.75, 0.25)


def test_a_decoder_that_lacks_a_template_is_left_out(tmp_path: Path) -> None:
    runs = _reversed(tmp_path)
    (found,) = compare_templates(runs[:3])
    assert found.decoders == ("steps 4",) and found.left_out == ("steps 8 has no run under: 2-shot",)
    with pytest.raises(UsageError, match=r"^no decoder has all 2 templates: steps 4 has no run under: 2-shot; run"):
        compare_templates([runs[0], runs[3]])


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path: Path) -> None:
    one = _run(tmp_path, 4, 0, GOOD)
    with pytest.raises(UsageError, match=r"^--templates needs runs under at least two templates, found one \(s\)"):
        compare_templates([one, _run(tmp_path, 8, 0, BAD)])
    with pytest.raises(UsageError, match=r"have a document in common \(same number and content\)"):
        compare_templates([one, _run(tmp_path, 4, 2, GOOD, documents="others")])
    with pytest.raises(UsageError, match=r"have the same decoder and the same template of s; give one of them"):
        compare_templates([*_reversed(tmp_path), one])
    with pytest.raises(UsageError, match="unknown task 'x'"):
        compare_templates([one], ["x"])
    without = _run(tmp_path, 4, 2, GOOD)
    next(without.path.glob("samples_*")).unlink()
    with pytest.raises(RunError, match="has no sample lines of s; evaluate without --no-log-samples"):
        compare_templates([one, without])


def test_a_setting_that_templates_change_is_a_warning(tmp_path: Path) -> None:
    runs = [_run(tmp_path, 4, 0, GOOD), _run(tmp_path, 4, 2, GOOD)]
    block = json.loads(next(runs[1].path.glob("results_*")).read_text())["dare_bench"]["tasks"]
    block["s"]["decoding"]["gen_length"] = 64
    alter(runs[1].path, tasks=block)
    (found,) = compare_templates([runs[0], Run(runs[1].path)])
    assert [text for text in found.warnings if text.endswith("gen_length differs between the templates (16, 64)")]


def test_the_command_prints_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(run.path) for run in _reversed(tmp_path)]
    compare(names, templates=True, json=True, markdown=str(tmp_path / "report.md"))
    (record,) = json.loads(capsys.readouterr().out)["templates"]
    assert record["pairs"][0]["reversal"] is True and record["kendall_tau"]["mean"] == -1.0
    assert [each["fingerprint"] for each in record["templates"]] == [
        Run(name).require_block().tasks["s"].fingerprint for name in (names[0], names[2])
    ]
    assert "| pair | gain 1 | gain 2 |" in (tmp_path / "report.md").read_text()
    with pytest.raises(UsageError, match=r"^--templates does not take --all-pairs, --force; omit"):
        compare(names, templates=True, all_pairs=True, force=True)
