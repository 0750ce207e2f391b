"""Networks and samplers of the model families, and the bundled checkpoints."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ != "dare_bench.model_adapters":
    raise ImportError(f"import dare_bench.model_adapters, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry

# Where torchao is installed, transformers imports it, and it reports kernels that are not for this machine.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)

CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of transformers' own causal language models; which of them it has, the family's opener checks."""
QWEN2 = "Qwen2ForCausalLM"
SDAR = [["sdar", "SDARForCausalLM"], ["sdar_moe", "SDARMoeForCausalLM"]]
FAST_DLLM = [["Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM"]]
GEMMA = [["diffusion_gemma", "DiffusionGemmaForBlockDiffusion"]]
BASES = ("Qwen2", "Qwen3", "Llama")
A2D = [[f"a2d-{base.lower()}", f"A2D{base}LMHeadModel"] for base in BASES]
CONVERTS = {"converts": "a2d", "converts_from": [[base.lower(), f"{base}ForCausalLM"] for base in BASES]}
NEMOTRON = [["nemotron_labs_diffusion", "NemotronLabsDiffusionModel"]]
EFFICIENT_DLM = (
    "Efficient-DLM, which does not open: no public code states its mask id, its weight names, and how blocks attend to "
    "the prompt"
)
DECLINES = dict.fromkeys(("edlm", "EfficientDLM"), EFFICIENT_DLM)
"""Published models that no family opens, by model_type and class, with the reason."""
FAMILIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llada", "llada:FAMILY", {"matches": [["llada", "LLaDAModelLM"]]}),
    ("llada_moe", "llada_moe:FAMILY", {"matches": [["llada", "LLaDAMoEModelLM"], ["lladamoe", "LLaDAMoEModelLM"]]}),
    ("dream", "dream:FAMILY", {"matches": [["Dream", "DreamModel"]], "reads": [QWEN2]}),
    ("sdar", "sdar:FAMILY", {"matches": SDAR, "reads": ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"]}),
    ("llada2", "llada2:FAMILY", {"matches": [["llada2_moe", "LLaDA2MoeModelLM"]]}),
    ("llada2.1", "llada2:FAMILY_21", {"matches": []}),
    ("llada2.2", "llada2:FAMILY_22", {"matches": []}),
    ("fast_dllm_v2", "fast_dllm_v2:FAMILY", {"matches": FAST_DLLM, "reads": [QWEN2]}),
    ("open_dcoder", "open_dcoder:FAMILY", {"matches": [], "reads": [QWEN2]}),
    ("illada", "illada:FAMILY", {"matches": [["illada", "ILLaDAForCausalLM"]], "reads": ["LlamaForCausalLM"]}),
    ("stable_diffcoder", "stable_diffcoder:FAMILY", {"matches": [["llama", "StableDiffcoderForCausalLM"]]}),
    ("nemotron_diffusion", "nemotron_diffusion:FAMILY", {"matches": NEMOTRON}),
    ("mdlm", "mdlm:FAMILY", {"matches": [["mdlm", "MDLM"], ["bd3lm", "BD3LM"]]}),
    ("diffusion_gemma", "diffusion_gemma:FAMILY", {"matches": GEMMA, "trains": False}),
    ("a2d_mdlm", "a2d:MDLM", {"matches": [], "shares": A2D, "named": "mdlm", **CONVERTS}),
    ("a2d_bd3lm", "a2d:BD3LM", {"matches": [], "shares": A2D, "named": "bd3lm"}),
    ("causal", "causal:FAMILY", {"matches": [], "endings": CAUSAL_ENDINGS, "declines": DECLINES, "trains": False}),
)
"""Name, target, and the (model_type, architecture) of published configs; those of LLaDA2.1 and 2.2 equal that of
LLaDA2.0, so "llada2.1" and "llada2.2" are opened only by name; so is "open_dcoder", whose config is that of Qwen2.
``reads``: networks of transformers that the family has, for the refusal of one with a mask token. ``shares``: configs
that several families have, of which the word ``named`` in the name of a checkpoint says which is meant. ``converts``:
what ``dare-bench convert --to`` makes of ``converts_from`` by the family's ``convert``."""

STRATEGIES: tuple[str, ...] = (
    "sampling.strategies.quota:Quota",
    "sampling.strategies.quota:BlockQuota",
    "sampling.strategies.timed:TimeQuota",
    "a2d.linear_quota:LinearQuota",
    "sampling.strategies.bounded:Threshold",
    "sampling.strategies.bounded:Factor",
    "sampling.strategies.bounded:Dynamic",
    "sampling.strategies.quota:Sequential",
    "sampling.strategies.bounded:EntropyBound",
    "dream.carry:Carry",
    "sampling.strategies.timed:Bernoulli",
    "llada2.edit:Edit",
    "sampling.strategies.quota:Ascending",
    "sampling.strategies.wrapped:Eoser",
    "sampling.strategies.remasking:Rcr",
    "sampling.strategies.remasking:P2",
    "sampling.strategies.bounded:EbSampler",
    "sampling.strategies.klass:Klass",
    "sampling.strategies.credit:CreditDecoding",
    "sampling.strategies.prophet:Prophet",
    "sampling.strategies.d3llm:D3llm",
    "sampling.strategies.pc_sampler:PcSampler",
    "sampling.strategies.daedal:Daedal",
    "sampling.strategies.wino:Wino",
)
"""Module and class of each strategy; it is registered under the name of its class in snake case."""

ENGINES: tuple[tuple[str, bool, bool], ...] = (
    ("lmdeploy:LmdeployModel", False, False),
    ("sglang:SGLangModel", True, True),
    ("openai:OpenAIModel", True, False),
)
"""Module, whose name is the engine's, and class; is the model on a server; can its weights be replaced while it
runs?"""


def register(registry: Registry) -> None:
    """Families by (model_type, architecture), strategies, engines and bundled checkpoints by name. Imports no torch."""
    for name, target, about in FAMILIES:
        registry.add("family", name, f"dare_bench.model_adapters.{target}", origin=__name__, **about)
    for target in STRATEGIES:
        name = re.sub(r"(?<=.)(?=[A-Z])", "_", target.partition(":")[2]).lower()
        registry.add("strategy", name, f"dare_bench.model_adapters.{target}", origin=__name__)
    for place, remote, reads_weights in ENGINES:
        name, target = place.partition(":")[0], f"dare_bench.model_adapters.served.{place}"
        registry.add("engine", name, target, origin=__name__, remote=remote, reads_weights=reads_weights)
    for config in sorted((Path(__file__).parent / "tiny").glob("*/config.json")):
        registry.add("checkpoint", config.parent.name, str(config.parent), origin=__name__)
