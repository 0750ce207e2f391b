"""Which documents a run holds, and what a second command makes of them."""

from __future__ import annotations

import itertools
import math

import pytest

from dare_bench.engine.scope import Scope, joined
from dare_bench.errors import UsageError

TOTALS = {"a": 10, "b": 4}
LIMITS = (None, 1, 2, 4, 5, 10, 99, 0.1, 0.5, 0.75)
CHOSEN = ({"a": [1, 2], "b": [0]}, {"a": [1]}, {"a": [0, 1], "b": [0, 1]}, {"b": [3]})
SCOPES = [Scope.of(limit, None) for limit in LIMITS] + [Scope.of(None, chosen) for chosen in CHOSEN]


def documents(scope: Scope) -> set[tuple[str, int]]:
    """The plain meaning, against which ``covers`` is held."""
    result = set()
    for task, total in TOTALS.items():
        if scope.samples is not None and task in scope.samples:
            ids = set(scope.samples[task])
        elif scope.limit is None:
            ids = set(range(total))
        else:
            ids = set(range(min(total, math.ceil(total * scope.limit) if scope.limit < 1 else int(scope.limit))))
        result |= {(task, i) for i in ids}
    return result


def test_covers_is_inclusion() -> None:
    for held, asked in itertools.product(SCOPES, SCOPES):
        assert held.covers(asked, TOTALS) == (documents(asked) <= documents(held)), (held, asked)


def test_joined_loses_nothing() -> None:
    for held, asked in itertools.product(SCOPES, SCOPES):
        try:
            whole = joined(held, asked, TOTALS)
        except UsageError as error:
            assert "--fresh" in str(error)
            covered = documents(asked) <= documents(held) or documents(held) <= documents(asked)
            assert not covered, (held, asked)
        else:
            assert documents(whole) == documents(held) | documents(asked), (held, asked)


def test_a_share_of_an_unknown_number_is_covered_by_all_alone() -> None:
    unknown = {"a": None}
    assert Scope().covers(Scope.of(0.5, None), unknown)
    assert not Scope.of(50, None).covers(Scope.of(0.5, None), unknown)
    assert not Scope.of(0.5, None).covers(Scope.of(50, None), unknown)
    assert not Scope.of(50, None).covers(Scope(), unknown)


def test_reading() -> None:
    assert Scope.of(2.0, None) == Scope.of(2, None)
    assert Scope.of(None, {"a": [2, 1, 2]}).plain() == {"limit": None, "samples": {"a": [1, 2]}}
    with pytest.raises(UsageError, match="exclude"):
        Scope.of(1, {"a": [1]})
