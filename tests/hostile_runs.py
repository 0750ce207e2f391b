"""Run folders as nobody should hand them on: each kind is a genuine run with one thing about it changed.

``KINDS`` has them by name. ``reach`` says who must refuse a kind: everybody who opens the run (``run``), who reads its
sample lines (``samples``) or its traces (``traces``), who writes to it (``folder``), or nobody: it is read as it is, or
as a run that is not finished, and what it prints is harmless (``none``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hostile_files import (
    HUGE,
    MARKS,
    TASK,
    Change,
    a_socket,
    cycle,
    in_folder,
    in_json,
    in_line,
    in_record,
    instead,
    lock_elsewhere,
    long_answer,
    many,
    named,
    nested,
    renamed,
    results_of,
    samples_of,
    sparse,
    to_a_fifo,
    to_another,
    traces_of,
    twice,
    written,
)  # fmt: skip

Reach = Literal["run", "samples", "traces", "folder", "none"]


@dataclass(frozen=True)
class Kind:
    change: Change
    reach: Reach


FILES: dict[str, tuple[Callable[[Path], Path], Reach]] = {
    "results": (results_of, "run"),
    "run.json": (named("run.json"), "run"),
    "done.json": (named("done.json"), "folder"),
    "samples": (samples_of, "samples"),
    "traces": (traces_of, "traces"),
    "journal": (named("journal/main.jsonl"), "folder"),
}


def _of_files() -> Iterator[tuple[str, Kind]]:
    """Whatever a file of the run can be instead of what it is."""
    for name, (file, reach) in FILES.items():
        quiet: Reach = "none" if name in ("done.json", "journal") else reach
        reach = "run" if name == "done.json" else reach
        yield f"{name}: FIFO", Kind(instead(file, os.mkfifo), reach)
        yield f"{name}: socket", Kind(instead(file, a_socket), reach)
        yield f"{name}: folder", Kind(instead(file, Path.mkdir), reach)
        yield f"{name}: link to /dev/zero", Kind(instead(file, lambda at: at.symlink_to("/dev/zero")), reach)
        yield f"{name}: link to a FIFO in the run", Kind(instead(file, to_a_fifo), reach)
        yield f"{name}: link to a folder", Kind(instead(file, lambda at: at.symlink_to("/tmp")), reach)
        yield f"{name}: link out of the run", Kind(instead(file, to_another), reach)
        yield f"{name}: link to nothing", Kind(instead(file, lambda at: at.symlink_to("nowhere")), reach)
        yield f"{name}: link to itself", Kind(instead(file, lambda at: at.symlink_to(at.name)), reach)
        yield f"{name}: not UTF-8", Kind(instead(file, written(b'{"\xff\xfe": "\xc3\x28"}\n')), quiet)
        yield f"{name}: deep nesting", Kind(instead(file, written(nested('{"a":', "}") + "\n")), quiet)
        yield (
            f"{name}: 3 GB of nothing",
            Kind(instead(file, sparse(3 << 30)), "none" if name == "done.json" else reach),
        )
        yield f"{name}: a list", Kind(instead(file, written("[1, 2]\n")), quiet)
        if name not in ("samples", "traces"):
            yield f"{name}: empty", Kind(instead(file, written(b"")), quiet)
        if name not in ("samples", "traces", "journal"):
            yield f"{name}: missing", Kind(instead(file, lambda at: None), "none")


RECIPE = {"name": "r", "published": {}, "score": {"task": TASK}, "settings": "s"}


def _interval(**wrong: Any) -> dict[str, Any]:
    sound = {"method": "x", "level": 0.95, "lo": 0.0, "hi": 1.0, "n": 4}
    return {TASK: {"exact_match,none": {**sound, **wrong}}}


def _of_results() -> Iterator[tuple[str, Kind]]:
    own, block = f"results/{TASK}", f"dare_bench/tasks/{TASK}"
    wrong: dict[str, list[Any]] = {
        "results": [None, [], 5],
        own: [None, 5, "x"],
        "groups": [[1]],
        "group_subtasks": [None, {TASK: 5}, {TASK: [["x"]]}, {"g": ["x" * 10_000]}],
        "configs": ["none", {TASK: 5}],
        "versions": [3],
        "n-shot": [[1], {TASK: "many"}, {TASK: {}}],
        "n-samples": [7, {TASK: {"effective": "4"}}, {TASK: {"effective": -4}}],
        "higher_is_better": [None, {TASK: "yes"}],
        "config": [5, [1]],
        "max_length": ["long", HUGE, -1],
        "chat_template": [5, {"a": 1}],
        "chat_template_sha": [[1]],
        "system_instruction": [{}],
        "dare_bench": [..., [], "x"],
        "dare_bench/schema_version": [99, "1", True, None],
        "dare_bench/status": ["fine", None],
        "dare_bench/run_id": [5, "", "r" * 10_000],
        "dare_bench/created": ["yesterday", 5, "0001-01-01T00:00:00+14:00", MARKS],
        "dare_bench/model": [None, "tiny"],
        "dare_bench/model/name": [5, "m" * 10_000],
        "dare_bench/model/parameters": [-1, "many", 1.5, HUGE],
        "dare_bench/model/lineage": [5, {"base": [1], "method": "sft"}, {"base": "b", "method": "sft", "parents": 5}],
        "dare_bench/harness": [{}, {"name": "h" * 10_000, "version": "1"}],
        "dare_bench/tasks": [[], HUGE],
        block: [None],
        f"{block}/n_docs": [-1, 1e30, HUGE],
        f"{block}/n_total": [-5, "x"],
        f"{block}/requests": [-1],
        f"{block}/nfe": [-1],
        f"{block}/decoding": [[1]],
        f"{block}/fingerprint": [5],
        f"{block}/tier": ["Z"],
        "dare_bench/seeds": [[1], ["a", "b", "c", "d"]],
        "dare_bench/limit": [-1, float("nan")],
        "dare_bench/repeats": [0, HUGE],
        "dare_bench/cost/nfe": [-1, HUGE],
        "dare_bench/cost/seconds": [float("nan"), float("inf"), -1.0, 1e300],
        "dare_bench/cost/tokens_per_s": [float("inf"), 1e300, 1e99, 1e-99, 5e-324, -1.0],
        "dare_bench/cost/tpf": [1e99, 1e-99, 5e-324],
        "dare_bench/ci": [_interval(lo=float("inf")), _interval(level=7.0), _interval(n=-4), _interval(hi="x")],
        "dare_bench/extraction": [{TASK: {"none": {"matched": -4}}}, {TASK: {"none": 5}}],
        "dare_bench/failures": [[{"task": TASK, "doc_id": [1], "error": "x"}], {}],
        "dare_bench/recipes": [[{**RECIPE, "score": {"task": [1]}}], [{**RECIPE, "published": {"n": HUGE}}], [5]],
        "dare_bench/unknown": [1],
    }  # fmt: skip
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"{place} {at}", Kind(in_json(results_of, {place: value}), "run")
    marks: dict[str, Any] = {
        f"{own}/alias": MARKS,
        f"{own}/{MARKS},{MARKS}": 0.5,
        f"{block}/decoding/{MARKS}": MARKS,
        "dare_bench/command": MARKS,
        "dare_bench/environment/gpu": MARKS,
        "dare_bench/environment/cpu": MARKS,
        "dare_bench/harness/version": MARKS,
        "dare_bench/run_id": MARKS + "id",
        "dare_bench/model/name": MARKS + "name",
        "dare_bench/model/family": MARKS,
        "dare_bench/model/dtype": MARKS,
        "dare_bench/model/content_hash": MARKS,
        "dare_bench/model/lineage": {"base": MARKS, "method": MARKS, "data": MARKS, "settings": {MARKS: MARKS}},
        "dare_bench/suite": MARKS,
        "dare_bench/notes": [MARKS],
        "dare_bench/events": [{"what": f"task {MARKS} has changed since", MARKS: MARKS}],
        "dare_bench/failures": [{"task": TASK, "doc_id": MARKS, "error": MARKS}],
        "dare_bench/decoding_requested": {MARKS: MARKS},
        "dare_bench/recipes": [{**RECIPE, "name": MARKS, "published": {"source": MARKS}, "doubts": [MARKS]}],
        f"configs/{TASK}/dataset_path": "openai/gsm8k",
        f"configs/{TASK}/dataset_name": MARKS,
        "chat_template": MARKS,
        "system_instruction": MARKS,
    }
    yield "marks in all texts of the results", Kind(in_json(results_of, marks), "none")
    odd: dict[str, list[Any]] = {
        f"{own}/exact_match,none": [float("nan"), "N/A", None, HUGE, 5e-324],
        "dare_bench/harness/name": ["lm-eval" + MARKS],
        "dare_bench/model/name": ["../../name", "a\nb"],
        "dare_bench/failures": [[{"task": "another", "doc_id": 0, "error": "x"}]],
    }
    for place, values in odd.items():
        for at, value in enumerate(values):
            yield f"{place}, odd {at}", Kind(in_json(results_of, {place: value}), "none")
    yield f"{own} 1e308", Kind(in_json(results_of, {f"{own}/exact_match,none": 1e308}), "run")
    yield f"{own} metric of 10,000 characters", Kind(in_json(results_of, {f"{own}/{'m' * 10_000},none": 0.5}), "run")
    yield "a name twice, deep", Kind(in_json(results_of, {"config/a": json.loads("[" * 200 + "]" * 200)}), "run")
    yield "a group in itself", Kind(cycle({"g": ["g"]}), "run")
    yield "groups in a circle", Kind(cycle({"g": ["h"], "h": ["g"]}), "run")
    yield "groups in a circle with a task", Kind(cycle({"g": ["h", TASK], "h": ["g", TASK]}), "run")
    yield "a group of unknown tasks", Kind(cycle({"g": ["nowhere"]}), "run")
    for part in ("tasks", "groups", "metrics"):
        yield f"20,000 {part}", Kind(many(20_000, part), "run")
    yield "300 nested groups", Kind(many(300, "nested groups"), "run")
    yield "20,000 failures", Kind(many(20_000, "failures"), "none")
    yield "200 tasks", Kind(many(200, "tasks"), "none")
    for name in (MARKS, "a\nb\n", "../../../x", "..", "[red]x[/red]:smile:</script>", "a\u2028b"):
        yield f"task named {name!r}", Kind(renamed(name), "none")
    yield "task named by 10,000 characters", Kind(renamed("t" * 10_000), "run")


def _of_run_file() -> Iterator[tuple[str, Kind]]:
    run_file = named("run.json")
    wrong: dict[str, list[Any]] = {
        "run_id": [5, "r" * 10_000],
        "created": [[1], "yesterday"],
        "date": [5, "/../../../x", "x" * 10_000],
        "spec": [5, []],
        "spec/model": [[1], "m" * 10_000],
        "spec/tasks": ["x", [5], ["t" * 10_000]],
        "spec/data_dir": [5, "~nobody_of_that_name/x", "d" * 5000, "d" * 300, "a\x00b"],
        "spec/include_path": [5, ["~nobody_of_that_name/x"], ["d" * 5000]],
        "spec/num_fewshot": ["x", -1],
        "schema_version": ["x", 99, True],
    }
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"run.json {place} {at}", Kind(in_json(run_file, {place: value}), "run")
    odd: dict[str, list[Any]] = {
        "spec/data_dir": ["nowhere", "/dev/zero"],
        "spec/include_path": [["nowhere"]],
        "spec/limit": [-1, "x", HUGE],
        "spec/seeds": [[1], "x"],
        "spec/tasks": [[], [MARKS]],
        "spec/harness": [MARKS],
        "spec/unknown": [MARKS],
        "spec/model": [MARKS],
    }
    for place, values in odd.items():
        for at, value in enumerate(values):
            yield f"run.json {place}, odd {at}", Kind(in_json(run_file, {place: value}), "none")
    for place, value in {"scope": 5, "scope/limit": "x", "totals": [], f"totals/{TASK}": "x", "status": 5,
                         "signature": 5, "scope/samples": {TASK: ["x"]}}.items():  # fmt: skip
        yield f"done.json {place}", Kind(in_json(named("done.json"), {place: value}), "none")

    def young(run: Path) -> None:
        for file in (results_of(run), samples_of(run), traces_of(run), run / "done.json"):
            file.unlink()
        in_json(run_file, {"spec/model": MARKS})(run)

    yield "without results, model with marks", Kind(young, "none")


def _of_lines() -> Iterator[tuple[str, Kind]]:
    wrong: dict[str, list[Any]] = {
        "doc_id": [..., None, [1], True, 1.5, "d" * 10_000, HUGE],
        "target": [..., 5, {}],
        "arguments": [..., [], 5, {"gen_args_0": 5}],
        "resps": [..., "x", 5, [5]],
        "filtered_resps": [...],
        "filter": [..., 5, "f" * 10_000],
        "metrics": [..., "x", [5], ["m" * 10_000]],
        "exact_match": [1e308, HUGE, float("nan"), [1e308, 1e308]],
        "prompt_hash": [..., 5],
        "dare_bench": [..., None, {}, [5], [[]]],
        "dare_bench/0/kind": ["x", ...],
        "dare_bench/0/key": [5, "x", "k" * 10_000],
        "dare_bench/0/nfe": ["4", -1, 1.5, HUGE],
        "dare_bench/0/tokens": [None, "x"],
        "dare_bench/0/seconds": [float("nan"), "x"],
        "dare_bench/0/margin": ["x", float("nan")],
        "dare_bench/0/near_tie": ["x", 5],
        "dare_bench/0/finish_reason": [MARKS, 5],
        "dare_bench/0/tier": ["Z"],
        "dare_bench/0/extraction": [5],
        "dare_bench/0/verdict": [5, {"status": 5, "level": "x"}],
        "dare_bench/0/unknown": [1],
    }
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"sample line {place} {at}", Kind(in_line(samples_of, {place: value}), "samples")
    marks = {
        "target": MARKS,
        "resps": [[MARKS]],
        "filtered_resps": [MARKS],
        "arguments/gen_args_0/arg_0": MARKS,
        "arguments/gen_args_0/arg_1": {MARKS: MARKS},
        "doc": {MARKS: MARKS},
        "dare_bench/0/extracted": MARKS,
        "dare_bench/0/verdict": {"status": MARKS, "level": MARKS},
        "more": HUGE,
    }
    yield "marks in all texts of a sample line", Kind(in_line(samples_of, marks), "none")
    odd: dict[str, Any] = {"filter": MARKS, "metrics": [MARKS, "exact_match"], "exact_match": {MARKS: MARKS},
                           "doc_id": MARKS, "dare_bench": []}  # fmt: skip
    for place, value in odd.items():
        yield f"sample line {place}, odd", Kind(in_line(samples_of, {place: value}), "none")
    likelihood = {"key": f"{TASK}/0/0/0/35a53628", "kind": "score", "value": 1e308, "stderr": 0.0, "nfe": 1}
    yield "sample line, likelihood 1e308", Kind(in_line(samples_of, {"dare_bench": [likelihood]}), "samples")
    yield "an answer of 15 MB", Kind(long_answer(15_000_000), "none")
    yield "an answer of 50 MB", Kind(long_answer(50_000_000), "samples")
    yield "every document twice", Kind(twice, "none")
    traces: dict[str, list[Any]] = {
        "key": [..., 5, MARKS],
        "doc_id": [None, [1]],
        "pieces": [..., 5, [5], {}],
        "events": [..., 5, [5], [[]], [[0, "set"]]],
        "events/0": [["0", "set", 3, 3, 1], [0, "jump", 3, 3, 1], [0, "set", 3, 3, "x"], [HUGE, "set", 3, 3, 1]],
        "others": [5, {"a": 5}],
        "prompt_tokens": ["x"],
        "unknown": [1],
    }  # fmt: skip
    for place, values in traces.items():
        for at, value in enumerate(values):
            yield f"trace line {place} {at}", Kind(in_line(traces_of, {place: value}), "traces")
    for place, value in {"pieces": [MARKS] * 4, "others": {"300": MARKS}}.items():
        yield f"trace line {place}, odd", Kind(in_line(traces_of, {place: value}), "none")


def _of_journals() -> Iterator[tuple[str, Kind]]:
    wrong: dict[str, list[Any]] = {
        "type": [..., 5, MARKS],
        "key": [..., 5],
        "kind": ["x", ...],
        "answer": [5, {}, ...],
        "answer/nfe": ["x", HUGE],
        "answer/tokens": ["x", ["x"]],
        "answer/text": [5],
        "answer/tier": ["Z"],
        "answer/finish_reason": [MARKS],
        "answer/seconds": ["x", float("nan")],
        "answer/trajectory": [5, [5], [[0]]],
        "answer/deep": [json.loads("[" * 200 + "]" * 200)],
    }
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"journal {place} {at}", Kind(in_record(place, value), "none")
    for place, value in {"session": "x", "date": 5, "command": [1], "held": "x"}.items():
        yield f"journal session {place}", Kind(in_record(place, value, number=0), "none")
    for place, value in {"program": 5, "parts": ["x"], "parts/torch": 5, "environment": 5}.items():
        yield f"journal program {place}", Kind(in_record(place, value, number=1), "none")
    for place, value in {"session": [1], "seconds": "x", "halvings": 5, "forwards": None}.items():
        yield f"journal cost {place}", Kind(in_record(place, value, number=-1), "none")

    def journal_elsewhere(run: Path) -> None:
        (run / "journal").rename(run.parents[1] / "journal elsewhere")
        (run / "journal").symlink_to(run.parents[1] / "journal elsewhere")

    # Of a finished run neither is opened: it is printed again.
    unfinished: dict[str, Change] = {
        "another FIFO in the journal": in_folder("journal/other.jsonl", os.mkfifo),
        "lock: FIFO": instead(named(".lock"), os.mkfifo),
        "lock: link out of the run": instead(named(".lock"), lock_elsewhere),
        "lock: folder": instead(named(".lock"), Path.mkdir),
        "journal elsewhere": journal_elsewhere,
    }
    for name, change in unfinished.items():
        yield name, Kind(without_end(change), "folder")


def without_end(change: Change) -> Change:
    """The change to a run whose commit marker is gone, so that the same command goes on with it."""

    def changed(run: Path) -> None:
        change(run)
        (run / "done.json").unlink()

    return changed


KINDS: dict[str, Kind] = dict([*_of_files(), *_of_results(), *_of_run_file(), *_of_lines(), *_of_journals()])
