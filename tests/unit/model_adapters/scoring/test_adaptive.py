"""Adaptive draws with every family: whole documents, in any batch, after a kill, and in the files of a run."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
from brute_force import CONTEXT, TARGET, scored
from paths import ROOT
from require import need_package

from dare_bench.analysis.comparison import compare
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import Journal
from dare_bench.engine.queue import Queue
from dare_bench.errors import DecodingError
from dare_bench.reports.elements import markdown
from dare_bench.reports.scores_report import elements
from dare_bench.types import Request

LONG = TARGET * 3
FAMILIES = {"llada": {}, "dream": {}, "sdar": {"block_length": 6}, "llada2": {"block_length": 6}}


def document(doc, family, choices, mc_num=24, **fields):
    settings = {"estimator": "adaptive", "mc_num": mc_num, **FAMILIES[family], **fields}
    return [
        Request(f"t/{doc}/{idx}/0/x", "score", CONTEXT, target, settings, seed=doc, doc_id=doc, task="t")
        for idx, target in enumerate(choices)
    ]


def documents(family):
    """Far apart, near each other, with a choice that is enumerated, and one choice alone."""
    return [
        document(1, family, [LONG[:8], LONG[2:20]]),
        document(2, family, [LONG[:9], LONG[1:10], LONG[2:11]]),
        document(3, family, [LONG[:2], LONG[:12]]),
        document(4, family, [LONG[:10]]),
        document(5, family, [LONG[:3], LONG[2:5]]),
    ]


def facts(answers):
    return [(answer.draws, answer.nfe, answer.separated, answer.estimator) for answer in answers]


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_end_together_in_any_batch_order_and_company(family):
    groups = documents(family)
    alone = [scored(family, group)[0] for group in groups]
    for rows, order in ((1, 1), (5, -1), (None, 1)):
        answers = iter(scored(family, [request for group in groups[::order] for request in group], rows)[0])
        for expected in alone[::order]:
            together = [next(answers) for _ in expected]
            assert facts(together) == facts(expected)
            assert [a.value for a in together] == pytest.approx([a.value for a in expected], abs=1e-4)
            assert len({answer.separated for answer in together}) == 1
    assert alone[3][0].separated is None and alone[3][0].draws == 25
    assert alone[4][0].separated is True and alone[4][0].estimator == "exact"
    for group, answers in zip(groups, alone, strict=True):
        for request, answer in zip(group, answers, strict=True):
            assert answer.nfe <= golden.model(family).loaded.forwards(request)


def test_answers_of_one_token_are_exact_and_take_one_pass():
    exact = golden.model().loglikelihood([(CONTEXT, [token]) for token in (5, 9, 31)], want_greedy=False)
    answers = scored("llada", document(1, "llada", [[5], [9], [31]]))[0]
    assert [a.value for a in answers] == pytest.approx([a.value for a in exact], abs=1e-5)
    assert facts(answers) == [(1, 1, True, "exact")] * 3


def test_a_family_without_draws_is_exact():
    """DiffusionGemma's encoder predicts from left to right."""
    pairs = [([5, 6, 7], [8, 9, 10]), ([5, 6, 7], [11, 12])]
    model = golden.model("diffusion_gemma")
    exact = model.loglikelihood(pairs, want_greedy=False)
    assert [a.value for a in model.loglikelihood(pairs, estimator="adaptive", want_greedy=False)] == [
        a.value for a in exact
    ]


def test_stopped_values_are_those_of_the_first_rounds_of_a_longer_run():
    """So a document with more draws goes on from where it was."""
    short = scored("llada", document(1, "llada", [LONG[:9], LONG[1:10]], 8))[0]
    longer = scored("llada", document(1, "llada", [LONG[:9], LONG[1:10]], 8, level=0.999999))[0]
    assert [a.value for a in short] == pytest.approx([a.value for a in longer], abs=1e-4)
    assert {a.draws for a in short} == {9}


