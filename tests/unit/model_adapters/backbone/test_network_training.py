"""Token losses of the network under training: any head, checkpointed layers, sharded weights; the same gradients."""

from __future__ import annotations

import pytest
import torch
from require import need_package
from torch import nn
from torch.distributed import HashStore
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from dare_bench.model_adapters.backbone import network as backbone
from dare_bench.model_adapters.backbone.pretrained import pretrained
from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM

V, ROWS = 97, 9
IDS = torch.arange(3, 53)[None]
AT, TARGETS = torch.arange(0, 50, 2), torch.arange(20, 45)
close = {"atol": 1e-5, "rtol": 1e-5}


def network(**fields):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 3, "mlp_hidden_size": 24, "vocab_size": V, "init_std": 0.3}
    return pretrained(LLaDAModelLM)(LLaDAConfig(**sizes, **fields)).train()


def through_logits(model):
    """The loss as it would be without chunks: all logits, then cross-entropy."""
    return cross_entropy(model(IDS).logits[0, AT].float(), TARGETS, reduction="none")


def through_chunks(model):
    return model(IDS, logits_at=AT, targets=TARGETS).nll


def gradients(model, nll):
    """Of an uneven sum of the losses, by parameter."""
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    result = torch.autograd.grad((nll * torch.linspace(0.5, 2, len(nll))).sum(), list(trained.values()))
    return dict(zip(trained, result, strict=True))


def near(got, wanted):
    """To 1e-5 of the largest number."""
    return bool((got - wanted).abs().max() <= 1e-5 * wanted.abs().max())


def assert_same(model, one, other):
    assert torch.allclose(one, other, **close)
    left, right = gradients(model, one), gradients(model, other)
    assert any(g.abs().max() > 1e-3 for g in left.values())
    for name in left:
        assert near(left[name], right[name]), name


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(backbone, "CHUNK_ELEMENTS", V * ROWS)


class LogitRows(TorchDispatchMode):
    """The most rows of any tensor as wide as the vocabulary."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dim() == 2 and out.shape[1] == V and out.shape[0] != 16:
            self.most = max(self.most, len(out))
        return out


@pytest.mark.parametrize(
    "fields", [{}, {"weight_tying": True}, {"include_bias": True}, {"scale_logits": True, "input_emb_norm": True}]
)
def test_every_head_has_the_plain_loss(fields):
    model = network(**fields)
    assert_same(model, through_chunks(model), through_logits(model))


def lora(model, *targets):
    peft = need_package("peft")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=list(targets), init_lora_weights=False))
    return wrapped.train()


class Replaced(nn.Module):
    """A head that is no nn.Linear, as quantized ones are not."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).tanh()


def replaced(model):
    model.model.transformer.ff_out = Replaced(model.model.transformer.ff_out)
    return model


@pytest.mark.parametrize(
    "wrap",
    [lambda m: m, replaced, lambda m: lora(m, "q_proj"), lambda m: lora(m, "q_proj", "transformer.ff_out")],
    ids=["plain", "replaced", "lora", "lora on the head"],
)
def test_whatever_the_head_is_chunks_bound_the_logits(wrap):
    model = wrap(network())
    assert_same(model, through_chunks(model), through_logits(model))
    with LogitRows() as seen:
        through_chunks(model).sum().backward()
    assert 0 < seen.most <= ROWS


def test_hooks_of_the_head_fire_once_however_many_chunks_there_are():
    """Under FSDP a call of the head is collective: processes with unequal numbers of chunks have to stay in step."""
    model, calls = network(), []
    model.model.transformer.ff_out.register_forward_hook(lambda *_: calls.append(1))
    through_chunks(model).sum().backward()
    assert len(calls) == 1


@pytest.mark.parametrize("wrap", [lambda m: m, replaced, lambda m: lora(m, "q_proj")])
@pytest.mark.parametrize("length", [50, 2 * backbone.SELECT_FROM])
def test_no_masked_token_still_reaches_every_parameter(wrap, length):
    model, none = wrap(network()), torch.zeros(0, dtype=torch.long)
    nll = model(torch.arange(length)[None] % V, logits_at=none, targets=none).nll
    assert nll.shape == (0,) and nll.dtype == torch.float32
    nll.sum().backward()
    missing = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or p.grad.any())]
    assert missing == []


def test_without_gradients_nothing_is_new():
    model = network()
    with torch.no_grad():
        hidden = model.hidden(IDS[0], torch.arange(50), backbone.Plan((50,)), AT)
        parts = zip(hidden.split(ROWS), TARGETS.split(ROWS), strict=True)
        wanted = torch.cat([cross_entropy(model.head(h).float(), t, reduction="none") for h, t in parts])
        assert torch.equal(through_chunks(model), wanted)
    assert torch.allclose(through_chunks(model), wanted, **close)


def by_hand(model):
    model.gradient_checkpointing = True


def by_transformers(model):
    model.activation_checkpointing_enable()


def by_the_old_name(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def every_second(model):
    model.activation_checkpointing_enable(every_n_layers=2)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("enable", [by_hand, by_transformers, by_the_old_name, every_second])
def test_checkpointed_layers_change_nothing(enable, adapter, monkeypatch):
    model = lora(network(), "q_proj", "up_proj") if adapter else network()
    plain = through_chunks(model)
    inner, runs = model.get_base_model() if adapter else model, []
    wanted = gradients(model, plain)
    enable(inner)
    model.train()
    for layer in inner.model.transformer.blocks:
        layer.register_forward_pre_hook(lambda module, args: runs.append(module.index))
    nll = through_chunks(model)
    got = gradients(model, nll)
    assert torch.equal(nll, plain)
    for name in wanted:
        assert near(got[name], wanted[name]), name
    again = [0, 2] if enable is every_second else [0, 1, 2]
    assert sorted(runs[3:]) == again
    inner.activation_checkpointing_disable()
    runs.clear()
    gradients(model, through_chunks(model))
    assert runs == [0, 1, 2]


@pytest.fixture
def one_rank():
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("tied", [False, True])
def test_sharded_weights_are_whole_where_the_loss_reads_them(one_rank, tied):
    """FSDP2 gathers the root's weights in the root's forward; two forwards before one backward read them twice."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, sharded = network(weight_tying=tied), network(weight_tying=tied)
    mesh = init_device_mesh("cpu", (1,))
    for layer in sharded.model.transformer.blocks:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    for net in (model, sharded):
        (through_chunks(net).sum() + 2 * net(IDS, targets=IDS[0]).nll.sum()).backward()
    for (name, item), other in zip(model.named_parameters(), sharded.parameters(), strict=True):
        assert near(other.grad.full_tensor(), item.grad), name
