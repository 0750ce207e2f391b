"""DiffusionGemma's weight names, and what it adds to the shared backbone.

Facts: transformers, models/diffusion_gemma (modeling), and the key names of google/diffusiongemma-26B-A4B-it.

Shape letters: T packed tokens, N selected tokens, K experts a token, E experts, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from dare_bench.diffusion.chunked import CHUNK_ELEMENTS
from dare_bench.diffusion.plan import Plan
from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork, MoE, WeightNames
from dare_bench.model_adapters.backbone.layers import Layer, RMSNorm, attach
from dare_bench.model_adapters.backbone.moe import route
from dare_bench.model_adapters.configs import check_moe, refuse
from dare_bench.model_adapters.diffusion_gemma.config import SUPPORTED, DiffusionGemmaConfig, attention_of

ENCODER = "model.encoder.language_model.layers"
"""Of the encoder's layers, the checkpoint has the scalars alone; all else is the decoder's."""
NAMES = WeightNames(
    embed="model.decoder.embed_tokens",
    layers="model.decoder.layers",
    final_norm="model.decoder.norm",
    head="lm_head",
    attn_norm="input_layernorm",
    attn_post_norm="post_attention_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    o="self_attn.o_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    ff_norm="pre_feedforward_layernorm",
    ff_post_norm="post_feedforward_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    router="router",
    experts="experts",
    shared_gate="mlp.gate_proj",
    shared_up="mlp.up_proj",
    shared_down="mlp.down_proj",
)


class ScaledRouter(nn.Module):
    """Each expert's value for each token before softmax, float32 [T, E], from normed and scaled states."""

    def __init__(self, width: int, experts: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.proj = nn.Linear(width, experts, bias=False)
        self.scale = nn.Parameter(torch.ones(width))
        self.per_expert_scale = nn.Parameter(torch.ones(experts))

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD = rms_norm(x_TD.float(), (x_TD.shape[-1],), None, self.eps).to(x_TD.dtype)
        values_TE: Tensor = self.proj(y_TD * self.scale * x_TD.shape[-1] ** -0.5)
        return values_TE.float()


class GemmaLayer(Layer):
    """A layer whose feed-forward is a dense one and experts beside each other, with norms around both."""

    def __init__(self, arch: Arch, index: int = 0) -> None:
        super().__init__(arch, index)
        for name in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"):
            attach(self, name, RMSNorm(arch.width, arch.norm_eps))
        self.register_buffer("layer_scalar", torch.ones(1))

    def _attach_experts(self, moe: MoE) -> None:
        super()._attach_experts(moe)
        self.router = ScaledRouter(self.arch.width, moe.experts, self.arch.norm_eps)

    def _feed_forward(self, x_TD: Tensor, plan: Plan) -> Tensor:
        assert self.moe is not None
        dense_TD = self._gated(self.part("ff_norm")(x_TD), "shared_gate", "shared_up", "shared_down")
        expert_TK, weight_TK = route(self.router(x_TD), None, self.moe, x_TD.dtype)
        weight_TK = weight_TK * self.router.per_expert_scale[expert_TK]
        sparse_TD = self.part("experts")(self.norm("pre_feedforward_layernorm_2", x_TD), expert_TK, weight_TK)
        dense_TD = self.norm("post_feedforward_layernorm_1", dense_TD)
        return dense_TD + self.norm("post_feedforward_layernorm_2", sparse_TD)

    def norm(self, name: str, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.get_submodule(name)(x_TD)
        return y_TD


class SelfConditioning(nn.Module):
    """Embeddings of a canvas with what was predicted for it before: [N, D] each."""

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.pre_norm = RMSNorm(arch.width, arch.norm_eps)
        self.post_norm = RMSNorm(arch.width, arch.norm_eps, weight=False)
        self.gate_proj = nn.Linear(arch.width, arch.ff_width, bias=False)
        self.up_proj = nn.Linear(arch.width, arch.ff_width, bias=False)
        self.down_proj = nn.Linear(arch.ff_width, arch.width, bias=False)

    def forward(self, embedded_ND: Tensor, soft_ND: Tensor) -> Tensor:
        y_ND = self.pre_norm(soft_ND)
        gate_ND = nn.functional.gelu(self.gate_proj(y_ND), approximate="tanh")
        conditioned_ND: Tensor = self.post_norm(embedded_ND + self.down_proj(gate_ND * self.up_proj(y_ND)))
        return conditioned_ND


class DiffusionGemmaForBlockDiffusion(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs.

    Encoder and decoder are one network: clean tokens of a plan are the encoder's, canvases the decoder's. Both have
    their own scalars behind each layer, and the embeddings of a canvas are conditioned on ``soft``.
    """

    config_class = DiffusionGemmaConfig
    base_model_prefix = ""
    layer = GemmaLayer
    conditions = True
    unused: ClassVar[str | None] = r"^model\.encoder\.(vision_tower|embed_vision)\."

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        scalars = [nn.Module() for _ in range(self.arch.layers)]
        for scalar in scalars:
            scalar.register_buffer("layer_scalar", torch.ones(1))
        attach(self, ENCODER, nn.ModuleList(scalars))
        attach(self, "model.decoder.self_conditioning", SelfConditioning(self.arch))
        self.apply(self._init_weights)

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        text = config.get_text_config()
        refuse(text, "DiffusionGemma", SUPPORTED)
        refuse(config, "DiffusionGemma", {"tie_word_embeddings": (True,)})
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            if not getattr(text, name):
                raise CheckpointError(
                    f"DiffusionGemma config has {name}={getattr(text, name)}; every layer needs experts"
                )
        moe = MoE(
            layers=(True,) * text.num_hidden_layers,
            experts=text.num_experts,
            top_k=text.top_k_experts,
            width=text.moe_intermediate_size,
            shared_width=text.intermediate_size,
            renormalize=True,
            float32=True,
            stacked=True,
        )
        check_moe("DiffusionGemma", moe, "top_k_experts")
        return Arch(
            names=NAMES,
            layers=text.num_hidden_layers,
            width=text.hidden_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            ff_width=text.intermediate_size,
            vocab=text.vocab_size,
            norm_eps=text.rms_norm_eps,
            rope_theta=0.0,
            rope_in_float32=False,
            qk_norm=True,
            v_norm=True,
            attention_scale=1.0,
            tied_head=True,
            embed_scale=text.hidden_size**0.5,
            logit_cap=text.final_logit_softcapping,
            activation="gelu_tanh",
            moe=moe,
            block_length=config.canvas_length,
            by_layer=attention_of(text),
        )

    def _scale(self, x: Tensor) -> Tensor:
        """Times the scale of embeddings in their own dtype, as published."""
        return x * torch.tensor(self.arch.embed_scale, dtype=x.dtype, device=x.device)

    def embedded(self, tokens_T: Tensor, plan: Plan, soft_TD: Tensor | None) -> Tensor:
        x_TD = self._scale(self.get_input_embeddings()(tokens_T))
        clean_T = plan.clean_tokens(x_TD.device)
        soft_TD = torch.zeros_like(x_TD) if soft_TD is None else soft_TD.to(x_TD.dtype)
        canvas_TD = self.at("model.decoder.self_conditioning")(x_TD, soft_TD)
        return canvas_TD if clean_T is None else torch.where(clean_T[:, None], x_TD, canvas_TD)

    def after_layer(self, x_TD: Tensor, index: int, clean_T: Tensor | None) -> Tensor:
        decoder = self.at(self.arch.names.layers)[index].layer_scalar
        if clean_T is None:
            return x_TD * decoder
        return x_TD * torch.where(clean_T[:, None], self.at(ENCODER)[index].layer_scalar, decoder)

    @torch.no_grad()
    def soft(self, logits_NV: Tensor) -> Tensor:
        """The mean embedding of softmax(logits), [N, D]: what the next forward is conditioned on."""
        weight_VD: Tensor = self.at(self.arch.names.embed).weight
        rows = max(1, CHUNK_ELEMENTS // self.arch.vocab)
        parts = [
            part.to(weight_VD.dtype).float().softmax(-1).to(weight_VD.dtype) @ weight_VD
            for part in logits_NV.split(rows)
        ]
        return self._scale(torch.cat(parts) if parts else weight_VD.new_zeros(0, weight_VD.shape[1]))
