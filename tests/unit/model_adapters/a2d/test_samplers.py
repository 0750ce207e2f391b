"""A2D's two samplers against dLLM's, written down over transformers' own networks: tokens, forwards, logits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from a2d_checkpoints import BASES, BOS, EOS, FIRST_TOKENS, MASK, VOCAB, Reference, made
from graph_stand_in import RecordedGraphs

import dare_bench
from dare_bench.errors import DecodingError, PromptError, UsageError
from dare_bench.model_adapters.a2d.linear_quota import linear_schedule
from dare_bench.model_adapters.frames import Frames
from dare_bench.model_adapters.sampling import drafts, loop

CALM = {"early_stop": False, "text_after_eos": "keep"}


@pytest.fixture(scope="module", params=BASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = request.param
    return made(tmp_path_factory.mktemp("a2d") / base, base, tied=base != "Llama", scaled=base == "Llama")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one base, for what samplers do with any network."""
    return made(tmp_path_factory.mktemp("a2d") / "one", tied=True)


def opened(folder: Path, family: str, **settings: Any) -> dare_bench.Model:
    return dare_bench.load(folder, family=family, device="cpu", mask_id=MASK, **settings)


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(FIRST_TOKENS) for _ in range(n)] for n in lengths]


def test_the_network_is_the_base_without_its_causal_mask(folder: Path, reference: Reference) -> None:
    (ids,) = prompts(40)
    got = opened(folder, "a2d_mdlm").logits(ids)
    assert torch.allclose(got, reference.logits(ids), atol=2e-5)
    assert not torch.allclose(got, reference.logits(ids, torch.ones(40, 40, dtype=torch.bool).tril()), atol=1e-2)
    blocks = torch.arange(40) // 8
    got = opened(folder, "a2d_bd3lm").logits(ids, block_length=8)
    assert torch.allclose(got, reference.logits(ids, blocks[:, None] >= blocks), atol=2e-5)


MDLM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one block": ({"steps": 12}, {}),
    "uneven steps and blocks": ({"steps": 5, "block_length": 5}, {}),
    "more steps than tokens": ({"steps": 40, "block_length": 4}, {}),
    "a block beyond the answer": ({"steps": 7, "block_length": 32}, {}),
    "guidance": ({"steps": 6, "block_length": 6, "cfg_scale": 1.5}, {"scale": 1.5}),
    "shift": ({"steps": 6, "block_length": 6, "right_shift_logits": True}, {"shift": True}),
}


@pytest.mark.parametrize("kind", MDLM)
def test_mdlm(folder: Path, reference: Reference, kind: str) -> None:
    fields, more = MDLM[kind]
    several, model = prompts(9, 5, 12), opened(folder, "a2d_mdlm")
    answers = model.generate(several, gen_length=12, **fields)
    for prompt, answer in zip(several, answers, strict=True):
        block = fields.get("block_length", 12)
        tokens, forwards = reference.mdlm(prompt, 12, fields["steps"], block, **more)
        assert answer.tokens == tokens
        assert answer.nfe == answer.reference_nfe == forwards * (2 if more.get("scale") else 1)
        assert answer.tier == "E1"


def test_mdlm_suppressed_and_kept_tokens(folder: Path, reference: Reference) -> None:
    (prompt,), model = prompts(9), opened(folder, "a2d_mdlm")
    plain, _ = reference.mdlm(prompt, 12, 6, 6)
    never, last, keep = (plain[0],), (plain[3],), (prompt[1], prompt[4])
    settings = {"gen_length": 12, "steps": 6, "block_length": 6}
    ((got,), (want, _)) = (
        model.generate([prompt], suppress_tokens=never, **settings),
        reference.mdlm(prompt, 12, 6, 6, never=never),
    )
    assert got.tokens == want != plain and never[0] not in want
    ((got,), (want, _)) = (
        model.generate([prompt], begin_suppress_tokens=last, **settings),
        reference.mdlm(prompt, 12, 6, 6, last=last),
    )
    assert got.tokens == want
    ((got,), (want, _)) = (
        model.generate([prompt], cfg_scale=2.0, cfg_keep_tokens=keep, **settings),
        reference.mdlm(prompt, 12, 6, 6, scale=2.0, keep=keep),
    )
    assert got.tokens == want != reference.mdlm(prompt, 12, 6, 6, scale=2.0)[0]


