"""Statistics of decoders under several prompt templates of one task, from the values of the same documents.

Mean: the interval "documents" treats the documents as a sample and the templates as given. The interval "templates
too" treats both as samples, crossed with each other, so that it is about templates like these. Its variance is that of
two-way analysis of variance, (MS_T + MS_D - MS_TD) / (n T), with Satterthwaite's degrees of freedom (Biometrics
Bulletin 2, 1946). Resampling documents and templates (Owen's pigeonhole bootstrap, Annals of Applied Statistics 1,
2007) is too narrow for the handful of templates that people have.

Worst case: the score under the worst of these templates. Its lower end is the lowest lower end of the templates'
intervals; its upper end is the lowest of their upper ends, each at a level with Bonferroni's correction. One of the
upper ends lies below its score with probability (1 - level) / 2 at most, so the interval covers at least ``level``. The
bootstrap of a minimum is biased: resampling lowers it once more.

Ranking: Kendall's tau a (Biometrika 30, 1938) of the scores under two templates, where tied decoders count 0; its mean
over all pairs of templates. The interval holds each mean tau that no paired test contradicts: where two decoders do not
differ significantly under a template, either may be ahead. The bootstrap over documents covers far too little: noise
alone makes rankings disagree, and resampling adds noise to those of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from dare_bench.analysis.intervals import LEVEL, Interval, interval
from dare_bench.analysis.paired_tests import all_pairs, holm

Values = Sequence[Sequence[Sequence[float]]]
"""By decoder, then by template, the values of the documents in one order."""


@dataclass(frozen=True, slots=True)
class DecoderScores:
    """The scores of a decoder, by template; their mean with its two intervals; and the worst of them (``worst`` indexes
    ``scores``) with its interval."""

    scores: tuple[float, ...]
    mean: float
    documents: Interval
    templates_too: Interval
    worst: int
    worst_interval: Interval


@dataclass(frozen=True, slots=True)
class DecoderPair:
    """Two decoders, by index. By template: ``gains`` of the first over the second (positive: the first is better), the
    tests' ``p``, and ``adjusted`` p after Holm's method."""

    first: int
    second: int
    gains: tuple[float, ...]
    p: tuple[float, ...]
    adjusted: tuple[float, ...] = ()
    level: float = LEVEL

    @property
    def ahead(self) -> float:
        """The share of templates under which the first decoder scores better."""
        return sum(gain > 0 for gain in self.gains) / len(self.gains)

    @property
    def behind(self) -> float:
        """The share of templates under which the second decoder scores better."""
        return sum(gain < 0 for gain in self.gains) / len(self.gains)

    @property
    def better(self) -> list[int]:
        """The templates under which the first decoder is significantly better, after Holm's adjustment."""
        return [at for at, gain in enumerate(self.gains) if gain > 0 and self.adjusted[at] <= 1 - self.level]

    @property
    def worse(self) -> list[int]:
        """The templates under which the first decoder is significantly worse, after Holm's adjustment."""
        return [at for at, gain in enumerate(self.gains) if gain < 0 and self.adjusted[at] <= 1 - self.level]

    @property
    def is_reversed(self) -> bool:
        """Is the first decoder significantly better under one template and significantly worse under another?"""
        return bool(self.better and self.worse)


@dataclass(frozen=True, slots=True)
class RankingAgreement:
    """Kendall's tau by pair of templates, its mean, and the interval of the mean (see the module)."""

    by_templates: dict[tuple[int, int], float]
    mean: float
    lo: float
    hi: float


def decoder_scores(
    values: Sequence[Sequence[float]],
    *,
    lower_is_better: bool = False,
    limits: tuple[float, float] = (-math.inf, math.inf),
    level: float = LEVEL,
) -> DecoderScores:
    """The scores of one decoder, whose ``values`` are by template. ``limits``: the range of the metric."""
    scores = tuple(math.fsum(row) / len(row) for row in values)
    by_document = [math.fsum(parts) / len(parts) for parts in zip(*values, strict=True)]
    mean = math.fsum(scores) / len(scores)
    worst = (max if lower_is_better else min)(range(len(scores)), key=scores.__getitem__)
    return DecoderScores(
        scores,
        mean,
        interval(by_document, level).within(*limits),
        crossed_interval(values, level).within(*limits),
        worst,
        _worst_interval(values, lower_is_better, level).within(*limits),
    )


