"""DiffusionGemma against transformers' own class: logits of both halves, tokens of its sampler, and its acceptance and
stopping rules. The vectors in ``diffusion_gemma`` were written by transformers 5.23.0."""

from __future__ import annotations

import json

import golden
import pytest
import torch
from safetensors.torch import load_file
from trajectories import open_positions

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.errors import CheckpointError, DecodingError, UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.answer_text import through_eos
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.diffusion_gemma.renoise import Renoise
from dare_bench.model_adapters.sampling.records import Offer
from dare_bench.training.setup import refuse_untrainable
from dare_bench.types import Request

FAMILY, CANVAS = "diffusion_gemma", 8
CASES = [pytest.param(case, id=case["name"]) for case in golden.cases(FAMILY)["samplers"]]
PROMPTS = (1, 5, 6, 7, 20)
"""Below, at and above the window of 6 tokens."""
NOWHERE = torch.zeros(0, dtype=torch.long)


def network():
    return golden.model(FAMILY).network


def far(got, want):
    assert got.shape == want.shape
    return (got - want).abs().max().item()


def pack(prompt):
    """Tokens, and a plan of that many clean tokens and the canvas behind them."""
    t = golden.tensors("forward", FAMILY)
    return torch.cat([t[f"{prompt}_prompt"], t[f"{prompt}_canvas"]]), Plan((prompt + CANVAS,), clean=(prompt,))


# -- logits ---------


@pytest.mark.parametrize("prompt", PROMPTS)
@torch.no_grad()
def test_logits(prompt):
    t, (tokens, plan) = golden.tensors("forward", FAMILY), pack(prompt)
    got = network()(tokens, plan=plan).logits
    assert got.dtype == torch.float32
    assert far(got[prompt:], t[f"{prompt}_logits"]) < 1e-4
    assert far(got[:prompt], t[f"{prompt}_encoder_logits"]) < 1e-4
    soft = torch.cat([torch.zeros(prompt, 16), network().soft(t[f"{prompt}_conditioning"])])
    conditioned = network()(tokens, plan=plan, soft=soft).logits[prompt:]
    assert far(conditioned, t[f"{prompt}_conditioned_logits"]) < 1e-4
    assert far(conditioned, got[prompt:]) > 0.01, "conditioning changes the logits"


@torch.no_grad()
def test_rows_of_all_lengths_in_one_pack():
    """With the cached prompts of other rows behind them, and only the canvases' logits."""
    t, net = golden.tensors("forward", FAMILY), network()
    store, slots = KVStore(net.arch, 64, torch.device("cpu"), torch.float32), []
    for prompt in PROMPTS:
        first = 1 + sum(len(s) for s in slots)
        slots.append(torch.arange(first, first + prompt))
    writes = Cached(store, (NOWHERE,) * len(PROMPTS), torch.arange(sum(PROMPTS)), torch.cat(slots))
    net(torch.cat([t[f"{p}_prompt"] for p in PROMPTS]), plan=Plan(PROMPTS, clean=PROMPTS, cached=writes))
    lengths, none = (CANVAS,) * len(PROMPTS), (0,) * len(PROMPTS)
    reads = Cached(store, tuple(slots), NOWHERE, NOWHERE, steady=True)
    canvases = torch.cat([t[f"{p}_canvas"] for p in PROMPTS])
    for _ in range(2):  # the second one reads what the first has gathered
        got = net(canvases, plan=Plan(lengths, starts=PROMPTS, clean=none, cached=reads)).logits
        for part, prompt in zip(got.split(CANVAS), PROMPTS, strict=True):
            assert far(part, t[f"{prompt}_logits"]) < 1e-4


def test_the_padded_backend():
    """The same logits of rows of all lengths, and the same tokens."""
    padded = load(golden.PARITY / FAMILY, device="cpu", dtype="float32", attention="padded")
    model, prompts = golden.model(FAMILY), some_prompts()
    packs = [pack(prompt) for prompt in PROMPTS]
    lengths = tuple(len(tokens) for tokens, _ in packs)
    tokens, plan = torch.cat([tokens for tokens, _ in packs]), Plan(lengths, clean=PROMPTS)
    with torch.no_grad():
        got, want = (m.network(tokens, plan=plan).logits for m in (padded, model))
    assert far(got, want) < 1e-4
    fields = {"seed": 4, **WAYS["published"]}
    assert [a.tokens for a in padded.generate(prompts, **fields)] == [
        a.tokens for a in model.generate(prompts, **fields)
    ]


@pytest.mark.parametrize("name", ["flex", "varlen"])
def test_backends_without_windows_are_refused(name):
    with pytest.raises(UsageError, match=f"attention='{name}' computes no network whose layers differ"):
        load(golden.PARITY / FAMILY, device="cpu", attention=name)