def test_mdlm_lengths_and_empty_prompts(folder: Path, reference: Reference) -> None:
    (prompt,), model = prompts(9), opened(folder, "a2d_mdlm")
    (got,) = model.generate([prompt], max_length=21, steps=7, block_length=5)
    assert got.tokens == reference.mdlm(prompt, 12, 7, 5)[0]
    (got,) = model.generate([[]], gen_length=12, steps=8, block_length=6, right_shift_logits=True)
    assert got.tokens == [BOS, *reference.mdlm([], 12, 8, 6, shift=True)[0]]
    with pytest.raises(PromptError, match="max_length=9 leaves no token"):
        model.generate([prompt], max_length=9)
    with pytest.raises(DecodingError, match="gen_length=4 and max_length=9 exclude each other"):
        model.generate([prompt], max_length=9, gen_length=4)


def test_infill(folder: Path, reference: Reference) -> None:
    draw, model = random.Random(3), opened(folder, "a2d_mdlm")
    canvases = [[MASK if draw.random() < 0.4 else token for token in ids] for ids in prompts(18, 13)]
    for fields in ({"steps": 4}, {"steps": 8, "block_length": 5}, {"steps": 6, "block_length": 6, "cfg_scale": 1.0}):
        answers = model.infill(canvases, **fields)
        for canvas, answer in zip(canvases, answers, strict=True):
            block, scale = fields.get("block_length", len(canvas)), fields.get("cfg_scale", 0.0)
            tokens, forwards = reference.infill(canvas, fields["steps"], block, scale=scale)
            assert answer.tokens == tokens
            assert answer.nfe == forwards * (2 if scale else 1)
            assert all(
                token in (given, answer.tokens[i]) for i, (token, given) in enumerate(zip(tokens, canvas, strict=True))
            )
    full = [token for token in canvases[0] if token != MASK]
    (answer,) = model.infill(full)
    assert (answer.tokens, answer.nfe) == (full, 0)
    with pytest.raises(PromptError, match="canvas 1 is empty"):
        model.infill([[]])
    with pytest.raises(UsageError, match="a2d_bd3lm, which does not attend to what follows a mask"):
        opened(folder, "a2d_bd3lm").infill(canvases)


BD3LM: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "whole blocks": ({"block_length": 4, "steps": 16}, {}, 4),
    "fewer steps": ({"block_length": 8, "steps": 6}, {}, 3),
    "steps of a block": ({"block_length": 8, "steps_per_block": 5}, {}, 5),
    "a block beyond the answer": ({"block_length": 32, "steps": 9}, {}, 9),
    "shift": ({"block_length": 4, "steps": 8, "right_shift_logits": True}, {"shift": True}, 2),
    "guidance": ({"block_length": 4, "steps": 8, "cfg_scale": 1.0}, {"scale": 1.0}, 2),
    "guided shift": (
        {"block_length": 4, "steps": 8, "cfg_scale": 0.5, "right_shift_logits": True},
        {"scale": 0.5, "shift": True},
        2,
    ),
}


