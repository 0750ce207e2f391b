"""Small random A2D checkpoints in the published layout, and dLLM's two samplers written down over transformers' own
networks, which see everything or a staircase. One row at a time, as the published code computes a single prompt.

Facts: ZHZisZZ/dllm, core/samplers/mdlm.py and bd3lm.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

MASK, EOS, PAD, BOS, VOCAB = 302, 299, 298, 297, 303
BASES = ("Qwen2", "Qwen3", "Llama")
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 512, "initializer_range": 0.4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
FIRST_TOKENS = 290
"""Ids below are those of prompts."""


def causal(folder: Path, base: str = "Qwen3", tied: bool = True, scaled: bool = False, vocab: int = VOCAB) -> Path:
    """An autoregressive checkpoint, as transformers saves it."""
    import transformers

    torch.manual_seed(5)
    own = {} if base == "Qwen2" else {"head_dim": 8}
    theta = {"rope_theta": 1234.0, **(LLAMA3 if scaled else {"rope_type": "default"})}
    config = getattr(transformers, f"{base}Config")(
        **SIZES | {"vocab_size": vocab},
        **own,
        rope_parameters=theta,
        tie_word_embeddings=tied,
        eos_token_id=EOS,
        bos_token_id=BOS,
    )
    network = getattr(transformers, f"{base}ForCausalLM")(config)
    with torch.no_grad():
        network.get_output_embeddings().weight[min(MASK, vocab - 1)] = 0
    network.save_pretrained(folder)
    return folder


def made(folder: Path, base: str = "Qwen3", tied: bool = True, scaled: bool = False, **fields: Any) -> Path:
    """A checkpoint as dLLM's converter writes it: transformers' own weights, config.json with another class."""
    causal(folder, base, tied, scaled)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]  # as transformers 4 writes it
    config |= {"rope_theta": 1234.0, "rope_scaling": LLAMA3 if scaled else None}
    config |= {"model_type": f"a2d-{base.lower()}", "architectures": [f"A2D{base}LMHeadModel"], **fields}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Reference:
    """The published samplers on the weights of a folder."""

    def __init__(self, folder: Path) -> None:
        import transformers

        raw = json.loads((folder / "config.json").read_text())
        base = raw["model_type"].removeprefix("a2d-").capitalize()
        raw |= {"model_type": base.lower(), "architectures": [f"{base}ForCausalLM"]}
        config = getattr(transformers, f"{base}Config").from_dict(raw)
        loading = {"config": config, "attn_implementation": "eager", "dtype": torch.float32}
        self.network = getattr(transformers, f"{base}ForCausalLM").from_pretrained(folder, **loading).eval()

    @torch.no_grad()
    def logits(self, ids: list[int], sees: torch.Tensor | None = None, at: torch.Tensor | None = None) -> torch.Tensor:
        """[L, V]; ``sees`` [L, L] says which tokens a token attends to (all of them), ``at`` where tokens stand."""
        n = len(ids)
        sees = torch.ones(n, n, dtype=torch.bool) if sees is None else sees
        added = torch.zeros(1, 1, n, n).masked_fill(~sees, torch.finfo(torch.float32).min)
        by_kind = {"full_attention": added} if "Llama" not in type(self.network).__name__ else added
        out: torch.Tensor = self.network(
            input_ids=torch.tensor([ids]), attention_mask=by_kind, position_ids=None if at is None else at[None]
        ).logits[0]
        return out

    def mixed(
        self, ids: list[int], known: set[int], scale: float, sees: torch.Tensor | None, at: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits with guidance: ``known`` are the places that the unconditional half is shown as masks."""
        logits = self.logits(ids, sees, at)
        if scale:
            hidden = [MASK if i in known else token for i, token in enumerate(ids)]
            without = self.logits(hidden, sees, at)
            logits = without + (scale + 1) * (logits - without)
        return logits

    def mdlm(self, prompt: list[int], length: int, steps: int, block: int, **more: Any) -> tuple[list[int], int]:
        """The answer, and the forwards."""
        prompt = prompt or ([BOS] if more.get("shift") else [])
        ids, n = [*prompt, *[MASK] * length], len(prompt)
        return self._bidirectional(ids, [n + b for b in range(0, length, block)], block, steps, n, **more)

    def infill(self, ids: list[int], steps: int, block: int, **more: Any) -> tuple[list[int], int]:
        return self._bidirectional(list(ids), list(range(0, len(ids), block)), block, steps, 0, **more)

    def _bidirectional(
        self, ids: list[int], starts: list[int], block: int, steps: int, first: int, *, scale: float = 0.0,
        keep: tuple[int, ...] = (), never: tuple[int, ...] = (), last: tuple[int, ...] = (), shift: bool = False,
    ) -> tuple[list[int], int]:  # fmt: skip
        known = {i for i, token in enumerate(ids) if token != MASK and token not in keep}
        forwards = 0
        for start in starts:
            end = min(start + block, len(ids))
            for due in shares(ids[start:end].count(MASK), math.ceil(steps / len(starts))):
                logits = self.mixed(ids, known, scale, None)
                logits[:, list(never)] = -math.inf
                if shift:
                    logits = torch.cat([logits[:1], logits[:-1]])
                best = logits.argmax(-1)
                logits[:, list(last)] = -math.inf
                confidence = logits.softmax(-1).gather(1, best[:, None])[:, 0]
                closed = [i for i, token in enumerate(ids) if token != MASK or i >= end]
                confidence[closed] = -math.inf
                for i in confidence.topk(due).indices.tolist():
                    ids[i] = int(best[i])
                forwards += 1
        return ids[first:], forwards

    def bd3lm(
        self, prompt: list[int], length: int, block: int, per_block: int, *, scale: float = 0.0,
        keep: tuple[int, ...] = (), shift: bool = False, eos: int = EOS, pad: int | None = None,
    ) -> tuple[list[int], int]:  # fmt: skip
        """The answer through the block with an EOS, and the forwards. ``pad``: not seen by later blocks."""
        pads = -len(prompt) % block
        ids, known = list(prompt), {i for i, token in enumerate(prompt) if token not in keep}
        forwards = 0
        while len(ids) < len(prompt) + length:
            start = len(ids)
            ids += [MASK] * min(block, len(prompt) + length - start)
            place = (torch.arange(len(ids)) + pads) // block
            unseen = torch.tensor([len(prompt) <= i < start and ids[i] == pad for i in range(len(ids))])
            sees = (place[:, None] >= place) & (~unseen | torch.eye(len(ids), dtype=torch.bool))
            for due in shares(len(ids) - start, per_block):
                logits = self.mixed(ids, known, scale, sees, (~unseen).cumsum(0) - 1)
                logits = torch.cat([logits[:1], logits[:-1]]) if shift else logits
                confidence, best = logits.softmax(-1).max(-1)
                open_ = [i for i in range(start, len(ids)) if ids[i] == MASK]
                for i in sorted(open_, key=lambda i: -float(confidence[i]))[:due]:
                    ids[i] = int(best[i])
                forwards += 1
            forwards += 1  # the prefix
            if eos in ids[start:]:
                break
        return ids[len(prompt) :], forwards * (2 if scale else 1)


def shares(masks: int, steps: int) -> list[int]:
    """The tokens of each forward, with the published float types; steps without any are no forwards."""
    result = []
    for i in range(steps):
        s, t = torch.tensor((steps - i - 1) / steps), torch.tensor((steps - i) / steps)
        keep = (1 - (1 - s)) / (1 - (1 - t))
        due = min(masks, int(torch.round(torch.tensor(masks, dtype=torch.float64) * (1 - keep.double()))))
        result.append(due)
        masks -= due
    return [due for due in result if due]


def with_tokenizer(folder: Path, mask: str | None = "<|mask|>") -> Path:
    """With the tokenizer of a bundled checkpoint, whose chat template knows thoughts; ``mask`` None: without the mask
    token."""
    from dare_bench.registry import registry

    source = Path(registry().get("checkpoint", "tiny-sdar").target)
    words = json.loads((source / "tokenizer.json").read_text())
    named = json.loads((source / "tokenizer_config.json").read_text())
    words["added_tokens"][-1]["content"] = named["mask_token"] = mask
    if mask is None:
        del words["added_tokens"][-1], named["mask_token"]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder
