"""Dream's likelihoods: its published draws, and every estimator against brute force."""

from __future__ import annotations

from dataclasses import replace

import golden
import pytest
import torch
from brute_force import CONTEXT, TARGET, ask, bound, like, loss

from dare_bench.diffusion.likelihood import bernoulli_masks, chain_masks
from dare_bench.errors import PromptError
from dare_bench.model_adapters.native import NativeModel

VECTORS = golden.cases("dream")["likelihood"]
FIELDS = ("nll_type", "log_type", "mc_num", "batch_size", "sampling_eps", "seed")


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: c["name"])
def test_dream_replays_the_published_draws(case):
    fields = {k: case[k] for k in FIELDS}
    pair = (case["prompt_ids"], case["answer_ids"])
    result = golden.model("dream").loglikelihood([pair], estimator="reference", **fields)[0]
    assert result.value == pytest.approx(case["log_likelihood"], abs=1e-3, rel=1e-5)
    scored_tokens = pair[1] if case["log_type"] == "ftb" else pair[0]
    assert result.draws == (case["mc_num"] if case["nll_type"] == "mc" else len(scored_tokens))


@pytest.mark.parametrize("context", [0, 1, 6])
def test_dream_exact_reads_the_state_before(context):
    """Also where the target begins at column 0, which only its own state predicts."""
    whole = CONTEXT[:context] + TARGET[:4]
    result = golden.model("dream").loglikelihood([(CONTEXT[:context], TARGET[:4])], estimator="exact")[0]
    assert result.value == pytest.approx(bound("dream", whole, range(context, len(whole))), abs=1e-4)
    assert result.estimator == "exact"


@pytest.mark.parametrize("nll_type", ["ar_ftb", "ar_btf"])
@pytest.mark.parametrize("log_type", ["ftb", "btf"])
def test_dream_chain_rule(nll_type, log_type):
    """Token j alone, the scored side's tokens behind it (or before it, and itself) hidden."""
    whole, p = CONTEXT + TARGET, len(CONTEXT)
    columns = range(p, len(whole)) if log_type == "ftb" else range(p)
    total, mask_id = 0.0, golden.model("dream").spec.mask_id
    for j in columns:
        hide = [c for c in columns if (c >= j if nll_type == "ar_ftb" else c <= j)]
        total -= loss("dream", [mask_id if c in hide else t for c, t in enumerate(whole)], [j], [whole[j]])
    fields = {"estimator": "reference", "nll_type": nll_type, "log_type": log_type}
    result = golden.model("dream").loglikelihood([(CONTEXT, TARGET)], **fields)[0]
    assert result.value == pytest.approx(total, abs=1e-4)
    assert (result.stderr, result.draws, result.tier) == (0.0, len(columns), "E1")


def test_dream_sides_of_one_stream():
    """The same numbers are drawn for all three: what union masks is what ftb and btf mask together."""
    context, target = 5, 6

    def masks(span):
        return bernoulli_masks(context, target, span, 32, 8, 1e-3, torch.Generator().manual_seed(4))

    ftb, btf, union = masks(range(5, 11)), masks(range(5)), masks(range(11))
    assert torch.equal(union.masks_Mn, torch.cat([btf.masks_Mn, ftb.masks_Mn], 1))
    assert torch.equal(union.weights_M, ftb.weights_M)
    assert (ftb.start, btf.start, union.start) == (0, -5, -5)
    assert not union.masks_Mn[:, 0].any() and not union.masks_Mn[:, -1].any()


def test_dream_draws_estimate_the_bound_of_what_they_mask():
    """With EOS behind it the target's own tokens are masked: the bound of those given EOS. Union is the bound of both
    sides between the first and the last token, per token."""
    eos = golden.model("dream").spec.eos_ids[0]
    context, target = CONTEXT[:3], [*TARGET[:3], eos]
    whole = context + target
    for log_type, want in (
        ("ftb", bound("dream", whole, [3, 4, 5])),
        ("btf", bound("dream", whole, [1, 2])),
        ("union", bound("dream", whole, [1, 2, 3, 4, 5]) / len(whole)),
    ):
        fields = {"estimator": "reference", "log_type": log_type, "mc_num": 4096, "batch_size": 8}
        result = golden.model("dream").loglikelihood([(context, target)], seed=11, **fields)[0]
        assert 0 < result.stderr < abs(want) / 10
        assert abs(result.value - want) < 4 * result.stderr


def test_dream_guidance():
    """u + w (c - u), the given side hidden in u; 1 is off."""
    model, w = golden.model("dream"), 2.5
    mask = model.spec.mask_id
    plain = model.loglikelihood([(CONTEXT, TARGET)])[0]
    assert model.loglikelihood([(CONTEXT, TARGET)], classifier_free_guidance=1.0)[0].value == plain.value
    cond, uncond = (model.logits([*c, mask])[-1].double() for c in (CONTEXT, [mask] * len(CONTEXT)))
    want = torch.log_softmax(uncond + w * (cond - uncond), -1)[TARGET[0]].item()
    fields = {"estimator": "exact", "classifier_free_guidance": w, "want_greedy": True}
    result = model.loglikelihood([(CONTEXT, TARGET[:1])], **fields)[0]
    assert result.value == pytest.approx(want, abs=1e-4)
    assert result.nfe == 2 * 2  # two halves of one canvas, and of one greedy step
    fields = {"estimator": "reference", "nll_type": "ar_ftb", "log_type": "btf", "classifier_free_guidance": w}
    back = model.loglikelihood([([9], TARGET)], **fields)[0]
    cond, uncond = (model.logits([mask, *t])[0].double() for t in (TARGET, [mask] * len(TARGET)))
    assert back.value == pytest.approx(torch.log_softmax(uncond + w * (cond - uncond), -1)[9].item(), abs=1e-4)


