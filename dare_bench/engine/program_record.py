"""Which program answered which request of a run: recorded in the journal and in the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dare_bench import fingerprint, program
from dare_bench.engine.journal import Journal
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.runs.schema import Environment, Program


def program_parts(model: LoadedModel) -> dict[str, str]:
    """The parts of the running program with ``model`` open, by name: code, packages, device, threads, attention
    backend, whether steps are compiled, dtype."""
    spec, torch = model.spec, sys.modules.get("torch")
    device = spec.device.partition(":")[0]
    if device == "cuda" and torch is not None:
        device = torch.cuda.get_device_name(spec.device)
    parts = {**program.code(), "device": device}
    if spec.device == "cpu" and model.network is not None and torch is not None:
        parts["threads"] = str(torch.get_num_threads())
    if spec.attention_backend is not None:
        parts["attention"] = spec.attention_backend
    if spec.compiled:
        parts["compiled"] = "steps"
    if spec.engine != "native":
        parts["engine"] = " ".join(filter(None, (spec.engine, spec.engine_version)))
    for entry in registry().entries("family"):
        if entry.name == spec.family and entry.plugin is not None:
            parts[f"plugin {entry.plugin}"] = program.package_code(entry.target.partition(":")[0])
    return {**parts, "dtype": spec.precision}


def record_program(journal: Journal, model: LoadedModel, session: int, environment: Environment) -> str:
    """Record in the journal which program answers from here on; returns the digest that its samples carry."""
    parts, versions = program_parts(model), environment.model_dump()
    mark = fingerprint.digest([parts, versions], 16)
    record = {"type": "program", "program": mark, "session": session, "parts": parts, "environment": versions}
    journal.append(record)
    return mark


def programs_of(journal: Journal, keys: Iterable[str]) -> list[Program]:
    """The programs that answered these requests, in the order in which they began; one without parts stands for
    answers whose program is not recorded or cannot be read."""
    counts = Counter(journal.program(key) for key in keys if key in journal)
    recorded = {"": {}} | {record["program"]: record["parts"] for record in journal.records("program")}
    programs: dict[str, Program] = {}
    for mark in dict.fromkeys([*recorded, *counts]):
        if counts[mark]:
            parts = recorded.get(mark, {})
            programs.setdefault(str(sorted(parts.items())), Program(parts=parts, requests=0)).requests += counts[mark]
    return list(programs.values())


def environment_of(journal: Journal, keys: Iterable[str], earlier: Environment | None, now: Environment) -> Environment:
    """Where these requests were answered; values that differ between sessions are joined by "and".

    Args:
        earlier: the environment in the run's results so far, for answers of sessions that did not record theirs.
        now: of this process; used if there are no answers.
    """
    marks = {journal.program(key) for key in keys if key in journal}
    recorded = {record["program"]: record["environment"] for record in journal.records("program")}
    environments = [] if marks <= recorded.keys() or earlier is None else [earlier.model_dump()]
    environments += [versions for mark, versions in recorded.items() if mark in marks]
    if not environments:
        return now
    values: dict[str, dict[str, None]] = {name: {} for versions in environments for name in versions}
    for versions in environments:
        for name, value in versions.items():
            if isinstance(value, str):
                values[name][value] = None
    return Environment(**{name: " and ".join(distinct) or None for name, distinct in values.items()})


def warnings(programs: Sequence[Program]) -> Iterator[str]:
    """What a reader of the results must know about the programs that answered."""
    if text := program.several(programs):
        yield f"{text}; --fresh answers all by one"
    if len(programs) == 1 and (text := program.from_running(programs[0].parts)):
        yield f"scored by a different program version than the one that answered ({text}); --fresh answers again"
