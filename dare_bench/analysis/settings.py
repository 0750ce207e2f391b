"""The settings under which a run evaluated a task, by their usual names, the differences between two runs, and which
runs share a row of a table: those of one model with the same settings, whatever harness asked, and after however many
examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.names import Checkpoint, checkpoint_of
from dare_bench.config import DEFAULT_SEEDS
from dare_bench.formatting import by_task, spread
from dare_bench.registry import registry
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import opened_with
from dare_bench.types import Decoding

MODEL = ("checkpoint", "adapter", "family")
"""Settings that a comparison is usually about: their difference causes no warning."""
SEED = "seed"
"""The requested setting of the evaluation's seeds."""
_LONGEST = 60
_OPTIONAL = ("config", "examples (n-shot)", "examples as turns")
"""Settings that not every harness records: a missing value does not count as a difference."""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """What a run added to the documents of a task or group: the chat template ("": none), the number of examples by
    task, and the system instruction; also how examples were drawn and shown (seed, as turns; empty without
    examples)."""

    template: str
    shots: tuple[Any, ...]
    instruction: Any
    examples: tuple[Any, ...]

    @property
    def shots_text(self) -> str:
        """The number of examples: "5-shot", "0–5-shot"; empty if it is not recorded."""
        counts = [count for count in self.shots if isinstance(count, int)]
        return f"{spread(counts)}-shot" if counts else ""


def prompt_context(run: Run, name: str) -> PromptContext:
    """The prompt context of a task or group."""
    results = run.results
    shots = tuple(results.get("n-shot", {}).get(task) for task in members(results, name))
    examples = (_seed(run, 3), results.get("fewshot_as_multiturn")) if any(shots) else ()
    return PromptContext(chat_template(run), shots, results.get("system_instruction"), examples)


def _seed(run: Run, number: int) -> int | None:
    """One of the four seeds; None: unknown."""
    return run.block.seeds[number] if run.block and run.block.seeds else None


def chat_template(run: Run) -> str:
    """The hash of the chat template, or the template itself in older runs; "" where none was applied."""
    return str(run.results.get("chat_template_sha") or run.results.get("chat_template") or "")


def differ_in_template_only(first: PromptContext, second: PromptContext) -> bool:
    """Do their chat templates differ, with everything else in the prompts equal?"""
    return (
        bool(first.template and second.template)
        and first.template != second.template
        and (first.shots, first.instruction, first.examples) == (second.shots, second.instruction, second.examples)
    )


def prompt_settings(run: Run, task: str) -> dict[str, Any]:
    """The settings that shape a task's prompts, by name: config, chat template, examples, system instruction; of an
    external result those that it records."""
    context = prompt_context(run, task)
    shots = run.results.get("n-shot", {}).get(task)
    settings = {
        "config": config_of(run, task) or None,
        "chat template": f"{context.template[:12]}…" if context.template else "not applied",
        "examples (n-shot)": shots,
        "system instruction": context.instruction,
    }
    if shots:
        settings["few-shot seed"] = _seed(run, 3)
        if context.template:
            settings["examples as turns"] = run.results.get("fewshot_as_multiturn")
    if run.is_external and "chat_template" not in run.results:
        del settings["chat template"]
    return {name: value for name, value in settings.items() if value is not None} if run.is_external else settings


def differing_prompt_settings(first: Run, second: Run, task: str) -> dict[str, tuple[Any, Any]]:
    """The settings of a task's prompts that differ, as far as both runs record them."""
    sides = prompt_settings(first, task), prompt_settings(second, task)
    return differing(*sides, only_common=first.is_external or second.is_external)


def config_of(run: Run, task: str) -> str:
    """The config of a task, for harnesses that have configs (OpenCompass's file name); "" elsewhere."""
    configs = run.results.get("configs", {})
    names = (str((configs.get(name) or {}).get("config") or "") for name in members(run.results, task))
    return ", ".join(dict.fromkeys(filter(None, names)))


