"""Several answers to each prompt become one result."""

from __future__ import annotations

import math
import statistics
from typing import Any

import golden
import pytest
from toy_model import ToyModel

from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.harness.common.repeats import combine, equal_repeats, sizes
from dare_bench.types import Request


def part(
    values: dict[Any, Any], *, metric: str = "acc", value: Any = None, name: str = "none", task: str = "t", **more: Any
) -> Any:
    """(results, samples) of one repeat: a task with one metric whose documents have ``values``."""
    lines = [
        {"doc_id": doc, "filter": name, "resps": [[f"r{v}"]], "filtered_resps": [v], "metrics": [metric], metric: v}
        for doc, v in values.items()
    ]
    numbers = [float(v) for v in values.values() if isinstance(v, (int, float))]
    mean = value if value is not None else statistics.fmean(numbers)
    row = {"alias": task, "sample_len": len(lines), f"{metric},{name}": mean, f"{metric}_stderr,{name}": 0.3, **more}
    results = {
        "results": {task: row},
        "higher_is_better": {task: {metric: True}},
        "n-samples": {task: {"original": 9, "effective": len(lines)}},
        "group_subtasks": {},
    }
    return results, {task: lines}


def test_one_part_stays_as_it_is() -> None:
    results, samples = part({0: 1.0, 1: 0.0})
    assert combine([(results, samples)]) == (results, samples)


