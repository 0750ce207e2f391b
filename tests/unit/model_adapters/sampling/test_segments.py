"""Rows that end after a given forward, and the rows that go on from them: a path in segments is the path at once."""

from __future__ import annotations

import random
from dataclasses import replace

import golden
import pytest
from sampler_ways import WAYS, prompts

from dare_bench.types import Capabilities, Generation, Request

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
