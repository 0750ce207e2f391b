"""Rows that end after a given forward and rows that go on from them, the response that each forward predicts,
forwards of static shape, and tensors in one buffer."""

from __future__ import annotations

import random
from dataclasses import replace

import golden
import pytest
import torch
from sampler_ways import WAYS, prompts
from trajectories import canvas_before

from dare_bench.diffusion.plan import Cached, Filled, Plan
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.upload import upload
from dare_bench.runs.writer import plain
from dare_bench.types import Capabilities, Decoding, Generation, Request

APPROXIMATE = ("prefix", "dual", "prefix by factor", "sub_block")
WAYS_IN_SEGMENTS = [
    (family, way) for family, ways in WAYS.items() for way in ways if way not in APPROXIMATE and "editing" not in way
]


def asked(family: str, fields: dict) -> list[Request]:
    decoding = {"trajectory": True, "predictions": True, **fields}
    return [
        Request(f"{i}", "generate", prompt, decoding=decoding, seed=100 + i)
        for i, prompt in enumerate(prompts(family)[:4])
    ]


def going_on(request: Request, answer: Generation, forward: int, end_forward: int | None) -> Request:
    """From the end of a segment to the next."""
    assert answer.end_step is not None
    return replace(
        request, canvas=answer.tokens, start_step=answer.end_step, start_forward=forward, end_forward=end_forward
    )


