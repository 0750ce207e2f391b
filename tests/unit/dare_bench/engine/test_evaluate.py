"""Runs from end to end with a torch-free model and task source: resume, extend, finished, fresh, failures, locks."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_source
from toy_model import ToyModel
from toy_source import ToySource

from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.preview import Preview, RunTiming, preview
from dare_bench.engine.rundir import RunFolder, read_done
from dare_bench.errors import DecodingError, RunError, SaveError, UnknownNameError, UsageError
from dare_bench.runs.reader import Run

toy_source.register()


def go(out: Path, model: ToyModel | None = None, **fields: Any) -> Run:
    fields = {"tasks": "toygen,toychoice", "harness": "toy", "output_path": str(out), **fields}
    return evaluate(model=model or ToyModel(), progress=False, **fields)


def lines(run: Run) -> dict[str, list[dict[str, Any]]]:
    return {task: [*run.samples(task), *run.traces(task)] for task in run.tasks}


def test_a_run_from_end_to_end(tmp_path: Path) -> None:
    run = go(tmp_path, limit=5)
    assert run.status == "complete" and run.tasks == ["toygen", "toychoice"]
    assert run.path.parent == tmp_path and run.path.name.startswith("ToyModel-toy-toychoice-toygen-")
    block = run.block
    assert block is not None
    assert block.run_id == run.path.name
    gen, choice = block.tasks["toygen"], block.tasks["toychoice"]
    assert (gen.n_docs, gen.n_total, gen.limit_applied, gen.requests) == (5, 40, True, 5)
    assert (choice.n_docs, choice.n_total, choice.requests) == (5, 12, 15)
    assert gen.decoding["gen_length"] == 32 and gen.decoding["early_stop"] is True and gen.decoding["steps"] == 32
    assert choice.likelihood == {"estimator": "reference", "mc_num": 128} and not choice.decoding
    assert block.cost.requests == 20 and block.cost.nfe == 5 * 32 + 15 * 128 == block.cost.forwards
    assert block.cost.tpf == pytest.approx(block.cost.tokens_to_eos / (5 * 32)) and block.cost.occupancy == 1
    assert block.ci["toygen"]["acc,none"].n == 5
    sample = next(run.samples("toygen"))
    trace = next(run.traces("toygen"))
    assert sample["dare_bench"][0]["trace_ref"] == sample["dare_bench"][0]["key"] == trace["key"]
    answer = sample["dare_bench"][0]
    assert answer["near_tie"] is False and answer["tpf"] == answer["tokens_to_eos"] / answer["nfe"]
    assert answer["decoded_tokens"] == len(trace["events"]) and answer["tokens_per_s"] is None  # the toy takes no time
    assert len(trace["pieces"]) == len(trace["events"]) == sample["dare_bench"][0]["tokens"]
    scored = next(run.samples("toychoice"))["dare_bench"]
    assert [s["stderr"] for s in scored] == [0.01] * 3 and run.traces_file("toychoice") is None
    assert run.results["config"]["limit"] == 5 and run.results["model_source"] == "dare"


def test_a_finished_run_is_given_back_without_computing_or_building_tasks(tmp_path: Path) -> None:
    first = go(tmp_path, limit=5)
    files = {p: p.stat().st_mtime_ns for p in first.path.rglob("*") if p.is_file()}
    built, model = ToySource.made, ToyModel()
    again = go(tmp_path, model, limit=5)
    assert again.path == first.path and not model.answered and ToySource.made == built
    assert {p: p.stat().st_mtime_ns for p in first.path.rglob("*") if p.is_file()} == files


def test_order_of_tasks_rows_and_place_are_no_part_of_the_run(tmp_path: Path) -> None:
    first = go(tmp_path, limit=3)
    model = ToyModel()
    assert go(tmp_path, model, limit=3, tasks="toychoice,toygen", max_rows=1).path == first.path
    assert not model.answered
    assert go(tmp_path / "b", limit=3).path.name == first.path.name


@pytest.mark.parametrize(
    "change",
    [
        {"decoding": {"temperature": 0.5}},
        {"decoding": {"eos_id": 5}},
        {"likelihood": {"mc_num": 8}},
        {"likelihood": {"estimator": "fast"}},
        {"seeds": 7},
        {"tasks": "toygen"},
        {"num_fewshot": 1},
        {"apply_chat_template": True},
        {"system_instruction": "be brief"},
    ],
)
def test_another_setting_is_another_run(tmp_path: Path, change: dict[str, Any]) -> None:
    assert go(tmp_path, limit=2).path.name != go(tmp_path, limit=2, **change).path.name


def test_spelling_out_a_default_is_the_same_run(tmp_path: Path) -> None:
    first = go(tmp_path, limit=2)
    model = ToyModel()
    same = go(tmp_path, model, limit=2, decoding={"temperature": 0.0, "gen_length": 32, "early_stop": True})
    assert same.path == first.path and not model.answered


def test_another_model_content_is_another_run(tmp_path: Path) -> None:
    names = set()
    for content in ("one", "two"):
        model = ToyModel()
        model.content_hash = content  # type: ignore[attr-defined]
        names.add(go(tmp_path, model, limit=2).path.name)
    assert len(names) == 2


def test_a_larger_limit_extends(tmp_path: Path) -> None:
    go(tmp_path, limit=5)
    model = ToyModel()
    run = go(tmp_path, model, limit=0.5)
    assert len(model.answered) == 15 + 3
    assert run.block is not None and run.block.tasks["toygen"].n_docs == 20
    assert [r.samples for r in run.block.resumed_from] == [20]
    assert [e.what for e in run.block.events] == ["the run was extended"]
    assert run.block.cost.requests == 20 + 18 and len(list(run.path.glob("results_*.json"))) == 1
    whole = go(tmp_path)
    assert whole.path == run.path and whole.block is not None and not whole.block.tasks["toygen"].limit_applied
    assert lines(whole) == lines(go(tmp_path / "b"))


def test_chosen_documents_extend_a_run_that_they_contain_and_others_are_refused(tmp_path: Path) -> None:
    def chosen(*ids: int) -> dict[str, Any]:
        return {"samples": {"toygen": list(ids), "toychoice": [0]}}

    first, model = go(tmp_path, **chosen(3, 30)), ToyModel()
    run = go(tmp_path, model, **chosen(3, 30, 31))
    assert run.path == first.path and model.answered == ["toygen/31/0/0/v1"]
    assert [s["doc_id"] for s in run.samples("toygen")] == [3, 30, 31]
    for other in (chosen(30, 32), {"limit": 4}):
        with pytest.raises(UsageError, match=r"neither contains nor is contained in .* --fresh"):
            go(tmp_path, **other)
    with pytest.raises(UsageError, match="exclude each other"):
        go(tmp_path, limit=4, **chosen(1))
    assert go(tmp_path).path == run.path


def test_fresh_makes_a_new_run_beside_and_the_latest_is_used(tmp_path: Path) -> None:
    first = go(tmp_path, limit=2)
    second = go(tmp_path, limit=2, fresh=True)
    third = go(tmp_path, limit=2, fresh=True)
    assert [second.path.name, third.path.name] == [f"{first.path.name}-2", f"{first.path.name}-3"]
    model = ToyModel()
    assert go(tmp_path, model, limit=2).path == third.path and not model.answered
    assert go(tmp_path, limit=3).path == third.path
    assert lines(second) == lines(first)


def test_a_commit_marker_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It calls the signature ``asked``."""
    run = go(tmp_path)
    file, marker = run.path / "done.json", read_done(run.path)
    record = json.loads(file.read_text())
    record["asked"] = record.pop("signature")
    file.write_text(json.dumps(record))
    assert marker is not None and read_done(run.path) == marker
    model = ToyModel()
    assert go(tmp_path, model).path == run.path and not model.answered and "asked" in json.loads(file.read_text())


