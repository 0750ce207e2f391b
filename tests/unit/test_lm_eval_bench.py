"""lm-eval's own tasks, unmodified, on public benchmark data. Optional: the data is named by DARE_BENCH_DATA, or lies
in ``shared/data/bench`` beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toy_model import ToyModel
from toy_tasks import answer_with

from dare_bench.config import run_spec
from dare_bench.harness.lm_eval import LmEvalSource

BENCH = Path(os.environ.get("DARE_BENCH_DATA") or Path(__file__).parents[3] / "shared" / "data" / "bench")
pytestmark = pytest.mark.skipif(
    not (BENCH / "manifest.json").is_file(), reason="no benchmark data: set DARE_BENCH_DATA"
)


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("gsm8k", "exact_match,strict-match"),
        ("arc_challenge", "acc_norm,none"),
        ("hellaswag", "acc_norm,none"),
        ("mmlu_anatomy", "acc,none"),
        ("minerva_math_algebra", "math_verify,none"),
        ("bbh_cot_fewshot_navigate", "exact_match,get-answer"),
        ("ifeval", "prompt_level_strict_acc,none"),
    ],
)
def test_a_public_task_runs_offline(task: str, metric: str) -> None:
    model = ToyModel()
    source = LmEvalSource(run_spec(model="toy", tasks=task, data_dir=str(BENCH), limit=2), model)
    found = source.run(answer_with(model))
    assert found.results["n-samples"][task]["effective"] == 2
    assert 0 <= found.results["results"][task][metric] <= 1
    assert str(BENCH) not in str(found.samples)


def test_the_right_answers_score_full() -> None:
    """GSM8K's own solutions, read back by prompt, score 1 in both filters' metrics."""
    import json

    rows = [json.loads(line) for line in (BENCH / "gsm8k" / "test.jsonl").read_text().splitlines()[:4]]
    model = ToyModel(reply=lambda r: " " + rows[int(r.doc_id)]["answer"])
    spec = run_spec(
        model="toy", tasks="gsm8k", data_dir=str(BENCH), limit=4, num_fewshot=0, decoding={"gen_length": 2048}
    )
    scores = LmEvalSource(spec, model).run(answer_with(model)).results["results"]["gsm8k"]
    assert scores["exact_match,strict-match"] == scores["exact_match,flexible-extract"] == 1.0
