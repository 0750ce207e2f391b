"""The published code of another project in a separate process, which ``peers.py`` starts: it may need other versions.

    PYTHON scripts/bench/peer_process.py PEER CHECKOUTS FOLDER THREADS
    PYTHON scripts/bench/peer_process.py eval CHECKOUTS FOLDER WORDS OF EVAL_LLADA.PY ...

Imports and runs code from CHECKOUTS: read there what it is before you start it. FOLDER is a checkpoint in the published
layout, loaded in float32. Each line of standard input is a request in JSON, {"prompts", "pairs" or "rows", "fields"};
the answer is one line, {"cpu", "wall", "answer"}: seconds of processor time (all threads) and by the clock, and tokens
of responses, log-likelihoods, or the loss of a training step. A kernel that exists for CUDA alone is replaced by
PyTorch's function.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import cached_property, partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import rms_norm, scaled_dot_product_attention

Tokens = list[list[int]]


def load(network: Any, folder: str) -> Any:
    return network.from_pretrained(folder, torch_dtype=torch.float32).eval()


def load_llada(folder: str) -> Any:
    """dllm's copy of the network that LLaDA publishes on the hub. It opens on CUDA alone unless it is built by hand."""
    module = importlib.import_module("dllm.pipelines.llada.models.modeling_llada")
    config = module.LLaDAModelLM.config_class.from_pretrained(folder)
    settings = module.create_model_config_from_pretrained_config(config)
    settings.init_device = "cpu"
    network = module.LLaDAModelLM(config, model=module.LLaDAModel(settings, init_params=False))
    network.load_state_dict(load_file(Path(folder, "model.safetensors")))
    return network.float().eval()


class LLaDAPeer:
    """generate.py and get_log_likelihood.py, one prompt at a time as its eval_llada.py does."""

    paths = ("LLaDA", "dllm")

    def __init__(self, folder: str) -> None:
        self.model = load_llada(folder)

    def generate(self, prompts: Tokens, fields: dict[str, Any]) -> Tokens:
        function = importlib.import_module("generate").generate
        rows = [function(self.model, torch.tensor([prompt]), **fields) for prompt in prompts]
        return [row[0, len(prompt) :].tolist() for row, prompt in zip(rows, prompts, strict=True)]

    def score(self, pairs: list[Tokens], fields: dict[str, Any]) -> list[float]:
        function, seed = importlib.import_module("get_log_likelihood").get_log_likelihood, fields.pop("seed")
        values = []
        for context, target in pairs:
            torch.manual_seed(seed)
            values.append(function(self.model, torch.tensor(context), torch.tensor(target), **fields))
        return values


class FastDLLMPeer:
    """generate.py with its caches and its network, one prompt at a time."""

    paths = ("Fast-dLLM/llada",)

    def __init__(self, folder: str) -> None:
        self.model = load(importlib.import_module("model.modeling_llada").LLaDAModelLM, folder)

    def generate(self, prompts: Tokens, fields: dict[str, Any]) -> Tokens:
        cache = fields.pop("cache")
        name = "generate" if cache == "none" else f"generate_with_{cache}_cache"
        function = getattr(importlib.import_module("generate"), name)
        rows = [function(self.model, torch.tensor([prompt]), **fields)[0] for prompt in prompts]
        return [row[0, len(prompt) :].tolist() for row, prompt in zip(rows, prompts, strict=True)]


class SDARPeer:
    """generate.py, one prompt at a time, the only way that it has."""

    paths = ("SDAR",)

    def __init__(self, folder: str) -> None:
        stand_in("flash_attn", flash_attn_func=_attention, flash_attn_varlen_func=None)
        stand_in("flash_attn.bert_padding", index_first_axis=None, pad_input=None, unpad_input=None)
        for name in ("flash_attn.ops", "flash_attn.ops.triton"):
            stand_in(name)
        stand_in("flash_attn.ops.triton.layer_norm", rms_norm_fn=_rms_norm)
        package = "training.model.SDAR-4B-Chat"
        stand_in(f"{package}.fused_linear_diffusion_cross_entropy", FusedLinearDiffusionCrossEntropyLoss=None)
        network = importlib.import_module(f"{package}.modeling_sdar").SDARForCausalLM
        self.model = load(network, folder)
        self.model.config.fuse_cross_entropy = False

    def generate(self, prompts: Tokens, fields: dict[str, Any]) -> Tokens:
        function, length = importlib.import_module("generate").block_diffusion_generate, fields["gen_length"]
        rows = [function(self.model, {"input_ids": torch.tensor([prompt])}, **fields) for prompt in prompts]
        return [row[0, len(prompt) :][:length].tolist() for row, prompt in zip(rows, prompts, strict=True)]