def test_an_interrupted_run_resumes_and_equals_an_unbroken_one(tmp_path: Path) -> None:
    def interrupt(request: Any) -> bool:
        if request.key.startswith("toygen/20/"):
            raise KeyboardInterrupt
        return False

    model = ToyModel(fail_on=interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, model)
    broken = next(p for p in tmp_path.iterdir() if p.is_dir())
    assert Run(broken).status == "running" and read_done(broken) is None
    rest = ToyModel()
    run = go(tmp_path, rest)
    assert run.path == broken and run.status == "complete"
    assert not set(rest.answered) & set(model.answered[:-1])
    assert lines(run) == lines(go(tmp_path / "b"))
    assert run.block is not None and len(run.block.resumed_from) == 1


def test_speed_counts_the_seconds_of_generating_alone(tmp_path: Path) -> None:
    block = go(tmp_path, ToyModel(delay=0.01), limit=2).block
    assert block is not None and block.cost.generate_seconds is not None
    # Of 8 requests that take 10 ms or more each, 2 are generated.
    assert 0.02 <= block.cost.generate_seconds <= block.cost.seconds - 0.06
    assert block.cost.tokens_per_s == pytest.approx(block.cost.tokens_to_eos / block.cost.generate_seconds, rel=1e-4)
    assert block.cost.peak_memory_mb is not None and block.cost.peak_memory_mb > 1
    scored = go(tmp_path, tasks="toychoice", limit=2).block
    assert scored is not None and scored.cost.generate_seconds == 0 and scored.cost.tokens_per_s is None


