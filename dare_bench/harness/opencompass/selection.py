"""The configs and data sets that a run requests from OpenCompass, checked before a model is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.requests import refuse_likelihoods
from dare_bench.harness.common.scoring_process import check_sentence_model
from dare_bench.harness.opencompass.catalog import Config, ConfigCatalog
from dare_bench.harness.opencompass.components import evaluator_name
from dare_bench.harness.opencompass.layout import Layout
from dare_bench.harness.opencompass.prompts import kind_of
from dare_bench.harness.opencompass.refusals import why_not

_SENTENCES = {"IFEvaluator", "IFBenchEvaluator", "MultiIFEvaluator"}
"""Evaluators that split sentences with nltk's model."""


def check_flags(spec: RunSpec) -> None:
    """Refuse flags of lm-eval that have no meaning here."""
    if spec.num_fewshot is not None:
        raise UsageError(
            f"--num-fewshot {spec.num_fewshot}: an OpenCompass config fixes the examples; name another "
            "config of that data set (dare-bench ls tasks --harness opencompass lists them)"
        )
    if not spec.fewshot_as_multiturn:
        raise UsageError("--fewshot-as-multiturn false: an OpenCompass config fixes the turns; leave the flag out")
    if isinstance(spec.apply_chat_template, str):
        raise UsageError(
            f"--apply-chat-template {spec.apply_chat_template}: the opencompass harness takes the tokenizer's default"
            " template; leave the name out"
        )
    if spec.system_instruction is not None and not spec.apply_chat_template:
        raise UsageError(
            "--system-instruction: OpenCompass has no place for it in plain text; add --apply-chat-template"
        )


def configs_of(spec: RunSpec) -> dict[str, tuple[Config, dict[str, Any]]]:
    """By task: its config, and its configuration. Refuses data sets that cannot be run here."""
    catalog = ConfigCatalog(spec.include_path)
    configs: dict[str, tuple[Config, dict[str, Any]]] = {}
    for config in catalog.match(spec.tasks):
        for cfg in catalog.load(config):
            name = str(cfg["abbr"])
            if name in configs and configs[name][0] != config:
                other = configs[name][0]
                way = "name it once" if other.path == config.path else "run them apart"
                raise UsageError(f"{other.word} and {config.word} both hold a data set {name!r}: {way}")
            if reason := why_not(cfg, config.path):
                raise UsageError(reason)
            if kind_of(cfg) == "ppl":
                refuse_likelihoods(spec.engine, [name])
            if evaluator_name(cfg) in _SENTENCES:
                check_sentence_model(f"config {config.name}")
            if spec.apply_chat_template and kind_of(cfg) == "ppl":
                raise UsageError(
                    f"config {config.name} compares whole texts (PPL), which OpenCompass does in plain text only:"
                    " leave --apply-chat-template out, or use the _gen variant of the config"
                )
            configs[name] = (config, cfg)
    return configs


def groups_of(configs: Mapping[str, tuple[Config, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """The data sets of each config that has several in this run, under ``CONFIG``, ``CONFIG:ABBR`` or, if several words
    name parts of one config, ``CONFIG:ABBR+ABBR``."""
    words: dict[Path, dict[Config, list[str]]] = {}
    for name, (config, _) in configs.items():
        words.setdefault(config.path, {}).setdefault(config, []).append(name)
    groups: dict[str, list[str]] = {}
    for parts in words.values():
        first, *rest = parts
        group = "+".join([first.word, *(other.only or other.name for other in rest)])
        groups[group] = [name for names in parts.values() for name in names]
    return {group: names for group, names in groups.items() if len(names) > 1}


def check_data(spec: RunSpec, configs: Mapping[str, tuple[Config, Mapping[str, Any]]], layout: Layout) -> None:
    """Refuse data sets without any file, before a model is opened. Nothing is built, so a file that only the data set's
    loader knows is not checked.

    Raises:
        DataError: the first that is missing, and the options that run those of its config that are available.
    """
    missing = {name: reason for name, (_, cfg) in configs.items() if (reason := layout.missing(cfg)) is not None}
    for name, reason in missing.items():
        config = configs[name][0]
        here = [other for other, (c, _) in configs.items() if c.path == config.path and other not in missing]
        if here:
            tasks = f"--harness opencompass --tasks '{','.join(f'{config.name}:{other}' for other in here[:3])}'"
            replacing = "in place of --recipe " if spec.recipe is not None else ""
            many = f"{len(here)} of its config's data sets are" if len(here) > 1 else "one of its config's data sets is"
            reason += f"; {many} here: {tasks} {replacing}runs {'three of them' if len(here) > 3 else 'what is here'}"
        raise DataError(reason)