def crossed_interval(values: Sequence[Sequence[float]], level: float = LEVEL) -> Interval:
    """The interval of the mean of ``values`` (by template, then by document) for templates and documents like these."""
    import numpy as np
    from scipy import stats

    values_TN = np.asarray(values, dtype=float)
    templates, n = values_TN.shape
    method = "Student t over documents and templates"
    if templates < 2 or n < 2:
        return Interval("none", level, None, None, n)
    mean, rows, columns = values_TN.mean(), values_TN.mean(axis=1), values_TN.mean(axis=0)
    rest = values_TN - rows[:, None] - columns + mean
    squares = n * rows.var(ddof=1), templates * columns.var(ddof=1), (rest**2).sum() / ((templates - 1) * (n - 1))
    freedom = templates - 1, n - 1, (templates - 1) * (n - 1)
    largest = 0 if squares[0] > squares[1] else 1
    total = squares[0] + squares[1] - squares[2]
    if total >= squares[largest]:
        degrees = total**2 / sum(square**2 / free for square, free in zip(squares, freedom, strict=True))
    else:  # an estimate of a variance was negative: it counts as 0
        total, degrees = squares[largest], freedom[largest]
    if total <= 0:
        return Interval("none", level, None, None, n)
    half = float(stats.t.ppf(0.5 + level / 2, max(degrees, 1.0)) * np.sqrt(total / (n * templates)))
    return Interval(method, level, float(mean) - half, float(mean) + half, n)


def _worst_interval(values: Sequence[Sequence[float]], lower_is_better: bool, level: float) -> Interval:
    """The interval of the lowest mean of ``values`` (the highest: ``lower_is_better``), which are by template."""
    plain = [interval(row, level) for row in values]
    corrected = [interval(row, 1 - (1 - level) / len(values)) for row in values]
    lower, upper = (corrected, plain) if lower_is_better else (plain, corrected)
    ends = [each.lo for each in lower if each.lo is not None], [each.hi for each in upper if each.hi is not None]
    n = len(values[0])
    if min(map(len, ends)) < len(values):
        return Interval("none", level, None, None, n)
    choose = max if lower_is_better else min
    return Interval("of the templates' intervals", level, choose(ends[0]), choose(ends[1]), n)


def decoder_pairs(values: Values, *, lower_is_better: bool = False, level: float = LEVEL) -> list[DecoderPair]:
    """All pairs of decoders with their differences under each template, tested by paired tests, without ``adjusted``.
    Where a pair does not differ in any document, p is 1."""
    decoders, templates = len(values), range(len(values[0]))
    p = [all_pairs([[values[at][template] for at in range(decoders)]], [1.0]) for template in templates]
    sign = -1 if lower_is_better else 1
    return [
        DecoderPair(
            first,
            second,
            tuple(
                sign * math.fsum(a - b for a, b in zip(values[first][at], values[second][at], strict=True))
                / len(values[first][at])
                for at in templates
            ),
            tuple(float(p[at][first][second]) for at in templates),
            level=level,
        )
        for first, second in combinations(range(decoders), 2)
    ]  # fmt: skip


def adjust(pairs: Sequence[DecoderPair]) -> list[DecoderPair]:
    """The pairs with p adjusted by Holm's method over all of their templates together."""
    adjusted = (p for p in holm([p for pair in pairs for p in pair.p]) if p is not None)
    return [replace(pair, adjusted=tuple(islice(adjusted, len(pair.p)))) for pair in pairs]


def ranking_agreement(pairs: Sequence[DecoderPair]) -> RankingAgreement | None:
    """Kendall's tau between the rankings of decoders under two templates; None with one decoder."""
    if not pairs:
        return None
    signs = [[(gain > 0) - (gain < 0) for gain in pair.gains] for pair in pairs]
    count = len(signs[0])
    by_templates = {
        (s, t): sum(row[s] * row[t] for row in signs) / len(signs) for s, t in combinations(range(count), 2)
    }
    mean = math.fsum(by_templates.values()) / len(by_templates)
    bounds = [_possible(pair, row) for pair, row in zip(pairs, signs, strict=True)]
    lo, hi = (math.fsum(ends) / len(pairs) for ends in zip(*bounds, strict=True))
    return RankingAgreement(by_templates, mean, lo, hi)


def _possible(pair: DecoderPair, signs: Sequence[int]) -> tuple[float, float]:
    """The least and the largest share of a pair of decoders in the mean tau, over all orders under each template that
    its tests leave open."""
    known = [sign if p <= 1 - pair.level else 0 for sign, p in zip(signs, pair.p, strict=True)]
    total, free, count = sum(known), known.count(0), len(signs)
    # The sum over pairs of templates of s_t s_u, for signs of 1 and -1, is ((sum of s_t)^2 - T) / 2.
    shares = [(s * s - count) / (count * (count - 1)) for s in range(total - free, total + free + 1, 2)]
    return min(shares), max(shares)
