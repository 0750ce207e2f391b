"""An opened causal network: token ids of prompts, and logits of the tokens after them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dare_bench.errors import DecodingError, brief
from dare_bench.model_adapters.encoding import encode_prompt
from dare_bench.model_adapters.opened_network import OpenedNetwork
from dare_bench.types import ModelSpec, Prompt


class CausalNetwork(OpenedNetwork):
    """The part of a causal model that its likelihoods need.

    Args:
        prefix_id: the context of a text without one: BOS, or EOS where there is none.
        accepts: names of the arguments of the network's forward.

    Attributes:
        pad_id: the token in padded columns, which no other token sees.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: Any | None,
        spec: ModelSpec,
        path: Path,
        adapter: Path | None = None,
        *,
        prefix_id: int,
        accepts: frozenset[str],
    ) -> None:
        super().__init__(network, tokenizer, spec, path, adapter)
        self.prefix_id = prefix_id
        self.pad_id = prefix_id if spec.pad_id is None else spec.pad_id
        self._takes_mask, self._keeps_logits = "attention_mask" in accepts, "logits_to_keep" in accepts

    def encode(self, prompt: Prompt, *, special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt: raw text with the special tokens that the tokenizer adds by default, unless it begins
        with the BOS token (lm-eval's rule); raises PromptError."""
        return encode_prompt(prompt, self.tokenizer, self.spec, None, self.path, special_tokens=special_tokens)

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A likelihood is exact and has no settings; raises DecodingError for any but ``estimator``."""
        for name, value in fields.items():
            if name != "estimator":
                raise DecodingError(
                    f"{self.spec.family} has no likelihood field {name!r}: its likelihoods are exact; leave it out"
                )
            if value not in (None, "auto", "exact", "fast"):
                raise DecodingError(f"estimator={brief(value)}: a causal model's likelihood is exact; use 'auto'")
        return {"estimator": "exact"}

    @torch.no_grad()
    def last_logits(self, tokens_BL: Tensor, kept: int) -> Tensor:
        """float32 [B, K, V]: logits of the tokens after each of the last ``kept`` positions. Rows are not padded, or on
        the right."""
        keep = {"logits_to_keep": kept} if self._keeps_logits else {}
        logits: Tensor = self.network(tokens_BL.to(self.device), use_cache=False, **keep).logits
        return logits[:, -kept:].float()
