"""Run folders as nobody should hand them on: each kind is a genuine run with one thing about it changed.

``KINDS`` has them by name. ``reach`` says who must refuse a kind: everybody who opens the run (``run``), who reads its
sample lines (``samples``) or its traces (``traces``), who writes to it (``folder``), or nobody: it is read as it is, or
as a run that is not finished, and what it prints is harmless (``none``).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dare_bench.engine.journal import pack

TASK = "dare_arithmetic"
MARKS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\u200b\x08\r"
"""A terminal's commands in 7 and in 8 bits, marks that turn text around or hide, a backspace and a return."""
DEEP = 5000
HUGE = 10**400
Reach = Literal["run", "samples", "traces", "folder", "none"]
Change = Callable[[Path], None]


@dataclass(frozen=True)
class Kind:
    change: Change
    reach: Reach


def results_of(run: Path) -> Path:
    return next(run.glob("results_*.json"))


def samples_of(run: Path) -> Path:
    return next(run.glob("samples_*.jsonl"))


def traces_of(run: Path) -> Path:
    return next(run.glob("traces_*.jsonl"))


def named(name: str) -> Callable[[Path], Path]:
    return lambda run: run / name


FILES: dict[str, tuple[Callable[[Path], Path], Reach]] = {
    "results": (results_of, "run"),
    "run.json": (named("run.json"), "run"),
    "done.json": (named("done.json"), "folder"),
    "samples": (samples_of, "samples"),
    "traces": (traces_of, "traces"),
    "journal": (named("journal/main.jsonl"), "folder"),
}


def put(value: Any, place: str, new: Any) -> None:
    """Set what stands at ``place`` (names and numbers by ``/``); ``...`` takes it away."""
    *way, last = place.split("/")
    for name in way:
        value = value[int(name)] if isinstance(value, list) else value.setdefault(name, {})
    at = int(last) if isinstance(value, list) else last
    if new is ...:
        del value[at]
    else:
        value[at] = new


def in_json(file: Callable[[Path], Path], place: str, new: Any) -> Change:
    def change(run: Path) -> None:
        value = json.loads(file(run).read_text())
        put(value, place, new)
        file(run).write_text(json.dumps(value))

    return change


def in_line(file: Callable[[Path], Path], place: str, new: Any) -> Change:
    """Change the first line."""

    def change(run: Path) -> None:
        first, *rest = file(run).read_text().splitlines(keepends=True)
        value = json.loads(first)
        put(value, place, new)
        file(run).write_text(json.dumps(value) + "\n" + "".join(rest))
        forget_digests(run)

    return change


def in_record(place: str, new: Any, number: int = 1) -> Change:
    """Change a record of the journal, its checksum too."""

    def change(run: Path) -> None:
        file = run / "journal" / "main.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            del line["sum"]
        put(lines[number], place, new)
        file.write_bytes(b"".join(map(pack, lines)))
        (run / "done.json").unlink()

    return change


def forget_digests(run: Path) -> None:
    """Whoever changes the lines can change what is noted of them."""
    value = json.loads(results_of(run).read_text())
    for task in value["dare_bench"]["tasks"].values():
        task["samples_sha256"] = task["traces_sha256"] = None
    results_of(run).write_text(json.dumps(value))


def instead(file: Callable[[Path], Path], make: Callable[[Path], Any]) -> Change:
    """Something else in a file's place."""

    def change(run: Path) -> None:
        place = file(run)
        place.unlink()
        make(place)
        if file in (samples_of, traces_of):
            forget_digests(run)
        if "journal" in place.parts:  # or nobody opens it
            (run / "done.json").unlink()

    return change


def in_folder(name: str, make: Callable[[Path], Any]) -> Change:
    return lambda run: make(run / name)


def a_socket(place: Path) -> None:
    """A socket's name may have a hundred characters only, so it is made from within the folder."""
    here = Path.cwd()
    os.chdir(place.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name)
    finally:
        os.chdir(here)


def to_another(place: Path) -> None:
    """A link out of the run to a file of the same content: nothing but its place is wrong."""
    other = next((place.parents[2] / "sound").rglob(place.name), None) or place.parents[3] / "sound" / place.name
    place.symlink_to(other)


def nested(opening: str, closing: str) -> str:
    return opening * DEEP + "1" + closing * DEEP


