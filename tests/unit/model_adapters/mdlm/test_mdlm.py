"""MDLM and BD3-LM: logits and likelihoods of the published networks, samplers, layouts, training, lm-eval's perplexity
tasks. The vectors are what kuleshov-group/bd3lms models/hf/modeling_bd3lm.py gives with the weights of ``mdlm_folder``
(its noised and clean copies of a text together), and bounds that are enumerated with it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import mdlm_folder
import pretend_device
import pytest
import torch
from paths import ROOT
from require import need_package
from safetensors.torch import load_file, save_file

import dare_bench
from dare_bench.errors import CheckpointError, DecodingError, PromptError
from dare_bench.loading import family_of
from dare_bench.model_adapters.backbone import Plan

PUBLISHED = json.loads((ROOT / "tests" / "data" / "mdlm_published.json").read_text())
MASK, KEEP = mdlm_folder.MASK, {"text_after_eos": "keep"}
PROMPTS = ["the cat", "in a", "12+3=-"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("mdlm")
    return {"mdlm": mdlm_folder.written(place / "mdlm"), "bd3lm": mdlm_folder.written(place / "bd3lm", 4)}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, dare_bench.Model]:
    return {name: dare_bench.load(folder, device="cpu", dtype="float32") for name, folder in folders.items()}


# -- the published network ------------------------------------------------------------------------------------------


def test_logits_of_a_masked_text(models: dict[str, dare_bench.Model]) -> None:
    case = PUBLISHED["mdlm"]
    logits_LV = models["mdlm"].logits(case["ids"])
    assert float(logits_LV[:, MASK].max()) < -1e5, "the mask token is never predicted"
    want = torch.tensor(case["logprobs"])
    assert torch.allclose(logits_LV.log_softmax(-1)[::3, :MASK], want, atol=1e-4)


def test_logits_of_noised_blocks_behind_clean_ones(models: dict[str, dare_bench.Model]) -> None:
    case, network = PUBLISHED["bd3lm"], models["bd3lm"].loaded.network  # type: ignore[union-attr]
    both = torch.tensor([*case["noisy"], *case["clean"]])
    with torch.no_grad():
        logits = network(both, plan=Plan((len(both),), 4, copies=2)).logits[: len(case["noisy"])]
    assert torch.allclose(logits.log_softmax(-1)[::5, :MASK], torch.tensor(case["logprobs"]), atol=1e-4)


@pytest.mark.parametrize("name", ["mdlm", "bd3lm"])
def test_bounds(models: dict[str, dare_bench.Model], name: str) -> None:
    for case in PUBLISHED[name]["pairs"]:
        (got,) = models[name].loglikelihood([(case["context"], case["target"])])
        assert got.estimator == "exact" and math.isclose(got.value, case["value"], abs_tol=1e-4)


def test_monte_carlo_meets_the_bound(models: dict[str, dare_bench.Model]) -> None:
    case = PUBLISHED["mdlm"]["pairs"][0]
    fields = {"estimator": "reference", "mc_num": 2048, "want_greedy": False}
    (got,) = models["mdlm"].loglikelihood([(case["context"], case["target"])], **fields)
    assert 0 < got.stderr < 0.5 and abs(got.value - case["value"]) < 4 * got.stderr


def test_one_block_of_the_whole_length_is_mdlm(models: dict[str, dare_bench.Model], tmp_path: Path) -> None:
    ids = PUBLISHED["mdlm"]["ids"]
    for i, fields in enumerate(({"block_size": mdlm_folder.LENGTH}, {"cross_attn": False})):
        folder = mdlm_folder.written(tmp_path / str(i), **{"block_size": 4, **fields})
        model = dare_bench.load(folder, device="cpu", dtype="float32")
        assert model.spec.block_length is None and torch.equal(model.logits(ids), models["mdlm"].logits(ids))


# -- samplers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mdlm", "bd3lm"])
def test_draws_depend_on_the_row_alone(models: dict[str, dare_bench.Model], name: str) -> None:
    model = models[name]
    together = model.generate(PROMPTS, gen_length=9, seed=5, **KEEP)
    alone = [model.generate([prompt], gen_length=9, seed=5, max_rows=1, **KEEP)[0] for prompt in PROMPTS]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.tokens for a in together] != [a.tokens for a in model.generate(PROMPTS, gen_length=9, seed=6, **KEEP)]
    assert all(len(a.tokens) == 9 and MASK not in a.tokens and a.tier == "E2" for a in together)


def test_ancestral_sampling_draws_from_the_network(models: dict[str, dare_bench.Model]) -> None:
    """In one step the token is drawn from the network's distribution; with n, n masks take at most n forwards."""
    model, prompt = models["mdlm"], [40, 41, 42]
    probability = model.logits([*prompt, MASK]).softmax(-1)[-1]
    seen = Counter(
        model.generate([prompt], gen_length=1, steps=1, seed=seed, **KEEP)[0].tokens[0] for seed in range(400)
    )
    token = int(probability.argmax())
    deviation = math.sqrt(float(probability[token] * (1 - probability[token])) / 400)
    assert abs(seen[token] / 400 - float(probability[token])) < 4.5 * deviation
    written: Counter[int] = Counter()
    for seed in range(30):
        (answer,) = model.generate([prompt], gen_length=8, steps=4, seed=seed, trajectory=True, **KEEP)
        assert answer.nfe <= 4
        written.update(event.step for event in answer.trajectory or ())
    # A quarter of 240 tokens is due in each step, with a standard deviation of 7.
    assert set(written) == {0, 1, 2, 3} and all(abs(count - 60) < 32 for count in written.values())


