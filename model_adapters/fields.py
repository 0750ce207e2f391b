"""Checks that several families' decoding schemas share. Each raises ValueError with the value and what is allowed."""

from __future__ import annotations

from pydantic import ValidationError

from dare_bench.config import not_valid, reason


def first_error(error: ValidationError) -> str:
    """The first error in one line: our own words where we wrote the check, the field and value in any case."""
    first = error.errors()[0]
    text = str(first["msg"]).removeprefix("Value error, ")
    if not first["loc"]:
        return text
    allowed = first.get("ctx", {}).get("expected")
    field = ".".join(part for part in first["loc"] if isinstance(part, str))
    return not_valid(field, first["input"], f"allowed are {allowed}" if allowed else reason(first))


def divisors(n: int, most: int = 12) -> str:
    """The divisors of n for a message, the middle left out where there are many."""
    every = [str(i) for i in range(1, n + 1) if n % i == 0]
    return ", ".join(every if len(every) <= most else [*every[: most - 1], "...", every[-1]])


MAX_COUNT = 65_536
"""Most tokens, blocks or steps of one answer; published settings stay below 33,000."""


def counts(**values: int | None) -> None:
    for name, value in values.items():
        if value is None or value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
        if value > MAX_COUNT:
            raise ValueError(f"{name}={value} must be at most {MAX_COUNT:,}")


def not_negative(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value < 0:
            raise ValueError(f"{name}={value} must be 0 or more")


def divides(gen_length: int, block_length: int) -> None:
    """Whole blocks."""
    if gen_length % block_length:
        raise ValueError(
            f"gen_length={gen_length} is not divisible by block_length={block_length}; "
            f"allowed block lengths: {divisors(gen_length)}"
        )


def steps_fit(steps: int, blocks: int) -> None:
    """As many steps in every block."""
    if steps % blocks:
        raise ValueError(
            f"steps={steps} is not divisible by the number of blocks, gen_length/block_length={blocks}; "
            f"nearest allowed: {max(blocks, steps // blocks * blocks)} or {(steps // blocks + 1) * blocks}"
        )


def keeps_text(early_stop: bool | None, text_after_eos: str, name: str = "early_stop") -> None:
    """Text after EOS cannot be kept by a row that stops there."""
    if early_stop and text_after_eos == "keep":
        raise ValueError(
            f"{name}=True with text_after_eos='keep' would lose the text after EOS; "
            f"use text_after_eos='cut' or {name}=False"
        )


def sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Temperature, top-k and top-p in their ranges."""
    if temperature < 0:
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or more")
    if top_k is not None and top_k < 0:
        raise ValueError(f"top_k={top_k} must be 0 (off) or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1 (off)")
