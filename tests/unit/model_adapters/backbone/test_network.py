"""The network as Hugging Face users know it: AutoModel, save_pretrained, peft; packing; losses without all logits."""

from __future__ import annotations

import golden
import pytest
import torch
from require import need_package
from torch.nn.functional import silu
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dare_bench import load
from dare_bench.diffusion.plan import select_queries
from dare_bench.model_adapters.backbone import MoE, Plan
from dare_bench.model_adapters.backbone.moe import Experts
from dare_bench.model_adapters.backbone.pretrained import pretrained, register_auto
from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM

ROWS = [[5, 6, 7, 8], [1, 2], [9, 9, 9, 9], [3, 1, 4, 1, 5, 9, 2]]


def packed(rows):
    """Rows as one pack of ids, and its bidirectional plan."""
    return torch.tensor([token for row in rows for token in row]), Plan(tuple(map(len, rows)))


@torch.no_grad()
def test_packed_rows_equal_single_rows():
    network = golden.model().network
    tokens, plan = packed(sorted(ROWS, key=len))
    assert [(g.rows, g.length) for g in plan.groups] == [(1, 2), (2, 4), (1, 7)]
    together = network(tokens, plan=plan).logits
    apart = torch.cat([network(torch.tensor([row])).logits[0] for row in sorted(ROWS, key=len)])
    assert torch.allclose(together, apart, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("block", [None, 3])
def test_logits_only_where_asked(block):
    network = golden.model().network
    rows = sorted(ROWS, key=len)
    tokens, plan = packed(rows)
    plan = Plan(plan.lengths, block)
    everywhere = network(tokens, plan=plan).logits
    at = torch.tensor([1, 2, 5, 9, 10, 16])
    assert torch.allclose(network(tokens, plan=plan, logits_at=at).logits, everywhere[at], atol=1e-5)
    want = torch.nn.functional.cross_entropy(everywhere[at], tokens[at], reduction="none")
    assert torch.allclose(network(tokens, plan=plan, logits_at=at, targets=tokens[at]).nll, want, atol=1e-5)


def test_selected_queries_point_home():
    plan = Plan((2, 4, 4, 7))
    at = torch.tensor([1, 2, 5, 6, 12])
    first, second, third = select_queries(plan, at)
    assert first.index_RQ.tolist() == [[0]]
    assert second.keep_RQ.tolist() == [[True, True], [True, False]]
    assert second.index_RQ[second.keep_RQ].tolist() == [1, 2, 3]
    assert second.column_RQ[second.keep_RQ].tolist() == [0, 3, 0]
    assert third.column_RQ.tolist() == [[2]]
    assert select_queries(plan, torch.tensor([3]))[0] is None


@torch.no_grad()
def test_block_causal_sees_no_later_block():
    model = golden.model()
    a, b = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 9]
    item, two = model.logits(a, block_length=3), model.logits(b, block_length=3)
    assert torch.allclose(item[:6], two[:6], atol=1e-6)
    assert not torch.allclose(item[6:], two[6:], atol=1e-2)
    assert not torch.allclose(model.logits(a)[:6], model.logits(b)[:6], atol=1e-2)


def test_auto_classes_and_save_pretrained(tmp_path):
    register_auto(LLaDAModelLM)
    assert type(AutoConfig.from_pretrained(golden.FOLDER)) is LLaDAConfig
    network = AutoModelForCausalLM.from_pretrained(golden.FOLDER)
    assert type(network) is pretrained(LLaDAModelLM) and isinstance(network, LLaDAModelLM)
    network.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(network(ids).logits, again(ids).logits)


def test_an_opened_network_becomes_a_pretrained_model_where_it_is():
    """The same object with the same weights, hooks and mode; a plain module until somebody asks for it."""
    model, calls = load(golden.FOLDER), []
    plain = model.loaded.network
    assert not isinstance(plain, PreTrainedModel) and plain.arch is not None
    weights, ids = list(plain.parameters()), torch.tensor([[1, 2, 3]])
    plain.register_forward_hook(lambda *args: calls.append(1))
    with torch.no_grad():
        logits = plain(ids).logits
        network = model.network
        assert network is plain and isinstance(network, PreTrainedModel) and not network.training
        assert all(a is b for a, b in zip(network.parameters(), weights, strict=True))
        assert torch.equal(network(ids).logits, logits) and len(calls) == 2
    assert model.network is network and network.get_input_embeddings() is network.at(network.arch.names.embed)


def test_peft_wraps_it_and_off_equals_base():
    peft = need_package("peft")
    network = load(golden.FOLDER).network
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        base = network(ids).logits
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "attn_out", "up_proj"])
    wrapped = peft.get_peft_model(network, config)
    for name, p in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p)
    with torch.no_grad():
        assert not torch.allclose(wrapped(ids).logits, base, atol=1e-3)
        with wrapped.disable_adapter():
            assert torch.equal(wrapped(ids).logits, base)
    wrapped(ids, targets=ids[0]).nll.sum().backward()
    assert all(("lora" in n) == (p.grad is not None) for n, p in wrapped.named_parameters())


def test_gradient_checkpointing_changes_no_gradient():
    grads = []
    for on in (False, True):
        network = load(golden.FOLDER).network.train()
        if on:
            network.gradient_checkpointing_enable()
        network(torch.tensor([[1, 2, 3, 4]]), targets=torch.tensor([1, 2, 3, 4])).nll.mean().backward()
        grads.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert torch.allclose(*grads, atol=1e-6)
    assert grads[0].abs().max() > 0


def test_losses_in_chunks_equal_one_piece(monkeypatch):
    from dare_bench.model_adapters.backbone import network as module

    network, ids = golden.model().network, torch.arange(20)[None]
    with torch.no_grad():
        whole = network(ids, targets=ids[0]).nll
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 128 * 3)
        assert torch.allclose(network(ids, targets=ids[0]).nll, whole, atol=1e-5)


# -- Experts at sizes and dtypes that the grouped kernel does not take, against one expert at a ------------------------


@pytest.mark.parametrize("width", [5, 8, 33])
@pytest.mark.parametrize("model_width", [16, 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_token_goes_through_its_experts(width, model_width, dtype):
    torch.manual_seed(0)
    experts = Experts(MoE(layers=(True,), experts=4, top_k=2, width=width), model_width).to(dtype)
    for weight in experts.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    x_TD = torch.randn(7, model_width).to(dtype)
    expert_TK = torch.tensor([[0, 1], [1, 3], [3, 0], [1, 0], [0, 3], [3, 1], [1, 0]])  # nobody wants expert 2
    weight_TK = torch.rand(7, 2).to(dtype)
    with torch.no_grad():
        got = experts(x_TD, expert_TK, weight_TK)
        for t in range(7):
            want = torch.zeros(model_width, dtype=torch.float64)
            for e, weight in zip(expert_TK[t].tolist(), weight_TK[t].tolist(), strict=True):
                gate, up = (experts.gate_up_proj[e].double() @ x_TD[t].double()).chunk(2)
                want += weight * (experts.down_proj[e].double() @ (silu(gate) * up))
            close = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.15}[dtype]
            assert (got[t].double() - want).abs().max() < close
