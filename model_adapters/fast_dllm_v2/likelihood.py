"""Fast-dLLM v2's likelihoods: the bound of every block, and what its published evaluation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dare_bench.diffusion.likelihood import MaskDraws
from dare_bench.errors import DecodingError, PromptError
from dare_bench.model_adapters.scoring.likelihood_estimators import Blockwise, Settings
from dare_bench.types import ModelSpec


class FastDLLMEstimator(Blockwise):
    """``nll_type="blocks"``: the sum of the blocks' bounds, as for the other block-causal families.

    ``nll_type="first_token"`` with estimator ``reference`` is what v2/eval.py of NVlabs/Fast-dLLM scores: the target's
    first token alone, with the rest of the target visible, and an EOS and masks up to the end of its block behind it.
    So it ranks choices of one token (MMLU), not longer ones.
    """

    choices: Mapping[str, tuple[str, ...]] = {**Blockwise.choices, "nll_type": ("blocks", "first_token")}

    def fields(self, spec: ModelSpec) -> dict[str, Any]:
        return {**super().fields(spec), "nll_type": "blocks"}

    def check(self, settings: Settings) -> None:
        super().check(settings)
        if settings["nll_type"] == "first_token" and settings["estimator"] != "reference":
            raise DecodingError(
                f"nll_type='first_token' belongs to estimator='reference', not to {settings['estimator']!r}: give "
                "estimator='reference'"
            )

    def ending(
        self, context: int, target: Sequence[int], settings: Settings, text: bool, spec: ModelSpec
    ) -> tuple[list[int], int]:
        total, length = context + len(target), int(settings["block_length"])
        in_one_block = context // length == (total - 1) // length
        if settings["nll_type"] != "first_token" or not in_one_block or total % length == 0:
            return [], 0
        if not spec.eos_ids:
            raise PromptError(
                "nll_type='first_token' puts an EOS behind the target; this checkpoint has none: give eos_id="
            )
        added = [spec.eos_ids[0], *[spec.mask] * (length - total % length - 1)]
        return added, len(added)

    def other_quantity(self, settings: Settings) -> str | None:
        return None if settings["nll_type"] == "blocks" else "nll_type='first_token'"

    def draws(self, context: int, target: int, settings: Settings, seed: int, visible: int = 0) -> list[MaskDraws]:
        if settings["nll_type"] == "blocks":
            return super().draws(context, target, settings, seed, visible)
        return [MaskDraws(torch.ones((1, 1), dtype=torch.bool), torch.ones(1, dtype=torch.float64), 0, "reference")]

    def passes(self, context: int, target: int, settings: Settings) -> int:
        if settings["nll_type"] == "blocks":
            return super().passes(context, target, settings)
        return 1 + int(context >= settings["block_length"])
