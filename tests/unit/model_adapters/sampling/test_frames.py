"""Turns of one shape as one graph: made once a shape, replayed on the same tensors, with the same answers."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import which

import flash_stand_in
import golden
import pytest
import torch
from graph_stand_in import RecordedGraphs
from sampler_ways import MORE_WAYS as WAYS
from sampler_ways import prompts
from trajectories import close_events

from dare_bench import load
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.backbone.varlen import TorchKernel, VarlenAttention
from dare_bench.model_adapters.frames import CudaGraphs, Frames, StepFrame, compiled
from dare_bench.model_adapters.llada import FAMILY, LLaDAConfig, LLaDAModelLM
from dare_bench.model_adapters.native import NativeModel
from dare_bench.types import LoopStats, ModelSpec, Request

CASES = [(family, way) for family, ways in WAYS.items() for way in ways]


WITHOUT = {("fast_dllm_v2", "sub_block"), *(("dream", way) for way in ("topk_margin", "entropy after top-p"))}
"""Ways without frames: windows that follow the canvas, and strategies without static shapes."""


@pytest.fixture
def framed():
    """Gives a family's model padded attention and frames."""
    opened = []

    def model(family, **arguments):
        loaded = golden.model(family).loaded
        opened.append((loaded, loaded.network.attention))
        loaded.network.attention, loaded.frames = BACKENDS["padded"], Frames(loaded.network, **arguments)
        return golden.model(family)

    yield model
    for loaded, attention in reversed(opened):
        loaded.network.attention, loaded.frames = attention, None


def answers(model, family, way):
    """Tokens, forwards, end and events of four prompts, three rows at a time."""
    fields = {**WAYS[family][way], "trajectory": True}
    got = model.generate(prompts(family)[:4], seed=3, max_rows=3, **fields)
    return [(a.tokens, a.nfe, a.reference_nfe, a.finish_reason, close_events(a)) for a in got]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_steps_of_static_shape_answer_as_others(family, way, framed):
    """As CUDA graphs capture them, by a stand-in that fails on what cannot be captured; and without frames."""
    listed, capture = answers(golden.model(family), family, way), RecordedGraphs()
    model = framed(family, compiler=None, capture=capture)
    assert answers(model, family, way) == listed
    assert (capture.replayed > 0) == ((family, way) not in WITHOUT)
    model.loaded.frames = None
    assert answers(model, family, way) == listed


@pytest.mark.parametrize("strategy", ["rcr", "p2"])
def test_what_strategies_keep_beside_tokens_leaves_a_frame_with_its_rows(strategy, framed):
    """Rows that end while others are inside a block, which move to another batch."""
    lengths = [(4, 2), (12, 9), (6, 3), (12, 7), (4, 4)]
    requests = [
        Request(
            str(i), "generate", [5 + i, 6, 7, 8], decoding={"gen_length": n, "strategy": {"name": strategy, "steps": s}}
        )
        for i, (n, s) in enumerate(lengths)
    ]

    def answered(model, rows):
        return {sample.request.key: sample.answer.tokens for sample in model.loaded.generate(requests, max_rows=rows)}

    alone, capture = answered(golden.model("llada"), 1), RecordedGraphs()
    assert answered(framed("llada", compiler=None, capture=capture), 3) == alone
    assert capture.replayed > 0


def test_near_ties_are_those_of_other_steps(framed, monkeypatch):
    """With a size of 0.02, so that there are some."""
    monkeypatch.setattr("dare_bench.model_adapters.sampling.logits.TIE", 0.02)

    def near(model):
        answers = model.generate(prompts("llada"), max_rows=3, near_tie=True, **WAYS["llada"]["threshold"])
        return [answer.near_tie for answer in answers]

    listed = near(golden.model("llada"))
    assert near(framed("llada", compiler=None, capture=RecordedGraphs())) == listed
    assert {*listed} == {True, False}