# -- tokens ---------


def wanted(case):
    """The tokens of a vector through the first end, at most as many as were asked for: it holds whole canvases."""
    output = case["output_ids"][0][len(case["prompt_ids"][0]) :][: case["args"]["max_new_tokens"]]
    return output[: through_eos(output, (1, 94))]


@pytest.mark.parametrize("case", CASES)
def test_tokens(case):
    fields = {"rng": "reference", "seed": case["seed"], **case["args"]}
    answer = golden.model(FAMILY).generate(case["prompt_ids"], **fields)[0]
    assert answer.tokens == wanted(case)
    assert (answer.nfe, answer.reference_nfe) == (case["num_forwards"], case["num_forwards"])
    assert (answer.tier, answer.residual_masks) == ("E1", 0)


def test_the_vectors_cover_the_sampler():
    """Blocks that stop early and that do not, answers of one to three canvases that end with an EOS and that do not."""
    cases = [case.values[0] for case in CASES]
    blocks = [-(-case["args"]["max_new_tokens"] // CANVAS) for case in cases]
    ends = [through_eos(wanted(case), (1, 94)) is not None for case in cases]
    early = [
        case["num_forwards"] < count * case["args"]["max_denoising_steps"] and not end
        for case, count, end in zip(cases, blocks, ends, strict=True)
    ]
    assert len(cases) >= 28 and any(early) and not all(early)
    for stability in (0, 1, 2):
        assert any(e and case["args"]["stability_threshold"] == stability for e, case in zip(early, cases, strict=True))
    assert any(ends) and not all(ends)


@pytest.mark.parametrize("stability", [0, 1, 2])
def test_renoise_is_the_published_rule(stability):
    """Acceptance, stopping and the final canvas, forward by forward on made logits, against the published classes."""
    published = pytest.importorskip("transformers.models.diffusion_gemma.generation_diffusion_gemma")
    steps, vocab, g = 9, 31, torch.Generator().manual_seed(stability)
    policy = Renoise(bound=1.5, steps=steps, stability=stability, confidence=0.9, open_id=vocab)
    config = published.EntropyBoundSamplerConfig(1.5)
    sampler = published.EntropyBoundSampler(config, CANVAS, vocab, steps)
    stopping = published.StableAndConfidentStoppingCriteria(stability, 0.9)
    memory, current, ended = policy.remember([True] * CANVAS), torch.full((CANVAS,), vocab), []
    logits = torch.zeros((CANVAS, vocab))
    for step in range(steps):
        if step not in (4, 6, 7):  # there, the same tokens again
            logits = torch.randn((CANVAS, vocab), generator=g) * (1 + step)
        drawn = torch.randint(vocab, (CANVAS,), generator=g)
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        sampler.accept_canvas(current[None], drawn[None], logits[None], step)
        stops = bool(stopping(logits.argmax(-1)[None], logits[None])) or step == steps - 1
        nothing = torch.zeros(CANVAS, dtype=torch.float64)
        positions = open_positions([0] * CANVAS, step_R=torch.tensor([step]), current_N=current, memories=[memory])
        best_NK, finite = logits.argmax(-1)[:, None], torch.tensor(True)
        chosen = policy.select(
            Offer(positions, drawn, nothing, -entropy, finite, best_NK=best_NK, best_confidence_NK=best_NK.double())
        )
        accepted = torch.where(sampler.accepted_token_mask[0], drawn, vocab)
        assert chosen.ended_R.tolist() == [stops]
        assert torch.equal(chosen.token_N, logits.argmax(-1) if stops else accepted)
        assert torch.equal(chosen.written_N, chosen.token_N != current)
        current, ended = chosen.token_N, [*ended, stops]
    assert any(ended[:-1]) and not all(ended)


# -- rows, caches, requests ---------

WAYS = {
    "published": {"gen_length": 20, "max_denoising_steps": 5, "entropy_bound": 12.0},
    "no cache": {"gen_length": 20, "max_denoising_steps": 5, "entropy_bound": 12.0, "cache": "none"},
    "stops early": {"gen_length": 12, "max_denoising_steps": 9, "stability_threshold": 0, "confidence_threshold": 4.0},
    "greedy": {"gen_length": 12, "max_denoising_steps": 6, "temperature": 0},
    "another strategy": {"gen_length": 12, "strategy": {"name": "quota", "steps": 4}},
}


def some_prompts(count=6):
    g = torch.Generator().manual_seed(5)
    return [torch.randint(2, 90, (n,), generator=g).tolist() for n in (1, 4, 9, 4, 17, 2)[:count]]


@pytest.mark.parametrize("way", WAYS)
def test_rows_do_not_depend_on_their_neighbors(way):
    """Rows at different blocks and steps share forwards, and leave them as others enter."""
    model, prompts = golden.model(FAMILY), some_prompts()
    alone = model.generate(prompts, max_rows=1, seed=4, **WAYS[way])
    together = model.generate(prompts, max_rows=3, seed=4, **WAYS[way])
    assert [(a.tokens, a.nfe) for a in together] == [(a.tokens, a.nfe) for a in alone]
    assert len({tuple(a.tokens) for a in alone}) == len(alone)
    assert {a.tier for a in alone} == {"A" if way in ("greedy", "another strategy") else "E2"}
    assert all(a.residual_masks == 0 and max(a.tokens) < model.spec.vocab_size for a in alone)


def test_ways_of_decoding_share_a_batch():
    prompt = some_prompts()[2]
    requests = [Request(way, "generate", prompt, decoding=fields, seed=4) for way, fields in WAYS.items()]
    mixed = golden.answers(FAMILY, requests)
    for request in requests:
        assert mixed[request.key].tokens == golden.answers(FAMILY, [request])[request.key].tokens, request.key
    assert mixed["no cache"].tokens == mixed["published"].tokens


def test_a_trajectory_holds_every_change():
    """Tokens that are accepted and opened again; the last forward of a canvas sets all that is open."""
    model = golden.model(FAMILY)
    answer = model.generate(some_prompts(1), trajectory=True, seed=1, **WAYS["published"])[0]
    canvas, ops = {}, []
    for event in answer.trajectory:
        assert (event.op == "remask") == (event.token == model.spec.vocab_size)
        assert event.op == "set" or canvas[event.position] != event.token
        canvas[event.position] = event.token
        ops.append(event.op)
    assert {"set", "remask"} == set(ops)
    assert [canvas[i] for i in range(len(answer.tokens))] == answer.tokens


def test_the_bound_of_forwards():
    model, fields = golden.model(FAMILY), WAYS["published"]
    request = Request("0", "generate", some_prompts()[1], decoding=fields)
    assert model.loaded.forwards(request) == 15
    assert golden.answers(FAMILY, [request])["0"].nfe <= 15


# -- likelihoods ---------


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_likelihood_is_the_encoder_s(prompt):
    """The chain rule over the encoder's published logits: tokens 1 to 19 in two parts, and greedy ones."""
    t = golden.tensors("forward", FAMILY)
    ids, logits = t["20_prompt"].tolist(), t["20_encoder_logits"].log_softmax(-1)
    cut = min(prompt, 19)
    want = sum(float(logits[i - 1, ids[i]]) for i in range(cut, 20))
    best = int(logits[cut - 1].argmax())
    results = golden.model(FAMILY).loglikelihood(
        [(ids[:cut], ids[cut:]), (ids[:cut], [best]), (ids[:cut], [best, ids[0]])], want_greedy=True
    )
    assert results[0].value == pytest.approx(want, abs=1e-4)
    assert (results[0].estimator, results[0].tier, results[0].stderr) == ("exact", "E1", 0.0)
    assert [result.is_greedy for result in results[:2]] == [False, True]
    assert results[1].value == pytest.approx(float(logits[cut - 1, best]), abs=1e-4)
    request = Request("0", "score", ids[:cut], target=ids[cut:], want_greedy=True)
    assert golden.model(FAMILY).loaded.forwards(request) == results[0].nfe == 2


def test_an_empty_context_is_refused():
    with pytest.raises(Exception, match="an empty context: nothing predicts the target's first token"):
        golden.model(FAMILY).loglikelihood([([], [3, 4])])


# -- what is opened, saved and refused ---------


def test_what_is_opened():
    spec = golden.model(FAMILY).spec
    assert (spec.family, spec.mask_id, spec.noise, spec.block_length) == (FAMILY, None, "uniform", CANVAS)
    assert (spec.eos_ids, spec.pad_id, spec.vocab_size, spec.context_limit) == ((1, 94), 0, 97, 256)
    decoding = golden.model(FAMILY).loaded.resolve({})
    assert (decoding.gen_length, decoding.temperature, decoding.t_min) == (256, 0.8, 0.4)
    assert (decoding.max_denoising_steps, decoding.entropy_bound) == (48, 0.1)
    assert (decoding.stability_threshold, decoding.confidence_threshold) == (1, 0.005)
    assert golden.model(FAMILY).loaded.resolve({"t_max": 0.3}).t_min == 0.3


@torch.no_grad()
def test_the_published_class_reads_what_is_saved(tmp_path):
    """All weights, those of the vision tower included; current versions of the class write sizes layer by layer."""
    published = pytest.importorskip("transformers.models.diffusion_gemma").DiffusionGemmaForBlockDiffusion
    model = golden.model(FAMILY)
    model.save(tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "model.safetensors").keys() == golden.tensors("model", FAMILY).keys()
    theirs = published.from_pretrained(tmp_path / "ours").eval()
    t = golden.tensors("forward", FAMILY)
    out = theirs(input_ids=t["7_prompt"][None], decoder_input_ids=t["7_canvas"][None])
    assert far(out.logits[0], t["7_logits"]) < 1e-4
    theirs.save_pretrained(tmp_path / "theirs")
    again = load(tmp_path / "theirs", device="cpu", dtype="float32")
    ids = t["20_prompt"].tolist()
    assert torch.equal(again.logits(ids), model.logits(ids))
    assert again.is_as_opened()


def test_logits_are_those_of_a_canvas_without_a_prompt():
    model, ids = golden.model(FAMILY), golden.tensors("forward", FAMILY)["5_canvas"]
    with torch.no_grad():
        want = network()(ids, plan=Plan((CANVAS,))).logits
    assert torch.equal(model.logits(ids.tolist()), want)
    with pytest.raises(DecodingError, match="block_length=4: diffusion_gemma has no attention on a grid"):
        model.logits(ids.tolist(), block_length=4)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"t_min": 0.9}, "t_min=0.9 must be at most temperature=0.8"),
        ({"predictions": True}, "predictions=True is not known for this sampler"),
        ({"mask_id": 4}, "mask_id=4: diffusion_gemma has no mask token"),
        ({"rng": "reference", "temperature": 0}, "rng='reference' with temperature=0"),
        ({"strategy": "quota", "entropy_bound": 0.2}, "entropy_bound=0.2 belongs to diffusion_gemma's own strategies"),
        ({"entropy_bound": 0}, "entropy_bound=0"),
    ],
)
def test_wrong_fields_are_one_line(fields, says):
    with pytest.raises(DecodingError, match=says) as seen:
        golden.model(FAMILY).loaded.resolve(fields)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize(("given", "name"), [({"canvas": [5, 6]}, "canvas"), ({"end_forward": 2}, "end_forward")])
