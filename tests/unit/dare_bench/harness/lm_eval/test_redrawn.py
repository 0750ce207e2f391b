"""What other draws would score: against choices drawn again, and in the files of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from require import need_package

from dare_bench.analysis.comparison import compare
from dare_bench.engine.evaluate import evaluate
from dare_bench.harness.lm_eval.redrawn import mark_redrawn, redrawn_values
from dare_bench.types import Likelihood, Request, Sample

need_package("lm_eval")


def likelihood(value: float, deviations: list[float]) -> Likelihood:
    return Likelihood(value, float(np.linalg.norm(deviations)), None, 16, deviations=deviations)


def marked(likelihoods: list[Likelihood], gold: Any, **metrics: float) -> dict[str, Any]:
    """The row of a document with choices of 1, 2, 3, ... letters."""
    choices = ["é" * (n + 1) for n in range(len(likelihoods))]
    task = SimpleNamespace(
        OUTPUT_TYPE="multiple_choice",
        multiple_input=0,
        doc_to_choice=lambda doc: choices,
        doc_to_target=lambda doc: gold,
    )
    row = {"doc": {}, "doc_id": 0, "resps": [[]] * len(choices), "metrics": list(metrics), **metrics}
    request = Request("k", "score", "q", "a")
    mark_redrawn({"t": task}, {"t": [row]}, lambda task, doc, index: Sample(request, likelihoods[index]))
    return row


def test_errors_of_differences_are_those_of_the_deviations() -> None:
    """Choices that share their draws differ by less than their own errors."""
    first, second = likelihood(-5.0, [3.0, 1.0]), likelihood(-6.0, [3.0, 1.5])
    values_SC = redrawn_values([first, second, likelihood(-7.0, [])])
    assert values_SC.mean(0) == pytest.approx([-5, -6, -7])
    assert values_SC[:, 0].std() == pytest.approx(first.stderr, rel=0.1)
    assert (values_SC[:, 0] - values_SC[:, 1]).std() == pytest.approx(0.5, rel=0.1)
    assert (values_SC[:, 2] == -7).all()


def test_shares_are_those_of_the_metric() -> None:
    close = [likelihood(-1.0, [1.0, 0.0]), likelihood(-1.0 - 2**0.5, [0.0, 1.0])]  # 1 error of the difference apart
    row = marked(close, 0, acc=1.0, acc_norm=1.0, acc_bytes=1.0)
    assert row["redrawn"]["acc"] == pytest.approx(0.841, abs=0.03)
    assert row["redrawn"]["acc_norm"] == row["redrawn"]["acc_bytes"] == pytest.approx(0.573, abs=0.03)
    assert marked(close, ["éé"], acc=0.0)["redrawn"]["acc"] == pytest.approx(0.159, abs=0.03)
    assert "redrawn" not in marked([likelihood(-1.0, []), likelihood(-2.0, [])], 0, acc=1.0)
    assert marked(close, 0, acc=0.0)["redrawn"] == {}  # another rule than lm-eval's: nothing is claimed


def test_a_run_records_its_draws_and_every_reader_uses_them(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "model": "tiny-llada-base",
        "tasks": "hellaswag",
        "limit": 4,
        "data_dir": str(ROOT / "tests" / "data" / "bench"),
        "output_path": str(tmp_path / "runs"),
        "progress": False,
    }
    drawn = evaluate(**fields, likelihood={"estimator": "fast", "mc_num": 8})
    for line in drawn.samples("hellaswag"):
        assert set(line["redrawn"]) == {"acc", "acc_norm"}
        for answer in line["dare_bench"]:
            assert np.linalg.norm(answer["deviations"]) == pytest.approx(answer["stderr"], rel=1e-3)
    ci = drawn.require_block().ci["hellaswag"]["acc_norm,none"]
    assert ci.method.endswith("and draws") and ci.draws is not None
    other = evaluate(**fields, likelihood={"estimator": "fast", "mc_num": 8}, seeds=[1, 1, 1, 1])
    (item,) = compare([drawn, other]).items
    assert item.scores[0].lo == ci.lo and item.difference.method.endswith("and draws")
