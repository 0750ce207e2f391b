"""Rows that start from a given canvas: they go on as the row would have that the canvas is from."""

from __future__ import annotations

import random

import golden
import pytest
from sampler_ways import WAYS, prompts
from trajectories import canvas_before

from dare_bench.types import Event, Generation, Request

APPROXIMATE = ("prefix", "dual", "prefix by factor", "sub_block")
EXACT = [(family, way) for family, ways in WAYS.items() for way in ways if way not in APPROXIMATE]
CACHED = [(family, way) for family, ways in WAYS.items() for way in ways if way in APPROXIMATE]


class Blocks:
    """The grid of a request's response, and what a canvas says of the forwards so far."""

    def __init__(self, family: str, request: Request) -> None:
        _, self.sampler = golden.model(family).loaded.sampler(request)
        self.prompt = len(request.prompt)
        self.mask_id = golden.model(family).spec.mask_id

    @property
    def length(self) -> int:
        """Response tokens in whole blocks."""
        return self.sampler.canvas_length(self.prompt) - self.prompt

    def block(self, position: int) -> int:
        return (self.prompt + position - self.sampler.origin(self.prompt)) // self.sampler.block_length

    def start(self, events: list[Event], forward: int) -> tuple[list[int], int]:
        """The canvas before a forward, and the forwards that its first block with masks had. A block begins with the
        forward after the last one that wrote into an earlier block, which holds where tokens are not edited."""
        canvas = canvas_before(events, forward, self.length, self.mask_id)
        block = self.block(canvas.index(self.mask_id))
        earlier = [event.step for event in events if self.block(event.position) < block and event.step < forward]
        return canvas, forward - (max(earlier, default=-1) + 1)


def asked(family: str, fields: dict) -> list[Request]:
    decoding = {"trajectory": True, **fields}
    decoding.pop("eos_early_stop", None)
    return [
        Request(f"{i}", "generate", prompt, decoding=decoding, seed=100 + i)
        for i, prompt in enumerate(prompts(family)[:4])
    ]


def later(request: Request, tag: str, canvas: list[int], step: int, forward: int) -> Request:
    return Request(
        f"{request.key} {tag}",
        "generate",
        request.prompt,
        decoding=request.decoding,
        seed=request.seed,
        canvas=canvas,
        start_step=step,
        start_forward=forward,
    )


def known(result: Generation, forward: int) -> tuple:
    """What a row did from forward ``forward`` on."""
    events = [(e.step, e.op, e.position, e.token) for e in result.trajectory if e.step >= forward]
    return result.tokens, result.finish_reason, events