def test_rows_start_and_end_with_whole_canvases(given, name):
    """A canvas does not hold what the network predicted for it before, which the next forward is conditioned on."""
    error = golden.error(FAMILY, Request("0", "generate", [5, 6], decoding=WAYS["published"], **given))
    assert name in error and "conditioned" in error
    assert not getattr(golden.model(FAMILY).loaded.capabilities, name)


def test_images_are_refused():
    assert "the prompt holds an image (token id 95)" in golden.error(FAMILY, Request("0", "generate", [5, 95, 6]))


def test_a_mask_id_is_refused():
    with pytest.raises(UsageError, match="mask_id=4: diffusion_gemma has no mask token"):
        load(golden.PARITY / FAMILY, device="cpu", mask_id=4)


def text(**changes):
    return lambda config: config["text_config"].update(changes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (text(hidden_activation="silu"), "hidden_activation='silu'"),
        (text(use_bidirectional_attention="all"), "use_bidirectional_attention='all'"),
        (text(num_experts=None), "num_experts=None; every layer needs experts"),
        (text(top_k_experts=5), "top_k_experts=5; it must be at most num_experts=4"),
        (text(layer_types=["full_attention"] * 2), "for each of num_hidden_layers=3 layers"),
        (text(layer_types=["sliding_attention"] * 3), "full_attention for the last"),
        (text(num_global_key_value_heads=3), "has 3 key heads of 16 channels in full_attention layers"),
        (text(head_dim=7), "has 2 key heads of 7 channels"),
        (text(sliding_window=1), "sliding_window=1; it must be a whole number of at least 2"),
        (text(rope_parameters={"full_attention": {"rope_theta": 1e6}}), "config has rope_parameters="),
        (text(per_layer_config={"2": {"width": 3}}), "config has per_layer_config="),
        (text(head_dim="8"), "head_dim='8'"),
        (lambda config: config.update(text_config=[1]), "it must be an object"),
        (lambda config: config.update(canvas_length=0), "canvas_length=0"),
        (lambda config: config.update(tie_word_embeddings=False), "tie_word_embeddings=False"),
    ],
)
def test_unsupported_configurations_are_one_line(tmp_path, change, says):
    config = json.loads((golden.PARITY / FAMILY / "config.json").read_text())
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(golden.PARITY / FAMILY / "model.safetensors")
    with pytest.raises(CheckpointError, match=says) as seen:
        load(tmp_path, device="cpu")
    assert "\n" not in str(seen.value)


def test_it_is_not_trained():
    with pytest.raises(UsageError, match="no method trains"):
        refuse_untrainable(golden.PARITY / FAMILY, None)
