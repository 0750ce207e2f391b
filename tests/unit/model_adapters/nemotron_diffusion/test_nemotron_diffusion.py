"""Nemotron-Labs-Diffusion: network and sampler against the published rules written down again, layout and training."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nemotron_folder
import pretend_device
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import dare_bench
from dare_bench.diffusion.forward import inputs
from dare_bench.diffusion.masked_copies import masked_copies, pack
from dare_bench.errors import CheckpointError, DecodingError, UsageError
from dare_bench.loading import family_of
from dare_bench.model_adapters.backbone import Yarn
from dare_bench.model_adapters.backbone.network import shapes_of
from dare_bench.model_adapters.nemotron_diffusion import FAMILY
from dare_bench.types import Generation, Request

PROMPTS = ["12+34=", "sudoku\n.3.4\n4..3\n.431\n.14.\n=\n", "7-45"]
MASK, KEEP = nemotron_folder.MASK, {"text_after_eos": "keep", "early_stop": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nemotron_folder.written(tmp_path_factory.mktemp("nemotron") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> dare_bench.Model:
    return dare_bench.load(folder, device="cpu", dtype="float32")


@dataclass
class Published:
    """The published network, one row at a time, without a cache."""

    config: dict[str, Any]
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, folder: Path) -> Published:
        weights = {name: value.float() for name, value in load_file(str(folder / "model.safetensors")).items()}
        return cls(json.loads((folder / "config.json").read_text()), weights)

    def norm(self, x_LD: Tensor, name: str) -> Tensor:
        rms = (x_LD.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x_LD * rms * self.weights[f"encoder.{name}.weight"]

    def rotation(self, length: int) -> tuple[Tensor, Tensor]:
        given = SimpleNamespace(**self.config, standardize_rope_params=lambda: None)
        frequency, factor = ROPE_INIT_FUNCTIONS["yarn"](given, torch.device("cpu"))
        assert factor == 1.0
        angle = torch.arange(length)[:, None] * torch.cat([frequency, frequency])
        return angle.cos(), angle.sin()

    def logits(self, tokens: list[int], clean: int) -> Tensor:
        """The first ``clean`` tokens attend causally, the others to the whole row: [L, V]."""
        c, n = self.config, len(tokens)
        cos, sin = self.rotation(n)
        place = torch.arange(n)
        seen = (place[:, None] >= place) | (place[:, None] >= clean)
        grown = 1 + nemotron_folder.BETA * torch.log(1 + torch.floor(place / nemotron_folder.ORIGINAL))
        x = self.weights["encoder.embed_tokens.weight"][tokens]
        for i in range(c["num_hidden_layers"]):
            part = f"layers.{i}"
            w = {key.split(f"{part}.")[1]: v for key, v in self.weights.items() if f".{part}." in key}
            y = self.norm(x, f"{part}.input_layernorm")
            q, k, v = (
                (y @ w[f"self_attn.{name}_proj.weight"].T).view(n, -1, c["head_dim"]).transpose(0, 1) for name in "qkv"
            )
            q, k = (a * cos + torch.cat([-a.chunk(2, -1)[1], a.chunk(2, -1)[0]], -1) * sin for a in (q, k))
            q = q * grown[:, None]
            k, v = (a.repeat_interleave(c["num_attention_heads"] // len(a), 0) for a in (k, v))
            weight = (q @ k.transpose(1, 2) / math.sqrt(c["head_dim"])).masked_fill(~seen, -math.inf).softmax(-1)
            x = x + (weight @ v).transpose(0, 1).reshape(n, -1) @ w["self_attn.o_proj.weight"].T
            y = self.norm(x, f"{part}.post_attention_layernorm")
            gated = silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
            x = x + gated @ w["mlp.down_proj.weight"].T
        return self.norm(x, "norm") @ self.weights["diffusion_head.weight"].T

    def generate(
        self, prompt: list[int], gen_length: int, block: int, threshold: float | None
    ) -> tuple[list[int], int]:
        """At temperature 0: the response, and the forwards that are counted, which are all but the prompt's."""
        canvas, counted = list(prompt), 0
        for _ in range(gen_length // block):
            start = len(canvas)
            canvas += [int(self.logits(canvas, start)[-1].argmax()), *[MASK] * (block - 1)]
            while MASK in canvas:
                counted += 1
                probability, token = self.logits(canvas, start).softmax(-1).max(-1)
                open_ = [i for i in range(start, len(canvas)) if canvas[i] == MASK]
                open_.sort(key=lambda i: -float(probability[i]))
                sure = [i for i in open_[1:] if threshold is not None and probability[i] >= threshold]
                for i in [open_[0], *sure]:
                    canvas[i] = int(token[i])
            counted += 1
        return canvas[len(prompt) :], counted


@pytest.mark.parametrize("cache", ["exact", "none"])
@pytest.mark.parametrize(
    ("gen_length", "block", "threshold"), [(8, 4, None), (16, 8, None), (12, 4, 0.5), (16, 8, 0.9), (5, 1, None)]
)
def test_the_sampler_is_the_published_rule(
    folder: Path, model: dare_bench.Model, gen_length: int, block: int, threshold: float | None, cache: str
) -> None:
    """Blocks of 1 are the published autoregressive generation."""
    published = Published.of(folder)
    fields = {"gen_length": gen_length, "block_length": block, "threshold": threshold, "cache": cache}
    answers = model.generate(PROMPTS, **fields, **KEEP)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        wanted, counted = published.generate(model.loaded.encode(prompt), gen_length, block, threshold)
        assert (answer.tokens, answer.nfe, answer.reference_nfe, answer.tier) == (wanted, counted, counted, "E1")
    assert len({tuple(answer.tokens) for answer in answers}) == len(PROMPTS)


def test_the_first_token_is_the_state_before_it(folder: Path, model: dare_bench.Model) -> None:
    """The fixture can tell both rules, and both kinds of attention, from each other."""
    ids, published = model.loaded.encode(PROMPTS[1]), Published.of(folder)
    causal, own = published.logits(ids, len(ids)), published.logits([*ids, *[MASK] * 4], len(ids))
    assert int(causal[-1].argmax()) != int(own[len(ids)].argmax())
    assert not torch.allclose(causal[-1], published.logits(ids, 0)[-1], atol=0.1)


def test_logits_are_of_blocks_behind_causal_tokens(folder: Path, model: dare_bench.Model) -> None:
    ids, published = [*model.loaded.encode(PROMPTS[1])[:22], MASK, MASK], Published.of(folder)
    got = model.logits(ids)
    for start in range(0, len(ids), 4):
        wanted = published.logits(ids[: start + 4], start)[start:]
        torch.testing.assert_close(got[start : start + 4], wanted, atol=2e-4, rtol=1e-4)


def test_likelihoods_are_of_blocks(folder: Path, model: dare_bench.Model) -> None:
    ids, token = [*range(8, 29)], 13
    (got,) = model.loglikelihood([(ids, [token])])
    wanted = Published.of(folder).logits([*ids, MASK], 20).log_softmax(-1)[-1, token]
    assert got.estimator == "exact" and math.isclose(got.value, float(wanted), abs_tol=1e-4)
    greedy = model.generate([ids], gen_length=4, **KEEP)[0].tokens
    assert [x.is_greedy for x in model.loglikelihood([(ids, greedy), (ids, [*greedy[:3], greedy[3] - 1])])] == [
        True,
        False,
    ]


def test_an_eos_ends_the_answer(model: dare_bench.Model) -> None:
    whole = model.generate(PROMPTS, gen_length=16, **KEEP)
    eos = next(token for token in whole[0].tokens[1:] if any(token in a.tokens for a in whole))
    for answer, kept in zip(model.generate(PROMPTS, gen_length=16, eos_id=eos), whole, strict=True):
        end = kept.tokens.index(eos) + 1 if eos in kept.tokens else 16
        assert answer.tokens == kept.tokens[:end] and (end > 8 or answer.nfe < kept.nfe)


@pytest.mark.parametrize("cache", ["exact", "none"])
def test_a_given_canvas_with_a_finished_block(folder: Path, model: dare_bench.Model, cache: str) -> None:
    """The second of four blocks has no masks, and no forward of its own."""
    published, middle = Published.of(folder), [8, 9, 10, 11, 12, 13, 14, 15]
    fields = {"gen_length": 32, "block_length": 8, "cache": cache, **KEEP}
    for prompt in PROMPTS:
        ids = model.loaded.encode(prompt)
        first, _ = published.generate(ids, 8, 8, None)
        last, _ = published.generate([*ids, *first, *middle], 16, 8, None)
        request = Request("0", "generate", ids, decoding=fields, canvas=[*[MASK] * 8, *middle, *[MASK] * 16])
        (sample,) = model.loaded.generate([request])
        assert isinstance(sample.answer, Generation) and sample.answer.tokens == [*first, *middle, *last]


def test_bos_stands_in_the_place_of_an_empty_prompt(folder: Path, model: dare_bench.Model) -> None:
    (answer,) = model.generate([[]], gen_length=8, **KEEP)
    assert answer.tokens == [1, *Published.of(folder).generate([1], 8, 4, None)[0]]


def test_draws_depend_on_the_row_alone(model: dare_bench.Model) -> None:
    fields: dict[str, Any] = {"gen_length": 8, "seed": 5, "temperature": 2.0}
    together = model.generate(PROMPTS, **fields)
    alone = [model.generate([prompt], **fields)[0] for prompt in PROMPTS]
    assert [a.tokens for a in together] == [a.tokens for a in alone] and {a.tier for a in together} == {"E2"}
    assert [a.tokens for a in model.generate(PROMPTS, **{**fields, "seed": 6})] != [a.tokens for a in together]


@pytest.mark.parametrize("attention", ["padded", "sdpa"])
def test_backends_and_devices_compute_the_same(folder: Path, model: dare_bench.Model, attention: str) -> None:
    wanted = [a.tokens for a in model.generate(PROMPTS, gen_length=12)]
    other = dare_bench.load(folder, device="cpu", dtype="float32", attention=attention)
    assert [a.tokens for a in other.generate(PROMPTS, gen_length=12)] == wanted
    with pretend_device.available():
        there = dare_bench.load(folder, device="pretend", dtype="float32", attention=attention)
        assert [a.tokens for a in there.generate(PROMPTS, gen_length=12)] == wanted


def test_drafts_change_no_answer(folder: Path, model: dare_bench.Model) -> None:
    wanted = [a.tokens for a in model.generate(PROMPTS, gen_length=16)]
    with pretend_device.available():
        there = dare_bench.load(folder, device="pretend", dtype="float32")
        assert [a.tokens for a in there.generate(PROMPTS, gen_length=16, draft_steps=2)] == wanted


def test_ids_layout_and_refusals(folder: Path, model: dare_bench.Model, tmp_path: Path) -> None:
    spec = model.spec
    assert (spec.family, spec.mask, spec.block_length, spec.predicts) == ("nemotron_diffusion", MASK, 4, "same")
    assert (spec.bos_id, spec.context_limit, spec.causal_prefix) == (1, 256, True)
    model.save(tmp_path / "saved")
    assert family_of(tmp_path / "saved").name == "nemotron_diffusion"
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "saved"))
    assert after == {**before, "torch_dtype": "float32"}
    with (
        safe_open(str(folder / "model.safetensors"), "pt") as old,
        safe_open(str(tmp_path / "saved" / "model.safetensors"), "pt") as new,
    ):
        assert set(old.keys()) == set(new.keys())
        assert {"encoder.embed_tokens.weight", "encoder.norm.weight", "diffusion_head.weight"} < set(new.keys())
    with pytest.raises(DecodingError, match="gen_length=10 is not divisible by block_length=4"):
        model.generate(PROMPTS, gen_length=10)
    with pytest.raises(DecodingError, match="rng='reference' is not known for this sampler"):
        model.generate(PROMPTS, gen_length=8, rng="reference")
    for fields in ({"attention": "flex"}, {"compile": True}):
        with pytest.raises(UsageError, match=r"clean tokens attend causally|does not work with nemotron_diffusion"):
            dare_bench.load(folder, device="cpu", **fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": None}, "one is needed"),
        ({"rope_scaling": {**nemotron_folder.ROPE, "factor": 2.0}}, "where there are both they must be equal"),
        ({"rope_parameters": {**nemotron_folder.ROPE, "rope_type": "linear"}}, "supported is the rope_type 'yarn'"),
        ({"rope_parameters": {**nemotron_folder.ROPE, "mscale": 2.0}}, "mscale and mscale_all_dim that are equal"),
        ({"rope_parameters": {**nemotron_folder.ROPE, "factor": -1.0}}, "factor: Input should be greater than 0"),
        ({"rope_parameters": {**nemotron_folder.ROPE, "beta": 1}}, "beta: Extra inputs are not permitted"),
        ({"max_position_embeddings": 512}, "it must be factor times original_max_position_embeddings"),
        ({"dlm_paradigm": "autoregressive"}, "dlm_paradigm='autoregressive'; supported: 'bidirectional', 'block_diff'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True; supported: False"),
    ],
)
def test_other_configs_are_refused(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    for file in folder.iterdir():
        if file.name != "config.json":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        dare_bench.load(tmp_path, device="cpu")


def test_the_published_8b_has_its_shapes(folder: Path) -> None:
    """As transformers 4 and 5 write its positions: in both fields."""
    rope = nemotron_folder.ROPE | {"original_max_position_embeddings": 16384, "type": "yarn"}
    raw = json.loads((folder / "config.json").read_text()) | {
        "block_size": 32, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262144, "vocab_size": 131072,
        "rope_parameters": rope, "rope_scaling": rope, "rope_theta": 1000000.0,
    }  # fmt: skip
    config, arch = FAMILY.arch_of(raw)
    shapes = {name: tuple(w.shape) for name, w in shapes_of(FAMILY.network, config).state_dict().items()}
    assert len(shapes) == 34 * 9 + 3 and sum(map(math.prod, shapes.values())) == 8_489_553_920
    assert shapes["encoder.layers.33.self_attn.k_proj.weight"] == (1024, 4096)
    assert (arch.rope_scaling, config.to_dict()["rope_parameters"]) == (Yarn(16.0, 32.0, 1.0, 16384), rope)


def test_training_sees_what_decoding_sees(folder: Path, model: dare_bench.Model) -> None:
    """The losses of masked copies of different length are those of each block behind a causal prefix."""
    published, rows = Published.of(folder), [([*range(8, 17)], [*range(17, 29)]), ([9, 8], [11, 12, 13])]
    batch = pack(rows)
    hidden_T = batch.response_T & (torch.arange(len(batch.tokens_T)) % 3 > 0)
    given = inputs(masked_copies(batch, hidden_T, MASK), model.spec)
    wanted = []
    for (prompt, answer), hidden in zip(rows, hidden_T.split(list(batch.lengths)), strict=True):
        whole = [*prompt, *answer]
        seen = [MASK if masked else token for token, masked in zip(whole, hidden.tolist(), strict=True)]
        for i in hidden.nonzero()[:, 0].tolist():
            start = i // 4 * 4
            logits = published.logits([*whole[:start], *seen[start : start + 4]], start)
            wanted.append(-float(logits[i].log_softmax(-1)[whole[i]]))
    with torch.no_grad():
        nll_N = model.loaded.network(**given.arguments()).nll
    torch.testing.assert_close(nll_N, torch.tensor(wanted), atol=2e-4, rtol=1e-4)
