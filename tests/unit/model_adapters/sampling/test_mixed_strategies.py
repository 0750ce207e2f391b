"""Rows of one strategy but other settings share a forward: each decodes by its own."""

from __future__ import annotations

import golden
import pytest

from dare_bench.types import Request

PROMPT = list(range(1, 10))


def answers(family: str, fields: list[dict], rows: int) -> list[tuple[list[int], int]]:
    requests = [Request(str(i), "generate", PROMPT, decoding=f, seed=7) for i, f in enumerate(fields)]
    result = {s.request.key: s.answer for s in golden.model(family).loaded.generate(requests, max_rows=rows)}
    return [(result[str(i)].tokens, result[str(i)].nfe) for i in range(len(fields))]


@pytest.mark.parametrize(
    ("family", "same", "ways"),
    [
        ("dream", {"alg": "origin", "gen_length": 12}, [{"steps": 4}, {"steps": 12}, {"steps": 12, "eps": 0.3}]),
        ("dream", {"alg": "origin", "temperature": 0.5}, [{"gen_length": 4}, {"gen_length": 16}]),
        (
            "dream",
            {"alg": "confidence_threshold", "gen_length": 12, "threshold": 0.3},
            [{"steps": 3}, {"steps": 12}, {"steps": 6}],
        ),
        ("llada", {"gen_length": 16, "block_length": 8}, [{"steps": 4}, {"steps": 16}]),
        ("sdar", {"gen_length": 12, "temperature": 1.0}, [{"denoising_steps": 1}, {"denoising_steps": 4}]),
        # At this temperature the mask token itself is drawn: rows run to the end of their schedules.
        (
            "llada2",
            {"gen_length": 16, "block_length": 8, "threshold": 1.0, "temperature": 50.0},
            [{"steps": 1}, {"steps": 8}, {"steps": 3}],
        ),
    ],
)
def test_each_row_keeps_its_own_schedule(family, same, ways):
    fields = [{**same, **way} for way in ways]
    alone = answers(family, fields, 1)
    assert answers(family, fields, len(fields)) == alone
    assert answers(family, fields[::-1], 2)[::-1] == alone


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("steps", [1, 2])
def test_the_bound_of_forwards_holds(family, steps):
    model = golden.model(family)
    ways: dict[str, list[dict]] = {
        "llada": [{"steps": steps, "threshold": 1.0}, {"steps": steps, "factor": 0.5}, {"steps": steps}],
        "dream": [{"steps": steps, "alg": "confidence_threshold"}, {"steps": 20, "alg": "origin"}, {"steps": steps}],
        "sdar": [
            {"denoising_steps": steps, "remasking_strategy": s}
            for s in ("entropy_bounded", "sequential", "low_confidence_static", "low_confidence_dynamic")
        ],
        "llada2": [{"steps": steps}, {"editing_threshold": 0.2, "threshold": 0.5, "max_post_steps": 3}],
        "fast_dllm_v2": [{"small_block_size": steps, "cache": cache} for cache in ("exact", "sub_block")],
    }
    kind = {"llada_moe": "llada", "sdar_moe": "sdar", "llada21": "llada2"}.get(family, family)
    for fields in ways[kind]:
        request = Request("0", "generate", PROMPT, decoding={**fields, "gen_length": 16})
        (sample,) = model.loaded.generate([request])
        assert sample.answer.nfe <= model.loaded.forwards(request), fields
