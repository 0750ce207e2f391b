"""What a baseline and a run were asked, and under which settings: what forbids to hold one against the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.reports.baseline import Baseline, Task
from dare_bench.types import Decoding

_AGAIN = "evaluate as the baseline was"


@dataclass(frozen=True, slots=True)
class Unlike:
    """One difference, and what to do about it."""

    what: str
    expected: Any
    seen: Any
    remedy: str = _AGAIN


def unlike(old: Baseline, now: Baseline) -> list[Unlike]:
    """Why the run cannot be judged by the baseline; empty if it can. Another checkpoint, device or dtype is no reason:
    to judge these is what a baseline is for."""
    found = list(_run(old, now))
    for task, own in old.tasks.items():
        if task in now.tasks:
            found += _task(task, own, now.tasks[task], old, now)
    return found


def _run(old: Baseline, now: Baseline) -> Iterator[Unlike]:
    missing = [task for task in old.tasks if task not in now.tasks]
    if missing:
        yield Unlike(
            "tasks", ", ".join(old.tasks), ", ".join(now.tasks), f"evaluate with --tasks {','.join(old.tasks)}"
        )
    if old.harness != now.harness:
        yield Unlike("harness", old.harness, now.harness)
    if old.seeds[2] != now.seeds[2]:
        yield Unlike(
            "sampling seed", old.seeds[2], now.seeds[2], f"evaluate with --seed {','.join(map(str, old.seeds))}"
        )
    if old.repeats != now.repeats:
        yield Unlike("answers to each prompt", old.repeats, now.repeats)


def _task(name: str, a: Task, b: Task, old: Baseline, now: Baseline) -> Iterator[Unlike]:
    if a.fingerprint.partition(":")[0] != b.fingerprint.partition(":")[0]:
        yield Unlike(
            f"definition of {name} (prompts, filters or scorer)",
            a.fingerprint.partition(":")[0],
            b.fingerprint.partition(":")[0],
            "see what changed: dare-bench report BASELINE-RUN RUN",
        )
    yield from _documents(name, a, b, old)
    ids = Decoding.id_fields if old.checkpoint.content_hash != now.checkpoint.content_hash else ()
    kin = old.checkpoint.family == now.checkpoint.family
    for flag, ours, theirs in (("gen-kwargs", a.decoding, b.decoding), ("likelihood-args", a.likelihood, b.likelihood)):
        for field in dict.fromkeys([*ours, *theirs]):
            known = kin or (field in ours and field in theirs)  # another family's own fields are told in one word
            if known and field not in ids and ours.get(field) != theirs.get(field):
                given, seen = _shown(ours.get(field)), _shown(theirs.get(field))
                yield Unlike(f"{field} of {name}", given, seen, _evaluate(flag, field, ours))
    if not kin and a.decoding.keys() != b.decoding.keys():
        ours_, theirs_ = (f"those of {one.checkpoint.family}" for one in (old, now))
        yield Unlike(f"the decoding fields of {name}", ours_, theirs_, "name a baseline of that family")
    same = old.checkpoint.content_hash == now.checkpoint.content_hash
    if same and a.answers != b.answers:
        yield Unlike(f"{name}: what its answers are compared by", a.answers, b.answers, "evaluate with --log-samples")


def _evaluate(flag: str, field: str, ours: Mapping[str, Any]) -> str:
    """How to ask for the baseline's value."""
    return (
        f"evaluate with --{flag} {field}={ours[field]}" if ours.get(field) is not None else f"evaluate without {field}"
    )


def _documents(name: str, a: Task, b: Task, old: Baseline) -> Iterator[Unlike]:
    lacking = [doc for doc in a.documents if doc not in b.documents]
    more = [doc for doc in b.documents if doc not in a.documents]
    if lacking or more:
        limit = "without --limit" if old.limit is None else f"with --limit {old.limit}"
        seen = f"{len(b.documents)}, {_some('without', lacking)}{', ' if lacking and more else ''}{_some('with', more)}"
        yield Unlike(f"documents of {name}", len(a.documents), seen, f"evaluate {limit}")
    other = [doc for doc in a.documents if doc in b.documents and a.documents[doc].asked != b.documents[doc].asked]
    if other:
        yield Unlike(f"prompts or targets of {name}", "others", _some("other ones in", other))


def _some(word: str, ids: Sequence[str], most: int = 5) -> str:
    return (
        f"{word} {', '.join(ids[:most])}" + (f" and {len(ids) - most} more" if len(ids) > most else "") if ids else ""
    )


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def notes(old: Baseline, now: Baseline) -> Iterator[str]:
    """What else differs, and is no reason to refuse: it says which way of judging holds, or explains what is found."""
    a, b = old.checkpoint, now.checkpoint
    if a.content_hash != b.content_hash:
        yield f"another checkpoint: {a.name} ({_short(a.content_hash)}) and {b.name} ({_short(b.content_hash)})"
    if a.adapter_hash != b.adapter_hash:
        yield f"another adapter: {_short(a.adapter_hash)} and {_short(b.adapter_hash)}"
    if a.dtype != b.dtype:
        yield f"another dtype: {a.dtype} and {b.dtype}"
    if old.device != now.device:
        yield f"another device: {old.device} and {now.device}"
    elif old.device != "cpu":
        yield f"on {old.device}: answers are promised to be the same on CPUs alone"
    if any("A" in (old.tasks[t].tier, now.tasks[t].tier) for t in old.tasks if t in now.tasks):
        yield "an approximate sampler (tier A)"
    if old.harness_version != now.harness_version:
        yield f"another version of {old.harness}: {old.harness_version} and {now.harness_version}"
    for name in {**old.versions, **now.versions}:
        if old.versions.get(name) != now.versions.get(name):
            yield f"another version of {name}: {old.versions.get(name, 'none')} and {now.versions.get(name, 'none')}"
    if extra := [task for task in now.tasks if task not in old.tasks]:
        yield f"not in the baseline, hence not judged: {', '.join(extra)}"


def _short(content: str | None) -> str:
    return "none" if content is None else content.removeprefix("sha256:")[:12]
