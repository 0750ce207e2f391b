"""Comparing formulas ends, whatever a model wrote, and says where it had to be ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from require import need_package

from dare_bench.errors import DataError
from dare_bench.harness.lm_eval.scoring_limits import is_mathematical, limited
from dare_bench.sandbox.worker_process import ItemTimeout, WorkerProcess

math_verify = need_package("math_verify")

ENDLESS = {
    "tower": "$9^{9^{9^{9}}}$",
    "boxed tower": "\\boxed{10^{10^{10}}}",
    "factorial": "$100000000!$",
    "binomial": "\\boxed{\\binom{10^9}{5\\cdot 10^8}}",
    "sum": "$\\sum_{i=1}^{10^9} i^{i}$",
    "plain tower": "9**9**9**9",
    "nested braces": "$" + "{" * 3000 + "1" + "}" * 3000 + "$",
}


def states(gold: str, answer: str) -> bool:
    """math-verify without limits of its own."""
    return bool(
        math_verify.verify(
            *(math_verify.parse(text, parsing_timeout=None) for text in (gold, answer)), timeout_seconds=None
        )
    )


def test_comparing_ends_in_any_thread() -> None:
    """math-verify alone works in no thread but the first: it sets an alarm."""
    result: list[bool] = []
    with WorkerProcess({"states": states}, seconds=20) as guard:
        thread = threading.Thread(target=lambda: result.append(guard.call("states", "$2$", "$1+1$")))
        thread.start()
        thread.join(40)
    assert result == [True]


@pytest.mark.parametrize("name", ENDLESS)
def test_comparing_ends(name: str) -> None:
    with WorkerProcess({"states": states}, seconds=20) as guard:
        start = time.monotonic()
        with pytest.raises(ItemTimeout):
            guard.call("states", "$7$", ENDLESS[name], seconds=0.7)
        assert time.monotonic() - start < 60  # alone it would take for ever
        assert guard.call("states", "$7$", "$7$") is True


def lm_eval_task(path: str) -> Any:
    """A task of lm-eval with its real scorer, and without its data."""
    need_package("lm_eval")
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.__file__).parent / "tasks" / path, resolve_func=True)
    task = object.__new__(ConfigurableTask)
    task._config = SimpleNamespace(process_results=config.get("process_results"))
    task._aggregation_list = {metric["metric"]: sum for metric in config["metric_list"]}
    task.OUTPUT_TYPE = config["output_type"]
    return task


MATHEMATICAL = {
    "minerva_math/minerva_math_algebra.yaml": True,
    "minerva_math/minerva_math500.yaml": True,
    "hendrycks_math/hendrycks_math_algebra.yaml": True,
    "leaderboard/math/_template_yaml": True,
    "aime/aime24.yaml": True,
    "agieval/math.yaml": True,
    "agieval/sat-math.yaml": False,  # options by likelihood; its file reads formulas for other tasks
    "gsm8k/gsm8k.yaml": False,
    "ifeval/ifeval.yaml": False,
}


@pytest.mark.parametrize("path", MATHEMATICAL)
def test_which_tasks_are_mathematical(path: str) -> None:
    assert is_mathematical(lm_eval_task(path)) is MATHEMATICAL[path]


DOC = {"problem": "p", "solution": "So $x=\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}"}
FINAL = "Final Answer: The final answer is {}. I hope it is correct."


def rows(answers: list[str]) -> list[dict[str, Any]]:
    """lm-eval's logged samples of one document that was answered several times."""
    import json

    from lm_eval.utils import hash_string

    shown = hash_string(json.dumps(DOC, indent=2, ensure_ascii=False))
    return [{"doc_hash": shown, "resps": [[text]], "filtered_resps": [text], "filter": "none"} for text in answers]