class DreamPeer:
    """diffusion_generate, one prompt at a time. The network is that of dllm's repository, since Dream's is on the
    hub alone."""

    paths = ("dllm",)

    def __init__(self, folder: str) -> None:
        self.model = load(importlib.import_module("dllm.pipelines.dream.models.modeling_dream").DreamModel, folder)

    def generate(self, prompts: Tokens, fields: dict[str, Any]) -> Tokens:
        module = importlib.import_module("dllm.pipelines.dream.models.generation_utils")
        config = module.DreamGenerationConfig(**fields, pad_token_id=self.model.config.pad_token_id)
        rows = [self.model.diffusion_generate(torch.tensor([prompt]), config) for prompt in prompts]
        return [row[0, len(prompt) :].tolist() for row, prompt in zip(rows, prompts, strict=True)]


class DLLMPeer:
    """MDLMSampler with its LLaDA network; prompts together, padded to the longest."""

    paths = ("dllm",)

    def __init__(self, folder: str) -> None:
        self.model = load_llada(folder)
        self.sampler = importlib.import_module("dllm.core.samplers.mdlm").MDLMSampler

    def generate(self, prompts: Tokens, fields: dict[str, Any]) -> Tokens:
        eos = self.model.config.eos_token_id
        ids = SimpleNamespace(mask_token_id=fields.pop("mask_id"), eos_token_id=eos, bos_token_id=None)
        rows = self.sampler(model=self.model, tokenizer=ids).sample(prompts, **fields)
        n = fields["max_new_tokens"]
        return [row[len(p) : len(p) + n].tolist() for row, p in zip(rows, prompts, strict=True)]

    @torch.enable_grad()
    def train(self, rows: list[Tokens], fields: dict[str, Any]) -> list[float]:
        """One step of MDLMTrainer's loss, backward and AdamW, on rows padded to the longest and without loss there."""
        width, count = max(len(prompt) + len(answer) for prompt, answer in rows), len(rows)
        ids, labels = torch.zeros(count, width, dtype=torch.long), torch.full((count, width), -100)
        for row, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor([*prompt, *answer])
            labels[row, len(prompt) : end] = torch.tensor(answer)
        lengths = torch.tensor([len(prompt) + len(answer) for prompt, answer in rows])
        inputs = {"input_ids": ids, "labels": labels, "attention_mask": torch.arange(width) < lengths[:, None]}
        torch.manual_seed(fields["seed"])
        self.optimizer.zero_grad()
        loss = self.trainer.compute_loss(self.model, inputs)
        loss.backward()
        self.optimizer.step()
        return [loss.item()]

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.0)

    @cached_property
    def trainer(self) -> Any:
        """MDLMTrainer with what its loss reads: building one whole needs a data set."""
        module = importlib.import_module("dllm.core.trainers.mdlm")
        trainer = object.__new__(module.MDLMTrainer)
        ids = SimpleNamespace(mask_token_id=self.model.config.mask_token_id, padding_side="right")
        trainer.__dict__.update(
            processing_class=ids, scheduler=module.LinearAlphaScheduler(), time_epsilon=1e-3, right_shift_logits=False,
            loss_weight_type="scheduler", loss_norm_type="token", meter=SimpleNamespace(update=lambda **_: None),
        )  # fmt: skip
        return trainer


PEERS = {"llada": LLaDAPeer, "fast-dllm": FastDLLMPeer, "sdar": SDARPeer, "dream": DreamPeer, "dllm": DLLMPeer}
METHODS = {"prompts": "generate", "pairs": "score", "rows": "train"}
"""By what a request contains."""


def stand_in(name: str, **attributes: Any) -> None:
    """A module in place of one that needs CUDA."""
    module = ModuleType(name)
    module.__dict__.update(attributes, __path__=[], __spec__=ModuleSpec(name, None))
    sys.modules[name] = module


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, bias: None, eps: float) -> torch.Tensor:
    return rms_norm(x, weight.shape, weight, eps)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, softmax_scale: float) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


def timed(function: Callable[[], Any]) -> dict[str, Any]:
    """The value of a call, and its seconds of processor time and by the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    answer = function()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "answer": answer}


def main() -> None:
    name, checkouts, folder, threads = sys.argv[1:]
    replies, sys.stdout = sys.stdout, sys.stderr  # what the peer prints is not an answer
    torch.set_num_threads(int(threads))
    peer_class = PEERS[name]
    sys.path[:1] = [str(Path(checkouts, path)) for path in peer_class.paths]
    with torch.no_grad():
        peer = peer_class(folder)
        for line in sys.stdin:
            request = json.loads(line)
            kind = next(kind for kind in METHODS if kind in request)
            reply = timed(partial(getattr(peer, METHODS[kind]), request[kind], request["fields"]))
            print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