def test_first_hitting_writes_one_random_position_a_forward(models: dict[str, dare_bench.Model]) -> None:
    """Blocks are counted from the start of the prompt, of 6 tokens: 2, 4 and 4 positions are open."""
    firsts: Counter[int] = Counter()
    for seed in range(60):
        (answer,) = models["bd3lm"].generate(
            [[40, 41, 42, 43, 44, 45]], gen_length=8, seed=seed, trajectory=True, **KEEP
        )
        order = [event.position for event in answer.trajectory or ()]
        assert [sorted(order[:2]), sorted(order[2:6]), sorted(order[6:])] == [[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
        firsts[order[2]] += 1
    assert set(firsts) == {2, 3, 4, 5} and max(firsts.values()) < 30


def test_the_device_computes_the_same(folders: dict[str, Path], models: dict[str, dare_bench.Model]) -> None:
    with pretend_device.available():
        for name, folder in folders.items():
            there = dare_bench.load(folder, device="pretend", dtype="float32")
            got, want = (m.generate(PROMPTS, gen_length=8, **KEEP) for m in (there, models[name]))
            assert [a.tokens for a in got] == [a.tokens for a in want]
            pairs = [("the cat", " in a"), ([5], [6, 7])]
            both = (m.loglikelihood(pairs, estimator="fast") for m in (there, models[name]))
            for ours, theirs in zip(*both, strict=True):
                assert math.isclose(ours.value, theirs.value, abs_tol=1e-4)


def test_infilling(models: dict[str, dare_bench.Model]) -> None:
    canvas = [40, MASK, MASK, 43, MASK, 45]
    (answer,) = models["mdlm"].infill([canvas], seed=1)
    assert [answer.tokens[i] for i in (0, 3, 5)] == [40, 43, 45] and MASK not in answer.tokens


# -- layouts and refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mdlm", "bd3lm"])
def test_saved_as_published(
    folders: dict[str, Path], models: dict[str, dare_bench.Model], name: str, tmp_path: Path
) -> None:
    models[name].save(tmp_path / "saved")
    before, after = (load_file(str(folder / "model.safetensors")) for folder in (folders[name], tmp_path / "saved"))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == mdlm_folder.config(
        4 if name == "bd3lm" else None
    )
    assert family_of(tmp_path / "saved").name == "mdlm"
    again = dare_bench.load(tmp_path / "saved", device="cpu", dtype="float32")
    assert torch.equal(again.logits([1, 2, MASK]), models[name].logits([1, 2, MASK]))


def test_every_tensor_counts(folders: dict[str, Path], models: dict[str, dare_bench.Model], tmp_path: Path) -> None:
    """But those that the network computes itself."""
    want, weights = models["mdlm"].logits([1, 2, MASK]), load_file(str(folders["mdlm"] / "model.safetensors"))
    folder = mdlm_folder.written(tmp_path / "moved")
    for name, weight in weights.items():
        if ".blocks.0." in name:
            continue
        noise = torch.linspace(-1, 1, weight.numel()).view_as(weight)
        save_file({**weights, name: weight + noise}, str(folder / "model.safetensors"), metadata={"format": "pt"})
        moved = dare_bench.load(folder, device="cpu", dtype="float32").logits([1, 2, MASK])
        assert torch.allclose(moved, want, atol=1e-5) == name.endswith("inv_freq"), name


def test_refusals(models: dict[str, dare_bench.Model], tmp_path: Path) -> None:
    """Also of the baselines, which are published with the same class: autoregressive, and SEDD."""
    for field, message in (
        ({"causal": True}, "BD3LM config has causal=True; supported: False"),
        ({"time_conditioning": True}, "BD3LM config has time_conditioning=True; supported: False"),
        ({"n_heads": 5}, "hidden_dim=32 and n_heads=5; heads need an even number of channels each"),
    ):
        with pytest.raises(CheckpointError, match=message):
            dare_bench.load(mdlm_folder.written(tmp_path / next(iter(field)), **{"block_size": 4, **field}))
    with pytest.raises(DecodingError, match="steps=3 with blocks"):
        models["bd3lm"].generate(PROMPTS, steps=3)
    with pytest.raises(DecodingError, match="block_length=4: this checkpoint was trained without blocks"):
        models["mdlm"].generate(PROMPTS, block_length=4)
    with pytest.raises(DecodingError, match="rng='reference': the published random numbers depend on the batch"):
        models["mdlm"].generate(PROMPTS, rng="reference")
    bare = dare_bench.load(mdlm_folder.written(tmp_path / "bare", tokenizer=False), device="cpu")
    assert bare.loglikelihood([([1], [2, 3])])[0].value < 0
    with pytest.raises(PromptError, match=r"put the files of its tokenizer \(tokenizer.json\) beside config.json"):
        bare.generate(["the"])


# -- perplexity, training -----------------------------------------------------------------------------------------


def data_of(folder: Path) -> Path:
    """Pages for lm-eval's wikitext and passages for its lambada_openai, as local files."""
    folder.mkdir()
    pages = [" = the cat = \n\n " + "an ant in a hat sat in the an , the cat . " * n for n in (1, 3)]
    rows = {"wikitext": [{"page": page} for page in pages], "lambada": [{"text": "the cat sat in the hat"}]}
    sets = []
    hubs = ("EleutherAI/wikitext_document_level:wikitext-2-raw-v1", "EleutherAI/lambada_openai:default")
    for name, hub in zip(rows, hubs, strict=True):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        files = dict.fromkeys(("train", "validation", "test"), f"{name}.jsonl")
        task = {"dataset_path": "json", "dataset_kwargs": {"data_files": files}}
        sets.append({"name": name, "hf_ids": [hub], "lm_eval": task})
    (folder / "manifest.json").write_text(json.dumps({"datasets": sets}))
    return folder


@pytest.mark.parametrize("name", ["mdlm", "bd3lm"])
def test_wikitext_and_lambada(
    folders: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval's own tasks: pages longer than the context of 64 tokens, and last words with greedy decoding."""
    need_package("lm_eval")
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    run = dare_bench.evaluate(
        model=str(folders[name]), tasks="wikitext,lambada_openai", data_dir=str(data_of(tmp_path / "data")),
        output_path=str(tmp_path / "out"), progress=False,
        likelihood={"estimator": "fast" if name == "mdlm" else "auto"},
    )  # fmt: skip
    rows = list(run.samples("wikitext"))
    values, errors = ([row["dare_bench"][0][field] for row in rows] for field in ("value", "stderr"))
    words = sum(len(re.split(r"\s+", row["doc"]["page"])) for row in rows)  # as the task counts
    scores = run.results["results"]
    assert scores["wikitext"]["word_perplexity,none"] == pytest.approx(math.exp(-sum(values) / words), rel=1e-6)
    assert all(error > 0 for error in errors) == (name == "mdlm"), "blocks of 4 are enumerated"
    assert scores["lambada_openai"]["perplexity,none"] > 1 and scores["lambada_openai"]["acc,none"] in (0.0, 1.0)
