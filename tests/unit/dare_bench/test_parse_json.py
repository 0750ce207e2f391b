"""``parse_json``: how deep a value may be nested."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dare_bench.reading import MAX_DEPTH, parse_json


def nested(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_limited_and_brackets_are_not(kind: type) -> None:
    allowed = [nested(MAX_DEPTH - 1, kind), *[nested(1, kind)] * MAX_DEPTH]
    assert parse_json(json.dumps(allowed)) == allowed
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_DEPTH} levels"):
        parse_json(json.dumps(nested(MAX_DEPTH + 1, kind)))


@pytest.mark.parametrize("unique", [False, True])
def test_a_small_number_is_itself(unique: bool) -> None:
    assert parse_json("[5e-324, -1e-101, -0.25, 7]", unique=unique) == [5e-324, -1e-101, -0.25, 7]
