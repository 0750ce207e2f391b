"""What a reader of one token reads: the files that a step enters, and their lines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import Any

import dare_bench
from dare_bench.model_adapters import sampling

HERE = Path(sampling.__file__).parent


def test_a_token_passes_few_files() -> None:
    """From a mask to its token at most 840 lines of code are entered, 90 % of them in at most 12 files of together
    1,810 lines. The rest are single lines, such as those of a policy that is absent."""
    model = dare_bench.load("tiny-llada", device="cpu")
    entered: set[CodeType] = set()

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(HERE):
            entered.add(frame.f_code)

    sys.setprofile(note)
    try:
        model.generate([[5, 6, 7, 8]], gen_length=8)
    finally:
        sys.setprofile(None)
    lines: dict[Path, int] = {}
    for code in entered:
        own = {line for _, _, line in code.co_lines() if line is not None}
        lines[Path(code.co_filename)] = lines.get(Path(code.co_filename), 0) + len(own)
    walk, total = list[Path](), sum(lines.values())
    for file in sorted(lines, key=lambda file: -lines[file]):
        if sum(lines[read] for read in walk) < 0.9 * total:
            walk.append(file)
    assert total <= 840, lines
    assert len(walk) <= 12, lines
    assert sum(len(file.read_text().splitlines()) for file in walk) <= 1810, lines