def test_level_and_limit_decide_when_to_stop():
    choices = [LONG[:8], LONG[2:20]]
    draws = {
        level: scored("llada", document(1, "llada", choices, 200, level=level))[0][0].draws for level in (0.5, 0.999999)
    }
    assert 9 <= draws[0.5] < draws[0.999999] <= 201


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_run_killed_within_a_document_goes_on_with_the_same_numbers(tmp_path: Path, kept: int) -> None:
    requests = [*document(1, "llada", [LONG[:8], LONG[2:20], LONG[:12]]), *document(2, "llada", [LONG[:9], LONG[1:10]])]
    loaded = golden.model("llada").loaded
    with Journal(tmp_path / "whole") as journal:
        whole = [sample.answer for sample in Queue(loaded, journal).answer(requests)]
        records = [journal.sample(request.key) for request in requests]
    with Journal(tmp_path / "killed") as journal:
        for record in records[:kept]:
            journal.append(record)
        journal.sync()
    with Journal(tmp_path / "killed") as journal:
        queue = Queue(loaded, journal)
        again = [sample.answer for sample in queue.answer(requests)]
        assert [a.value for a in again] == pytest.approx([a.value for a in whole], abs=1e-4)
        assert facts(again) == facts(whole)
        assert queue.stats.row_forwards > 0
        assert Queue(loaded, journal).answer(requests) and queue.answer(requests)
    with Journal(tmp_path / "piece") as journal:  # a shard takes up the piece of one that died
        journal.append(records[0])
        shard = Queue(loaded, journal)
        shard.drain([requests], 16)
        assert facts([sample.answer for sample in shard.answer(requests)]) == facts(whole)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"level": 1.5}, "level=1.5 must be a number between 0 and 1"),
        ({"level": 0}, "level=0 must be"),
        ({"level": True}, "level=True must be"),
        ({"level": "high"}, "level='high' must be"),
        (
            {"mc_num": 0},
            "mc_num=0, the limit of .* must be an even number of at least 8, its first round; give mc_num=8",
        ),
        ({"mc_num": 6}, "mc_num=6, .* give mc_num=8"),
        ({"mc_num": 33}, "mc_num=33, .* give mc_num=34"),
        ({"batch_size": 16}, "'batch_size' is not known here; fields are estimator, mc_num"),
    ],
)
def test_settings_are_checked(fields, says):
    with pytest.raises(DecodingError, match=says) as caught:
        golden.model().loaded.resolve_likelihood({"estimator": "adaptive", **fields})
    assert "\n" not in str(caught.value)


def test_settings_are_resolved_and_no_other_estimator_has_a_level():
    resolve = golden.model().loaded.resolve_likelihood
    assert resolve({"estimator": "adaptive"}) == {
        "estimator": "adaptive", "mc_num": 64, "cfg_scale": 0.0, "level": 0.95
    }  # fmt: skip
    with pytest.raises(DecodingError, match="'level' is not known here"):
        resolve({"estimator": "fast", "level": 0.9})


def test_a_run_counts_what_is_undecided_and_is_told_from_a_fixed_one(tmp_path: Path) -> None:
    need_package("lm_eval")
    fields = {
        "model": "tiny-llada-base",
        "tasks": "hellaswag",
        "limit": 4,
        "data_dir": str(ROOT / "tests" / "data" / "bench"),
        "output_path": str(tmp_path / "runs"),
        "progress": False,
    }
    run = evaluate(**fields, likelihood={"estimator": "adaptive", "mc_num": 12})
    task = run.require_block().tasks["hellaswag"]
    by_document = [{answer["separated"] for answer in line["dare_bench"]} for line in run.samples("hellaswag")]
    assert all(len(each) == 1 for each in by_document)
    assert task.undecided == by_document.count({False}) and task.undecided in range(5)
    assert task.likelihood["level"] == 0.95
    text = markdown(elements([run])).replace("\\", "")
    assert f"hellaswag: adaptive draws decided {4 - task.undecided} of 4 documents, each at a level of 0.95" in text
    fixed = evaluate(**fields, likelihood={"estimator": "fast", "mc_num": 8})
    (item,) = compare([run, fixed]).items
    assert fixed.run_id != run.run_id and "estimator (adaptive and fast)" in item.settings_text
    assert fixed.scores()[0].fingerprint != run.scores()[0].fingerprint
    assert fixed.require_block().tasks["hellaswag"].undecided is None
    fewer = evaluate(**{**fields, "limit": 2}, likelihood={"estimator": "adaptive", "mc_num": 12})
    assert fewer.require_block().tasks["hellaswag"].undecided == by_document[:2].count({False})