def cycle(links: dict[str, list[str]]) -> Change:
    def change(run: Path) -> None:
        value = json.loads(results_of(run).read_text())
        value["group_subtasks"] = links
        value["groups"] = {name: dict(value["results"][TASK], alias=name) for name in links}
        results_of(run).write_text(json.dumps(value))

    return change


def many(count: int, part: str) -> Change:
    """So many tasks, groups, metrics, failures or notes."""

    def change(run: Path) -> None:
        value = json.loads(results_of(run).read_text())
        block = value["dare_bench"]
        if part == "tasks":
            for name in (f"t{i}" for i in range(count)):
                block["tasks"][name] = block["tasks"][TASK]
                for place in ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples"):
                    value[place][name] = value[place][TASK]
        elif part == "groups":
            value["group_subtasks"] = {f"g{i}": [TASK] for i in range(count)}
            value["groups"] = {f"g{i}": value["results"][TASK] for i in range(count)}
        elif part == "metrics":
            value["results"][TASK] |= {f"m{i},none": 0.5 for i in range(count)}
        elif part == "failures":
            block["failures"] = [{"task": TASK, "doc_id": i, "error": "x"} for i in range(count)]
        elif part == "nested groups":  # each holds all that come after it
            names = [f"g{i}" for i in range(count)]
            value["group_subtasks"] = {name: [*names[i + 1 :], TASK] for i, name in enumerate(names)}
            value["groups"] = dict.fromkeys(names, value["results"][TASK])
        results_of(run).write_text(json.dumps(value))

    return change


def renamed(name: str) -> Change:
    """The task by another name, wherever it stands."""

    def change(run: Path) -> None:
        for file in (results_of(run), run / "run.json", run / "done.json", samples_of(run), traces_of(run)):
            file.write_text(file.read_text().replace(TASK, json.dumps(name)[1:-1]))
        for file in (samples_of(run), traces_of(run)):
            kept = "".join("_" if c in "/\\" or ord(c) < 32 else c for c in name)
            if len(os.fsencode(kept)) < 200:
                file.rename(file.with_name(file.name.replace(TASK, kept)))

    return change


def long_answer(length: int) -> Change:
    return in_line(samples_of, "resps", [["x" * length]])


def twice(run: Path) -> None:
    """Every document a second time."""
    for file in (samples_of(run), traces_of(run)):
        file.write_text(file.read_text() * 2)
    forget_digests(run)


def written(text: str | bytes) -> Callable[[Path], Any]:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return lambda place: place.write_bytes(raw)


def sparse(size: int) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        with place.open("wb") as file:
            file.truncate(size)

    return make


def _of_files() -> Iterator[tuple[str, Kind]]:
    """Whatever a file of the run can be instead of what it is."""
    for name, (file, reach) in FILES.items():
        quiet: Reach = "none" if name in ("done.json", "journal") else reach
        reach = "run" if name == "done.json" else reach
        yield f"{name}: FIFO", Kind(instead(file, os.mkfifo), reach)
        yield f"{name}: socket", Kind(instead(file, a_socket), reach)
        yield f"{name}: folder", Kind(instead(file, Path.mkdir), reach)
        yield f"{name}: link to /dev/zero", Kind(instead(file, lambda at: at.symlink_to("/dev/zero")), reach)
        yield f"{name}: link to a FIFO in the run", Kind(instead(file, _link_to_fifo), reach)
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