def test_two_loops_take_turns_with_one_frame(framed):
    """Answers are pulled from two iterators alternately: each keeps its own rows."""
    asked = [[[3 + (5 * i + j + k) % 40 for j in range(12)] for i in range(4)] for k in range(2)]
    decoding = {"gen_length": 8, "block_length": 4}
    listed = [[a.tokens for a in golden.model("llada").generate(group, **decoding)] for group in asked]
    loaded = framed("llada", compiler=None, capture=RecordedGraphs()).loaded
    requests = [
        [Request(str(i), "generate", tokens, decoding=decoding) for i, tokens in enumerate(group)] for group in asked
    ]
    found = [{}, {}]
    for samples in zip(*(loaded.generate(group, max_rows=2) for group in requests), strict=True):
        for answered, sample in zip(found, samples, strict=True):
            answered[int(sample.request.key)] = sample.answer.tokens
    assert [[answered[i] for i in range(4)] for answered in found] == listed


ONE_SHAPE = {
    "llada": {"gen_length": 8, "block_length": 4, "threshold": 0.5},
    "dream": {"max_new_tokens": 4, "alg": "maskgit_plus"},
    "sdar": {**WAYS["sdar"]["low_confidence_dynamic 4 T=0.8"], "gen_length": 4, "confidence_threshold": 0.9},
    "llada2": {**WAYS["llada2"]["editing"], "gen_length": 4, "block_length": 4},
    "llada_moe": {"gen_length": 8, "block_length": 4},
    "sdar_moe": {"gen_length": 4},
    "fast_dllm_v2": {"max_new_tokens": 4},
}


@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2", "fast_dllm_v2"])
def test_steps_of_one_shape_are_one_graph(family, framed, monkeypatch):
    """Traced once and without a break. Sixteen prompts of one length, two rows at a time, are many packs."""
    asked = [[3 + (5 * i + j) % 40 for j in range(12)] for i in range(16)]
    fields = ONE_SHAPE[family]
    listed = [a.tokens for a in golden.model(family).generate(asked, max_rows=2, **fields)]
    packs, store = [], StepFrame.load
    monkeypatch.setattr(StepFrame, "load", lambda frame, state, view: packs.append(1) or store(frame, state, view))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = framed(family, compiler=partial(compiled, backend="eager"))
    assert [a.tokens for a in model.generate(asked, max_rows=2, **fields)] == listed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 and len(packs) >= 8


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="PyTorch compiles for a CPU with g++, which is not installed")
# One thread: else processes that import PyTorch are started. What the processor can do is not tried by compiling.
@torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True})
def test_compiled_steps_answer_as_others(framed):
    asked, fields = [[3 + j for j in range(12)], [9 + j for j in range(12)]], {"gen_length": 8, "block_length": 4}
    listed = [a.tokens for a in golden.model().generate(asked, **fields)]
    assert [a.tokens for a in framed("llada", compiler=compiled).generate(asked, **fields)] == listed


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize(("family", "fields"), ONE_SHAPE.items())
def test_cuda_graphs_answer_as_others(family, fields):
    """Captured and replayed as they are, and compiled before, for prompts of mixed length in float32; experts, which
    are captured in bfloat16 alone, only as they are."""
    experts = golden.model(family).network.arch.moe is not None
    asked = [[3 + (5 * i + j) % 40 for j in range(8 + 4 * (i % 5))] for i in range(16)]
    found, options = [], {"device": "cuda", "dtype": "bfloat16" if experts else "float32", "attention": "padded"}
    if experts and torch.cuda.get_device_capability()[0] not in (9, 10):
        pytest.skip("experts are captured on GPUs of compute capability 9 and 10")
    for compile in (False, None) if experts else (False, None, True):
        model = load(golden.PARITY / family, compile=compile, **options, **golden.special_ids(family))
        assert (model.loaded.frames is None) == (compile is False)
        found.append([a.tokens for a in model.generate(asked, max_rows=4, **fields)])
    assert all(tokens == found[0] for tokens in found[1:])


def test_small_steps_are_captured_with_padded_attention_and_others_are_not(framed):
    """As on a GPU by default: other forwards keep the network's attention."""
    asked, fields = prompts("llada")[:4], WAYS["llada"]["threshold"]
    listed = [a.tokens for a in golden.model("llada").generate(asked, max_rows=3, **fields)]
    for most, replayed in ((1000, True), (10, False)):
        capture, varlen = RecordedGraphs(), VarlenAttention(TorchKernel(flash_stand_in.grouped))
        model = framed("llada", compiler=None, capture=capture, most_tokens=most)
        model.network.attention = varlen
        assert [a.tokens for a in model.generate(asked, max_rows=3, **fields)] == listed
        assert (capture.replayed > 0) == replayed and model.network.attention is varlen