def test_documents_are_averaged_and_errors_come_from_their_means() -> None:
    parts = [part({0: 1.0, 1: 0.0, 2: 1.0}), part({0: 1.0, 1: 1.0, 2: 0.0}), part({0: 1.0, 1: 0.0, 2: 0.0})]
    results, samples = combine(parts)
    means = [1.0, 1 / 3, 1 / 3]
    row = results["results"]["t"]
    assert [line["acc"] for line in samples["t"]] == pytest.approx(means)
    assert row["acc,none"] == pytest.approx(5 / 9)
    assert row["acc_stderr,none"] == pytest.approx(statistics.stdev(means) / math.sqrt(3))
    assert samples["t"][1]["resps"] == [["r0.0", "r1.0", "r0.0"]]
    assert samples["t"][1]["filtered_resps"] == [0.0, 1.0, 0.0]
    # pass@2 of c right ones in 3 is 1, 2/3, 0 for c = 3, 1, 0; pass@3 is 1 where c > 0
    assert "pass@1,none" not in row and row["pass@2,none"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert row["pass@3,none"] == 1.0 and "pass@4,none" not in row
    assert samples["t"][1]["pass@2"] == pytest.approx(2 / 3)
    assert samples["t"][0]["metrics"] == ["acc", "pass@2", "pass@3"]
    assert results["higher_is_better"]["t"] == dict.fromkeys(("acc", "pass@2", "pass@3"), True)
    assert set(confidence_intervals(results, samples)["t"]) >= {"acc,none", "pass@2,none"}


def test_sizes() -> None:
    assert [sizes(n) for n in (1, 2, 3, 8, 12)] == [[], [2], [2, 3], [2, 4, 8], [2, 4, 8, 12]]


def test_the_parts_are_left_alone() -> None:
    parts = [part({0: 1.0}), part({0: 0.0})]
    before = repr(parts)
    combine(parts)
    assert repr(parts) == before


@pytest.mark.parametrize(("metric", "has"), [("exact_match", True), ("cell_accuracy", False), ("f1", False)])
@pytest.mark.parametrize("first", [0.5, 0.0])
def test_which_scores_there_are_does_not_depend_on_the_answers(metric: str, has: bool, first: float) -> None:
    row = combine([part({0: first, 1: 1.0}, metric=metric), part({0: first, 1: 0.0}, metric=metric)])[0]["results"]["t"]
    assert {key for key in row if "pass@" in key} == ({"pass@2,none", "pass@2_stderr,none"} if has else set())
    assert not has or row["pass@2,none"] == 0.5  # right is a value of 1
    assert row[f"{metric},none"] == pytest.approx((2 * first + 1) / 4)


def test_pass_at_k_is_of_metrics_where_more_is_better() -> None:
    parts = [part({0: 1, 1: 0}), part({0: 0, 1: 0})]
    for results, _ in parts:
        results["higher_is_better"]["t"]["acc"] = False
    assert not any(key.startswith("pass@") for key in combine(parts)[0]["results"]["t"])


def test_the_tasks_own_pass_at_k_stays() -> None:
    parts = [part({0: 1.0, 1: 0.0}, metric="pass@1"), part({0: 0.0, 1: 0.0}, metric="pass@1")]
    row = combine(parts)[0]["results"]["t"]
    assert (row["pass@1,none"], row["pass@2,none"]) == (0.25, 0.5)
    parts = [part({0: 1.0, 1: 0.0}, metric="pass@8"), part({0: 0.0, 1: 0.0}, metric="pass@8")]
    row = combine(parts)[0]["results"]["t"]
    assert {key for key in row if key.startswith("pass@")} == {"pass@8,none", "pass@8_stderr,none"}


def test_several_metrics_and_filters_keep_their_names() -> None:
    def two(values: list[int], other: list[int], text: list[float]) -> Any:
        results, samples = part(dict(enumerate(values)))
        for line, v, w in zip(samples["t"], other, text, strict=True):
            line.update({"acc_norm": v, "f1": w, "metrics": ["acc", "acc_norm", "f1"]})
        more = part(dict(enumerate(other)), name="loose")
        results["results"]["t"] |= {"acc_norm,none": statistics.fmean(other), "f1,none": statistics.fmean(text)}
        results["results"]["t"] |= more[0]["results"]["t"]
        return results, {"t": samples["t"] + more[1]["t"]}

    results, samples = combine([two([1, 0], [1, 1], [0.5, 1]), two([0, 0], [1, 0], [0.5, 0])])
    row = results["results"]["t"]
    assert (row["acc_pass@2,none"], row["acc_norm_pass@2,none"], row["pass@2,loose"]) == (0.5, 1.0, 1.0)
    assert "pass@2,none" not in row and "f1_pass@2,none" not in row and row["f1,none"] == 0.5
    assert [(line["filter"], line["acc"]) for line in samples["t"]] == [
        ("none", 0.5),
        ("none", 0.0),
        ("loose", 1.0),
        ("loose", 0.5),
    ]


def test_values_that_are_not_there() -> None:
    """None is no value: it neither counts nor stops a mean."""
    parts = [part({0: None, 1: 1.0, 2: 0.5}), part({0: None, 1: None, 2: 0.0})]
    results, samples = combine(parts)
    assert [line["acc"] for line in samples["t"]] == [None, 1.0, 0.25]
    assert results["results"]["t"]["acc,none"] == pytest.approx(0.625)
    parts = [part({0: 1.0}, value="N/A"), part({0: 0.0}, value="N/A")]
    assert combine(parts)[0]["results"]["t"]["acc,none"] == "N/A"


def test_a_document_with_several_values_keeps_them() -> None:
    """IFEval's instructions: the score is the share of all instructions followed."""
    parts = [
        part({0: [True, False], 1: [True]}, metric="inst", value=2 / 3),
        part({0: [False, False], 1: [True]}, metric="inst", value=1 / 3),
    ]
    results, samples = combine(parts)
    row = results["results"]["t"]
    assert [line["inst"] for line in samples["t"]] == [[0.5, 0.0], [1.0]]
    assert (row["inst,none"], row["inst_stderr,none"]) == (0.5, "N/A")
    assert confidence_intervals(results, samples)["t"]["inst,none"].method.endswith("documents")


def test_other_aggregations_are_averaged_as_reported() -> None:
    pairs = [part({0: ["a", "b"], 1: ["a", "a"]}, metric="bleu", value=v) for v in (20.0, 30.0)]
    results, samples = combine(pairs)
    row = results["results"]["t"]
    assert (row["bleu,none"], row["bleu_stderr,none"]) == (25.0, "N/A")
    assert samples["t"][0]["bleu"] == [["a", "b"], ["a", "b"]]
    assert confidence_intervals(results, samples) == {}
    best = [part({0: 0.2, 1: 0.9}, metric="best", value=0.9), part({0: 0.4, 1: 0.3}, metric="best", value=0.4)]
    row = combine(best)[0]["results"]["t"]
    assert row["best,none"] == pytest.approx(0.65) and row["best_stderr,none"] == "N/A"


def test_documents_that_a_repeat_lacks_are_left_out() -> None:
    results, samples = combine([part({0: 1.0, 1: 0.0, 2: 1.0}), part({1: 1.0, 2: 1.0})])
    assert [line["doc_id"] for line in samples["t"]] == [1, 2]
    assert results["results"]["t"]["acc,none"] == 0.75
    assert results["n-samples"]["t"] == {"original": 9, "effective": 2} and results["results"]["t"]["sample_len"] == 2


def test_a_task_asked_once_stays_and_groups_are_made_anew() -> None:
    first, once = part({0: 1.0, 1: 0.0}), part({0: 1.0}, task="once")
    first[0]["results"] |= {**once[0]["results"], "g": {"alias": "g", "acc,none": 0.75}}
    first[0]["groups"] = {"g": first[0]["results"]["g"]}
    first[0]["group_subtasks"] = {"g": ["t", "once"]}
    first[1].update(once[1])
    second = part({0: 1.0, 1: 1.0})

    def groups(rows: Any) -> Any:
        return {"g": {"alias": "g", "acc,none": (rows["t"]["acc,none"] + rows["once"]["acc,none"]) / 2}}

    results, samples = combine([first, second], groups)
    assert results["results"]["t"]["acc,none"] == 0.75
    assert results["results"]["once"] == once[0]["results"]["once"] and samples["once"] == once[1]["once"]
    assert results["groups"]["g"]["acc,none"] == results["results"]["g"]["acc,none"] == 0.875


def test_answers_known_of_each_repeat_are_joined() -> None:
    parts = [part({0: 1.0}), part({0: 0.0})]
    parts[0][1]["t"][0]["_answers"] = [{"extraction": "matched"}]
    parts[1][1]["t"][0]["_answers"] = [{"extraction": "no_match"}]
    assert combine(parts)[1]["t"][0]["_answers"] == [{"extraction": "matched"}, {"extraction": "no_match"}]


@pytest.mark.parametrize(
    ("family", "fields", "deterministic"),
    [
        ("llada", {}, True),
        ("llada", {"temperature": 0.2}, False),
        ("llada", {"remasking": "random"}, False),
        ("llada", {"remasking": "low_confidence"}, True),
        ("dream", {}, True),
        ("dream", {"alg": "origin"}, False),
        ("dream", {"alg_temp": 0.1}, False),
        ("sdar", {"remasking_strategy": "sequential"}, True),
    ],
)
def test_which_decodings_draw(family: str, fields: dict[str, Any], deterministic: bool) -> None:
    """A decoding is deterministic exactly where the family's sampler draws no random number."""
    loaded = golden.model(family).loaded
    decoding = loaded.resolve(fields)
    assert decoding.deterministic is deterministic
    assert loaded.family.sampler(decoding, loaded.spec).draws is not deterministic


def test_equal_repeats_are_told_once_a_task() -> None:
    def ask(task: str, repeat: int, **decoding: Any) -> Request:
        return Request(f"{task}/0/0/{repeat}/x", "generate", "q", decoding=decoding, task=task, repeat=repeat)

    requests = [ask("a", 0), ask("a", 1), ask("a", 2), ask("b", 1, temperature=1.0), ask("c", 0)]
    notes = list(equal_repeats(ToyModel(), requests))
    assert len(notes) == 1 and "task 'a': repeats of a document are equal" in notes[0]