class Letters:
    """A tokenizer: a token a letter."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(c) - ord("a") for c in text]}


def test_dream_scores_texts_with_an_eos_behind_them():
    """As its evaluation does; ids are taken as given by name, but under ``auto`` they end with EOS too."""
    model = like("dream", tokenizer=Letters())
    eos = model.spec.eos_ids[0]

    def one(context, target, **fields):
        sample = next(iter(model.score([ask(0, context, target, **fields)])))
        assert sample.error is None
        return sample.answer

    word, ids = "abcdefghij", list(range(10))
    drawn = {"estimator": "reference", "mc_num": 8, "batch_size": 4}
    auto = {"mc_num": 8, "batch_size": 4}
    want = one([20, 21], [*ids, eos], **drawn)
    for result in (one("uv", word, **drawn), one("uv", word, **auto), one([20, 21], ids, **auto)):
        assert (result.value, result.target_tokens) == (want.value, 10)
    assert one([20, 21], [*ids, eos], **auto).value == want.value  # it has one already
    assert one([20, 21], ids, **drawn).value != want.value


@pytest.mark.parametrize("n", [1, 4, 7])
def test_dream_auto_is_one_quantity(n):
    """The bound of the target's tokens given a visible EOS behind them, however it is asked for and estimated."""
    model = like("dream", tokenizer=Letters())
    eos = model.spec.eos_ids[0]
    ids = list(range(n))
    word = "".join(chr(ord("a") + i) for i in ids)
    want = bound("dream", [20, 21, *ids, eos], range(2, 2 + n))

    def one(context, target, **fields):
        sample = next(iter(model.score([ask(0, context, target, **fields)])))
        assert sample.error is None
        return sample.answer

    result = [one("uv", word), one("uv", word, estimator="exact"), one([20, 21], ids)]
    assert [f.value for f in result] == pytest.approx([want] * 3, abs=1e-4)
    assert {(f.estimator, f.stderr, f.target_tokens, f.draws) for f in result} == {("exact", 0.0, n, 2**n - 1)}
    if n < 7:  # an EOS that was given is seen, not scored; it counts among the seven
        assert one([20, 21], [*ids, eos]).value == pytest.approx(want, abs=1e-4)
    drawn = one("uv", word, estimator="reference", mc_num=1024, batch_size=8)
    assert abs(drawn.value - want) < 4 * drawn.stderr
    taken = one([20, 21], ids, estimator="exact")
    assert taken.value == pytest.approx(bound("dream", [20, 21, *ids], range(2, 2 + n)), abs=1e-4)
    assert abs(taken.value - want) > 1e-3


def test_dream_without_an_eos():
    loaded = like("dream", tokenizer=Letters())
    bare = NativeModel(loaded.family, loaded.network, Letters(), replace(loaded.spec, eos_ids=()), loaded.path)

    def said(context, target, **fields):
        return next(iter(bare.score([ask(0, context, target, **fields)]))).error

    for pair in (("uv", "ab", {}), ("uv", "ab", {"estimator": "exact"}), ([1], [2], {})):
        assert "checkpoint has none: give eos_id=" in said(*pair[:2], **pair[2])
    assert said([1], [2, 3], estimator="exact") is None


def test_dream_chain_scores_the_eos_behind_a_text():
    """As published: the chain of the text's tokens and its EOS."""
    model = like("dream", tokenizer=Letters())
    pairs = [("uv", "abc"), ([20, 21], [0, 1, 2, model.spec.eos_ids[0]])]
    fields = {"estimator": "reference", "nll_type": "ar_ftb"}
    text, ids = (next(iter(model.score([ask(0, *pair, **fields)]))).answer for pair in pairs)
    assert (text.value, text.draws, text.target_tokens) == (ids.value, 4, 3)


def test_chain_masks_score_each_token_once():
    for backwards in (False, True):
        draws = chain_masks(5, backwards, -5)
        assert torch.equal(draws.scores_Mn.sum(0), torch.ones(5, dtype=torch.long))
        assert bool((draws.scores_Mn & ~draws.masks_Mn).sum() == 0)
        assert draws.masks_Mn.sum(1).tolist() == ([1, 2, 3, 4, 5] if backwards else [5, 4, 3, 2, 1])


def test_dream_greedy_fills_the_surest_token_first():
    model = golden.model("dream")
    for context in (CONTEXT, CONTEXT[:1], []):
        canvas = context + [model.spec.mask_id] * 5
        for _ in range(5):
            open_ = [i for i, t in enumerate(canvas) if t == model.spec.mask_id]
            sure, token = torch.softmax(model.logits(canvas)[open_], -1).max(-1)
            canvas[open_[int(sure.argmax())]] = int(token[sure.argmax()])
        target = canvas[len(context) :]
        other = [*target[:-1], (target[-1] + 1) % 100]
        result = model.loglikelihood([(context, target), (context, other)])
        assert [f.is_greedy for f in result] == [True, False]


def test_nothing_to_mask_is_an_error():
    model = golden.model("dream")
    with pytest.raises(PromptError, match="nothing to mask: the target is an EOS alone"):
        model.loglikelihood([(CONTEXT, [model.spec.eos_ids[0]])])
    with pytest.raises(PromptError, match="nothing to mask"):
        model.loglikelihood([(CONTEXT, TARGET[:1])], estimator="reference")
    with pytest.raises(PromptError, match="nothing to mask"):
        model.loglikelihood([([], TARGET)], estimator="reference", nll_type="ar_ftb", log_type="btf")
    with pytest.raises(PromptError, match=r"target of 511 tokens and 1 behind it are 513; .* limit is 512"):
        model.loglikelihood([([1], [2] * 511)])
