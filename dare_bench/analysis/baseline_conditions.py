"""Differences of settings and documents between a baseline and a run, which prevent a comparison or weaken it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dare_bench.analysis.baseline import Baseline, BaselineTask
from dare_bench.analysis.settings import differing, setting_text
from dare_bench.runs.text import listed
from dare_bench.types import Decoding

_SAME_SETTINGS = "evaluate with the baseline's settings"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference that prevents the comparison, and its remedy. ``renewable``: may the baseline be renewed from this
    run?"""

    name: str
    expected: Any
    seen: Any
    remedy: str = _SAME_SETTINGS
    renewable: bool = True


def mismatches(old: Baseline, new: Baseline) -> list[Mismatch]:
    """Why the run cannot be judged by the baseline; empty if it can. The checkpoint, device and dtype may differ: these
    are what a baseline is for. If the family or the harness differs, nothing else is compared."""
    a, b = old.checkpoint.family, new.checkpoint.family
    if a != b:
        return [Mismatch("family", a, b, f"name a baseline of {b}, or create one in another file", renewable=False)]
    if old.harness != new.harness:
        remedy = f"evaluate with --harness {old.harness}, or name a baseline of {new.harness}"
        return [Mismatch("harness", old.harness, new.harness, remedy, renewable=False)]
    result = list(_run_mismatches(old, new))
    for task in _shared(old, new):
        result += _task_mismatches(task, old, new)
    return [*result, *_setting_mismatches(old, new, "decoding"), *_setting_mismatches(old, new, "likelihood")]


def _shared(old: Baseline, new: Baseline) -> list[str]:
    return [task for task in old.tasks if task in new.tasks]


def _run_mismatches(old: Baseline, new: Baseline) -> Iterator[Mismatch]:
    if len(_shared(old, new)) < len(old.tasks):
        remedy = f"evaluate with --tasks {','.join(old.tasks)}"
        yield Mismatch("tasks", ", ".join(old.tasks), ", ".join(new.tasks), remedy)
    if old.seeds[2] != new.seeds[2]:
        yield Mismatch("sampling seed", old.seeds[2], new.seeds[2], _seed_remedy(old))
    if old.repeats != new.repeats:
        yield Mismatch("answers to each prompt", old.repeats, new.repeats)


def _seed_remedy(old: Baseline) -> str:
    return f"evaluate with --seed {','.join(map(str, old.seeds))}"


def _task_mismatches(name: str, old: Baseline, new: Baseline) -> Iterator[Mismatch]:
    a, b = old.tasks[name], new.tasks[name]
    expected, seen = (task.fingerprint.partition(":")[0] for task in (a, b))
    if expected != seen:
        remedy = "see what changed: dare-bench report BASELINE-RUN RUN"
        yield Mismatch(f"definition of {name} (prompts, filters or scorer)", expected, seen, remedy)
    yield from _document_mismatches(name, a, b, old)
    same_checkpoint = old.checkpoint.content_hash == new.checkpoint.content_hash
    if same_checkpoint and a.answers != b.answers:
        yield Mismatch(f"{name}: what its answers are compared by", a.answers, b.answers, "evaluate with --log-samples")


def _document_mismatches(name: str, a: BaselineTask, b: BaselineTask, old: Baseline) -> Iterator[Mismatch]:
    missing = [doc for doc in a.documents if doc not in b.documents]
    extra = [doc for doc in b.documents if doc not in a.documents]
    if missing or extra:
        limit = "without --limit" if old.limit is None else f"with --limit {old.limit}"
        texts = [str(len(b.documents))]
        texts += [f"{word} {listed(ids, 5)}" for word, ids in (("without", missing), ("with", extra)) if ids]
        yield Mismatch(f"documents of {name}", len(a.documents), ", ".join(texts), f"evaluate {limit}")
    changed = [
        doc for doc, row in a.documents.items() if doc in b.documents and row.question != b.documents[doc].question
    ]
    if not changed:
        return
    settings = differing(a.around, b.around) if a.around else {}
    if "examples (n-shot)" in settings:  # these two follow from it
        settings = {key: pair for key, pair in settings.items() if key not in ("few-shot seed", "examples as turns")}
    for key, (expected, seen) in settings.items():
        yield Mismatch(
            f"{key} of {name}", setting_text(expected), setting_text(seen), _prompt_remedy(key, expected, seen, old)
        )
    if not settings:
        yield Mismatch(f"prompts or targets of {name}", "others", f"different in {listed(changed, 5)}")


def _prompt_remedy(key: str, expected: Any, seen: Any, old: Baseline) -> str:
    """How to evaluate with the baseline's value of a setting of the prompts."""
    not_applied = "not applied"
    match key:
        case "examples (n-shot)":
            counts = {task.around.get(key) for task in old.tasks.values()}
            return f"evaluate with --num-fewshot {expected}" if len(counts) == 1 else "evaluate without --num-fewshot"
        case "chat template" if not_applied in (expected, seen):
            return f"evaluate with --{'no-' if expected == not_applied else ''}apply-chat-template"
        case "system instruction" if expected is None:
            return "evaluate without --system-instruction"
        case "few-shot seed":
            return _seed_remedy(old)
    return _SAME_SETTINGS


def _setting_mismatches(old: Baseline, new: Baseline, kind: Literal["decoding", "likelihood"]) -> Iterator[Mismatch]:
    """Settings that differ, each with one remedy for all tasks."""
    ids = Decoding.id_fields if old.checkpoint.content_hash != new.checkpoint.content_hash else ()
    pairs = {task: (getattr(old.tasks[task], kind), getattr(new.tasks[task], kind)) for task in _shared(old, new)}
    pairs = {task: pair for task, pair in pairs.items() if any(pair)}
    for name in dict.fromkeys(name for pair in pairs.values() for settings in pair for name in settings):
        values = {task: (a.get(name), b.get(name)) for task, (a, b) in pairs.items()}
        if name not in ids and any(a != b for a, b in values.values()):
            remedy = _setting_remedy(old, new, kind, name, {task: a for task, (a, _) in values.items()})
            for task, (a, b) in values.items():
                if a != b:
                    yield Mismatch(f"{name} of {task}", setting_text(a), setting_text(b), remedy)


def _setting_remedy(old: Baseline, new: Baseline, kind: str, name: str, expected: Mapping[str, Any]) -> str:
    """How to get the baseline's values of a setting in all tasks at once, whose defaults may differ."""
    values = {task: str(value) for task, value in expected.items() if value is not None}
    if not values:
        return f"evaluate without {name}"
    texts = " and ".join(f"{value} in {task}" for task, value in values.items())
    if kind == "decoding" and name in new.requested and name not in old.requested:
        return f"omit {name}, whose default is {texts}"
    if len(set(values.values())) == 1 and len(values) == len(expected):
        flag = "--gen-kwargs" if kind == "decoding" else "--likelihood-args"
        return f"evaluate with {flag} {name}={next(iter(values.values()))}"
    return f"evaluate each task separately, with {name} = {texts}"


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