def test_failures_are_counted_and_asked_again(tmp_path: Path) -> None:
    model = ToyModel(fail_on=lambda r: "too long" if r.key.startswith("toychoice/2/1") else False)
    run = go(tmp_path, model, limit=4)
    assert run.status == "incomplete" and run.block is not None
    assert [f.model_dump() for f in run.block.failures] == [{"task": "toychoice", "doc_id": 2, "error": "too long"}]
    assert run.block.tasks["toychoice"].n_docs == 4
    assert run.results["n-samples"]["toychoice"]["effective"] == 3
    healed = ToyModel()
    again = go(tmp_path, healed, limit=4)
    assert healed.answered == ["toychoice/2/1/0/v1"] and again.status == "complete" and again.path == run.path
    assert lines(again) == lines(go(tmp_path / "b", limit=4))


def test_a_changed_task_is_answered_anew_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go(tmp_path, limit=2)
    # The folder of a user's own tasks changes, so the run is looked at again, and its changed prompts are answered.
    monkeypatch.setattr(ToySource, "version", "2")
    monkeypatch.setattr("dare_bench.engine.identity._program", lambda: "edited")
    model = ToyModel()
    again = go(tmp_path, model, limit=2)
    assert again.path == run.path and len(model.answered) == 8
    assert again.block is not None and again.block.tasks["toygen"].fingerprint == "toy-toygen-2"


def test_edited_program_scores_again_but_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go(tmp_path, limit=2)
    monkeypatch.setattr("dare_bench.engine.identity._program", lambda: "edited")
    built, model = ToySource.made, ToyModel()
    again = go(tmp_path, model, limit=2)
    assert not model.answered and ToySource.made == built + 1 and lines(again) == lines(run)
    assert again.block is not None and not again.block.resumed_from
    assert again.block.cost.model_dump(exclude={"peak_memory_mb"}) == (
        run.block.cost.model_dump(exclude={"peak_memory_mb"}) if run.block else None
    )


def test_no_log_samples_leaves_the_files_out(tmp_path: Path) -> None:
    assert list(go(tmp_path, limit=2).path.glob("traces_*"))
    run = go(tmp_path, limit=2, log_samples=False)
    assert not list(run.path.glob("samples_*")) and not list(run.path.glob("traces_*"))
    assert run.headline("toygen") is not None


def test_a_user_s_own_early_stop_wins_and_keeping_text_turns_it_off(tmp_path: Path) -> None:
    def stop(**decoding: Any) -> Any:
        block = go(tmp_path, limit=1, tasks="toygen", decoding=decoding).block
        return block.tasks["toygen"].decoding["early_stop"] if block else None

    assert stop() is True
    assert stop(early_stop=False) is False
    assert stop(text_after_eos="keep") is False
    assert stop(text_after_eos="keep", early_stop=True) is True
    assert stop(early_stop=None) is True


