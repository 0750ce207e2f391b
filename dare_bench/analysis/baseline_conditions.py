"""Differences of settings and documents between a baseline and a run, which prevent a comparison or weaken it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dare_bench.analysis.baseline import Baseline, BaselineTask
from dare_bench.analysis.settings import differing, setting_text
from dare_bench.runs.text import listed
from dare_bench.types import Decoding


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference that prevents the comparison. ``renewable``: may the baseline be renewed from this run?"""

    name: str
    expected: Any
    seen: Any
    renewable: bool = True


def mismatches(old: Baseline, new: Baseline) -> list[Mismatch]:
    """Why the run cannot be judged by the baseline; empty if it can. The checkpoint, device and dtype may differ: these
    are what a baseline is for. If the family or the harness differs, nothing else is compared."""
    whole = {"family": (old.checkpoint.family, new.checkpoint.family), "harness": (old.harness, new.harness)}
    for name, (a, b) in whole.items():
        if a != b:
            return [Mismatch(name, a, b, renewable=False)]
    result = list(_run_mismatches(old, new))
    for task in _shared(old, new):
        result += _task_mismatches(task, old, new)
    return [*result, *_setting_mismatches(old, new, "decoding"), *_setting_mismatches(old, new, "likelihood")]


def _shared(old: Baseline, new: Baseline) -> list[str]:
    return [task for task in old.tasks if task in new.tasks]


def _run_mismatches(old: Baseline, new: Baseline) -> Iterator[Mismatch]:
    if len(_shared(old, new)) < len(old.tasks):
        yield Mismatch("tasks", ", ".join(old.tasks), ", ".join(new.tasks))
    if old.seeds[2] != new.seeds[2]:
        yield Mismatch("sampling seed", old.seeds[2], new.seeds[2])
    if old.repeats != new.repeats:
        yield Mismatch("answers to each prompt", old.repeats, new.repeats)


def _task_mismatches(name: str, old: Baseline, new: Baseline) -> Iterator[Mismatch]:
    a, b = old.tasks[name], new.tasks[name]
    expected, seen = (task.fingerprint.partition(":")[0] for task in (a, b))
    if expected != seen:
        yield Mismatch(f"definition of {name} (prompts, filters or scorer)", expected, seen)
    yield from _document_mismatches(name, a, b)
    same_checkpoint = old.checkpoint.content_hash == new.checkpoint.content_hash
    if same_checkpoint and a.answers != b.answers:
        yield Mismatch(f"{name}: what its answers are compared by (--log-samples)", a.answers, b.answers)


def _document_mismatches(name: str, a: BaselineTask, b: BaselineTask) -> Iterator[Mismatch]:
    missing = [doc for doc in a.documents if doc not in b.documents]
    extra = [doc for doc in b.documents if doc not in a.documents]
    if missing or extra:
        texts = [str(len(b.documents))]
        texts += [f"{word} {listed(ids, 5)}" for word, ids in (("without", missing), ("with", extra)) if ids]
        yield Mismatch(f"documents of {name} (--limit)", len(a.documents), ", ".join(texts))
    changed = [
        doc for doc, row in a.documents.items() if doc in b.documents and row.question != b.documents[doc].question
    ]
    if not changed:
        return
    settings = differing(a.around, b.around) if a.around else {}
    if "examples (n-shot)" in settings:  # these two follow from it
        settings = {key: pair for key, pair in settings.items() if key not in ("few-shot seed", "examples as turns")}
    for key, (expected, seen) in settings.items():
        yield Mismatch(f"{key} of {name}", setting_text(expected), setting_text(seen))
    if not settings:
        yield Mismatch(f"prompts or targets of {name}", "others", f"different in {listed(changed, 5)}")


def _setting_mismatches(old: Baseline, new: Baseline, kind: Literal["decoding", "likelihood"]) -> Iterator[Mismatch]:
    ids = Decoding.id_fields if old.checkpoint.content_hash != new.checkpoint.content_hash else ()
    for task in _shared(old, new):
        a, b = getattr(old.tasks[task], kind), getattr(new.tasks[task], kind)
        for name in {**a, **b} if a or b else ():
            if name not in ids and a.get(name) != b.get(name):
                yield Mismatch(f"{name} of {task}", setting_text(a.get(name)), setting_text(b.get(name)))


def notes(old: Baseline, new: Baseline) -> Iterator[str]:
    """Other differences, which do not prevent the comparison: they decide its mode or explain its result."""
    a, b = origin(old), origin(new)
    if a["content"] != b["content"]:
        names = old.checkpoint.name, new.checkpoint.name
        yield f"different checkpoints: {names[0]} ({a['content']}) and {names[1]} ({b['content']})"
    for name in ("adapter", "dtype", "device"):
        if a[name] != b[name]:
            yield f"another {name}: {a[name]} and {b[name]}"
    if old.device == new.device != "cpu":
        yield f"on {old.device}: equal answers are guaranteed only on CPUs"
    if any("A" in (old.tasks[task].tier, new.tasks[task].tier) for task in _shared(old, new)):
        yield "an approximate sampler (tier A)"
    versions = {old.harness: (old.harness_version, new.harness_version)}
    versions |= {
        name: (old.versions.get(name, "none"), new.versions.get(name, "none"))
        for name in {**old.versions, **new.versions}
    }
    yield from (
        f"different versions of {name}: {first} and {second}"
        for name, (first, second) in versions.items()
        if first != second
    )
    if extra := [task for task in new.tasks if task not in old.tasks]:
        yield f"not in the baseline, and therefore not judged: {', '.join(extra)}"


def origin(baseline: Baseline) -> dict[str, str]:
    """What made a baseline's answers, by name: content and adapter (12 digits of their hashes), dtype, device."""
    made_by = baseline.checkpoint
    hashes = {"content": made_by.content_hash, "adapter": made_by.adapter_hash or "none"}
    digits = {name: text.removeprefix("sha256:")[:12] for name, text in hashes.items()}
    return {**digits, "dtype": made_by.dtype, "device": baseline.device}