def answers_each(run: Run, name: str) -> int:
    """The number of answers to each prompt of a task or group, counted: ``--repeats`` does not apply to likelihoods,
    and a task may request several answers itself."""
    known = run.require_block().tasks
    tasks = [known[task] for task in members(run.results, name) if task in known]
    counts = [task.requests // task.n_docs for task in tasks if task.decoding and not task.likelihood and task.n_docs]
    return max([1, *counts])


def requested(run: Run) -> dict[str, Any]:
    """The settings that were requested beyond the defaults, by their usual names."""
    block = run.block
    if block is None:
        return {}
    settings = opened_with(run.results) | block.decoding_requested
    settings |= {f"likelihood {name}": value for name, value in run.requested.get("likelihood", {}).items()}
    if block.seeds is not None and block.seeds != DEFAULT_SEEDS:
        settings[SEED] = seed_setting(block.seeds)
    if block.repeats > 1:
        settings["repeats"] = block.repeats
    if chat_template(run) and run.results.get("fewshot_as_multiturn") is False:
        settings["fewshot_as_multiturn"] = False
    return settings


def seed_setting(seeds: Sequence[int]) -> int | str:
    """The seeds as ``--seed`` takes them: 1, or "0,1234,1234,1234"."""
    return seeds[0] if len({*seeds}) == 1 else ",".join(map(str, seeds))


def distinguishing(runs: Sequence[Run]) -> list[str]:
    """Of each run the requested settings that not all runs have alike: "steps 8, seed 2". Where a run did not request
    one of them, its resolved values; empty where they are alike or unknown."""
    each = [requested(run) for run in runs]
    names = [
        name for name in dict.fromkeys(name for own in each for name in own)
        if len({str(own.get(name)) for own in each}) > 1
    ]  # fmt: skip
    return [
        ", ".join(f"{name} {by_task(values)}" for name in names if (values := _values(run, own, name)))
        for run, own in zip(runs, each, strict=True)
    ]


def _values(run: Run, asked: Mapping[str, Any], name: str) -> list[Any]:
    if name in asked or run.block is None:
        return [asked[name]] if name in asked else []
    return [task.decoding[name] for task in run.block.tasks.values() if task.decoding.get(name) is not None]


def differing(
    first: Mapping[str, Any], second: Mapping[str, Any], *, only_common: bool = False
) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by name. A setting that one side does not record does not count if it is optional, or
    with ``only_common``."""
    names = [name for name in {**first, **second} if not only_common or (name in first and name in second)]
    pairs = {name: (first.get(name), second.get(name)) for name in names}
    return {
        name: pair for name, pair in pairs.items() if pair[0] != pair[1] and not (name in _OPTIONAL and None in pair)
    }


def differing_settings(first: Run, second: Run, task: str, task_second: str) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between a task of the first run and one of the second: checkpoint, family, harness,
    prompts, seeds, decoding, estimator. Families have different decoding settings, and an external result does not
    record all settings: there only settings that both have are compared."""
    sides = _known_settings(first, task), _known_settings(second, task_second)
    families = {side.get("family") for side in sides}
    return differing(*sides, only_common=len(families) > 1 or first.is_external or second.is_external)


def _known_settings(run: Run, name: str) -> dict[str, Any]:
    """The settings of a task; those of an external result as far as it records them."""
    settings = dict(_settings(run, name))
    if not run.is_external:
        return settings
    unknown = {"repeats", "answers to each prompt"}
    if run.require_block().harness.version == UNKNOWN:
        unknown.add("harness")
    return {key: value for key, value in settings.items() if value not in (None, UNKNOWN) and key not in unknown}


def _settings(run: Run, name: str) -> Iterator[tuple[str, Any]]:
    block = run.require_block()
    task = block.tasks[name]
    yield "checkpoint", block.model.content_hash
    yield "adapter", block.model.adapter_hash
    yield "family", block.model.family
    yield "dtype", block.model.dtype
    yield "engine", block.model.engine.name if block.model.engine is not None else "native"
    yield from ((f"opened with {option}", value) for option, value in opened_with(run.results).items())
    yield "harness", f"{block.harness.name} {block.harness.version}"
    yield from prompt_settings(run, name).items()
    yield "sampling seed", _seed(run, 2)
    yield "python seed", _seed(run, 0)
    yield "numpy seed", _seed(run, 1)
    yield "few-shot seed", _seed(run, 3)
    yield "repeats", block.repeats
    yield "answers to each prompt", answers_each(run, name)
    yield "tier", task.tier
    yield from ((field, value) for field, value in task.decoding.items() if field not in Decoding.hidden)
    yield from ((f"likelihood {field}", value) for field, value in task.likelihood.items())


def setting_text(value: Any) -> str:
    """A setting's value as text, cut where it is long; of a hash of weights the first digits."""
    text = "not set" if value is None else str(value)
    if text.startswith("sha256:"):
        return text[: len("sha256:") + 12]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


_ONE_PLACE = re.compile(r"/.+|[^/.~][^/]*/[^/]+")
"""An absolute path or a hub id. Other paths name another checkpoint in another folder."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """The row of a run. Two runs of a row have one of ``model`` in common (content, or what the model was named). Their
    ``facts`` are equal (content, precision, family, options of opening, seeds and, where the table shows speeds,
    machine and engine) as far as both record them. ``requested`` are the other requested settings (None: not recorded);
    parts of one ``suite``, and runs of ``recipes``, have settings for each task and share a row all the same."""

    model: frozenset[Checkpoint | tuple[str, str | None]]
    facts: Mapping[str, Any]
    requested: str | None = None
    suite: str | None = None
    recipes: bool = False

    @property
    def is_independent(self) -> bool:
        """Is the run neither part of a suite nor of a recipe?"""
        return self.suite is None and not self.recipes

    def joins(self, other: RowKey) -> bool:
        """May two runs share a row? All pairs of runs of a row must."""
        common = self.facts.keys() & other.facts.keys()
        if self.model.isdisjoint(other.model) or any(self.facts[name] != other.facts[name] for name in common):
            return False
        parts = (self.suite is not None and self.suite == other.suite) or (self.recipes and other.recipes)
        return parts or self.requested == other.requested or None in (self.requested, other.requested)


def row_key(run: Run, machine: str | None = None) -> RowKey:
    """The key of a run; with ``machine``, runs on two machines or engines are two rows, and each external result has a
    separate row."""
    block, results = run.block, run.results
    if block is None:
        return RowKey(frozenset(), {})
    model = block.model
    kind = re.split("[: ]", model.content_hash)[0]  # hashed here, stated by a server, or the revision of a hub
    facts: dict[str, Any] = {f"content {kind}": model.content_hash, "dtype": model.dtype, "family": model.family}
    facts["seeds"] = block.seeds
    if not run.is_external:
        facts |= {"adapter": model.adapter_hash or "", "opened": str(sorted(opened_with(results).items()))}
    if machine is not None:
        facts["machine"] = machine, run.path.resolve() if run.is_external else model.engine and model.engine.label
    recorded = not run.is_external or "chat_template" in results
    # Template and instruction belong to the run; the number of examples and the harness belong to its tasks.
    prompt = chat_template(run), results.get("system_instruction")
    settings = sorted((name, str(value)) for name, value in requested(run).items())
    content = None if model.content_hash == UNKNOWN else checkpoint_of(run)._replace(dtype="")
    return RowKey(
        model=frozenset(filter(None, (named_model(run), content))),
        facts={name: fact for name, fact in facts.items() if fact not in (UNKNOWN, None)},
        requested=str((settings, prompt)) if recorded else None,
        suite=block.suite,
        recipes=bool(block.recipes),
    )


def named_model(run: Run) -> tuple[str, str | None] | None:
    """What the model of a run was named, and its adapter, where this is one checkpoint whoever reads it: a bundled
    name, a hub id or an absolute path."""
    model = run.require_block().model
    named = str(run.requested.get("model") or model.path or "")
    certain = _ONE_PLACE.fullmatch(named) or named in registry().names("checkpoint")
    return (named, model.adapter) if certain else None


def models_of(runs: Iterable[Run]) -> dict[Run, Run]:
    """For each run one that stands for all that may share a row with it, on any machine. Runs that record more come
    first, and parts of a suite before a run of the same settings joins one of them. A run that could join several
    groups, since it does not record what distinguishes them, is in a group with its like."""
    keys = {run: row_key(run) for run in runs}
    groups: dict[Run, list[RowKey]] = {}
    model_of: dict[Run, Run] = {}
    for run in sorted(keys, key=lambda run: (-len(keys[run].facts), keys[run].is_independent)):
        found = [model for model, group in groups.items() if all(map(keys[run].joins, group))]
        alike = [model for model in found if keys[run] in groups[model]]
        model_of[run] = alike[0] if alike else found[0] if len(found) == 1 else run
        groups.setdefault(model_of[run], []).append(keys[run])
    return model_of