@pytest.mark.parametrize(
    ("kind", "cache"), [*((kind, "exact") for kind in BD3LM), *((kind, "none") for kind in [*BD3LM][::3])]
)
def test_bd3lm(folder: Path, reference: Reference, kind: str, cache: str) -> None:
    """Borders are counted from the end of each prompt, whatever its length; the last block may be short."""
    fields, more, per_block = BD3LM[kind]
    several, model = prompts(8, 9, 3, 14, 1), opened(folder, "a2d_bd3lm")
    for length in (16, 14):
        if "steps" in fields and length == 14:
            fields = {**fields, "steps": per_block * -(-14 // fields["block_length"])}
        answers = model.generate(several, gen_length=length, cache=cache, **fields, **CALM)
        for prompt, answer in zip(several, answers, strict=True):
            tokens, forwards = reference.bd3lm(prompt, length, fields["block_length"], per_block, eos=-1, **more)
            assert answer.tokens == tokens, len(prompt)
            assert answer.reference_nfe == forwards
            assert answer.tier == "E1"


def test_bd3lm_stops_after_the_block_with_an_eos(folder: Path, reference: Reference) -> None:
    (prompt,), model = prompts(9), opened(folder, "a2d_bd3lm")
    plain, _ = reference.bd3lm(prompt, 16, 4, 4, eos=-1)
    eos = plain[5]
    (answer,) = model.generate([prompt], gen_length=16, block_length=4, steps=16, eos_id=eos)
    tokens, forwards = reference.bd3lm(prompt, 16, 4, 4, eos=eos)
    assert answer.tokens == tokens[: tokens.index(eos) + 1]
    assert answer.reference_nfe == forwards < 20
    assert answer.finish_reason == "eos"


@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
@pytest.mark.parametrize("attention", ["sdpa", "padded"])
def test_batches_draws_and_backends_change_nothing(one: Path, family: str, attention: str) -> None:
    """Rows of any lengths, more than fit, which share prompts' beginnings."""
    beginning = prompts(13)[0]
    several = [*prompts(8, 9, 3, 21), beginning, beginning[:9], [*beginning[:8], 4], [*beginning, 7, 7, 7, 7]]
    fields = {"gen_length": 14, "block_length": 4, "steps": 9, "temperature": 0.7, "seed": 3, **CALM}
    plain = opened(one, family)
    alone = [a for p in several for a in plain.generate([p], **{**fields, "temperature": 0.0})]
    model = opened(one, family, attention=attention)
    together = model.generate(several, max_rows=3, **{**fields, "temperature": 0.0})
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    drawn = [[a.tokens for a in model.generate(several, max_rows=rows, **fields)] for rows in (1, 5)]
    assert drawn[0] == drawn[1] != [a.tokens for a in alone]


@pytest.mark.parametrize("attention", ["sdpa", "padded"])
@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
def test_drafts_change_nothing(one: Path, family: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 1 << 40)
    several, model = prompts(8, 9, 3, 14), opened(one, family, attention=attention, pad_id=5)
    for fields in ({}, {"right_shift_logits": True}, {"cfg_scale": 1.0}):
        settings = {"gen_length": 14, "block_length": 4, "steps": 14, "max_rows": 3, **fields, **CALM}
        stepwise, drafted = (model.generate(several, draft_steps=count, **settings) for count in (0, 2))
        assert [a.tokens for a in drafted] == [a.tokens for a in stepwise]
        assert sum(a.nfe for a in drafted) < sum(a.nfe for a in stepwise)


@pytest.mark.parametrize("fields", [{}, {"right_shift_logits": True}, {"cfg_scale": 1.0}], ids=str)
@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
def test_captured_steps_answer_as_others(one: Path, family: str, fields: dict[str, Any]) -> None:
    """As CUDA graphs capture them, by a stand-in that fails on what cannot be captured."""
    several, capture = prompts(8, 9, 3, 14, 1), RecordedGraphs()
    settings = {"gen_length": 14, "block_length": 4, "steps": 14, "max_rows": 3, **fields, **CALM}
    wanted = [a.tokens for a in opened(one, family).generate(several, **settings)]
    model = opened(one, family, attention="padded")
    model.loaded.frames = Frames(model.loaded.network, compiler=None, capture=capture)
    assert [a.tokens for a in model.generate(several, **settings)] == wanted
    assert capture.replayed > 0


def test_flex_attention_knows_short_first_blocks() -> None:
    """Its rule, without the kernel: blocks of 4, of which the rows lack 3, 0 and 1 columns."""
    from dare_bench.diffusion.plan import Plan

    plan = Plan((9, 4, 7), 4, starts=(0, 8, 0), phases=(3, 0, 1))
    blocks = (plan.grid_columns(torch.device("cpu")) // 4).split([9, 4, 7])
    assert [block.tolist() for block in blocks] == [[0, 1, 1, 1, 1, 2, 2, 2, 2], [0] * 4, [0, 0, 0, 1, 1, 1, 1]]
    assert not plan.unmasked and Plan((3, 4), 4, phases=(1, 0)).unmasked


def test_bd3lm_does_not_see_padding_that_it_wrote(folder: Path, reference: Reference) -> None:
    """Tokens of the pad id stay in the answer; later blocks neither attend to them nor count them."""
    several, model = prompts(9, 8, 15), opened(folder, "a2d_bd3lm")
    for prompt in several:
        plain, _ = reference.bd3lm(prompt, 16, 4, 4, eos=-1)
        for pad in dict.fromkeys(plain[:8:3]):
            other = opened(folder, "a2d_bd3lm", pad_id=pad)
            fields = {"gen_length": 16, "block_length": 4, "steps": 16, "trajectory": True, **CALM}
            answer, beside = other.generate([prompt, [*prompt, 5]], **fields)
            assert answer.tokens == reference.bd3lm(prompt, 16, 4, 4, eos=-1, pad=pad)[0]
            assert beside.tokens == reference.bd3lm([*prompt, 5], 16, 4, 4, eos=-1, pad=pad)[0]
            written = {event.position: event.token for event in answer.trajectory or ()}
            assert [written[i] for i in range(16)] == answer.tokens
    assert model.generate([prompt], cache="none", **fields)[0].tokens == plain


@pytest.mark.parametrize("family", ["a2d_mdlm", "a2d_bd3lm"])
def test_requests_of_several_settings_at_once(one: Path, family: str) -> None:
    """Guided and shifted rows beside others, and other lengths of blocks."""
    from dare_bench.types import Request

    model, several = opened(one, family), prompts(9, 8, 15, 6, 11)
    ways: list[dict[str, Any]] = [{}, {"cfg_scale": 1.0}, {"right_shift_logits": True}, {"block_length": 5}, {}]
    asked = [{"gen_length": 14, "block_length": 4, "steps": 8, **CALM, **way} for way in ways]
    alone = [model.generate([p], **fields)[0].tokens for p, fields in zip(several, asked, strict=True)]
    requests = [
        Request(str(i), "generate", p, decoding=fields)
        for i, (p, fields) in enumerate(zip(several, asked, strict=True))
    ]
    together = {sample.request.key: sample.answer for sample in model.loaded.generate(requests)}
    assert [together[str(i)].tokens for i in range(5)] == alone  # type: ignore[union-attr]


@pytest.mark.parametrize("call", [3, 6, 10])
def test_rows_that_wait_for_memory_answer_alike(one: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Also those that lack what they wrote of the pad id: their blocks end elsewhere."""
    several, fields = prompts(9, 8, 15, 6), {"gen_length": 16, "block_length": 4, "steps": 16, **CALM}
    plain = opened(one, "a2d_bd3lm").generate(several, **fields)
    model = opened(one, "a2d_bd3lm", pad_id=plain[0].tokens[1])
    alone = [model.generate([prompt], **fields)[0].tokens for prompt in several]
    assert alone[0] != plain[0].tokens, "the pad id is written"
    decide, calls = loop.joined, []

    def fails_once(*given: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] == call:
            raise torch.OutOfMemoryError("out of memory")
        return decide(*given)

    monkeypatch.setattr(loop, "joined", fails_once)
    assert [a.tokens for a in model.generate(several, **fields)] == alone
    assert model.last_stats.halvings == [{"rows": 4, "now": 2}]


def test_prompts_that_begin_alike_in_blocks_share_them(folder: Path) -> None:
    from dare_bench.types import LoopStats, Request

    model, (prompt,) = opened(folder, "a2d_bd3lm"), prompts(21)
    fields = {"gen_length": 4, "block_length": 4, "steps": 4}
    counted = []
    for several in ([prompt, prompts(33)[0][12:]], [prompt, [*prompt[:17], 1, 2, 3, 4]]):
        stats = LoopStats()
        requests = [Request(str(i), "generate", p, decoding=fields) for i, p in enumerate(several)]
        list(model.loaded.generate(requests, max_rows=1, stats=stats))
        counted.append(stats.tokens_processed)
    assert counted[0] - counted[1] == 17, "one short block and four whole ones are read, and not computed again"


def test_given_canvases_go_on_as_they_would_have(folder: Path) -> None:
    from dare_bench.types import Request

    for family in ("a2d_mdlm", "a2d_bd3lm"):
        model, (prompt,) = opened(folder, family), prompts(9)
        fields = {"gen_length": 14, "block_length": 4, "steps": 12, **CALM}

        def ask(decoding: dict[str, Any] = fields, model: Any = model, prompt: Any = prompt, **more: Any) -> Any:
            (sample,) = model.loaded.generate([Request("0", "generate", prompt, decoding=decoding, **more)])
            assert sample.error is None
            return sample.answer

        whole = ask()
        for turn in (1, 4, 5, 9):
            part = ask(end_forward=turn)
            rest = ask(canvas=part.tokens, start_step=part.end_step, start_forward=turn)
            assert rest.tokens == whole.tokens, (family, turn)


def test_the_linear_schedule_rounds_as_published() -> None:
    assert linear_schedule(4, 3) == [1, 1, 2]  # 1, 2, 1 in float64 or in exact fractions
    assert linear_schedule(8, 4) == [2, 2, 2, 2]
    assert linear_schedule(3, 10) == [1, 1, 1]
    assert linear_schedule(0, 4) == []
    for masks in range(1, 33):
        for steps in range(1, 41):
            due = linear_schedule(masks, steps)
            assert sum(due) == masks and 0 not in due and len(due) <= min(masks, steps)


def test_fields_are_checked(folder: Path) -> None:
    model = opened(folder, "a2d_mdlm")
    for fields, message in (
        ({"suppress_tokens": [VOCAB]}, f"suppress_tokens={VOCAB} is outside the vocabulary; allowed: 0 to {VOCAB - 1}"),
        ({"cfg_scale": -1}, "cfg_scale"),
        ({"remasking": "entropy"}, "remasking='entropy'"),
        ({"cache": "exact"}, "no decoding field 'cache'"),
        ({"steps": 0}, "steps=0"),
        ({"stochastic_transfer": True}, "no decoding field 'stochastic_transfer'"),
    ):
        with pytest.raises(DecodingError, match=message) as error:
            model.generate([[5, 6]], **fields)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    with pytest.raises(DecodingError, match="no decoding field 'suppress_tokens'"):
        opened(folder, "a2d_bd3lm").generate([[5, 6]], suppress_tokens=[1])
    assert model.spec.eos_ids == (EOS,)
