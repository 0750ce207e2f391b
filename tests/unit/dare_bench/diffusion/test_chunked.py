"""Chunked linear cross-entropy: the plain loss and its gradients, without the plain loss's memory."""

from __future__ import annotations

from pathlib import Path

import command
import pytest
import torch
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode

from dare_bench.diffusion import chunked
from dare_bench.diffusion.chunked import linear_nll

N, D, V = 50, 16, 37
close = {"atol": 1e-5, "rtol": 1e-5}


def problem(dtype=torch.float32, bias=True):
    """(hidden, weight, bias, targets, upstream), seeded."""
    torch.manual_seed(0)
    hidden = torch.randn(N, D).to(dtype).requires_grad_()
    weight = torch.randn(V, D).to(dtype).requires_grad_()
    bias_V = torch.randn(V).to(dtype).requires_grad_() if bias else None
    return hidden, weight, bias_V, torch.randint(V, (N,)), torch.rand(N)


def plain(hidden, weight, targets, bias=None, scale=1.0):
    return cross_entropy((scale * linear(hidden, weight, bias)).float(), targets, reduction="none")


@pytest.mark.parametrize("rows", [1, 7, 25, 49, 50, 64, None])
@pytest.mark.parametrize(("bias", "scale"), [(False, 1.0), (True, 0.25)])
def test_values_and_gradients_are_the_plain_ones(rows, bias, scale):
    hidden, weight, bias_V, targets, upstream = problem(bias=bias)
    wanted, got = (
        plain(hidden, weight, targets, bias_V, scale),
        linear_nll(hidden, weight, targets, bias_V, scale, rows),
    )
    assert got.dtype == torch.float32
    assert torch.allclose(got, wanted, **close)
    leaves = [leaf for leaf in (hidden, weight, bias_V) if leaf is not None]
    for a, b in zip(*(torch.autograd.grad(x, leaves, upstream) for x in (got, wanted)), strict=True):
        assert torch.allclose(a, b, **close)


@pytest.mark.parametrize("rows", [3, None])
def test_a_frozen_head_takes_no_gradient_and_passes_the_right_one(rows):
    hidden, weight, bias_V, targets, upstream = problem()
    (wanted,) = torch.autograd.grad(plain(hidden, weight, targets, bias_V, 0.5), hidden, upstream)
    frozen = weight.detach(), targets, bias_V.detach(), 0.5, rows
    nll = linear_nll(hidden, *frozen)
    assert torch.allclose(nll, plain(hidden, weight, targets, bias_V, 0.5), **close)
    nll.backward(upstream)
    assert torch.allclose(hidden.grad, wanted, **close)
    assert frozen[0].grad is None and weight.grad is None and bias_V.grad is None


def test_only_what_asks_gets_a_gradient():
    hidden, weight, bias_V, targets, upstream = problem()
    wanted = torch.autograd.grad(plain(hidden, weight, targets, bias_V), (hidden, weight, bias_V), upstream)
    for which in range(3):
        leaves = [x.detach().requires_grad_(i == which) for i, x in enumerate((hidden, weight, bias_V))]
        linear_nll(leaves[0], leaves[1], targets, leaves[2], rows=9).backward(upstream)
        assert [leaf.grad is not None for leaf in leaves] == [i == which for i in range(3)]
        assert torch.allclose(leaves[which].grad, wanted[which], **close)


@pytest.mark.parametrize("trained", [False, True])
def test_gradcheck(trained):
    hidden, weight, bias_V, targets, _ = problem(torch.float64)
    hidden = hidden.detach()[:5].requires_grad_()
    head = [x.detach().requires_grad_(trained) for x in (weight, bias_V)]
    assert torch.autograd.gradcheck(lambda h, w, b: linear_nll(h, w, targets[:5], b, 0.7, 2), (hidden, *head))


def test_a_tied_weight_gathers_both_its_gradients():
    _, weight, _, targets, upstream = problem(bias=False)
    ids = torch.arange(N) % V
    grads = []
    for loss in (plain, lambda h, w, t: linear_nll(h, w, t, rows=8)):
        (grad,) = torch.autograd.grad(loss(weight[ids].tanh(), weight, targets), weight, upstream)
        grads.append(grad)
    assert torch.allclose(*grads, **close)


