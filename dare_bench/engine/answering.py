"""Which program answered which request of a run: recorded in the journal and in the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dare_bench import fingerprint, program
from dare_bench.engine.journal import Journal
from dare_bench.protocols import LoadedModel
from dare_bench.runs.schema import Environment, Program


def parts(model: LoadedModel) -> dict[str, str]:
    """Of the program with ``model`` open, by name: its code, and what it computes on."""
    facts, torch = model.spec, sys.modules.get("torch")
    if facts.device.startswith("cuda") and torch is not None:
        machine = {"device": torch.cuda.get_device_name(facts.device)}
    else:
        machine = {"device": facts.device.partition(":")[0]}
    if facts.device == "cpu" and model.network is not None and torch is not None:
        machine["threads"] = str(torch.get_num_threads())
    return {**program.code(), **machine, "dtype": facts.dtype}


def note(journal: Journal, model: LoadedModel, session: int, around: Environment) -> str:
    """Put into the journal who answers from here on; returns the mark that each of its samples gets."""
    made, where = parts(model), around.model_dump()
    mark = fingerprint.digest([made, where], 16)
    record = {"type": "program", "program": mark, "session": session, "parts": made, "environment": where}
    journal.append(record)
    return mark


def answered(journal: Journal, keys: Iterable[str]) -> list[Program]:
    """The programs that answered these requests, those first that began first. Answers of journals that do not tell
    have one without parts."""
    counts: Counter[str] = Counter(journal.program(key) for key in keys if key in journal)
    found: dict[str, Program] = {}
    for mark, known in {"": {}, **_known(journal)}.items():
        if count := counts.pop(mark, 0):
            one = found.setdefault(str(sorted(known.items())), Program(parts=known, requests=0))
            one.requests += count
    if lost := counts.total():  # their program's own line cannot be read
        found.setdefault(str([]), Program(parts={}, requests=0)).requests += lost
    return list(found.values())


def _known(journal: Journal) -> dict[str, dict[str, str]]:
    return {record["program"]: record["parts"] for record in journal.records("program")}


def environment(journal: Journal, keys: Iterable[str], earlier: Environment | None, now: Environment) -> Environment:
    """Where these requests were answered; values that differ from session to session are joined.

    Args:
        earlier: what the run said until now, for answers whose session was not noted.
        now: of this process, which holds where nothing is answered.
    """
    marks = {journal.program(key) for key in keys if key in journal}
    noted = {record["program"]: record["environment"] for record in journal.records("program")}
    found = [] if marks <= noted.keys() or earlier is None else [earlier.model_dump()]
    found += [around for mark, around in noted.items() if mark in marks]
    return Environment(**_joined(found)) if found else now


def _joined(found: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    seen: dict[str, dict[str, None]] = {name: {} for around in found for name in around}
    for around in found:
        for name, value in around.items():
            seen[name] |= {value: None} if isinstance(value, str) else {}
    return {name: " and ".join(values) or None for name, values in seen.items()}


def warnings(programs: Sequence[Program]) -> Iterator[str]:
    """What a reader of the results must know of who answered."""
    if found := program.several(programs):
        yield f"{found}; --fresh answers all by one"
    if len(programs) == 1 and (found := program.from_running(programs[0].parts)):
        yield f"scored by another program than the one that answered ({found}); --fresh answers anew"
