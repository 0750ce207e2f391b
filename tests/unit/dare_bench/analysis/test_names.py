"""How trainings, values and documents are shown: names, numbers, the unmasking order, choices, and text that must
not take command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_factory import make_run

from dare_bench.analysis.document_view import document_view
from dare_bench.analysis.names import letter, method_of, training_chain, trainings
from dare_bench.analysis.settings import row_key
from dare_bench.analysis.unmasking import LEVELS, Fold, folded, token_texts, unmasking
from dare_bench.engine.codec import to_record
from dare_bench.engine.result_files import trace_line
from dare_bench.formatting import duration, p_text, plain_value, setting_text
from dare_bench.runs.index import Document
from dare_bench.runs.lines import TraceLine
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import no_formula, one_line, visible
from dare_bench.types import Event, Generation, Request


def test_methods_have_their_usual_spelling() -> None:
    names = ("sft", "vrpo", "cj_grpo", "coupled_grpo", "d1", "dtreerpo", "just_grpo", "my_method")
    spelled = [method_of({"method": name}) for name in names]
    assert spelled == ["SFT", "VRPO", "CJ-GRPO", "coupled-GRPO", "d1", "d-TreeRPO", "JustGRPO", "my_method"]
    assert method_of({"method": "sft", "peft": "lora"}, ["seed 1"]) == "SFT (LoRA, seed 1)"


# -- Rules that boards, tables and comparisons share: what is a share, which runs are one row,  ------------------------


@pytest.mark.parametrize(
    ("metric", "values", "share"),
    [
        ("acc,none", (0.0, 1.0), True), ("acc", (), True), ("acc", (0.5, 1.5), False), ("acc", (-0.1,), False),
        ("bits_per_byte,none", (0.8, 0.7), False), ("word_perplexity,none", (0.9,), False), ("chrf", (0.2,), False),
    ],
)  # fmt: skip
def test_only_shares_are_told_in_percent(metric: str, values: tuple[float, ...], share: bool) -> None:
    assert are_shares(metric, *values) is share


def test_letters_go_on_after_z() -> None:
    assert [letter(at) for at in (0, 25, 26, 27, 51, 52, 701, 702)] == ["A", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA"]


def test_no_cell_is_a_formula() -> None:
    for text in ("=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "  =1"):
        assert no_formula(text) == f"'{text}"
    assert [no_formula(text) for text in ("a=1", "", "3", " a")] == ["a=1", "", "3", " a"]


def test_a_name_tells_the_base_and_every_training() -> None:
    first = {"base": "/data/models/tiny", "method": "sft", "peft": "lora", "base_adapter": "sha256:0123456789"}
    last = {"base": "own", "method": "my_own", "parents": [first, "odd"]}
    assert training_chain(trainings(last), [["seed 1"]]) == "tiny+01234567 → SFT (LoRA, seed 1) → my_own"
    assert training_chain([{"base": "owner/name", "method": "dpo"}]) == "owner/name → DPO"
    assert trainings(None) == trainings({}) == trainings({"base": "x"}) == []


def _run(root: Path, name: str, spec: dict[str, Any] | None = None, **changes: Any) -> Run:
    folder = make_run(root, name)
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_text())
    results["dare_bench"] |= changes.pop("block", {})
    file.write_text(json.dumps(results | changes))
    about = json.loads((folder / "run.json").read_text())
    about["spec"] |= spec or {}
    (folder / "run.json").write_text(json.dumps(about))
    return Run(folder)


def test_runs_share_a_row_where_they_were_asked_alike(tmp_path: Path) -> None:
    item = row_key(_run(tmp_path, "one"))
    assert item.joins(row_key(_run(tmp_path, "other"))) and item.is_independent
    requested = {
        "template": {"chat_template_sha": "ab"},
        "system": {"system_instruction": "be brief"}, "steps": {"block": {"decoding_requested": {"steps": 8}}},
        "repeats": {"block": {"repeats": 4}}, "seeds": {"block": {"seeds": [1, 1, 1, 1]}},
    }  # fmt: skip
    for name, change in requested.items():
        assert not item.joins(row_key(_run(tmp_path, name, **change))), name
    for name, change in {
        "shots": {"spec": {"num_fewshot": 5}},
        "harness": {"block": {"harness": {"name": "opencompass", "version": "1"}}},
    }.items():
        assert item.joins(row_key(_run(tmp_path, name, **change))), name
    part = row_key(_run(tmp_path, "part", block={"suite": "s", "decoding_requested": {"steps": 8}}))
    same = row_key(_run(tmp_path, "same", block={"suite": "s"}))
    assert part.joins(same) and same.joins(item) and not part.joins(item) and not part.is_independent
    seeded = row_key(_run(tmp_path, "seeded", block={"suite": "s", "seeds": [1, 1, 1, 1]}))
    assert not seeded.joins(same)


def test_only_where_speeds_are_told_machines_are_rows_of_their_own(tmp_path: Path) -> None:
    item, other = _run(tmp_path, "one"), _run(tmp_path, "other")
    assert row_key(item).joins(row_key(other))
    assert not row_key(item, "a").joins(row_key(other, "b")) and row_key(item, "a").joins(row_key(other, "a"))


TRACE = {
    "key": "t/0/0/0/abcd", "doc_id": 0, "prompt_tokens": 4, "pieces": ["a", "b", "c"],
    "events": [[0, "set", 2, 9, 0.9], [0, "set", -1, 9, 0.9], [1, "set", 0, 8, 0.4], [2, "remask", 2, 9, 0.1],
               [2, "set", 1, 5, 0.3], [3, "remask", 1, 5, 0.1],
               [4, "set", 2, 7, 0.8], [9, "set", 50, 7, 0.8]],
}  # fmt: skip


def test_the_step_that_stays_counts() -> None:
    order = unmasking(TRACE)
    assert [piece.step for piece in order.pieces] == [2, None, 5]
    assert order.pieces[2].writes == 2 and order.pieces[2].confidence == 0.8
    assert (order.remasked, order.prompt_changes, order.steps) == (2, 1, 10)


def test_levels_span_the_scale() -> None:
    trace = {"pieces": ["x"] * 30, "events": [[i, "set", i, 1, 0.5] for i in range(30)]}
    levels = [piece.level for piece in unmasking(trace).pieces]
    assert levels == sorted(levels) and levels[0] == 0 and levels[-1] == LEVELS - 1
    assert unmasking({"pieces": ["x"], "events": [[0, "set", 0, 1, None]]}).pieces[0].level == 0
    assert unmasking({"pieces": [], "events": []}).pieces == []


def test_only_special_tokens_are_folded() -> None:
    pieces = unmasking(
        {"pieces": ["0"] * 6 + ["<eos>"] * 6, "events": [[i, "set", i, 1, 1.0] for i in range(12)]}
    ).pieces
    result = folded(pieces)
    assert [piece.text for piece in result[:6]] == ["0"] * 6
    assert result[6].text == "<eos>" and result[7] == Fold("<eos>", 5, 8, 12) and len(result) == 8


def test_generation_view(tmp_path: Path) -> None:
    document = next(Run(make_run(tmp_path)).documents("dare_sudoku"))
    view = document_view(document)
    (answer,) = view.answers
    assert view.kind == "generate" and answer.text == view.target == view.filter_results[0].filtered
    assert answer.order is not None and answer.order.steps == 16 and answer.record["nfe"] == 12
    assert answer.settings["max_gen_toks"] == 16 and view.filter_results[0].metrics == {"exact_match": 1.0}
    assert view.prompts == ["Question 0: which digits?\nAnswer:"]


def test_choices_mark_the_likeliest_and_the_right(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path, tasks={"choice_x": 0.5}))
    for document in run.documents("choice_x"):
        view = document_view(document)
        assert view.kind == "score" and len(view.answers) == 4 and len(view.prompts) == 1
        (best,) = [answer for answer in view.answers if answer.best]
        (gold,) = [answer for answer in view.answers if answer.gold]
        assert gold.index == int(view.target)
        assert (best == gold) == bool(view.filter_results[0].metrics["acc"])


def test_plain_lm_eval_lines_are_shown_too() -> None:
    """Without our own records: the value comes from lm-eval's text."""
    rows = [{"doc_id": 1, "target": "0", "filter": "none", "metrics": ["acc"], "acc": 0.0, "filtered_resps": [],
             "arguments": {"gen_args_0": {"arg_0": "p", "arg_1": " a"}, "gen_args_1": {"arg_0": "p", "arg_1": " b"}},
             "resps": [[["-2.5", "False"]], [["-1.0", "True"]]]}]  # fmt: skip
    view = document_view(Document("t", 1, rows))
    assert [answer.value for answer in view.answers] == [-2.5, -1.0]
    assert [answer.best for answer in view.answers] == [False, True]


