"""lm-eval's code tasks, unmodified, on a few rows of their real data: answers run in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from paths import ROOT
from require import lacks, need_package
from toy_model import ToyModel
from toy_tasks import answer_with, write_tasks

from dare_bench import sandbox
from dare_bench.config import run_spec
from dare_bench.errors import UsageError
from dare_bench.harness.common.code_eval import HEAVY_TIMEOUT, TIMEOUT, built_ins_line
from dare_bench.harness.lm_eval.code_scoring import adapted
from dare_bench.harness.lm_eval.code_tasks import CodeTaskError
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.sandbox import Pool, Verdict
from dare_bench.types import Request, Sample

need_package("lm_eval")
BENCH = ROOT / "tests" / "data" / "bench"
# Each task's data set, what its model would write for a row, and its metric.
TASKS: dict[str, Any] = {
    "humaneval": ("humaneval", lambda row: row["canonical_solution"] + "\nprint(1)", "pass@1,create_test"),
    "humaneval_instruct": ("humaneval", lambda row: row["canonical_solution"] + "```\nDone.", "pass@1,create_test"),
    "humaneval_plus": ("humaneval_plus", lambda row: row["canonical_solution"], "pass@1,create_test"),
    "mbpp": ("mbpp", lambda row: row["code"] + "\n[DONE]", "pass_at_1,none"),
    "mbpp_instruct": ("mbpp", lambda row: "\n" + row["code"] + "\n```", "pass_at_1,extract_code"),
    "mbpp_plus": ("mbpp_plus", lambda row: row["code"] + "\n[DONE]", "pass_at_1,none"),
    "mbpp_plus_instruct": ("mbpp_plus", lambda row: row["code"] + "\n```", "pass_at_1,extract_code"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def isolated() -> None:
    if sandbox.isolation() == "none":
        lacks("bubblewrap", "is not installed or may not isolate, and neither may namespaces")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCH / name / "test.jsonl").read_text().split("\n") if line]


def gold(request: Request) -> str:
    name, write, _ = TASKS[request.task]
    return str(write(rows(name)[int(request.doc_id)]))


def source(tasks: str, model: ToyModel, **fields: Any) -> LmEvalSource:
    given = {"data_dir": str(BENCH), "decoding": {"gen_length": 4096}, **fields}
    return LmEvalSource(run_spec(model="toy", tasks=tasks, **given), model)


def test_reference_solutions_pass_and_others_fail(isolated: None) -> None:
    model = ToyModel(reply=gold)
    built = source(",".join(TASKS), model)
    result = built.run(answer_with(model))
    for task, (name, _, metric) in TASKS.items():
        assert result.results["results"][task][metric] == 1.0, task
        assert result.results["n-samples"][task] == {"original": len(rows(name)), "effective": len(rows(name))}
        assert [row["doc_id"] for row in result.samples[task]] == list(range(len(rows(name))))
        verdicts = [answer["verdict"] for row in result.samples[task] for answer in row["_answers"]]
        assert [verdict["status"] for verdict in verdicts] == ["passed"] * len(rows(name))
        assert all(verdict["level"] in ("bubblewrap", "namespaces") for verdict in verdicts)
    assert result.execution is not None and result.execution["statuses"] == {"passed": 2 * len(TASKS)}
    assert (result.execution["unsafe"], result.execution["timeout"]) == (False, HEAVY_TIMEOUT)

    def wrong(request: Request) -> str:
        return gold(request) if request.doc_id == 0 else "    return None\n```"

    model = ToyModel(reply=wrong)
    result = source("humaneval,mbpp_plus_instruct", model).run(answer_with(model))
    assert result.results["results"]["humaneval"]["pass@1,create_test"] == 0.5
    assert result.results["results"]["mbpp_plus_instruct"]["pass_at_1,extract_code"] == 0.5
    assert result.execution is not None and result.execution["statuses"] == {"failed": 2, "passed": 2}


class Paper(Pool):
    """Runs nothing: ``statuses`` by a word of the solution, else passed. ``asked`` are the pairs, each once."""

    statuses: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[tuple[str, str]]] = []

    def _run(self, solution: str, tests: str) -> Verdict:
        self.asked.append((solution, tests))
        status: Any = next((status for word, status in self.statuses.items() if word in solution), "passed")
        return Verdict(status, "bubblewrap", "the sandbox did not start", 0.1)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> type[Paper]:
    monkeypatch.setattr(Paper, "asked", [])
    monkeypatch.setattr(Paper, "statuses", {})
    monkeypatch.setattr(sandbox, "Pool", Paper)
    monkeypatch.setattr(sandbox, "isolation", lambda: "bubblewrap")
    return Paper


def test_tests_start_while_answers_come_and_run_once(paper: type[Paper]) -> None:
    model = ToyModel(reply=gold)
    built = source("humaneval,mbpp,gsm8k", model, num_fewshot=0)
    built.requests()
    started: list[int] = []
    pools = built._runner._pools
    imported = sum(len(pool._futures) for pool in pools.values())  # what the task modules try when first imported
    paper.asked.clear()

    def answer(requests: Sequence[Request]) -> list[Sample]:
        samples = []
        model.reply = lambda request: gold(request) if request.task in TASKS else "#### 1"
        for request in requests:
            samples += list(model.generate([request]))
            built.watch(samples[-1])
            built.watch(samples[-1])
        started.append(sum(len(pool._futures) for pool in pools.values()) - imported)
        return samples

    result = built.run(answer)
    assert started == [4], "two documents of each code task"
    assert len(paper.asked) == len(set(paper.asked)) == 4, "scoring asked for the same pairs"
    assert result.results["results"]["mbpp"]["pass_at_1,none"] == 1.0
    solution, tests = next(pair for pair in paper.asked if "similar_elements" not in pair[0] and "has_close" in pair[0])
    assert solution.startswith(rows("humaneval")[0]["prompt"]) and tests.endswith("check(has_close_elements)")
    assert all("verdict" not in answer for answer in result.samples["gsm8k"][0]["_answers"])


def test_watch_never_raises_and_never_waits(paper: type[Paper], monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyModel(reply=gold)
    built = source("humaneval", model)
    request = built.requests()[0]
    built.watch(Sample(request, None, "no memory"))
    built.watch(Sample(Request("x/0/0/0/0", "generate", "", task="other"), None))

    def broken(*_: Any) -> Any:
        raise RuntimeError("the filter broke")

    monkeypatch.setattr(built._documents["humaneval"].task._filters[0], "apply", broken)
    sample = next(iter(model.generate([request])))
    built.watch(sample)
    monkeypatch.undo()


def test_the_statuses_are_told_and_refused_documents_are_failures(paper: type[Paper]) -> None:
    paper.statuses.update({"has_close_elements": "timeout", "remove_Occ": "refused"})
    model = ToyModel(reply=gold)
    result = source("humaneval,mbpp", model).run(answer_with(model))
    assert result.results["results"]["humaneval"]["pass@1,create_test"] == 0.5
    assert result.failures == [
        {"task": "mbpp", "doc_id": 0, "error": "its code was not run: the sandbox did not start"}
    ]
    assert result.results["n-samples"]["mbpp"] == {"original": 2, "effective": 1}
    assert result.execution == {
        "level": "bubblewrap",
        "unsafe": False,
        "timeout": TIMEOUT,
        "statuses": {"passed": 2, "timeout": 1},
    }


def test_repeats_of_our_own_and_of_the_task(paper: type[Paper]) -> None:
    """Of four answers the first two pass: pass@2 is 1 - C(2,2)/C(4,2)."""
    paper.statuses["return None"] = "failed"
    model = ToyModel(reply=lambda request: gold(request) if request.repeat < 2 else "    return None")
    fields: dict[str, Any] = {"gen_length": 4096, "temperature": 0.8}
    result = source("humaneval", model, repeats=4, decoding=fields).run(answer_with(model))
    row = result.results["results"]["humaneval"]
    scores = {key: row[f"{key},create_test"] for key in ("pass@1", "pass@2", "pass@4")}
    assert scores == {"pass@1": 0.5, "pass@2": pytest.approx(5 / 6), "pass@4": 1.0}
    assert row["pass@1_stderr,create_test"] == 0.0
    first = result.samples["humaneval"][0]
    assert (first["pass@1"], len(first["resps"][0]), len(first["filtered_resps"])) == (0.5, 4, 4)
    assert [a["verdict"]["status"] for a in first["_answers"]] == ["passed", "passed", "failed", "failed"]
    assert result.execution is not None and result.execution["statuses"] == {"failed": 4, "passed": 4}
    assert not any("repeats" in note for note in result.notes)

    model = ToyModel(reply=lambda r: rows("humaneval")[int(r.doc_id)]["canonical_solution"])
    built = source("humaneval_64", model, repeats=2, limit=1)
    assert [request.repeat for request in built.requests()] == list(range(128))
    result = built.run(answer_with(model))
    assert result.results["results"]["humaneval_64"]["pass@64,create_test"] == 1.0
    assert len(result.samples["humaneval_64"][0]["_answers"]) == 128
    assert "pass@128,create_test" not in result.results["results"]["humaneval_64"]


def test_what_runs_beside_lm_evals_tests_is_noted(paper: type[Paper]) -> None:
    model = ToyModel(reply=gold)
    result = source("mbpp", model).run(answer_with(model))
    assert any("test_setup_code of a document run before its tests" in note for note in result.notes)
    tests = next(tests for solution, tests in paper.asked if "class Node" in solution)
    assert tests.startswith("root = Node(1)") and "assert is_tree_balanced(root)" in tests
    assert adapted({"test_imports": ["import math"]}, "assert math")[0] == "import math\nassert math"
    mended, changes = adapted({}, "assert _poly(*candidate(*inp), inp) <= 0.0001")
    assert mended == "assert _poly(*inp, candidate(*inp)) <= 0.0001" and "HumanEval/32" in changes[0]
    assert adapted({"test_imports": [], "test_setup_code": ""}, "assert 1") == ("assert 1", [])


def test_a_document_that_asks_for_a_built_in_name_says_so() -> None:
    own = {"code": "def sum(a, b):\n    return a\ndef max(a):\n    return a", "test_list": ["assert sum(1, 2) == 3"]}
    assert adapted(own, "assert sum(1, 2) == 3")[0] == "global sum\nassert sum(1, 2) == 3"
    assert built_ins_line({**own, "test_list": "assert sum(1, 2) == 3\nassert max(1) == 1"}) == "global sum, max\n"
    for none in ({"code": "def f(): pass", "test_list": ["assert f() is max(1)"]}, {"code": None}, {}, None):
        assert built_ins_line(none) == ""


def test_code_tasks_are_refused_before_a_model_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "isolation", lambda: "none")
    with pytest.raises(UsageError, match=r"'humaneval' runs code that the model writes: .*bubblewrap"):
        LmEvalSource.check(run_spec(model="toy", tasks="gsm8k,humaneval"))
    LmEvalSource.check(run_spec(model="toy", tasks="humaneval", unsafe_no_sandbox=True))
    folder = write_tasks(tmp_path / "tasks")
    with pytest.raises(CodeTaskError, match=r"'toy_runs' .*scorer\.py runs code by itself"):
        LmEvalSource.check(run_spec(model="toy", tasks="toy_runs", include_path=str(folder), unsafe_no_sandbox=True))