@pytest.mark.parametrize(("family", "way"), WAYS_IN_SEGMENTS)
def test_a_path_in_segments_is_the_path_at_once(family: str, way: str) -> None:
    """Three segments of random lengths, beside rows that do not end, with the same seed: tokens, events, log-
    probabilities, predictions and forwards."""
    requests = asked(family, WAYS[family][way])
    per_forward = golden.model(family).loaded.sampler(requests[0])[1].passes_per_forward
    whole, rng = golden.answers(family, requests), random.Random(1)
    long = [request for request in requests if whole[request.key].nfe // per_forward >= 3]
    assert long
    ends = {r.key: sorted(rng.sample(range(1, whole[r.key].nfe // per_forward), 2)) for r in long}
    beside = [replace(r, key=f"{r.key} whole") for r in requests]
    first = golden.answers(family, [*(replace(r, end_forward=ends[r.key][0]) for r in long), *beside], 5)
    second = golden.answers(family, [going_on(r, first[r.key], *ends[r.key]) for r in long], 4)
    third = golden.answers(family, [going_on(r, second[r.key], ends[r.key][1], None) for r in long], 3)
    for r in requests:
        assert first[f"{r.key} whole"].tokens == whole[r.key].tokens, "a neighbor's end changes nothing"
    for request in long:
        parts, wanted = [part[request.key] for part in (first, second, third)], whole[request.key]
        assert parts[2].end_step is None and wanted.end_step is None
        assert (parts[2].tokens, parts[2].text) == (wanted.tokens, wanted.text)
        assert parts[2].finish_reason == wanted.finish_reason
        events = [event for part in parts for event in part.trajectory]
        assert [event[:4] for event in events] == [event[:4] for event in wanted.trajectory]
        assert [e.logprob for e in events] == pytest.approx([e.logprob for e in wanted.trajectory], abs=1e-5)
        assert [seen for part in parts for seen in part.predictions] == wanted.predictions
        forwards = [part.nfe // per_forward for part in parts]
        assert forwards[:2] == [ends[request.key][0], ends[request.key][1] - ends[request.key][0]]
        assert sum(part.nfe for part in parts) == wanted.nfe and parts[0].reference_nfe == parts[0].nfe


def test_a_segment_is_the_canvas_after_its_forward() -> None:
    """Six tokens in six forwards of two blocks: the end inside a block, at its end, and beyond the answer."""
    fields = {"gen_length": 6, "block_length": 3, "trajectory": True, "temperature": 0.8}
    request = Request("0", "generate", prompts("llada")[1], decoding=fields, seed=3)
    whole, mask_id = golden.answers("llada", [request])["0"], golden.model("llada").spec.mask_id
    order = [event.position for event in whole.trajectory]
    for end_forward, step in ((1, 1), (2, 2), (3, 0), (4, 1)):
        part = golden.answers("llada", [replace(request, end_forward=end_forward)])["0"]
        written = order[:end_forward]
        assert part.tokens == [token if i in written else mask_id for i, token in enumerate(whole.tokens)]
        assert (part.end_step, part.residual_masks, part.nfe) == (step, 6 - end_forward, end_forward)
    for end_forward in (6, 7):
        part = golden.answers("llada", [replace(request, end_forward=end_forward)])["0"]
        assert (part.tokens, part.end_step, part.reference_nfe) == (whole.tokens, None, whole.reference_nfe)


def test_a_canvas_of_blocks_is_whole_blocks() -> None:
    """The last block of a block-causal response may reach beyond ``gen_length``; a segment has all of it."""
    fields = {"gen_length": 5, "block_length": 4, "remasking_strategy": "low_confidence_static", "denoising_steps": 4}
    request = Request("0", "generate", list(range(20, 26)), decoding=fields, seed=3)
    part = golden.answers("sdar", [replace(request, end_forward=3)])["0"]
    assert len(part.tokens) == 6
    assert (
        golden.answers("sdar", [going_on(request, part, 3, None)])["0"].tokens
        == golden.answers("sdar", [request])["0"].tokens
    )


def test_rows_of_other_seeds_go_on_apart_from_one_canvas() -> None:
    fields = {"gen_length": 8, "temperature": 1.5, "trajectory": True}
    request = Request("0", "generate", prompts("llada")[2], decoding=fields, seed=3, end_forward=4)
    part = golden.answers("llada", [request])["0"]
    later = [replace(going_on(request, part, 4, None), key=str(i), seed=50 + i) for i in range(6)]
    result = golden.answers("llada", later, 4)
    kept = [i for i, token in enumerate(part.tokens) if token != golden.model("llada").spec.mask_id]
    assert len(kept) == 4 and len({tuple(answer.tokens) for answer in result.values()}) > 3
    assert all(answer.tokens[i] == part.tokens[i] for answer in result.values() for i in kept)


@pytest.mark.parametrize(
    ("family", "fields", "decoding", "says"),
    [
        ("llada", {"end_forward": 0}, {}, "end_forward=0 must be a whole number above start_forward=0"),
        ("llada", {"end_forward": 1.5}, {}, "end_forward=1.5 must be a whole number"),
        (
            "llada",
            {"end_forward": 2, "canvas": [1], "start_forward": 2},
            {},
            "end_forward=2 must be a whole number above start_",
        ),
        ("llada", {"end_forward": 2}, {"rng": "reference", "temperature": 0.5}, "end_forward=2 with rng='reference'"),
        ("llada21", {"end_forward": 2}, {"editing_threshold": 0.5}, "end_forward=2 with a strategy that edits"),
    ],
)
def test_an_end_that_cannot_be_is_said_in_one_line(family: str, fields: dict, decoding: dict, says: str) -> None:
    block = {"block_length": 6} if family == "llada" else {"block_length": 8}
    request = Request("0", "generate", [5], decoding={"gen_length": 12, **block, **decoding}, **fields)
    message = golden.error(family, request)
    assert says in message and "\n" not in message


def test_a_model_says_whether_it_ends_rows() -> None:
    assert golden.model("llada").loaded.capabilities.end_forward and not Capabilities().end_forward


EACH = [(family, way) for family, ways in WAYS.items() for way in ways if way != "cfg"]


@pytest.mark.parametrize(("family", "way"), EACH)
def test_open_masks_take_what_the_forward_proposes(family: str, way: str) -> None:
    """Every written token is in the prediction of its forward, what was written before stays, and masks are left only
    behind the block. Beside a row that records nothing."""
    loaded = golden.model(family).loaded
    decoding = {"trajectory": True, "predictions": True, **WAYS[family][way]}
    requests = [Request(str(i), "generate", p, decoding=decoding, seed=i) for i, p in enumerate(prompts(family)[:4])]
    silent = Request("silent", "generate", [1, 2], decoding={**WAYS[family][way]}, seed=1)
    answers = {s.request.key: s.answer for s in loaded.generate([*requests, silent])}
    assert answers["silent"].predictions is None
    mask_id = loaded.spec.mask_id
    for request in requests:
        answer = answers[request.key]
        _, sampler = loaded.sampler(request)
        length, prompt = sampler.gen_length, len(request.prompt)
        assert len(answer.predictions) == answer.nfe
        for step, prediction in enumerate(answer.predictions):
            assert len(prediction) == length
            before = canvas_before(answer.trajectory, step, sampler.canvas_length(prompt), mask_id)
            written = {
                e.position: e.token for e in answer.trajectory if e.step == step and before[e.position] == mask_id
            }
            assert all(prediction[i] == token for i, token in written.items() if i < length)
            open_places = [i for i in range(length) if before[i] == mask_id]
            assert all(prediction[i] == before[i] for i in range(length) if i not in open_places)
            if written:
                last = max(written) + prompt - sampler.origin(prompt)
                end = sampler.origin(prompt) + (last // sampler.block_length + 1) * sampler.block_length - prompt
                assert all(prediction[i] == mask_id for i in open_places if i >= end), "behind the block"


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_greedy_predictions_are_the_argmax(family: str) -> None:
    loaded, prompt = golden.model(family).loaded, [5, 6, 7]
    fields = {"gen_length": 5, "block_length": 8} if family in golden.BLOCK_CAUSAL else {"gen_length": 5}
    decoding = {"trajectory": True, "predictions": True, "temperature": 0.0, "early_stop": False, **fields}
    (sample,) = loaded.generate([Request("0", "generate", prompt, decoding=decoding)])
    answer, mask_id = sample.answer, loaded.spec.mask_id
    for step, prediction in enumerate(answer.predictions):
        before = canvas_before(answer.trajectory, step, 5, mask_id)
        best_L = loaded.logits([*prompt, *before], fields.get("block_length"))[len(prompt) :].argmax(-1)
        wanted_L = torch.where(torch.tensor(before) == mask_id, best_L, torch.tensor(before))
        assert prediction == wanted_L.tolist()
    assert mask_id not in answer.predictions[0]


def test_they_are_no_part_of_a_runs_identity() -> None:
    loaded = golden.model("llada").loaded
    assert "predictions" in Decoding.hidden
    assert plain(loaded.resolve({"predictions": True}).model_dump()) == plain(loaded.resolve({}).model_dump())


@pytest.fixture
def padded():
    """Opens a family's model with padded attention."""
    opened = []

    def model(family):
        network = golden.model(family).loaded.network
        opened.append((network, network.attention))
        network.attention = BACKENDS["padded"]
        return golden.model(family)

    yield model
    for network, attention in opened:
        network.attention = attention


RUNS = {
    "llada": ({"block_length": 32}, ({"gen_length": 64, "steps": 8}, {"gen_length": 32, "steps": 2})),
    "sdar": (
        {"block_length": 4, "remasking_strategy": "low_confidence_static", "denoising_steps": 2},
        ({"gen_length": 8}, {"gen_length": 4}),
    ),
}


@pytest.mark.parametrize("family", RUNS)
def test_a_run_meets_few_shapes_with_little_padding(family, padded, monkeypatch):
    """200 requests with prompts of 10 to 190 tokens, 16 at a time."""
    rng, vocab = random.Random(0), golden.cases(family)["meta"]["prompt_vocab"]
    common, lengths = RUNS[family]
    requests = [
        Request(str(i), "generate", [rng.randrange(vocab) for _ in range(rng.randint(10, 190))]) for i in range(200)
    ]
    requests = [replace(r, decoding={**common, **lengths[i % len(lengths)]}) for i, r in enumerate(requests)]
    shapes, computed, needed = set(), 0, 0
    forward = DeviceState.forward

    def counted(state, network):
        nonlocal computed, needed
        pack = state.pack
        view = pack.plan.padded(state.canvas_T.device).view
        tables = (state.canvas_T, state.schedule_RS, pack.candidates.at_N, view.mask)
        shapes.add((pack.plan.tokens, pack.candidates.width, *(table.shape for table in tables)))
        computed += pack.plan.tokens
        needed += sum(stop - start for start, stop in (row.window() for row in state.rows))
        return forward(state, network)

    monkeypatch.setattr(DeviceState, "forward", counted)
    assert all(sample.error is None for sample in padded(family).loaded.generate(requests, max_rows=16))
    assert len(shapes) <= 24
    assert 1 < computed / needed <= 1.2


META = torch.device("meta")


def test_tensors_of_all_dtypes_are_parts_of_one_buffer():
    tensors = {
        "flag": torch.tensor(True),
        "bytes": torch.tensor([True, False, True]),
        "ids": torch.arange(6).view(2, 3),
        "float": torch.tensor([0.5, 2.0]),
        "none": torch.zeros(0, dtype=torch.long),
        "double": torch.tensor([1.5], dtype=torch.float64),
    }
    assert upload(tensors, torch.device("cpu")) == tensors
    there = upload(tensors, META)
    assert {name: (x.shape, x.dtype) for name, x in there.items()} == {
        n: (x.shape, x.dtype) for n, x in tensors.items()
    }
    assert {x.device for x in there.values()} == {META}
    assert len({x.untyped_storage()._cdata for x in there.values()}) == 1


class Elsewhere:
    """A device other than the CPU, to which buffers are not moved, so that their values can be read."""

    type = "elsewhere"


def test_values_survive_the_buffer(monkeypatch):
    tensors = {"a": torch.tensor([True, False]), "b": torch.arange(5), "c": torch.tensor([[0.5], [3.0]])}
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self)
    there = upload(tensors, Elsewhere())  # type: ignore[arg-type]
    assert all(torch.equal(there[name], x) for name, x in tensors.items())


@pytest.mark.parametrize("filled", [None, Filled(rows=5, length=8, cached=6)])
@pytest.mark.parametrize("reads", [(), ((3, 4), (7,), ()), ((1, 2), (3, 4), (5, 6))])
def test_a_plan_with_its_tables_attends_as_one_without(filled, reads):
    slots = tuple(torch.tensor(row, dtype=torch.long) for row in reads)
    none = torch.zeros(0, dtype=torch.long)
    cached = Cached(None, slots, none, none, steady=True) if slots else None  # type: ignore[arg-type]
    plan, placed = (Plan((3, 5, 5), 4, cached=cached, filled=filled) for _ in range(2))
    placed.place(placed.tables(), torch.device("cpu"))
    one, two = plan.padded(torch.device("cpu")), placed.padded(torch.device("cpu"))
    for a, b in ((one, two), (one.view, two.view)):
        for name, x in vars(a).items():
            if isinstance(x, torch.Tensor):
                assert torch.equal(x, getattr(b, name)), name
            elif name != "view":
                assert x == getattr(b, name), name
