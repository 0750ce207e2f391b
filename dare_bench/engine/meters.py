"""Costs of samples and runs.

A row's NFE counts the forward passes it took part in; TPF is the number of tokens through the first EOS, divided by
NFE; speed is these tokens per second of generating. A resumed run sums over its samples; its peak memory is that of its
largest session. Seconds are device seconds: those of parallel workers add up.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.engine.environment import cuda
from dare_bench.runs.schema import Cost
from dare_bench.types import Generation, Tier


def raw_tokens(answer: Generation) -> int:
    """Tokens of an answer, with those after an EOS; as the engine reports them where it returns no ids."""
    return max(len(answer.tokens), answer.tokens_to_eos)


def decoded_tokens(answer: Generation) -> int:
    """Tokens that the sampler wrote, including those after an EOS; from the trajectory if there is one."""
    if answer.trajectory is not None:
        return len({event.position for event in answer.trajectory if event.op in ("set", "insert")})
    return raw_tokens(answer) - answer.residual_masks


def peak_memory_mb() -> float:
    """Peak memory of this process in MiB: of the GPU if in use, else resident."""
    if (gpu := cuda()) is not None and gpu.is_initialized():
        return float(gpu.max_memory_allocated()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**10 if sys.platform != "darwin" else peak / 2**20


@dataclass(slots=True)
class Meter:
    """Sums over the answers of a run or task, by their entries in samples files."""

    requests: int = 0
    nfe: int = 0
    generate_nfe: int = 0
    tokens: int = 0
    tokens_to_eos: int = 0
    decoded: int = 0
    tiers: set[Tier | None] = field(default_factory=set)

    def add(self, lines: Iterable[Mapping[str, Any]]) -> Meter:
        """Add these entries; returns itself."""
        for line in lines:
            self.requests += 1
            self.nfe += line["nfe"]
            self.tiers.add(line["tier"])
            if line["kind"] == "generate":
                self.generate_nfe += line["nfe"]
                self.tokens += line["tokens"]
                self.tokens_to_eos += line["tokens_to_eos"]
                self.decoded += line["decoded_tokens"]
        return self

    @property
    def counted_nfe(self) -> int | None:
        """Forward passes of all samples; None where the engine reports none."""
        return self.nfe if self.nfe or not self.requests else None

    def cost(self, sessions: Sequence[Mapping[str, Any]]) -> Cost:
        """The run's cost. ``sessions``: the last cost record of each session (its seconds, loop statistics, memory)."""
        seconds = sum(float(s["seconds"]) for s in sessions)
        generating = sum(float(s.get("generate_seconds", s["seconds"])) for s in sessions)
        rows = sum(int(s["row_forwards"]) for s in sessions)
        slots = sum(int(s["slot_forwards"]) for s in sessions)
        return Cost(
            requests=self.requests,
            nfe=self.counted_nfe,
            forwards=sum(int(s["forwards"]) for s in sessions),
            tokens=self.tokens,
            tokens_to_eos=self.tokens_to_eos,
            decoded_tokens=self.decoded,
            seconds=round(seconds, 6),
            generate_seconds=round(generating, 6),
            tokens_per_s=self.tokens_to_eos / generating if generating > 0 and self.tokens_to_eos else None,
            tpf=self.tokens_to_eos / self.generate_nfe if self.generate_nfe else None,
            occupancy=rows / slots if slots else None,
            peak_memory_mb=max((s["peak_memory_mb"] for s in sessions if "peak_memory_mb" in s), default=None),
        )


def last_costs(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last cost record, which is cumulative, of each session and of each of its shards."""
    return list({(record["session"], record.get("writer")): record for record in records}.values())
