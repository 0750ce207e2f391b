"""Dream's likelihoods: the estimators of its eval.py, and exact enumeration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dare_bench.diffusion.likelihood import MaskDraws, bernoulli_masks, chain_masks, enumerate_masks
from dare_bench.errors import DecodingError, PromptError
from dare_bench.model_adapters.scoring.likelihood_estimators import LikelihoodEstimator, Settings
from dare_bench.types import ModelSpec


class DreamEstimator(LikelihoodEstimator):
    """The fields of DreamLM/Dream eval/eval.py by their names.

    ``reference`` is its own estimate: ``nll_type`` mc (Monte Carlo) or the chain rule from the left (ar_ftb) or from
    the right (ar_btf); ``log_type`` ftb (of the target), btf (of the context, given the target) or union (of both, per
    token). ``classifier_free_guidance`` w is u + w (c - u), 1 is off. ``mc_num`` is rounded down to whole rounds of
    ``batch_size``, at least one, as published.

    Its evaluation appends an EOS to each text, which stays visible: mc neither masks nor scores it. So every estimator
    appends one to a text, and ``auto`` also to token ids, unless they end with one; what ``auto`` estimates does not
    depend on the length of the target (after an empty context, mc also leaves out column 0, where its evaluation has
    BOS). ``exact`` and ``reference``, requested by name, leave token ids unchanged: ``exact`` masks and scores all of
    them, mc never the last. The published chain rule scores the EOS after a text, too.
    """

    reads_context = True
    choices: Mapping[str, tuple[str, ...]] = {
        **LikelihoodEstimator.choices,
        "nll_type": ("mc", "ar_ftb", "ar_btf"),
        "log_type": ("ftb", "btf", "union"),
    }

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        return {
            "estimator": "auto",
            "nll_type": "mc",
            "log_type": "ftb",
            "mc_num": 128,
            "batch_size": 16,
            "sampling_eps": 1e-3,
            "classifier_free_guidance": 1.0,
        }

    def check(self, settings: Settings) -> None:
        nll, log = settings["nll_type"], settings["log_type"]
        if (nll, log) != ("mc", "ftb") and settings["estimator"] != "reference":
            raise DecodingError(
                f"nll_type={nll!r} with log_type={log!r} belongs to estimator='reference', not to "
                f"{settings['estimator']!r}: give estimator='reference'"
            )
        if nll != "mc" and log == "union":
            raise DecodingError(f"log_type='union' needs nll_type='mc'; with {nll!r} only ftb and btf are allowed")
        batch_size = settings.get("batch_size", 1)  # which fast has not
        if batch_size < 1 or settings["mc_num"] < (nll == "mc"):
            raise DecodingError(f"mc_num={settings['mc_num']} and batch_size={batch_size} must be at least 1")
        for name, low, high in (("sampling_eps", 0.0, 1.0), ("classifier_free_guidance", 1.0, float("inf"))):
            value = settings[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
                raise DecodingError(f"{name}={value!r} must be a number, at least {low:g} and below {high:g}")
        if self.guidance(settings) > 0 and log == "union":
            raise DecodingError(
                f"classifier_free_guidance={settings['classifier_free_guidance']} needs something given, and "
                "log_type='union' scores everything: use ftb or btf, or leave it at 1"
            )

    def ending(
        self, context: int, target: Sequence[int], settings: Settings, text: bool, spec: ModelSpec
    ) -> tuple[list[int], int]:
        if not text and settings["estimator"] in ("exact", "reference"):
            return [], 0
        if not text and target[-1] in spec.eos_ids:
            return [], 1
        if not spec.eos_ids:
            raise PromptError(
                "Dream's likelihoods put an EOS behind the target; this checkpoint has none: give eos_id="
            )
        return [spec.eos_ids[0]], 1

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        if settings["estimator"] == "exact":
            if target <= visible:
                raise PromptError(
                    "nothing to mask: the target is an EOS alone, which estimator='auto' does not score; "
                    "use estimator='exact' to score it"
                )
            return [enumerate_masks(target - visible)]
        total, log = context + target, settings["log_type"]
        span = {"ftb": range(context, total), "btf": range(context), "union": range(total)}[log]
        chain = settings["nll_type"] != "mc"
        if not span or (not chain and max(span.start, 1) >= min(span.stop, total - 1)):
            raise PromptError(
                f"nothing to mask: nll_type={settings['nll_type']!r} with log_type={log!r} on {context} context and "
                f"{target} target tokens (mc never masks the first and the last of all): end the target with EOS, or "
                "use estimator='exact'"
            )
        if chain:
            return [chain_masks(len(span), settings["nll_type"] == "ar_btf", span.start - context)]
        masks = bernoulli_masks(
            context,
            target,
            span,
            settings["mc_num"],
            settings["batch_size"],
            settings["sampling_eps"],
            torch.Generator().manual_seed(seed),
        )
        return [replace(masks, weights_M=masks.weights_M / total) if log == "union" else masks]

    def passes(self, context: int, target: int, settings: Settings) -> int:
        if self.kind(context, target, settings) != "reference":
            return super().passes(context, target, settings)
        if settings["nll_type"] != "mc":
            return context if settings["log_type"] == "btf" else target + 1  # strings get an EOS
        return max(int(settings["mc_num"]), int(settings["batch_size"]))

    def other_quantity(self, settings: Settings) -> str | None:
        return None if settings["log_type"] == "ftb" else f"log_type={settings['log_type']!r}"

    def guidance(self, settings: Settings) -> float:
        return float(settings["classifier_free_guidance"]) - 1.0

    def hidden(self, context: int, target: int, settings: Settings) -> range:
        return range(context, context + target) if settings["log_type"] == "btf" else range(context)
