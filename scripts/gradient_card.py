"""Write the tables of docs/algorithms.md: the parts of each algorithm, its rollouts, and the gradient card.

    python scripts/gradient_card.py

The card compares the expected gradient of each algorithm's first step on a rollout (ratio 1, no KL penalty) with the
exact gradient of the expected reward, on policies small enough to enumerate (``enumerated_sampler.py``). Answers and
their orders are enumerated with their exact probabilities; noise is drawn by the algorithm's code, with fixed keys
(``enumerated_gradients.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from enumerated_gradients import CardRow, Figures, Policy, algorithms
from enumerated_sampler import EnumeratedSampler, Order

from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.types import ModelSpec

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
PARTS = ("<!-- parts: made by scripts/gradient_card.py -->", "<!-- end of parts -->")
ROLLOUTS = ("<!-- rollouts: made by scripts/gradient_card.py -->", "<!-- end of rollouts -->")
CARD = ("<!-- card: made by scripts/gradient_card.py -->", "<!-- end of card -->")
ENDS = ("<!-- ends: made by scripts/gradient_card.py -->", "<!-- end of ends -->")
FAMILIES = {"llada": None, "dream": None, "sdar": 4, "llada2": 32}
"""Families whose rollouts differ, and their blocks of attention."""
NETWORKS = 12
SAMPLERS: tuple[tuple[Order, int], ...] = (("low_confidence", 1), ("low_confidence", 2), ("left_to_right", 1))


# -- parts -------------------------------------------------------------------------------------------------------


def parts_row(kind: type[PolicyGradient]) -> list[str]:
    """The cells of an algorithm."""
    o: Any = kind.Options()
    clip, penalty = "no ratio", "none"
    if kind.has_ratio:
        high = o.epsilon if o.epsilon_high is None else o.epsilon_high
        clip = f"{o.epsilon:g}" if high == o.epsilon else f"{o.epsilon:g}, {high:g}"
        clip += f", dual {o.dual_clip:g}" if o.dual_clip else ""
        penalty = f"{o.beta:g} {kind.kl}" if o.beta else "none"
    return [
        f"`{kind.name}`",
        kind.estimator,
        kind.action,
        o.advantage.replace("_", " "),
        clip,
        penalty,
        getattr(o, "aggregation", "token"),
        f"{o.num_generations} x {o.num_iterations}",
        f"{o.temperature:g}",
        f"{kind.learning_rate:g}, LoRA {kind.lora_learning_rate:g}",
        kind.families,
        " ".join(f"{name}={value}" for name, value in kind.variants.get("dare", {}).items()) or "none",
        f"{kind.paper}, {kind.code}",
    ]


def parts() -> str:
    """The table of parts."""
    head = ("algorithm", "estimator", "action", "advantage", "clip", "KL", "mean over", "G x iterations", "temperature",
            "learning rate", "families", "`--variant dare`", "source")  # fmt: skip
    return table([list(head), *(parts_row(kind) for kind in algorithms().values())])


def rollouts() -> str:
    """The table of the rollouts' decoding fields, for a canvas of 256 tokens."""
    rows = [["algorithm", "family", "`--variant paper`", "`--variant dare`"]]
    for kind in algorithms().values():
        for family, block_length in FAMILIES.items():
            if block_length is None or kind.families == "any":
                spec = ModelSpec(family, 0, (1,), None, None, 2, 4096, block_length=block_length)
                fields = [_rollout(kind, spec, variant) for variant in ("paper", "dare")]
                rows.append([f"`{kind.name}`", family, fields[0], "the same" if fields[0] == fields[1] else fields[1]])
    return table(rows)


def _rollout(kind: type[PolicyGradient], spec: ModelSpec, variant: str) -> str:
    method = kind(kind.settle({"variant": variant}, spec), spec, 256)
    fields = method.request(())
    shown = ("temperature", "strategy", *method.decoding_fields)
    return " ".join(f"{name}={value}" for name, value in fields.items() if name in shown)