def _link_to_fifo(place: Path) -> None:
    os.mkfifo(place.parent / "pipe")
    place.symlink_to("pipe")


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
        "dare_bench/ci": [{TASK: {"exact_match,none": {"method": "x", "level": 0.95, "lo": float("inf"), "hi": 1.0, "n": 4}}},
                          {TASK: {"exact_match,none": {"method": "x", "level": 7.0, "lo": 0.0, "hi": 1.0, "n": -4}}}],
        "dare_bench/extraction": [{TASK: {"none": {"matched": -4}}}, {TASK: {"none": 5}}],
        "dare_bench/failures": [[{"task": TASK, "doc_id": [1], "error": "x"}], {}],
        "dare_bench/recipes": [[{"name": "r", "published": {}, "score": {"task": [1]}, "settings": "s"}],
                               [{"name": "r", "published": {"value": 0.5, "n": HUGE}, "score": {"task": TASK}, "settings": "s"}]],
        "dare_bench/unknown": [1],
    }  # fmt: skip
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"{place} {at}", Kind(in_json(results_of, place, value), "run")
    odd: dict[str, list[Any]] = {
        f"{own}/exact_match,none": [float("nan"), "N/A", None],
        f"{own}/alias": [MARKS],
        f"{block}/decoding/{MARKS}": [MARKS],
        "dare_bench/command": [MARKS],
        "dare_bench/environment/gpu": [MARKS],
        "dare_bench/environment/cpu": [MARKS],
        "dare_bench/harness/name": ["lm-eval" + MARKS],
        "dare_bench/harness/version": [MARKS],
        "dare_bench/run_id": [MARKS + "id"],
        "dare_bench/model/name": [MARKS + "name", "../../name", "a\nb"],
        "dare_bench/model/family": [MARKS],
        "dare_bench/model/dtype": [MARKS],
        "dare_bench/model/content_hash": [MARKS],
        "dare_bench/model/lineage": [{"base": MARKS, "base_content": "c", "method": MARKS, "data": MARKS,
                                      "data_hash": "d", "step": 1, "steps": 1, "seed": 0}],
        "dare_bench/suite": [MARKS],
        "dare_bench/notes": [[MARKS]],
        "dare_bench/events": [[{"what": f"task {MARKS} has changed since", MARKS: MARKS}]],
        "dare_bench/failures": [[{"task": TASK, "doc_id": MARKS, "error": MARKS}]],
        "dare_bench/decoding_requested": [{MARKS: MARKS}],
        f"configs/{TASK}/dataset_path": ["openai/gsm8k"],
        f"configs/{TASK}/dataset_name": [MARKS],
        "chat_template": [MARKS],
        "system_instruction": [MARKS],
    }  # fmt: skip
    for place, values in odd.items():
        for at, value in enumerate(values):
            yield f"{place}, odd {at}", Kind(in_json(results_of, place, value), "none")
    yield f"{own} too large", Kind(in_json(results_of, f"{own}/exact_match,none", HUGE), "none")
    yield f"{own} 1e308", Kind(in_json(results_of, f"{own}/exact_match,none", 1e308), "run")
    yield f"{own} metric with marks", Kind(in_json(results_of, f"{own}/{MARKS},{MARKS}", 0.5), "none")
    yield f"{own} metric of 10,000 characters", Kind(in_json(results_of, f"{own}/{'m' * 10_000},none", 0.5), "run")
    yield "a name twice, deep", Kind(in_json(results_of, "config/a", json.loads("[" * 200 + "]" * 200)), "run")
    yield "a group in itself", Kind(cycle({"g": ["g"]}), "run")
    yield "groups in a circle", Kind(cycle({"g": ["h"], "h": ["g"]}), "run")
    yield "groups in a circle with a task", Kind(cycle({"g": ["h", TASK], "h": ["g", TASK]}), "run")
    yield "a group of unknown tasks", Kind(cycle({"g": ["nowhere"]}), "run")
    for part in ("tasks", "groups", "metrics"):
        yield f"20,000 {part}", Kind(many(20_000, part), "run")
    yield "2,000 nested groups", Kind(many(2_000, "nested groups"), "run")
    yield "20,000 failures", Kind(many(20_000, "failures"), "none")
    yield "200 tasks", Kind(many(200, "tasks"), "none")
    for name, text in {"marks": MARKS, "newlines": "a\nb\n", "separators": "../../../x", "dots": "..",
                       "markup": "[red]x[/red]:smile:</script>", "separator in Unicode": "a\u2028b"}.items():  # fmt: skip
        yield f"task named by {name}", Kind(renamed(text), "none")
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
            yield f"run.json {place} {at}", Kind(in_json(run_file, place, value), "run")
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
            yield f"run.json {place}, odd {at}", Kind(in_json(run_file, place, value), "none")
    for place, value in {"scope": 5, "scope/limit": "x", "totals": [], f"totals/{TASK}": "x", "status": 5,
                         "asked": 5, "scope/samples": {TASK: ["x"]}}.items():  # fmt: skip
        yield f"done.json {place}", Kind(in_json(named("done.json"), place, value), "none")

    def young(run: Path) -> None:
        for file in (results_of(run), samples_of(run), traces_of(run), run / "done.json"):
            file.unlink()
        in_json(run_file, "spec/model", MARKS)(run)

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
        "dare_bench/0/finish_reason": [MARKS, 5],
        "dare_bench/0/tier": ["Z"],
        "dare_bench/0/extraction": [5],
        "dare_bench/0/verdict": [5, {"status": 5, "level": "x"}],
        "dare_bench/0/unknown": [1],
    }
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"sample line {place} {at}", Kind(in_line(samples_of, place, value), "samples")
    odd: dict[str, Any] = {
        "target": MARKS,
        "resps": [[MARKS]],
        "filtered_resps": [MARKS],
        "filter": MARKS,
        "metrics": [MARKS, "exact_match"],
        "exact_match": {MARKS: MARKS},
        "arguments/gen_args_0/arg_0": MARKS,
        "arguments/gen_args_0/arg_1": {MARKS: MARKS},
        "doc": {MARKS: MARKS},
        "doc_id": MARKS,
        "dare_bench/0/extracted": MARKS,
        "dare_bench/0/verdict": {"status": MARKS, "level": MARKS},
        "dare_bench": [],
        "more": HUGE,
    }
    for place, value in odd.items():
        yield f"sample line {place}, odd", Kind(in_line(samples_of, place, value), "none")
    yield "sample line, likelihoods", Kind(in_line(samples_of, "dare_bench", [
        {"key": f"{TASK}/0/0/0/35a53628", "kind": "score", "value": 1e308, "stderr": 1e308, "nfe": 1}]), "samples")  # fmt: skip
    yield "an answer of 15 MB", Kind(long_answer(15_000_000), "none")
    yield "an answer of 50 MB", Kind(long_answer(50_000_000), "samples")
    yield "every document twice", Kind(twice, "none")
    traces: dict[str, list[Any]] = {
        "key": [..., 5],
        "doc_id": [None, [1]],
        "pieces": [..., 5, [5], {}],
        "events": [..., 5, [5], [[]], [[0, "set"]], [["0", "set", 3, 300, 1.0]], [[0, "jump", 3, 300, 1.0]], [[0, "set", 3, 300, "x"]]],
        "others": [5, {"a": 5}],
        "prompt_tokens": ["x"],
        "unknown": [1],
    }  # fmt: skip
    for place, values in traces.items():
        for at, value in enumerate(values):
            yield f"trace line {place} {at}", Kind(in_line(traces_of, place, value), "traces")
    for place, value in {"pieces": [MARKS] * 4, "others": {"300": MARKS}, "key": MARKS, "events": [[HUGE, "set", 3, 300, 1.0]],
                         "events ": 5}.items():  # fmt: skip
        reach: Reach = "none" if place in ("pieces", "others") else "traces"
        yield f"trace line {place}, odd", Kind(in_line(traces_of, place, value), reach)


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
    for place, value in {"session": "x", "date": 5, "command": [1], "versions": 5, "held": "x"}.items():
        yield f"journal session {place}", Kind(in_record(place, value, number=0), "none")
    for place, value in {"session": [1], "seconds": "x", "halvings": 5, "forwards": None}.items():
        yield f"journal cost {place}", Kind(in_record(place, value, number=-1), "none")
    yield "another FIFO in the journal", Kind(in_folder("journal/other.jsonl", os.mkfifo), "folder")
    yield "lock: FIFO", Kind(instead(named(".lock"), os.mkfifo), "folder")
    yield "lock: link out of the run", Kind(instead(named(".lock"), _lock_elsewhere), "folder")
    yield "lock: folder", Kind(instead(named(".lock"), Path.mkdir), "folder")

    def journal_elsewhere(run: Path) -> None:
        (run / "journal").rename(run.parents[1] / "journal elsewhere")
        (run / "journal").symlink_to(run.parents[1] / "journal elsewhere")

    yield "journal elsewhere", Kind(journal_elsewhere, "folder")


def _lock_elsewhere(place: Path) -> None:
    other = place.parents[2] / "precious"
    other.write_text("precious")
    place.symlink_to(other)


KINDS: dict[str, Kind] = dict([*_of_files(), *_of_results(), *_of_run_file(), *_of_lines(), *_of_journals()])