def test_steps_that_cannot_be_captured_are_made_without_frames(framed, caplog):
    """Of a plugin, say, which reads a value on the host. A warning says why, once, and attention is as before."""
    asked, fields = prompts("llada")[:4], WAYS["llada"]["threshold"]
    listed = [a.tokens for a in golden.model("llada").generate(asked, max_rows=3, **fields)]

    def fails(_):
        raise RuntimeError("operation not permitted when stream is capturing")

    model = framed("llada", compiler=None, capture=fails)
    model.network.attention = varlen = VarlenAttention(TorchKernel(flash_stand_in.grouped))
    assert [a.tokens for a in model.generate(asked, max_rows=3, **fields)] == listed
    assert caplog.text.count("not captured as CUDA graphs: RuntimeError: operation not permitted") == 1
    assert model.network.attention is varlen and not model.loaded.frames.clear()


def test_cached_keys_of_frames_share_their_memory(framed):
    """Each frame copies them before it runs, and one of them runs at a time."""
    asked = [[3 + (5 * i + j) % 40 for j in range(12)] for i in range(12)]
    fields = {"gen_length": 16, "block_length": 8, "cache": "prefix"}
    listed = [a.tokens for a in golden.model("llada").generate(asked, max_rows=12, **fields)]
    model = framed("llada", compiler=None, capture=RecordedGraphs())
    assert [a.tokens for a in model.generate(asked, max_rows=12, **fields)] == listed
    views = [frame.view.view for frame in model.loaded.frames._frames.values()]
    rooms = {(view.reads_RE.shape, view.group): id(view.gathered) for view in views if view.reads_RE is not None}
    assert rooms and len({id(view.gathered) for view in views if view.reads_RE is not None}) == len(rooms)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_frames_are_made_again_after_they_were_dropped():
    """Their memory pool is another one; a second model's graphs go on."""
    options = {"device": "cuda", "dtype": "float32", "attention": "padded", **golden.special_ids("llada")}
    asked, fields = [[3 + (5 * i + j) % 40 for j in range(12)] for i in range(4)], ONE_SHAPE["llada"]
    first, second = load(golden.PARITY / "llada", **options), load(golden.PARITY / "llada", **options)
    want = [a.tokens for a in first.generate(asked, **fields)]
    assert [a.tokens for a in second.generate(asked, **fields)] == want
    assert first.loaded.frames.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert [a.tokens for a in first.generate(asked, **fields)] == want
    del first
    gc.collect()
    assert [a.tokens for a in second.generate(asked, **fields)] == want


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_memory_that_runs_out_while_capturing():
    """Half of the rows wait, and the answers are those of enough memory."""
    torch.manual_seed(0)
    config = LLaDAConfig(
        d_model=256, n_heads=4, n_kv_heads=4, n_layers=2, mlp_hidden_size=512, vocab_size=512, embedding_size=512,
        max_sequence_length=2048, init_std=0.06,
    )  # fmt: skip
    network, spec = LLaDAModelLM(config).cuda().eval(), ModelSpec("llada", 511, (510,), None, 510, 512, 2048)
    network.attention = BACKENDS["padded"]
    decoding = {"gen_length": 32, "block_length": 32, "steps": 8}
    requests = [
        Request(str(i), "generate", [5 + (5 * i + j) % 400 for j in range(1000 + 7 * (i % 5))], decoding=decoding)
        for i in range(64)
    ]
    found, halvings = [], []
    for room in (1 << 34, 400 << 20):
        model = NativeModel(FAMILY, network, None, replace(spec, device="cuda"), Path())
        model.frames = Frames(network, None, CudaGraphs(torch.device("cuda")))
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
        stats = LoopStats()
        try:
            found.append({s.request.key: s.answer.tokens for s in model.generate(requests, max_rows=64, stats=stats)})
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        halvings.append(len(stats.halvings))
    assert found[0] == found[1] and halvings[0] == 0 < halvings[1]
