"""What a run asks of OpenCompass, settled before a model is opened: configs, their data sets, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common import punkt
from dare_bench.harness.common.answering import check_scope
from dare_bench.harness.opencompass.catalog import ConfigCatalog, RequestedConfig
from dare_bench.harness.opencompass.layout import Layout
from dare_bench.harness.opencompass.programs import evaluator_name
from dare_bench.harness.opencompass.prompts import kind_of
from dare_bench.harness.opencompass.refusals import why_not

_SENTENCES = {"IFEvaluator", "IFBenchEvaluator", "MultiIFEvaluator"}
"""Evaluators that split sentences with nltk's model."""


def check_flags(spec: RunSpec) -> None:
    """Refuse flags of lm-eval that mean nothing here."""
    check_scope(spec)
    if spec.num_fewshot is not None:
        raise UsageError(
            f"--num-fewshot {spec.num_fewshot}: an OpenCompass config fixes its own examples; name a sibling of it"
            " (dare-bench ls tasks --harness opencompass lists them)"
        )
    if not spec.fewshot_as_multiturn:
        raise UsageError("--fewshot-as-multiturn false: an OpenCompass config fixes its own turns; leave the flag out")
    if isinstance(spec.apply_chat_template, str):
        raise UsageError(
            f"--apply-chat-template {spec.apply_chat_template}: the opencompass harness takes the tokenizer's default"
            " template; leave the name out"
        )
    if spec.system_instruction is not None and not spec.apply_chat_template:
        raise UsageError(
            "--system-instruction: OpenCompass has no place for it in plain text; add --apply-chat-template"
        )


def configs_of(spec: RunSpec) -> dict[str, tuple[RequestedConfig, dict[str, Any]]]:
    """By task: the config that it comes from, and its configuration. Refuses what cannot be run here."""
    catalogue = ConfigCatalog(spec.include_path)
    found: dict[str, tuple[RequestedConfig, dict[str, Any]]] = {}
    for wanted in catalogue.match(spec.tasks):
        for cfg in catalogue.load(wanted):
            name = str(cfg["abbr"])
            if name in found and found[name][0] != wanted:
                other = found[name][0]
                way = "name it once" if other.path == wanted.path else "run them apart"
                raise UsageError(f"{other.word} and {wanted.word} both hold a data set {name!r}: {way}")
            if reason := why_not(cfg, wanted.path):
                raise UsageError(reason)
            _check_sentences(wanted.name, cfg)
            if spec.apply_chat_template and kind_of(cfg) == "ppl":
                raise UsageError(
                    f"config {wanted.name} compares whole texts (PPL), which OpenCompass does in plain text only:"
                    " leave --apply-chat-template out, or take the config's _gen sibling"
                )
            found[name] = (wanted, cfg)
    return found


def groups_of(configs: Mapping[str, tuple[RequestedConfig, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """The data sets of each config that has several in this run, under ``CONFIG``, ``CONFIG:ABBR`` or, where several
    words name parts of one config, ``CONFIG:ABBR+ABBR``."""
    words: dict[Path, dict[RequestedConfig, list[str]]] = {}
    for name, (wanted, _) in configs.items():
        words.setdefault(wanted.path, {}).setdefault(wanted, []).append(name)
    groups: dict[str, list[str]] = {}
    for parts in words.values():
        first, *rest = parts
        group = "+".join([first.word, *(other.only or other.name for other in rest)])
        groups[group] = [name for names in parts.values() for name in names]
    return {group: names for group, names in groups.items() if len(names) > 1}


def check_data(spec: RunSpec, configs: Mapping[str, tuple[RequestedConfig, Mapping[str, Any]]], layout: Layout) -> None:
    """Refuse data sets of which no file is there, before a model is opened. Nothing is built, so a file that only the
    data set's loader knows of is missed until then.

    Raises:
        DataError: the first that is missing, and the words that run those of its config that are here.
    """
    missing = {name: why for name, (_, cfg) in configs.items() if (why := layout.absent(cfg)) is not None}
    if not missing:
        return
    name, why = next(iter(missing.items()))
    config = configs[name][0]
    here = [other for other, (wanted, _) in configs.items() if wanted.path == config.path and other not in missing]
    if here:
        instead = f"--harness opencompass --tasks '{','.join(f'{config.name}:{other}' for other in here[:3])}'"
        told = "in place of --recipe " if spec.recipe is not None else ""
        many = f"{len(here)} of its config's data sets are" if len(here) > 1 else "one of its config's data sets is"
        why += f"; {many} here: {instead} {told}runs {'three of them' if len(here) > 3 else 'what is here'}"
    raise DataError(why)


def _check_sentences(config: str, cfg: Mapping[str, Any]) -> None:
    if evaluator_name(cfg) in _SENTENCES:
        punkt.check(f"config {config}")