def table(rows: list[list[str]]) -> str:
    """Markdown, the first row as its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


# -- the gradient card -------------------------------------------------------------------------------------------

ROWS = (
    CardRow("cj_grpo", replays=True),
    CardRow("d1", (("p_mask_prompt", 0.0),)),
    CardRow("d1", (("p_mask_prompt", 0.15),), 1 << 15),
    CardRow("coupled_grpo", (), 1 << 15),
    CardRow("espo", (("num_mc", 1),), 1 << 15),
    CardRow("espo", (("num_mc", 2),), 1 << 15),
    CardRow("just_grpo", replays=True, order="left_to_right"),
    CardRow("bgpo", (("num_mc", 2),), 1 << 15),
    CardRow("bgpo", (("num_mc", 4),), 1 << 15),
    CardRow("ebpo", (("num_mc", 2),), 1 << 15, summed=True),
    CardRow("spg", (("p_mask_prompt", 0.0),), 1 << 13),
    CardRow("spg", (("p_mask_prompt", 0.0), ("negative", "elbo")), 1 << 13),
    CardRow("mdpo", (("advantage", "mean"),)),
    CardRow("mdpo", (("advantage", "standardized"),)),
    CardRow("mdpo", (("advantage", "mean"), ("confidence_weights", True))),
    CardRow("dtreerpo"),
    CardRow("dtreerpo", (("num_generations", 8), ("tree_branch_factor", 2))),
)
ROWS_WITH_EOS = (
    CardRow("cj_grpo", replays=True),
    CardRow("cj_grpo", (("score_after_eos", True),), replays=True),
    CardRow("d1", (("p_mask_prompt", 0.0),)),
    CardRow("d1", (("p_mask_prompt", 0.0), ("score_after_eos", True))),
)


@cache
def policies_of(ends: bool) -> list[Policy]:
    """The networks of the card."""
    return [Policy(seed, ends) for seed in range(NETWORKS)]


def figures(rows: Sequence[CardRow] = ROWS, ends: bool = False) -> dict[tuple[Order, int, CardRow], list[Figures]]:
    """By order, tokens a forward and row: the figures of each network."""
    policies = policies_of(ends)
    result: dict[tuple[Order, int, CardRow], list[Figures]] = {}
    for order, quota in SAMPLERS:
        samplers = [EnumeratedSampler(policy.network, order, quota) for policy in policies]
        for row in (row for row in rows if row.order in (None, order)):
            each = [policy.figures(row, sampler) for policy, sampler in zip(policies, samplers, strict=True)]
            result[order, quota, row] = each
    return result


HEAD = ("order", "tokens a forward", "algorithm", "cosine", "lowest", "length", "bias", "forwards", "variance",
        "variance x forwards")  # fmt: skip


def card_row(order: Order, quota: int, row: CardRow, each: list[Figures]) -> list[str]:
    """The cells of a row: medians over the networks."""
    middle = {name: median(getattr(f, name) for f in each) for name in Figures.__annotations__}
    noisy = median(f.variance * f.copies for f in each)
    return [
        order.replace("_", " "),
        f"{quota}",
        f"`{row.label}`",
        f"{middle['cosine']:.2f}",
        f"{min(f.cosine for f in each):.2f}",
        f"{middle['length']:.2f}",
        f"{middle['bias']:.2f}",
        f"{middle['copies']:.3g}",
        f"{middle['variance']:.0f}",
        f"{noisy:.0f}",
    ]


def card(rows: Sequence[CardRow] = ROWS, ends: bool = False) -> str:
    """The gradient card."""
    return table([list(HEAD), *(card_row(*place, each) for place, each in figures(rows, ends).items())])


def between(text: str, markers: tuple[str, str]) -> str:
    """What stands between two markers."""
    return text.partition(markers[0])[2].partition(markers[1])[0].strip()


def replaced(text: str, markers: tuple[str, str], content: str) -> str:
    """The text with other content between two markers."""
    before, _, rest = text.partition(markers[0])
    _, marker, after = rest.partition(markers[1])
    if not marker:
        raise SystemExit(f"{PAGE} has no {markers[0]} ... {markers[1]}; restore these lines")
    return f"{before}{markers[0]}\n\n{content}\n\n{markers[1]}{after}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables = ((PARTS, parts()), (ROLLOUTS, rollouts()), (CARD, card()), (ENDS, card(ROWS_WITH_EOS, ends=True)))
    for markers, content in tables:
        text = replaced(text, markers, content)
    PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