def test_repeats_find_their_own_records(tmp_path: Path) -> None:
    records = [{"key": f"t/with/slash/0/0/{repeat}/abcd", "kind": "generate", "nfe": repeat} for repeat in (1, 0)]
    rows = [{"doc_id": 0, "target": "", "filter": "none", "metrics": [], "filtered_resps": [],
             "arguments": {"gen_args_0": {"arg_0": "p", "arg_1": {}}}, "resps": [["zero", "one"]],
             "dare_bench": records}]  # fmt: skip
    view = document_view(Document("t/with/slash", 0, rows))
    assert [(answer.text, answer.record["nfe"]) for answer in view.answers] == [("zero", 0), ("one", 1)]


def test_text_cannot_take_command() -> None:
    shown = visible("a\x1b[31mred\x07\u202eevil\u200b\x9b\r\nend\tx\ud800")
    assert shown == "a␛[31mred␇⟨U+202E⟩evil⟨U+200B⟩⟨U+009B⟩\nend\tx⟨U+D800⟩"
    assert visible("x" * 30, 10).startswith("x" * 10 + "… (20 more")
    assert one_line("a\n b\t c", 5) == "a b c" and one_line("abcdefgh", 5) == "abcd…"


# -- Traces of samplers that write over their own tokens hold the texts of what no longer stand ------------------------


