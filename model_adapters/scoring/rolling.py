"""The log-likelihood of whole texts (lm-eval's ``loglikelihood_rolling``), scored in windows that fit the context.

The first token of a text is scored behind the prefix token (BOS, else EOS), the first of any other window behind the
token before it, as in lm-eval. A window's likelihood is what the family's estimator gives for it as a target; the
value of the text is the sum, its standard error the root of the summed squares, since windows have separate draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dare_bench import seeds
from dare_bench.errors import DareError, DecodingError, PromptError
from dare_bench.model_adapters.scoring.score import score_pairs
from dare_bench.model_adapters.scoring.scored_model import ScoredModel
from dare_bench.types import Likelihood, LoopStats, Request, Sample


def rolling_windows(tokens: Sequence[int], prefix: int, limit: int) -> list[tuple[list[int], list[int]]]:
    """(context, target) of the windows of a text: each token is scored once, at most ``limit`` in a window, which holds
    one token more. The first window begins with ``prefix``; the last one is as long as the others, and only its end is
    scored."""
    windows = []
    for begin in range(0, len(tokens), limit):
        end = min(begin + limit, len(tokens))
        start = max(end - limit - 1, -1)
        context = [prefix] if start < 0 else []
        windows.append(([*context, *tokens[max(start, 0) : begin]], list(tokens[begin:end])))
    return windows


def window_requests(model: ScoredModel, request: Request) -> list[Request]:
    """A request for each window of a rolling request's text, none for an empty text.

    Raises:
        DecodingError: likelihood settings that do not score all of a target, or no bound of it.
        PromptError: a text that cannot be encoded, no prefix token, a context of too few tokens.
    """
    settings, estimator = model.resolve_likelihood(request.decoding), model.likelihood_estimator()
    if (setting := estimator.other_quantity(settings)) is not None:
        raise DecodingError(f"{setting} does not give the log-likelihood of a whole text; leave it out")
    text = request.target
    tokens = [] if text is None or len(text) == 0 else model.encode(text if isinstance(text, str) else list(text))
    if not tokens:
        return []
    added, _ = estimator.ending(1, tokens[:1], settings, True, model.spec)
    if (limit := model.spec.context_limit - 1 - len(added)) < 1:
        raise PromptError(f"the model's context limit is {model.spec.context_limit}; too short for a window of a text")
    return [
        replace(
            request,
            key=f"{request.key} window {i}",
            prompt=context,
            target=target,
            seed=seeds.key("window", request.seed, i),
            want_greedy=False,
        )
        for i, (context, target) in enumerate(rolling_windows(tokens, model.prefix_id, limit))
    ]


@dataclass(eq=False)
class _Text:
    """A rolling request, and the likelihoods of its windows that are there."""

    request: Request
    windows: int
    parts: list[Likelihood] = field(default_factory=list)

    def likelihood(self) -> Likelihood:
        parts = self.parts
        if not parts:
            return Likelihood(0.0, 0.0, None, nfe=0, estimator="exact")
        drawn = [part for part in parts if part.estimator != "exact"] or parts
        return replace(
            drawn[0],
            value=math.fsum(part.value for part in parts),
            stderr=math.sqrt(math.fsum(part.stderr**2 for part in parts)),
            nfe=sum(part.nfe for part in parts),
            draws=max(part.draws for part in drawn),
            target_tokens=sum(part.target_tokens for part in parts),
            prompt_tokens=0,
            tier=min((part.tier for part in parts), key=("A", "E2", "E1").index),
            seconds=sum(part.seconds for part in parts),
        )


def score_requests(
    model: ScoredModel, requests: Iterable[Request], *, max_rows: int | None, stats: LoopStats
) -> Iterator[Sample]:
    """:func:`score_pairs`, also of rolling requests; each is answered when its last window is."""
    ready: list[Sample] = []
    texts: dict[str, _Text] = {}

    def pairs() -> Iterator[Request]:
        for request in requests:
            if not request.rolling:
                yield request
                continue
            try:
                windows = window_requests(model, request)
            except DareError as error:
                ready.append(Sample(request, None, str(error)))
                continue
            text = _Text(request, len(windows))
            if not windows:
                ready.append(Sample(request, text.likelihood()))
            texts.update((window.key, text) for window in windows)
            yield from windows

    for sample in score_pairs(model, pairs(), max_rows=max_rows, stats=stats):
        while ready:
            yield ready.pop(0)
        text = texts.pop(sample.request.key, None)
        if text is None:
            yield sample
        elif isinstance(sample.answer, Likelihood):
            text.parts.append(sample.answer)
            if len(text.parts) == text.windows:
                yield Sample(text.request, text.likelihood())
        elif sample.error is not None and text.windows:
            text.windows = 0  # its other windows are of no use
            yield Sample(text.request, None, sample.error)
    yield from ready