@pytest.mark.parametrize("strip", [None, D * 5])
def test_half_precision(strip, monkeypatch):
    """Values are the bfloat16 head's own; gradients are as near to the float32 truth as the plain expression's."""
    if strip:
        monkeypatch.setattr(chunked, "PRODUCT_ELEMENTS", strip)
    hidden, weight, bias_V, targets, upstream = problem(torch.bfloat16)
    got = linear_nll(hidden, weight, targets, bias_V, rows=7)
    assert got.dtype == torch.float32
    assert torch.allclose(got, plain(hidden, weight, targets, bias_V), **close)
    leaves = (hidden, weight, bias_V)
    exact = [leaf.detach().float().requires_grad_() for leaf in leaves]
    truth = torch.autograd.grad(plain(exact[0], exact[1], targets, exact[2]), exact, upstream)
    usual = torch.autograd.grad(plain(hidden, weight, targets, bias_V), leaves, upstream)
    result = torch.autograd.grad(got, leaves, upstream)
    frozen = torch.autograd.grad(linear_nll(hidden, weight.detach(), targets, bias_V.detach()), hidden, upstream)
    for selected, reference, true in zip((*result, *frozen), (*usual, usual[0]), (*truth, truth[0]), strict=True):
        assert selected.dtype == torch.bfloat16
        assert (selected.float() - true).norm() <= 1.5 * (reference.float() - true).norm()
        assert torch.allclose(selected.float(), true, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("trained", [False, True])
def test_under_autocast_it_is_what_a_linear_layer_does(trained):
    hidden, weight, bias_V, targets, upstream = problem()
    head = [x.detach().requires_grad_(trained) for x in (weight, bias_V)]
    leaves = (hidden, *head) if trained else (hidden,)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = plain(hidden, head[0], targets, head[1])
        got = linear_nll(hidden, head[0], targets, head[1], rows=7)
    assert got.dtype == torch.float32
    assert torch.allclose(got, wanted, **close)
    assert not torch.allclose(got, plain(hidden, weight, targets, bias_V), **close)
    for a, b in zip(*(torch.autograd.grad(x, leaves, upstream) for x in (got, wanted)), strict=True):
        assert a.dtype == torch.float32
        assert torch.allclose(a, b, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("trained", [False, True])
def test_no_token_is_an_empty_loss_with_a_graph(trained):
    hidden = torch.randn(0, D, requires_grad=True)
    weight = torch.randn(V, D, requires_grad=trained)
    nll = linear_nll(hidden, weight, torch.zeros(0, dtype=torch.long))
    assert nll.shape == (0,) and nll.dtype == torch.float32
    nll.sum().backward()
    assert hidden.grad.shape == (0, D)
    assert not trained or torch.equal(weight.grad, torch.zeros(V, D))


@pytest.mark.parametrize("trained", [False, True])
def test_what_is_not_a_number_stays_visible(trained):
    hidden, weight, _, targets, _ = problem(bias=False)
    with torch.no_grad():
        hidden[3, 0] = float("nan")
        hidden[8, 0] = float("inf")
    nll = linear_nll(hidden, weight.detach().requires_grad_(trained), targets, rows=7)
    bad = [3, 8]
    assert nll.isnan().nonzero()[:, 0].tolist() == bad
    nll.sum().backward()
    assert hidden.grad.isnan().any(1).nonzero()[:, 0].tolist() == bad


def test_confident_losses_keep_their_digits():
    """log-sum-exp minus logit would lose them: 1e-4 beside logits of 1000, of which float32 knows 6e-5."""
    weight = torch.tensor([[1000.0], [1009.0], [0.0]], requires_grad=True)
    nll = linear_nll(torch.ones(1, 1), weight, torch.tensor([1]))
    assert nll.item() == pytest.approx(torch.tensor(-9.0).exp().log1p().item(), rel=1e-3)


def test_without_gradients_there_is_no_graph():
    hidden, weight, bias_V, targets, _ = problem()
    with torch.no_grad():
        nll = linear_nll(hidden, weight, targets, bias_V)
    assert not nll.requires_grad
    assert torch.allclose(nll, plain(hidden, weight, targets, bias_V), **close)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made under it has."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("trained", [False, True])
def test_neither_pass_makes_or_keeps_more_than_a_chunk(trained):
    count, words, rows = 600, 500, 20
    hidden = torch.randn(count, 4, requires_grad=True)
    weight = torch.randn(words, 4, requires_grad=trained)
    targets = torch.randint(words, (count,))
    kept = []
    with (
        Largest() as seen,
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x),
    ):
        linear_nll(hidden, weight, targets, rows=rows).sum().backward()
    assert seen.numbers == rows * words
    assert sum(kept) <= hidden.numel() + weight.numel() + 2 * count
    with Largest() as seen:
        plain(hidden, weight, targets).sum().backward()
    assert seen.numbers == count * words


PEAK = """
import torch
from torch.nn.functional import cross_entropy, linear
from dare_bench.diffusion.chunked import linear_nll

def peak():  # of this program alone: ru_maxrss begins with the parent's
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

hidden, weight = torch.randn(2048, 32, requires_grad=True), torch.randn(16384, 32, requires_grad=True)
targets = torch.randint(16384, (2048,))
def plain(n): cross_entropy(linear(hidden[:n], weight), targets[:n], reduction="none").sum().backward()
def chunks(n): linear_nll(hidden[:n], weight, targets[:n], rows=128).sum().backward()
plain(64), chunks(64)
start = peak()
chunks(2048)
middle = peak()
plain(2048)
print(middle - start, peak() - start)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_peak_memory_of_a_process(tmp_path):
    """2048 x 16384 logits are 128 MiB, which the plain loss holds at least twice; a chunk of 128 rows is 8."""
    (tmp_path / "peak.py").write_text(PEAK)
    done = command.run(script=tmp_path / "peak.py")
    assert done.returncode == 0, done.stderr
    chunks, plain_one = map(float, done.stdout.split())
    assert plain_one > 250
    assert chunks < 64  # memory is taken in large pages