def test_wrong_words_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    model = ToyModel()
    with pytest.raises(UnknownNameError, match="toygen"):
        go(tmp_path, model, tasks="toygn")
    with pytest.raises(DecodingError, match="block_length=5"):
        go(tmp_path, model, decoding={"block_length": 5})
    with pytest.raises(DecodingError, match="mc_nun"):
        go(tmp_path, model, likelihood={"mc_nun": 5})
    with pytest.raises(UsageError, match="limit"):
        go(tmp_path, model, limt=5)
    with pytest.raises(UsageError, match="no task"):
        evaluate(model=model)
    assert not model.answered and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"steps": 2}, "unknown run setting 'steps': it is a decoding field; give decoding={'steps': 2}"),
        ({"gen_kwargs": {"steps": 2}}, "unknown run setting 'gen_kwargs'; give decoding={'steps': 2}"),
        ({"batch_size": 4}, "unknown run setting 'batch_size'; give max_rows=4"),
        ({"task": "toygen"}, "unknown run setting 'task'; give tasks='toygen'"),
        ({"gen_lenght": 3}, "unknown run setting 'gen_lenght'; closest: decoding={'gen_length': ...}"),
        ({"zzz": 3}, "unknown run setting 'zzz'; docs/python.md lists them"),
        ({}, "no task given"),
    ],
)
def test_a_wrong_keyword_is_told_with_the_right_one(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as seen:
        evaluate(model=ToyModel(), **fields)
    assert str(seen.value).startswith(said) and "\n" not in str(seen.value)


def test_refused_tasks_never_open_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dare_bench.engine.opener.Opener.loaded", lambda self, spec: pytest.fail("opened"))
    with pytest.raises(UsageError, match="run code"):
        evaluate(model="anything", tasks="toycode", harness="toy", output_path=str(tmp_path))


def test_a_second_process_gets_one_line(tmp_path: Path) -> None:
    run = go(tmp_path, limit=2)
    with RunFolder(run.path), pytest.raises(RunError, match="another process") as caught:
        go(tmp_path, limit=3)
    assert "\n" not in str(caught.value) and "--fresh" in str(caught.value)
    assert go(tmp_path, limit=3).status == "complete"


def test_disk_full_while_results_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def full(fd: int) -> None:
        if ".tmp" in str(Path(f"/proc/self/fd/{fd}").readlink()) and list(tmp_path.glob("*/samples_toygen*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SaveError, match="no space left"):
            go(tmp_path, limit=3)
    folder = next(tmp_path.iterdir())
    assert Run(folder).status == "running"
    model = ToyModel()
    run = go(tmp_path, model, limit=3)
    assert run.path == folder and run.status == "complete" and not model.answered


def test_damaged_journal_line_is_recomputed_and_told(tmp_path: Path) -> None:
    run = go(tmp_path, limit=4)
    journal = run.path / "journal" / "main.jsonl"
    rows = journal.read_bytes().splitlines(keepends=True)
    at = next(i for i, row in enumerate(rows) if b'"toygen/1/' in row)
    rows[at] = rows[at].replace(b'"tier"', b'"teir"')
    journal.write_bytes(b"".join(rows))
    model = ToyModel()
    again = go(tmp_path, model, limit=5)
    assert "toygen/1/0/0/v1" in model.answered and len(model.answered) == 1 + 4
    assert again.block is not None
    assert {"what": "a journal line could not be read", "file": "main.jsonl", "line": at + 1} in [
        e.model_dump() for e in again.block.events
    ]
    assert lines(again) == lines(go(tmp_path / "b", limit=5))


def test_run_json_says_what_was_asked(tmp_path: Path) -> None:
    run = go(tmp_path, limit=2, decoding={"temperature": 0.5})
    about = json.loads((run.path / "run.json").read_text())
    assert about["run_id"] == run.path.name and about["spec"]["decoding"] == {"temperature": 0.5}
    assert about["date"] in str(run.results_file)


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    model = ToyModel()
    first: list[Preview] = []

    def told(early: Preview) -> None:
        assert not model.answered, "settings and prompt are told before samples are timed"
        first.append(early)

    requested = {
        "model": model,
        "tasks": "toygen,toychoice",
        "harness": "toy",
        "limit": 4,
        "output_path": str(tmp_path),
    }
    seen = preview(**requested, on_ready=told)
    assert [replace(seen, timing=RunTiming())] == first
    assert seen.requests == {"toygen": 4, "toychoice": 12}
    assert seen.forwards == 4 * 32 + 12 * 128
    timing = seen.timing
    assert 1 <= timing.samples <= 3 and len(model.answered) == timing.samples
    assert timing.seconds is not None and timing.seconds > 0
    assert seen.prompt.startswith("question 0") and not seen.exists
    assert not list(tmp_path.iterdir())
    json.dumps(seen.plain())
    run = go(tmp_path, limit=4)
    assert run.path.name == seen.run_id
    assert preview(model=model, tasks="toygen,toychoice", harness="toy", output_path=str(tmp_path)).exists


def test_the_timing_of_a_dry_run_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dare_bench.engine.preview.TIMING_LIMIT", 0.0)
    timing = preview(model=ToyModel(), tasks="toygen", harness="toy", limit=4, output_path=str(tmp_path)).timing
    assert (timing.samples, timing.forwards) == (0, 1), "one forward pass is finished, its sample is not"
    assert timing.seconds == pytest.approx(timing.took * 4 * 32)


def test_recipes_of_equal_settings_share_a_run_and_all_stay_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many published scores were taken with equal settings: the run stands beside each of them."""
    from dare_bench import recipes

    first, second = (recipes.find(f"llada-8b-instruct/{name}")[0] for name in ("arc-c", "arc-c.opencompass"))
    result = {recipe.name: [recipe] for recipe in (first, second)}
    monkeypatch.setattr(recipes, "find", result.__getitem__)
    runs = [go(tmp_path, ToyModel(), limit=2, recipe=name) for name in result]
    plain = go(tmp_path, ToyModel(), limit=2)
    assert runs[0].path == runs[1].path == plain.path
    assert [recipe.name for recipe in Run(plain.path).block.recipes] == [first.name, second.name]  # type: ignore[union-attr]
    assert any("limit: 2" in text for text in Run(plain.path).block.recipes[0].deviations)  # type: ignore[union-attr]


def test_a_task_that_changed_under_the_same_command_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go(tmp_path, ToyModel(), limit=2)
    assert run.block is not None and not run.block.events
    monkeypatch.setattr(ToySource, "version", "2")
    again = go(tmp_path, ToyModel(), limit=3)
    assert again.path == run.path and again.block is not None
    assert any("'toygen' has changed since this run was last scored" in event.what for event in again.block.events)
