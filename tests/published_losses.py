"""Our losses of the cases in ``parity/published_losses.json``, beside what the published functions returned.

The inputs are 2 groups of 3 completions of 6 tokens (some end early, one is empty), tables of log-probabilities by
(copy, completion, position) of the policy, of the policy that sampled, and of the reference, and advantages of both
signs. ``masked`` are the tokens that each copy hides (x); the published code saw the masks that our estimators draw. A
gradient is with respect to the table of the policy. ``mdpo`` has rewards of the predictions of each forward, and
``dtreerpo`` children of 2 canvases, with logits by (canvas, position, token).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from completions import first_rollout, update
from table_policy import MASK, SPEC
from torch import Tensor

from dare_bench.registry import registry
from dare_bench.trainers.rl.completions import Completion, Prediction
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import RolloutStep, distilled_positions

VECTORS = Path(__file__).parent / "parity" / "published_losses.json"


@cache
def vectors() -> dict[str, Any]:
    return json.loads(VECTORS.read_text())


def case_of(name: str) -> dict[str, Any]:
    (case,) = (case for case in [*vectors()["cases"], *vectors()["dtreerpo"]["cases"]] if case["name"] == name)
    return case


def table_of(name: str) -> Tensor:
    """Log-probabilities by copy, completion and position."""
    return torch.tensor(vectors()["logprobs"][name], dtype=torch.float64)


Pick = Callable[[Tensor, RolloutStep], Tensor]
"""-log p of the tokens that a step scores, [N], from a table."""


@dataclass
class Ours:
    """What our loss returns for a case."""

    value: float
    gradient: Tensor
    clip_fraction: float
    step: RolloutStep


def ours(case: dict[str, Any], **options: Any) -> Ours:
    """Our loss of a case, with its settings and ``options``."""
    method = method_of(case, options)
    if getattr(method.options, "confidence_weights", False):
        given_A = torch.tensor(case["confidence"], dtype=torch.float64)[hidden(case)]
        method.loss_weights = lambda weight_A, old_A: weight_A * given_A  # ours are exp(old_A)
    named = {"policy": "policy", "old": case["old"] or "policy", "reference": "reference"}
    tables = {name: table_of(source) for name, source in named.items()}
    return differentiated(method, rollout_of(case, method), tables, partial(nll_of, case), case["iteration"])


def differentiated(
    method: Any,
    rollout: Rollout,
    tables: Mapping[str, Tensor],
    pick: Pick,
    iteration: int = 1,
    number: int = 1,
    steps: int = 1,
) -> Ours:
    """Our loss of a rollout in step ``number`` of a training of ``steps`` steps, and its gradient with respect to the
    policy's table."""
    count = len(rollout.completions)
    if iteration:
        past = method.step(rollout, update(1, 1, count, steps))
        rollout.old = [method.action_logprobs(rollout, past, pick(tables["old"], past))]
    step = method.step(rollout, update(number, iteration, count, steps))
    table = tables["policy"].requires_grad_()
    reference = partial(pick, tables["reference"]) if method.beta else None
    loss, metrics = method.loss(step, pick(table, step), reference)
    (gradient,) = torch.autograd.grad(loss, table)
    clipped, actions = metrics.get("clip_fraction", (0.0, 1.0))
    return Ours(float(loss.detach()), gradient, clipped / actions, step)


def method_of(case: dict[str, Any], options: dict[str, Any]) -> Any:
    kind = registry().get("trainer", case["algorithm"]).load()
    sizes = {"num_generations": vectors()["group"], "num_iterations": 2, "max_completion_length": 6}
    return kind(kind.settle({**sizes, **case["options"], **options}, SPEC), SPEC, 6)


def hidden(case: dict[str, Any]) -> Tensor:
    """The tokens that the first copy hides, bool [completion, position]."""
    return torch.tensor([[sign == "x" for sign in row] for row in case["masked"][0]])


def rollout_of(case: dict[str, Any], method: Any) -> Rollout:
    data = vectors()
    rows = zip(data["answers"], data["keys"], data["written"][case["written"]], strict=True)
    completions = [
        Completion(tuple(data["prompt"]), tuple(answer), method.scored(answer), key, tuple(set_at))
        for answer, key, set_at in rows
    ]
    if case["algorithm"] == "mdpo":
        forwards = zip(completions, hidden(case), case["advantage"], strict=True)
        completions = [replace(c, predictions=(prediction(c, masked_L, a),)) for c, masked_L, a in forwards]
    total = sum(completion.scored_tokens for completion in completions)
    return first_rollout(completions, case["advantage"], total, rewards=data["rewards"])


