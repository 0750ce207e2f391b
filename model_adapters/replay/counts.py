"""The forwards that published samplers count for a row, which are not all made here: those that change nothing are left
out."""

from __future__ import annotations

from dare_bench.model_adapters.answer_text import through_eos
from dare_bench.model_adapters.sampling.caches import PrefixCache
from dare_bench.model_adapters.sampling.state import RowState


def left_in_block(row: RowState, step: int) -> int:
    """The forwards that the published sampler makes in a block that was finished after ``step`` ones. Fast-dLLM looks
    only after a second forward whether the block is full."""
    planned = row.sampler.strategy.planned(row.sampler.block_length)
    if row.sampler.reference.count in ("schedule", "blocks"):
        return planned - step
    return int(isinstance(row.sampler.attention.cache, PrefixCache) and step == 1 and planned > 1)


def published_forwards(row: RowState) -> int:
    """The forwards that the published sampler would have counted for a finished row; those made where it has no such
    row."""
    sampler, prompt, blocks, forwards = row.sampler, len(row.prompt), len(row.steps), row.forward
    rule, planned = sampler.reference.count, sampler.strategy.planned(sampler.block_length)
    if row.given is not None or row.cut:  # no published sampler starts from a given canvas, or ends in the middle
        forwards = row.forwards
    elif rule == "schedule":
        forwards = sampler.blocks(prompt) * planned
    elif rule == "blocks":
        forwards = blocks * planned
    elif rule == "commit":
        forwards += blocks + int(prompt >= sampler.block_length)
    elif rule == "prefix":
        forwards += blocks
    elif rule == "commit_ahead":
        prefill = prompt > sampler.block_length and prompt % sampler.block_length > 0
        ended = through_eos(row.response(), sampler.stopping.eos_ids) is not None
        forwards += int(prefill) + int(not ended)
    else:
        forwards += sum(left_in_block(row, step) for step in row.steps)
        if rule == "carry":  # Fast-dLLM's Dream adds a forward for each position that its last scheduled one rejected
            forwards += row.rejected - sum(max(0, step - planned) for step in row.steps)
        else:
            forwards += row.left_out
    return forwards * sampler.passes_per_forward
