"""How processes and heads are divided by sequence parallelism."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from table_policy import SPEC

from dare_bench.errors import UsageError
from dare_bench.training.processes import check_heads, data_parallel_size


def test_the_groups_are_those_of_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert [data_parallel_size(size) for size in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert data_parallel_size(3, 6) == 2
    with pytest.raises(UsageError, match="give 1, 2, 4, 8, or start a multiple of 3 processes"):
        data_parallel_size(3)


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 32), (32, 8), (28, 4), (12, 4), (16, 1)])
def test_a_group_is_allowed_if_the_queries_of_each_rank_are_those_of_its_keys(heads: int, kv_heads: int) -> None:
    """Query head h reads key head h * kv_heads / heads. A rank has a row of query heads, and of the repeated keys."""
    for size in range(1, heads + 1):
        repeated = [key for key in range(kv_heads) for _ in range(math.lcm(kv_heads, size) // kv_heads)]
        fits = heads % size == 0 and heads % len(repeated) == 0
        if fits:
            mine = [repeated[r * len(repeated) // size : (r + 1) * len(repeated) // size] for r in range(size)]
            own = [list(range(r * heads // size, (r + 1) * heads // size)) for r in range(size)]
            for queries, keys in zip(own, mine, strict=True):
                reads = [keys[i * len(keys) // len(queries)] for i in range(len(queries))]
                assert reads == [head * kv_heads // heads for head in queries]
            check_heads(replace(SPEC, heads=heads, kv_heads=kv_heads), size)
        else:
            with pytest.raises(UsageError, match=f"size={size} does not divide the {heads} attention heads"):
                check_heads(replace(SPEC, heads=heads, kv_heads=kv_heads), size)


def test_a_network_that_does_not_say_its_heads_computes_alone() -> None:
    check_heads(SPEC, 1)
    with pytest.raises(UsageError, match="the network of toy does not state their number"):
        check_heads(SPEC, 2)
