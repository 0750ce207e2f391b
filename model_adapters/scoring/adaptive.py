"""Adaptive draws: documents whose best choice is known leave the window, the others have another round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dare_bench.diffusion.controlled import ROUND, round_values
from dare_bench.diffusion.separation import is_separated
from dare_bench.model_adapters.scoring.pairs import ScoredPair


def drawn_on(pairs: Sequence[ScoredPair]) -> list[ScoredPair]:
    """The pairs of a window that need another pass, ready for it; of the others, ``separated`` is set."""
    documents: dict[tuple[str, str, int], list[ScoredPair]] = {}
    for pair in pairs:
        if pair.is_adaptive:
            documents.setdefault(pair.request.document, []).append(pair)
    return [pair for choices in documents.values() if _goes_on(choices) for pair in choices]


def _goes_on(choices: Sequence[ScoredPair]) -> bool:
    """Does a document need another round? Its choices have the same number of rounds, also where one has no noise."""
    most = int(choices[0].settings["mc_num"])
    drawn = [pair for pair in choices if pair.is_drawn_on]
    rounds = min([most // ROUND, *(pair.rounds for pair in drawn)])
    separated = len(choices) > 1 and _is_separated(choices, rounds)
    if separated or not drawn or rounds * ROUND >= most:
        for pair in choices:
            pair.separated = separated if len(choices) > 1 else None
        return False
    next_stop = 1 + (most if len(choices) == 1 else (rounds + 1) * ROUND)
    for pair in choices:
        pair.seen, pair.filled = pair.canvases, range(pair.filled.stop, next_stop)
    return True


def _is_separated(choices: Sequence[ScoredPair], rounds: int) -> bool:
    """As lm-eval compares choices: by sum and per character, or per token where they are not texts."""
    values_CR = torch.stack([round_values(pair.parts, pair.losses, max(rounds, 1)) for pair in choices])
    exact_C = torch.tensor([not pair.is_drawn_on for pair in choices])
    texts = [pair.request.target for pair in choices]
    each = [text.strip() if isinstance(text, str) else pair.answer for text, pair in zip(texts, choices, strict=True)]
    lengths = [torch.ones(len(choices)), torch.tensor([float(max(1, len(one))) for one in each])]
    return is_separated(values_CR, exact_C, lengths, float(choices[0].settings["level"]))
