"""Scoring OpenCompass's data sets: what documents contributed, code in the sandbox, comparisons that never end."""

from __future__ import annotations

import collections
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from require import need_package
from toy_model import ToyModel

from dare_bench.config import run_spec
from dare_bench.errors import DataError
from dare_bench.harness.opencompass.mbpp_assertion import holds
from dare_bench.harness.opencompass.scorer import by_document
from dare_bench.harness.opencompass.source import OpenCompassSource
from dare_bench.opencompass_numbers import as_share, numbers, unclear
from dare_bench.protocols import HarnessResult
from dare_bench.types import Request, Sample

need_package("opencompass")
BENCH = ROOT / "tests" / "data" / "bench"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.delenv("COMPASS_DATA_CACHE", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


def score(tasks: str, reply: Any, data_dir: Path = BENCH, **fields: Any) -> HarnessResult:
    model = ToyModel(reply=reply, context_limit=1 << 20)
    spec = run_spec(model="toy", harness="opencompass", tasks=tasks, data_dir=str(data_dir), **fields)
    source = OpenCompassSource(spec, model)

    def answer(requests: Any) -> list[Sample]:
        result = {sample.request.key: sample for sample in model.generate(requests)}
        for sample in result.values():
            source.watch(sample)
        return [result[request.key] for request in requests]

    return source.run(answer)


# --- what documents contributed ---------------------------------------------------------------------------------------


def test_verdicts_are_believed_where_they_give_the_total() -> None:
    result = {"accuracy": 50.0, "details": [{"correct": True}, {"correct": False}]}
    assert by_document(result, 2, None) == {"accuracy": [100.0, 0.0]}
    keyed = {"score": 50.0, "details": {"0": {"is_correct": 1}, "1": {"is_correct": 0}}}
    assert by_document(keyed, 2, None) == {"score": [100.0, 0.0]}
    assert by_document({**result, "accuracy": 75.0}, 2, None) == {}
    assert by_document({"accuracy": 0.5, "details": result["details"]}, 2, None) == {"accuracy": [1.0, 0.0]}
    assert by_document(result, 3, None) == {}  # details that are not there for all


def test_else_documents_are_scored_alone() -> None:
    values = [10.0, 30.0]
    requested: list[int] = []

    def single(place: int) -> Mapping[str, Any]:
        requested.append(place)
        return {"rouge": values[place], "corpus": 1.0}

    result = by_document({"rouge": 20.0, "corpus": 7.0, "count": 2}, 2, single)
    assert result == {"rouge": [10.0, 30.0]}  # a score of the whole corpus is no mean of its documents
    assert requested == [0, 1]


def test_whole_numbers_are_counts() -> None:
    assert numbers({"score": 40.0, "pass": 2, "details": [], "name": "x", "nan": float("nan")}) == {"score": 40.0}
    assert numbers({"score": 100}) == {"score": 100.0}


def test_percentages_become_shares() -> None:
    assert as_share("accuracy", 50.0, [100.0, 0.0]) == 0.01
    assert as_share("accuracy", 0.5, [1.0, 0.0]) == 1.0
    assert as_share("score", 0.5, [0.25, 0.75]) == 1.0
    assert as_share("rouge1", 0.5, [0.0, 1.25]) == 0.01
    assert as_share("accuracy", 0.0, [0.0, 0.0]) == 0.01
    assert as_share("score", 31.2, None) == 0.01
    assert as_share("score", 350.0, None) == 1.0


@pytest.mark.parametrize(
    ("metric", "share"),
    [
        ("accuracy", 0.01),
        ("humaneval_pass@1", 0.01),
        ("rougeL", 0.01),
        ("Prompt-level-strict-accuracy", 0.01),
        ("acc score", 1.0),
        ("mcc", 1.0),
        ("answer_correct", 1.0),
    ],
)
def test_a_small_total_without_values_is_read_by_its_name(metric: str, share: float) -> None:
    assert as_share(metric, 0.41, None) == share
    assert unclear(0.41, None) and not unclear(1.2, None) and not unclear(0.41, [0.41]) and not unclear(0.0, None)


# --- answers that cannot be read or compared --------------------------------------------------------------------------

MODULE = """
import re
import sympy  # what marks an evaluator as one that compares formulas
from opencompass.openicl.icl_evaluator import BaseEvaluator

class Slow(BaseEvaluator):
    def score(self, predictions, references):
        while "hang" in predictions: pass
        if "die" in predictions: raise RuntimeError("no")
        return {"accuracy": 100.0 * sum(map(str.__eq__, predictions, references)) / len(predictions)}

def fussy(text):
    if text == "9": raise ValueError("nine")
    if text == "endless text": re.match("(.|[^x])*$x", text * 20)
    return text

class Busy(BaseEvaluator):
    def score(self, predictions, references):
        for prediction in predictions:
            if prediction == "endless": re.match("(.|[^x])*$x", prediction * 20)
        return {"accuracy": 100.0 * sum(map(str.__eq__, predictions, references)) / len(predictions)}
"""
CONFIG = """
from mmengine.config import read_base
from slow_module import Slow, fussy
with read_base():
    from opencompass.configs.datasets.gsm8k.gsm8k_gen import gsm8k_datasets
gsm8k_datasets[0]['eval_cfg'].update(evaluator=dict(type=Slow), pred_postprocessor=dict(type=fussy))
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    (tmp_path / "slow_module.py").write_text(MODULE)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "slow_gen.py").write_text(CONFIG)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dare_bench.harness.opencompass.scorer.ITEM_SECONDS", 1.0)
    yield {"tasks": "slow_gen", "include_path": str(tmp_path / "configs")}
    for name in ("slow_module", "busy_module"):
        sys.modules.pop(name, None)  # each test has files of its own


def right(document: int) -> str:
    return str(json.loads((BENCH / "gsm8k/test.jsonl").read_text().splitlines()[document])["answer"].split("#### ")[1])


def test_a_comparison_that_hangs_or_dies_counts_as_wrong_and_is_flagged(slow: dict[str, Any]) -> None:
    texts = [right(0), "hang", "die", right(3)]
    result = score(reply=lambda r: texts[int(r.doc_id)], **slow)
    assert result.results["results"]["gsm8k"]["accuracy,none"] == 0.5
    lines = result.samples["gsm8k"]
    assert [line["accuracy"] for line in lines] == [1.0, 0.0, 0.0, 1.0]
    verdicts = [line["_answers"][0].get("verdict", {}).get("status") for line in lines]
    assert verdicts == [None, "timeout", "crashed", None]
    assert any("1 answers not compared within 1 s" in note for note in result.notes)
    assert any("evaluator failed on 1 answers" in note for note in result.notes)
    assert result.execution is None  # no code was run


def test_a_total_that_may_be_a_share_or_a_percentage_is_noted(slow: dict[str, Any], tmp_path: Path) -> None:
    whole = '{"mean_reward": 0.5 if len(predictions) > 1 else 0.0, "accuracy": 0.5 if len(predictions) > 1 else 0.0}'
    text = MODULE.replace("import sympy", "")
    text = text.replace(
        '"accuracy": 100.0 * sum(map(str.__eq__, predictions, references)) / len(predictions)', whole[1:-1]
    )
    module = text.replace("class Slow", "class Whole")
    (tmp_path / "whole_module.py").write_text(module)
    (tmp_path / "configs" / "slow_gen.py").write_text(
        CONFIG.replace("slow_module", "whole_module").replace("Slow", "Whole")
    )
    result = score(reply=lambda r: "7", **slow)
    row = result.results["results"]["gsm8k"]
    assert (row["mean_reward,none"], row["accuracy,none"]) == (0.5, 0.005)
    assert any("mean_reward 0.5 comes without documents' values and was read as a share" in n for n in result.notes)
    assert any("accuracy 0.5 comes without documents' values and was read as a percentage" in n for n in result.notes)


def test_an_evaluator_that_never_works_is_an_error(slow: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="fails on every answer"):
        score(reply=lambda r: "die", **slow)


def test_a_postprocessor_that_fails_reads_as_empty(slow: dict[str, Any]) -> None:
    result = score(reply=lambda r: "9" if r.doc_id == 0 else right(int(r.doc_id)), **slow)
    assert result.results["results"]["gsm8k"]["accuracy,none"] == 0.75
    assert result.samples["gsm8k"][0]["filtered_resps"] == [""]
    assert any("failed on 1 of the answers" in note and "nine" in note for note in result.notes)


def test_an_answer_that_ordinary_code_does_not_end_for_reads_as_empty(
    slow: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A postprocessor and an evaluator with a regular expression that backtracks for ever."""
    monkeypatch.setattr("dare_bench.harness.opencompass.evaluation.ANSWER_SECONDS", 0.5)
    (tmp_path / "busy_module.py").write_text(MODULE.replace("import sympy", ""))
    (tmp_path / "configs" / "slow_gen.py").write_text(
        CONFIG.replace("slow_module", "busy_module").replace("Slow", "Busy")
    )
    texts = [right(0), "endless text", "endless", right(3)]
    result = score(reply=lambda r: texts[int(r.doc_id)], **slow)
    assert result.results["results"]["gsm8k"]["accuracy,none"] == 0.5
    assert [line["accuracy"] for line in result.samples["gsm8k"]] == [1.0, 0.0, 0.0, 1.0]
    assert any("failed on 2 of the answers" in note and "not done within 0.5 s" in note for note in result.notes)


def test_formulas_are_compared_by_opencompass(tmp_path: Path) -> None:
    """MATHVerifyEvaluator starts a process for each item; it does so inside the guard's worker too."""
    (tmp_path / "math").mkdir()
    problems = [{"problem": "1/2 + 1/2 = ?", "solution": r"It is $\boxed{1}$.", "answer": "1"}] * 2
    text = "".join(json.dumps(problem) + "\n" for problem in problems)
    (tmp_path / "math" / "test.jsonl").write_text(text)
    entry = {
        "name": "math500",
        "hf_ids": ["HuggingFaceH4/MATH-500"],
        "lm_eval": {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "math/test.jsonl"}}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    result = score("math_500_gen", lambda r: r"So \boxed{\frac{2}{2}}" if r.doc_id else r"So \boxed{2}", tmp_path)
    assert [line["accuracy"] for line in result.samples["math-500"]] == [0.0, 1.0]
    assert result.results["results"]["math-500"]["accuracy,none"] == 0.5


# --- generated code ---------------------------------------------------------------------------------------------------


def _entry(name: str, hub_id: str, *more: str) -> dict[str, Any]:
    files = {"data_files": {"test": f"{name}.jsonl", **{split: f"{name}_{split}.jsonl" for split in more}}}
    return {"name": name, "hf_ids": [hub_id], "lm_eval": {"dataset_path": "json", "dataset_kwargs": files}}


@pytest.fixture
def coding(tmp_path: Path) -> Path:
    """Data sets in the columns of HumanEval, HumanEval+, MBPP and MBPP+; document i wants a function that adds i."""

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    head = 'def add(x):\n    """Add {i}."""\n'
    check = "def check(candidate):\n    assert candidate(1) == {n}\n"
    human = [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": head.format(i=i),
            "canonical_solution": f"    return x + {i}\n",
            "test": check.format(n=1 + i),
            "entry_point": "add",
        }
        for i in range(3)
    ]
    write("humaneval", human)
    plus = [{**row, "test": f"{row['test']}    assert candidate(-1) == {i - 1}\n"} for i, row in enumerate(human)]
    write("humaneval_plus", plus)
    mbpp = [
        {
            "task_id": i,
            "text": f"Write a function that adds {i}.",
            "code": f"def add(x):\n    return x + {i}",
            "test_list": [f"assert add(1) == {1 + i}", f"assert add(2) == {2 + i}"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for i in range(1, 15)
    ]
    for name, rows in {"mbpp_prompt": mbpp[:10], "mbpp": mbpp[10:], "mbpp_validation": [], "mbpp_train": []}.items():
        write(name, rows)
    write(
        "mbpp_plus",
        [
            {
                "task_id": str(i),
                "prompt": f"Write a function that adds {i}.",
                "code": f"def add(x):\n    return x + {i}",
                "test_imports": ["import math"],
                "test_list": [f"assert add(1) == {1 + i}"],
                "test": f"assert add(math.floor(2.5)) == {2 + i}",
            }
            for i in range(2)
        ],
    )
    entries = [
        _entry("humaneval", "openai/openai_humaneval"),
        _entry("humaneval_plus", "evalplus/humanevalplus"),
        _entry("mbpp", "google-research-datasets/mbpp:full", "prompt", "validation", "train"),
        _entry("mbpp_plus", "evalplus/mbppplus"),
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": entries}))
    return tmp_path


def adds(i: int, last: str = "") -> str:
    return f"```python\ndef add(x):\n    return x + {i}{last}\n```"


def run_code(tasks: str, reply: Any, folder: Path, **fields: Any) -> HarnessResult:
    """Without a sandbox: what is run here was written above, and machines without one have to pass, too."""
    return score(tasks, reply, folder, unsafe_no_sandbox=True, **fields)


@pytest.mark.parametrize(("limit", "share"), [(None, 2 / 3), (2, 0.5), (1, 0.0)])
def test_humaneval_works_with_any_limit(coding: Path, limit: int | None, share: float) -> None:
    def reply(request: Request) -> str:
        return adds(int(request.doc_id)) if request.doc_id else adds(99)

    result = run_code("humaneval_gen", reply, coding, limit=limit)
    row = result.results["results"]["openai_humaneval"]
    assert row["humaneval_pass@1,none"] == pytest.approx(share)
    assert result.results["n-samples"]["openai_humaneval"] == {"original": 3, "effective": limit or 3}
    line = result.samples["openai_humaneval"][0]
    assert line["_answers"][0]["verdict"]["status"] == "failed"
    assert line["_answers"][0]["extracted"] == "def add(x):\n    return x + 99\n"
    assert result.execution is not None
    assert sum(result.execution["statuses"].values()) == (limit or 3)
    assert result.execution["unsafe"] is True


def test_code_that_the_sandbox_did_not_run_is_a_failure_and_not_a_wrong_answer(
    coding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dare_bench import sandbox

    class Broken(sandbox.Pool):
        def _run(self, solution: str, tests: str) -> sandbox.Verdict:
            return sandbox.Verdict("refused", "bubblewrap", "the sandbox did not start", 0.0)

    monkeypatch.setattr(sandbox, "Pool", Broken)
    result = run_code("humaneval_gen", lambda request: "    return 1", coding)
    assert [failure["doc_id"] for failure in result.failures] == [0, 1, 2]
    assert all("its code was not run" in failure["error"] for failure in result.failures)
    assert "humaneval_pass@1,none" not in result.results["results"].get("openai_humaneval", {})


def test_humaneval_plus_runs_the_plus_tests(coding: Path) -> None:
    reply = lambda r: adds(int(r.doc_id), " if x > 0 else 77" if r.doc_id == 1 else "")  # noqa: E731
    both = run_code("humaneval_gen,humaneval_plus_gen", reply, coding).results["results"]
    assert both["openai_humaneval"]["humaneval_pass@1,none"] == 1.0
    assert both["humaneval_plus"]["humaneval_plus_pass@1,none"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("limit", [None, 4])
def test_mbpp_counts_the_documents_that_were_asked(coding: Path, limit: int | None) -> None:
    """OpenCompass takes the rows behind the tenth for testing: four here, of which one answer is right."""
    reply = lambda r: f"[BEGIN]\n 'def add(x):\n    return x + {11 if r.doc_id == 0 else 0}'\n[DONE]"  # noqa: E731
    result = run_code("mbpp_gen", reply, coding, limit=limit)
    assert result.results["results"]["mbpp"]["score,none"] == 0.25
    assert result.results["opencompass"]["mbpp"] == {"score": 25.0, "passed": 1, "failed": 3}
    assert [line["score"] for line in result.samples["mbpp"]] == [1.0, 0.0, 0.0, 0.0]


def test_mbpp_plus_runs_its_own_tests_behind_its_imports(coding: Path) -> None:
    result = run_code("mbpp_plus_gen", lambda r: adds(int(r.doc_id)), coding)
    assert result.results["results"]["mbpp_plus"]["mbpp_plus_pass@1,none"] == 1.0


def test_pass_at_k_of_repeats(coding: Path) -> None:
    reply = lambda r: adds(int(r.doc_id) if r.repeat == 1 else 50)  # noqa: E731
    row = run_code("humaneval_gen", reply, coding, repeats=2).results["results"]["openai_humaneval"]
    assert row["humaneval_pass@1,none"] == 0.5 and row["pass@2,none"] == 1.0


class Forged:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("actual", "expected", "equal"),
    [
        (240.0, 240, True),  # OpenCompass's own comparison refuses these two, and some of MBPP's solutions with them
        (collections.Counter("aab"), {"a": 2, "b": 1}, True),
        ([1, (2, 3)], [1, (2, 3)], True),
        ([1, 2], (1, 2), False),
        (1, 2, False),
        (Forged(), 4, False),
        ([Forged()], [4], False),
        ({"a": Forged()}, {"a": 1}, False),
    ],
)
def test_what_a_test_of_mbpp_calls_equal(actual: Any, expected: Any, equal: bool) -> None:
    from opencompass.utils.code_execution import type_aware_equal

    assert holds(actual, expected, type_aware_equal) is equal


def test_a_forged_result_fails_in_the_program_that_is_run(coding: Path) -> None:
    forged = "class F:\n    def __eq__(self, other): return True\ndef add(x):\n    return F()"
    result = run_code("mbpp_gen", lambda r: f"```python\n{forged}\n```", coding, limit=2)
    assert result.results["results"]["mbpp"]["score,none"] == 0.0
    assert [line["_answers"][0]["verdict"]["status"] for line in result.samples["mbpp"]] == ["failed", "failed"]


def test_the_tests_are_part_of_the_fingerprint(coding: Path) -> None:
    def fingerprint() -> str:
        return run_code("humaneval_plus_gen", lambda r: adds(0), coding, limit=1).fingerprints["humaneval_plus"]

    before = fingerprint()
    path = coding / "humaneval_plus.jsonl"
    path.write_text(path.read_text().replace("candidate(-1)", "candidate(0 - 1)"))
    after = fingerprint()
    assert before.split(":")[0] == after.split(":")[0] and before != after


def test_the_programs_are_those_that_the_fingerprint_names() -> None:
    """Other programs need another PROGRAMS_VERSION: change both together."""
    from opencompass.datasets import MBPPEvaluator

    from dare_bench.harness.opencompass.programs import PROGRAMS_VERSION, CodeSet

    human = CodeSet({"eval_cfg": {"evaluator": {"type": "HumanEvalEvaluator"}}, "reader_cfg": {}}, None)
    row = {"prompt": "def add(a, b):\n", "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add"}
    reader = {"output_column": "test_list"}
    mbpp = CodeSet({"eval_cfg": {"evaluator": {"type": MBPPEvaluator}}, "reader_cfg": reader}, None)
    document = {
        "test_list": "assert add(1, 2) == 3",
        "test_imports": ["import math"],
        "test_setup_code": "",
        "code": "def add(a, b): return a + b",
    }
    programs = [
        human.program(human.read("    return a + b\n"), row),
        mbpp.program(mbpp.read("```python\ndef add(a, b):\n    return a + b\n```"), document),
    ]
    digest = hashlib.sha256(json.dumps(programs).encode()).hexdigest()[:16]
    assert (digest, PROGRAMS_VERSION) == ("0e07c4860aa639a9", "6eeccc72814a0722")