@pytest.mark.parametrize("path", ["minerva_math/minerva_math_algebra.yaml", "leaderboard/math/_template_yaml"])
def test_lm_evals_scorers_end_and_what_was_ended_is_wrong_and_said(path: str) -> None:
    task, plain = lm_eval_task(path), lm_eval_task(path)
    good, hanging = FINAL.format("$\\frac{1}{2}$"), FINAL.format("$9^{9^{9^{9}}}$")
    alone = plain.process_results(DOC, [good])  # and what it imports is there when the worker is forked
    with limited({"maths": task}, seconds=2.5) as watched:
        first = task.process_results(DOC, [good])
        start = time.monotonic()
        lost = task.process_results(DOC, [hanging])
        assert time.monotonic() - start < 60  # alone it would take for ever
        again = task.process_results(DOC, [good])
    assert first == again == alone
    assert set(first.values()) == {1}
    assert lost == dict.fromkeys(first, 0)
    assert watched.notes == ["task 'maths': 1 answer could not be compared within 2.5 s; counted as wrong"]
    logged = rows([good, hanging])
    watched.mark({"maths": logged, "other": rows([hanging])})
    assert [row["_answers"] for row in logged] == [
        [{}],
        [{"verdict": {"status": "timeout", "level": "none", "seconds": 2.5}}],
    ]
    assert task.process_results(DOC, [good]) == first and "process_results" not in vars(task)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("path", ["hendrycks_math/hendrycks_math_algebra.yaml", "aime/aime24.yaml"])
def test_comparing_texts_takes_no_time(path: str, name: str) -> None:
    task = lm_eval_task(path)
    with limited({"maths": task}, seconds=5) as watched:
        assert task.process_results(DOC, [ENDLESS[name]]) == {"exact_match": 0}
        assert task.process_results(DOC, ["$\\frac{1}{2}$"]) == {"exact_match": 1}
    assert watched.notes == []


def scored_by(function: Any) -> Any:
    """A task of our own; its file (this one) imports math-verify."""
    task = SimpleNamespace(
        OUTPUT_TYPE="generate_until",
        config=SimpleNamespace(process_results=function),
        aggregation=lambda: {"exact_match": sum},
    )
    task.process_results = function
    return task


def shaped(doc: Any, results: Any) -> Any:
    """A metric that is no number, as in lm-eval's ``score``; a crash for one answer."""
    if results[0] == "crash":
        import os

        os._exit(9)
    if results[0] == "error":
        raise AssertionError("not \\boxed")
    return {"accuracy": (doc, int(results[0] == "right"))}


def test_a_crash_is_a_wrong_answer_in_the_scorers_own_shape() -> None:
    task = scored_by(shaped)
    own = task.process_results
    with limited({"t": task}, seconds=5) as watched:
        result = [task.process_results(3, [answer]) for answer in ("right", "crash", "error", "wrong")]
    assert result == [{"accuracy": [3, n]} for n in (1, 0, 0, 0)]
    assert task.process_results is own
    assert len(watched.notes) == 1
    assert "failed on 2 answers; counted as wrong" in watched.notes[0] and "exit status 9" in watched.notes[0]


def broken(doc: Any, results: Any) -> Any:
    """A scorer whose installation is not whole: no answer, boxed or not, can be scored."""
    raise ImportError("antlr4 is not installed")


def test_a_scorer_that_never_works_is_an_error_not_a_score() -> None:
    task = scored_by(broken)
    with (
        pytest.raises(DataError, match=r"fails on every answer: ImportError: antlr4"),
        limited({"t": task}, seconds=5),
    ):
        assert task.process_results(1, ["1"]) == task.process_results(1, ["2"]) == {"exact_match": 0.0}


def test_an_error_on_the_way_leaves_the_tasks_as_they_were() -> None:
    task = lm_eval_task("hendrycks_math/hendrycks_math_algebra.yaml")
    with pytest.raises(KeyError), limited({"t": task}, seconds=5):
        raise KeyError("lm-eval stopped")
    assert "process_results" not in vars(task)
