"""What a baseline and a run were asked, and under which settings: what forbids to hold one against the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dare_bench.analysis.baseline import Baseline, BaselineTask
from dare_bench.analysis.settings import differing, shown
from dare_bench.runs.text import listed
from dare_bench.types import Decoding

_AGAIN = "evaluate as the baseline was"


@dataclass(frozen=True, slots=True)
class Unlike:
    """One difference, and what to do about it. ``renewable``: may the baseline be renewed from such a run?"""

    what: str
    expected: Any
    seen: Any
    remedy: str = _AGAIN
    renewable: bool = True


def unlike(old: Baseline, now: Baseline) -> list[Unlike]:
    """Why the run cannot be judged by the baseline; empty if it can. Another checkpoint, device or dtype is no reason:
    to judge these is what a baseline is for. Of another family or harness nothing else is compared."""
    a, b = old.checkpoint.family, now.checkpoint.family
    if a != b:
        return [Unlike("family", a, b, f"name a baseline of {b}, or make one in a file of its own", renewable=False)]
    if old.harness != now.harness:
        again = f"evaluate with --harness {old.harness}, or name a baseline of {now.harness}"
        return [Unlike("harness", old.harness, now.harness, again, renewable=False)]
    differences = list(_run(old, now))
    for task, own in old.tasks.items():
        if task in now.tasks:
            differences += _task(task, own, now.tasks[task], old, now)
    return [*differences, *_settings(old, now, "decoding"), *_settings(old, now, "likelihood")]


def _run(old: Baseline, now: Baseline) -> Iterator[Unlike]:
    missing = [task for task in old.tasks if task not in now.tasks]
    if missing:
        yield Unlike(
            "tasks", ", ".join(old.tasks), ", ".join(now.tasks), f"evaluate with --tasks {','.join(old.tasks)}"
        )
    if old.seeds[2] != now.seeds[2]:
        yield Unlike(
            "sampling seed", old.seeds[2], now.seeds[2], f"evaluate with --seed {','.join(map(str, old.seeds))}"
        )
    if old.repeats != now.repeats:
        yield Unlike("answers to each prompt", old.repeats, now.repeats)


def _task(name: str, a: BaselineTask, b: BaselineTask, old: Baseline, now: Baseline) -> Iterator[Unlike]:
    if a.fingerprint.partition(":")[0] != b.fingerprint.partition(":")[0]:
        yield Unlike(
            f"definition of {name} (prompts, filters or scorer)",
            a.fingerprint.partition(":")[0],
            b.fingerprint.partition(":")[0],
            "see what changed: dare-bench report BASELINE-RUN RUN",
        )
    yield from _documents(name, a, b, old)
    same = old.checkpoint.content_hash == now.checkpoint.content_hash
    if same and a.answers != b.answers:
        yield Unlike(f"{name}: what its answers are compared by", a.answers, b.answers, "evaluate with --log-samples")


def _settings(old: Baseline, now: Baseline, kind: Literal["decoding", "likelihood"]) -> Iterator[Unlike]:
    """Settings that differ, each with one remedy for all tasks."""
    ids = Decoding.id_fields if old.checkpoint.content_hash != now.checkpoint.content_hash else ()
    both = {task: (getattr(own, kind), getattr(now.tasks[task], kind)) for task, own in _shared(old, now)}
    sides = {task: pair for task, pair in both.items() if any(pair)}
    for name in dict.fromkeys(name for pair in sides.values() for settings in pair for name in settings):
        values = {task: (a.get(name), b.get(name)) for task, (a, b) in sides.items()}
        if name not in ids and any(a != b for a, b in values.values()):
            remedy = _remedy(old, now, kind, name, {task: a for task, (a, _) in values.items()})
            for task, (a, b) in values.items():
                if a != b:
                    yield Unlike(f"{name} of {task}", shown(a), shown(b), remedy)


def _shared(old: Baseline, now: Baseline) -> Iterator[tuple[str, BaselineTask]]:
    return ((task, own) for task, own in old.tasks.items() if task in now.tasks)


def _remedy(old: Baseline, now: Baseline, kind: str, name: str, wanted: Mapping[str, Any]) -> str:
    """How to get the baseline's values of a setting in all its tasks at once, of which each has its own default."""
    flag = "--gen-kwargs" if kind == "decoding" else "--likelihood-args"
    values = {task: str(value) for task, value in wanted.items() if value is not None}
    if not values:
        return f"evaluate without {name}"
    texts = " and ".join(f"{value} in {task}" for task, value in values.items())
    alike = len(set(values.values())) == 1 and len(values) == len(wanted)
    if kind == "decoding" and name in now.requested and name not in old.requested:
        return f"evaluate without {name}: left to itself it is {texts}"
    if alike:
        return f"evaluate with {flag} {name}={next(iter(values.values()))}"
    return f"evaluate each task on its own, {name} being {texts}"


def _documents(name: str, a: BaselineTask, b: BaselineTask, old: Baseline) -> Iterator[Unlike]:
    lacking = [doc for doc in a.documents if doc not in b.documents]
    more = [doc for doc in b.documents if doc not in a.documents]
    if lacking or more:
        limit = "without --limit" if old.limit is None else f"with --limit {old.limit}"
        seen = f"{len(b.documents)}, {_some('without', lacking)}{', ' if lacking and more else ''}{_some('with', more)}"
        yield Unlike(f"documents of {name}", len(a.documents), seen, f"evaluate {limit}")
    other = [doc for doc in a.documents if doc in b.documents and a.documents[doc].asked != b.documents[doc].asked]
    if other:
        around = differing(a.around, b.around) if a.around else {}
        if "examples (n-shot)" in around:  # the others follow from it
            around = {key: two for key, two in around.items() if key not in ("few-shot seed", "examples as turns")}
        for key, (ours, theirs) in around.items():
            yield Unlike(f"{key} of {name}", shown(ours), shown(theirs), _surround(key, ours, theirs, old))
        if not around:
            yield Unlike(f"prompts or targets of {name}", "others", _some("other ones in", other))


def _surround(key: str, ours: Any, theirs: Any, old: Baseline) -> str:
    """How to ask for what stood around the baseline's documents."""
    off = "not applied"
    match key:
        case "examples (n-shot)":
            counts = {own.around.get(key) for own in old.tasks.values()}
            return f"evaluate with --num-fewshot {ours}" if len(counts) == 1 else "evaluate without --num-fewshot"
        case "chat template" if off in (ours, theirs):
            return f"evaluate with --{'no-' if ours == off else ''}apply-chat-template"
        case "system instruction" if ours is None:
            return "evaluate without --system-instruction"
        case "few-shot seed":
            return f"evaluate with --seed {','.join(map(str, old.seeds))}"
    return _AGAIN


def _some(word: str, ids: Sequence[str]) -> str:
    return f"{word} {listed(ids, 5)}" if ids else ""


def notes(old: Baseline, now: Baseline) -> Iterator[str]:
    """What else differs, and is no reason to refuse: it says which way of judging holds, or explains what is found."""
    a, b = old.checkpoint, now.checkpoint
    if a.content_hash != b.content_hash:
        yield f"another checkpoint: {a.name} ({short_hash(a.content_hash)}) and {b.name} ({short_hash(b.content_hash)})"
    if a.adapter_hash != b.adapter_hash:
        yield f"another adapter: {short_hash(a.adapter_hash)} and {short_hash(b.adapter_hash)}"
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


def short_hash(content: str | None) -> str:
    """The first 12 digits of a content hash."""
    return "none" if content is None else content.removeprefix("sha256:")[:12]