def prediction(completion: Completion, masked_L: Tensor, advantage: float) -> Prediction:
    """A forward that predicted the tokens of a completion."""
    masked = tuple(masked_L.nonzero()[:, 0].tolist())
    return Prediction(completion.tokens, masked, completion.scored, advantage)


def copies_of(case: dict[str, Any], step: RolloutStep) -> tuple[Tensor, Tensor]:
    """The completion of each copy, counted in the rollout, and the table that holds its log-probabilities: the number
    of the copy among those at the completion, or 0 without drawn masks, where each token is scored once."""
    actions = step.surrogate.actions
    kept = step.surrogate.completion_A.unique().tolist()
    sample_R = torch.tensor([kept[s] for s in actions.sample_R.tolist()])
    number_R = torch.tensor([int((sample_R[:r] == s).sum()) for r, s in enumerate(sample_R.tolist())])
    return sample_R, torch.zeros_like(number_R) if case["masked"] is None else number_R


def nll_of(case: dict[str, Any], table: Tensor, step: RolloutStep) -> Tensor:
    """-log p of the tokens that a step scores, [N]."""
    copies, prompt = step.surrogate.actions.copies, len(vectors()["prompt"])
    sample_R, number_R = copies_of(case, step)
    column_N = copies.batch.column_T[copies.at_N] - prompt
    return -table[number_R[copies.copy_N], sample_R[copies.copy_N], column_N]


def masks_of(case: dict[str, Any], step: RolloutStep) -> list[list[str]]:
    """The hidden tokens of the completion in each copy, by copy and completion."""
    copies, prompt = step.surrogate.actions.copies, len(vectors()["prompt"])
    sample_R, number_R = copies_of(case, step)
    masks = [["" for _ in vectors()["answers"]] for _ in range(int(number_R.max()) + 1)]
    for row, sample, number in zip(
        copies.seen_T.split(list(copies.batch.lengths)), sample_R.tolist(), number_R.tolist(), strict=True
    ):
        masks[number][sample] = "".join("x" if token == MASK else "." for token in row[prompt:].tolist())
    return masks


def gradient_of(case: dict[str, Any]) -> Tensor:
    """The published gradient, of the copies that the algorithm has."""
    return torch.tensor(case["gradient"], dtype=torch.float64)


def equal(result: Ours, case: dict[str, Any], factor: float = 1.0) -> bool:
    """Are value and gradient the published ones times ``factor``, to 1e-5?"""
    wanted = gradient_of(case) * factor
    assert float(wanted.abs().max()) > 1e-3
    own, other = result.gradient[: len(wanted)], result.gradient[len(wanted) :]
    same = math.isclose(result.value, case["value"] * factor, rel_tol=1e-5, abs_tol=1e-8) and not bool(other.any())
    return same and torch.allclose(own, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def tree_case(case: dict[str, Any], **options: Any) -> Ours:
    """Our loss of a case of d-TreeRPO: two canvases of one level, each with three children."""
    method, tables = method_of(case, {"tree_contraction_factor": 1, **options}), vectors()["dtreerpo"]["logits"]
    logits = {name: torch.tensor(table, dtype=torch.float64) for name, table in tables.items()}
    number, steps = case["settings"]["global_step"], case["settings"]["max_steps"]
    return differentiated(method, tree_rollout(method), logits, nll_of_children, 1, number, steps)


def tree_rollout(method: Any) -> Rollout:
    """The children, with the advantages of the vectors."""
    data, prompt = vectors()["dtreerpo"], len(vectors()["prompt"])
    completions = []
    for parent, children in zip(data["parent"], data["children"], strict=True):
        for child in children:
            written = [before == MASK != after for before, after in zip(parent, child, strict=True)][prompt:]
            answer, set_at = tuple(child[prompt:]), tuple(0 if new else -1 for new in written)
            scored = method.scored(answer)
            completions.append(Completion(tuple(child[:prompt]), answer, scored, 0, set_at, parent=str(parent)))
    total = sum(len(completion.written) for completion in completions)
    distilled = len(distilled_positions(completions, data["advantage"]))
    return first_rollout(completions, data["advantage"], total, distilled_total=distilled)


def nll_of_children(table: Tensor, step: RolloutStep) -> Tensor:
    """-log p of the tokens that a step scores, from logits by canvas, position and token."""
    copies, prompt = step.surrogate.actions.copies, len(vectors()["prompt"])
    column_N = copies.batch.column_T[copies.at_N] - prompt
    return -table.log_softmax(-1)[copies.copy_N, column_N, copies.target_N]
