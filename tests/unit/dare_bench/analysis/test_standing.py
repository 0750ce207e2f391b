"""Which scores answer the question as it is now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from run_factory import make_run

from dare_bench.analysis.settings import prompt_context
from dare_bench.analysis.task_changes import DatedScore, current, question_difference, task_change
from dare_bench.runs.reader import Run


def run(root: Path, name: str, template: str = "", shots: int = 0, **options: Any) -> Run:
    folder = make_run(root, name, tasks={"a": 0.5}, **options)
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_bytes())
    results["chat_template"] = template or None
    results["n-shot"] = {"a": shots}
    file.write_text(json.dumps(results))
    return Run(folder)


def dated(run: Run, complete: bool = True) -> DatedScore:
    score = run.headline("a")
    assert score is not None
    return DatedScore(score, run.created, complete, prompt_context(run, "a"))


def test_the_newest_whole_run_of_all_documents_defines_the_current_question(tmp_path: Path) -> None:
    old = dated(run(tmp_path, "old", created="2026-11-01T00:00:00"))
    new = dated(run(tmp_path, "new", fingerprint="v2", created="2026-11-02T00:00:00"))
    limited = dated(run(tmp_path, "limited", limit=5, fingerprint="v3", created="2026-11-03T00:00:00"))
    broken = dated(run(tmp_path, "broken", fingerprint="v4", created="2026-11-04T00:00:00"), complete=False)
    assert current([old, new, limited, broken]) is new and current([limited, broken]) is None
    assert (
        question_difference(old, new) == "definition"
        and question_difference(new, new) is None
        and question_difference(old, None) is None
    )


def test_the_usual_prompts_are_the_question_and_not_the_newest(tmp_path: Path) -> None:
    usual = [dated(run(tmp_path, f"r{at}", created=f"2026-11-0{at}T00:00:00")) for at in (1, 2)]
    other = dated(run(tmp_path, "other", shots=1, prompts="one shot", created="2026-11-09T00:00:00"))
    assert current([*usual, other]) is usual[1]
    assert question_difference(other, usual[1]) == "prompts"


def test_each_checkpoint_may_have_a_chat_template_of_its_own(tmp_path: Path) -> None:
    llada = run(tmp_path, "llada", "<user>{{ x }}", prompts="llada")
    dream = run(tmp_path, "dream", "[INST]{{ x }}", prompts="dream")
    raw = run(tmp_path, "raw", prompts="raw")
    shots = run(tmp_path, "shots", "<bos>{{ x }}", shots=5, prompts="shots")
    same = run(tmp_path, "same", "[INST]{{ x }}", prompts="other data")
    fewer = run(tmp_path, "fewer", "<s>{{ x }}", prompts="fewer", n_docs=10)
    now = dated(dream)
    assert question_difference(dated(llada), now) is None
    assert [question_difference(dated(item), now) for item in (raw, shots, same, fewer)] == ["prompts"] * 4


def test_compared_they_get_a_note_and_no_refusal(tmp_path: Path) -> None:
    def of(name: str, template: str, target: str | None = None) -> Run:
        built = run(tmp_path, name, template, prompts=name)
        file = next(built.path.glob("samples_a_*"))
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row |= {"prompt_hash": f"{name}{row['doc_id']}", "target_hash": f"{target}{row['doc_id']}"}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return built

    llada, dream, raw = of("llada", "<user>"), of("dream", "[INST]"), of("raw", "")
    result = task_change(llada, dream, "a")
    assert not result.breaks and any("its own chat template" in note for note in result.notes)
    assert task_change(llada, raw, "a").breaks and task_change(dream, of("moved", "<x>", "other"), "a").breaks