@pytest.mark.parametrize(("family", "way"), EXACT)
def test_a_row_that_goes_on_gives_the_same_tokens(family: str, way: str) -> None:
    """From the canvas after every forward that left a mask in its block, with the same seed, beside ordinary rows."""
    requests = asked(family, WAYS[family][way])
    ordinary = golden.answers(family, requests)
    wanted, continued = {}, []
    for request in requests:
        blocks, whole = Blocks(family, request), ordinary[request.key]
        for forward in range(1, whole.nfe // blocks.sampler.passes_per_forward):
            canvas, step = blocks.start(whole.trajectory, forward)
            if "editing" in way and blocks.block(canvas.index(blocks.mask_id)) > 0:
                break  # whether the block before is still edited cannot be seen from the canvas
            continued.append(later(request, str(forward), canvas, step, forward))
            wanted[continued[-1].key] = whole, forward
    assert len(continued) >= 3
    mixed = random.Random(2).sample([*continued, *requests], len(continued) + len(requests))
    result = golden.answers(family, mixed, 7)
    per_forward = Blocks(family, requests[0]).sampler.passes_per_forward
    for key, (whole, forward) in wanted.items():
        assert known(result[key], forward) == known(whole, forward), key
        assert result[key].nfe == result[key].reference_nfe == whole.nfe - forward * per_forward
    for request in requests:
        assert known(result[request.key], 0) == known(ordinary[request.key], 0)


@pytest.mark.parametrize(("family", "way"), CACHED)
def test_an_approximate_cache_starts_anew_at_a_block(family: str, way: str) -> None:
    """At the beginning of a block the row gives the same tokens; inside, given tokens stay and the rest is filled."""
    requests = asked(family, WAYS[family][way])
    ordinary = golden.answers(family, requests)
    at_blocks, inside = [], []
    for request in requests:
        blocks, whole = Blocks(family, request), ordinary[request.key]
        for forward in range(1, whole.nfe):
            canvas, step = blocks.start(whole.trajectory, forward)
            (inside if step else at_blocks).append((later(request, str(forward), canvas, step, forward), forward))
    assert at_blocks and inside
    result = golden.answers(family, [request for request, _ in [*at_blocks, *inside]], 5)
    for request, forward in at_blocks:
        assert known(result[request.key], forward) == known(ordinary[request.key.split()[0]], forward)
    for request, _ in inside:
        assert result[request.key].residual_masks == 0
        mask_id, tokens = golden.model(family).spec.mask_id, result[request.key].tokens
        assert all(before in (mask_id, token) for before, token in zip(request.canvas, tokens, strict=False))


LENGTH = 12
ANY = {
    "llada": {"block_length": 6, "steps": 4},
    "llada_moe": {"block_length": 4, "threshold": 0.5},
    "dream": {"steps": 5, "alg": "maskgit_plus"},
    "sdar": {"block_length": 4, "denoising_steps": 2, "remasking_strategy": "low_confidence_static"},
    "sdar_moe": {"block_length": 4, "denoising_steps": 3},
    "llada2": {"block_length": 8, "steps": 3},
    "fast_dllm_v2": {"block_length": 8, "small_block_size": 2, "threshold": 0.4, "eos_id": ()},
}


@pytest.mark.parametrize("cache", [None, "dual", "none"])
@pytest.mark.parametrize("family", ANY)
def test_any_canvas_keeps_its_tokens_and_is_filled(family: str, cache: str | None) -> None:
    """Holes anywhere, canvases shorter than the response, every step of the schedule."""
    causal = family in golden.BLOCK_CAUSAL
    fields = {**ANY[family], "trajectory": True, "gen_length": LENGTH, "early_stop": False}
    if (cache == "dual" and causal) or (cache is None and not causal):
        pytest.skip("only the bidirectional families have approximate caches, and only the others an exact one")
    if cache is not None:
        fields["cache"] = cache
    if family == "dream" and cache == "dual":
        fields = {**fields, "block_length": 6, "steps": 6, "alg": "entropy"}
    rng, requests = random.Random(7), []
    mask_id = golden.model(family).spec.mask_id
    for i in range(8):
        canvas = [mask_id if rng.random() < 0.5 else rng.randrange(100) for _ in range(rng.randrange(LENGTH + 1))]
        step = 0 if family == "dream" and cache == "dual" else i % 2
        prompt = prompts(family)[i % 3]
        requests.append(Request(str(i), "generate", prompt, decoding=fields, seed=i, canvas=canvas, start_step=step))
    together = golden.answers(family, requests, 5)
    for request in requests:
        result = together[request.key]
        assert result.tokens == golden.answers(family, [request])[request.key].tokens
        assert result.residual_masks == 0 and len(result.tokens) == LENGTH
        for before, after in zip(request.canvas, result.tokens, strict=False):
            assert before in (mask_id, after), "a given token never changes"
        steps = [event.step for event in result.trajectory]
        assert steps == sorted(steps) and min(steps, default=request.start_step) >= request.start_step


def test_a_canvas_without_masks_costs_nothing() -> None:
    request = Request("0", "generate", [5, 6], decoding={"gen_length": 4, "trajectory": True}, canvas=[1, 2, 3, 4])
    (result,) = golden.answers("llada", [request]).values()
    assert (result.tokens, result.nfe, result.trajectory) == ([1, 2, 3, 4], 0, [])


def test_a_strategy_that_edits_may_replace_given_tokens() -> None:
    fields = {"gen_length": 8, "block_length": 8, "editing_threshold": 0.0, "threshold": 0.5, "trajectory": True}
    mask_id = golden.model("llada21").spec.mask_id
    canvas = [3, 1, 4, mask_id, mask_id, mask_id, mask_id, mask_id]
    prompt = prompts("llada21")[2][:8]
    (result,) = golden.answers("llada21", [Request("0", "generate", prompt, decoding=fields, canvas=canvas)]).values()
    assert {event.position for event in result.trajectory} & {0, 1, 2}


@pytest.mark.parametrize("family", golden.BLOCK_CAUSAL)
def test_written_blocks_are_committed_like_the_prompt(family: str) -> None:
    """A canvas with two finished blocks decodes as if they were the end of the prompt."""
    prompt, blocks = prompts(family)[1][:8], [9, 8, 7, 6, 5, 4, 3, 2]
    fields = {"block_length": 4, "temperature": 0.8, "early_stop": False}
    given = Request("c", "generate", prompt, decoding={**fields, "gen_length": 16}, seed=4, canvas=blocks)
    plain = Request("p", "generate", [*prompt, *blocks], decoding={**fields, "gen_length": 8, "temperature": 0}, seed=4)
    greedy = Request("g", "generate", prompt, decoding={**given.decoding, "temperature": 0}, seed=4, canvas=blocks)
    result = golden.answers(family, [given, plain, greedy])
    assert result["c"].tokens[:8] == blocks and result["g"].tokens == [*blocks, *result["p"].tokens]
    assert result["g"].nfe == result["p"].nfe


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"canvas": [1] * 13}, "a canvas of 13 tokens with gen_length=12: at most 12"),
        ({"canvas": [1, 168]}, "token id 168 is outside the vocabulary"),
        ({"canvas": ["a"]}, "canvas item 'a' is not a token id"),
        ({"canvas": 3}, "canvas 3 is not a sequence"),
        ({"canvas": [1], "start_step": -1}, "start_step=-1 must be a whole number of at least 0"),
        ({"canvas": [1], "start_step": True}, "start_step=True must be a whole number"),
        ({"canvas": [1], "start_forward": 1.5}, "start_forward=1.5 must be a whole number"),
        ({"start_step": 2}, "start_step=2 goes on from a given canvas"),
        ({"canvas": [1], "start_step": 6}, "start_step=6 must be less than the 6 forwards of a block"),
        ({"canvas": [1], "rng": "reference", "temperature": 0.5}, "rng='reference'"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line(fields: dict, says: str) -> None:
    decoding = {"gen_length": 12, "block_length": 6}
    decoding |= {name: fields.pop(name) for name in ("rng", "temperature") if name in fields}
    message = golden.error("llada", Request("0", "generate", [5], decoding=decoding, **fields))
    assert says in message and "\n" not in message


def test_dream_with_a_cache_refuses_an_open_first_token_inside_a_block() -> None:
    decoding = {"gen_length": 8, "block_length": 4, "cache": "dual"}
    request = Request("0", "generate", [5], decoding=decoding, canvas=[], start_step=1)
    assert "first token is open" in golden.error("dream", request)