def line(tokens: list[int], *events: tuple[int, str, int, int]) -> dict[str, Any]:
    trajectory = [Event(step, op, at, token, 0.5, -0.7) for step, op, at, token in events]  # type: ignore[arg-type]
    answer = Generation(tokens, "", len(events), "length", trajectory=trajectory)
    result = trace_line(to_record(Request("t/0/0/0/ab", "generate", "?"), answer), lambda token: f"<{token}>")
    assert result is not None
    TraceLine.model_validate(result)
    return result


def test_without_edits_nothing_is_added() -> None:
    result = line([5, 6], (0, "set", 1, 6), (1, "set", 0, 5), (1, "set", 2, 9))  # position 2 was cut off
    assert "others" not in result
    assert token_texts(result) == {5: "<5>", 6: "<6>"}


def test_overwritten_and_remasked_tokens_and_those_in_the_prompt_have_their_texts() -> None:
    events = [(0, "set", 0, 7), (1, "set", 0, 5), (1, "set", 1, 8), (2, "remask", 1, 99), (3, "set", 1, 5)]
    result = line([5, 5], *events, (3, "set", -3, 40))
    assert result["others"] == {"7": "<7>", "8": "<8>", "99": "<99>", "40": "<40>"}
    assert token_texts(result) == {5: "<5>", 7: "<7>", 8: "<8>", 99: "<99>", 40: "<40>"}
    order = unmasking(result)
    assert [piece.writes for piece in order.pieces] == [2, 2] and order.remasked == 1 and order.prompt_changes == 1


def test_lines_from_before_tell_what_they_can() -> None:
    result = line([5, 6], (0, "set", 0, 6), (1, "set", 0, 5), (1, "set", 1, 6), (2, "set", 1, 9), (3, "set", 1, 6))
    del result["others"]
    assert token_texts(result) == {5: "<5>", 6: "<6>"}  # 6 was written over at 0, and stands at 1; 9 is not known


def test_a_position_that_ends_masked_has_no_token_of_its_own() -> None:
    result = line([5, 99], (0, "set", 0, 5), (0, "set", 1, 6), (1, "remask", 1, 99))
    assert token_texts(result) == {5: "<5>", 6: "<6>"}
    del result["others"]
    assert token_texts(result) == {5: "<5>"}


def test_values_of_settings() -> None:
    assert [plain_value(value) for value in (None, True, [], ["a, b"])] == ["none", "yes", "none", '"a, b"']
    assert plain_value({"name": "sequential", "steps": None}) == "sequential"
    assert plain_value({"name": "threshold", "threshold": 0.9, "steps": None}) == "threshold (threshold 0.9)"
    assert plain_value({"random": True, "format_weight": 0.5}) == "random, format_weight 0.5"
    assert plain_value({}) == "none"
    assert [setting_text("reward random", value) for value in (True, False, 0.5)] == [
        "reward random", "no reward random", "reward random 0.5",
    ]  # fmt: skip


def test_p_values_in_running_text() -> None:
    values = {None: "p —", 0.00001: "p < 0.0001", 0.0033: "p = 0.0033", 0.04: "p = 0.040", 1.0: "p > 0.99"}
    assert {p: p_text(p) for p in values} == values


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59, 200, 7500)] == ["0s", "59s", "3m 20s", "2h 05m"]
