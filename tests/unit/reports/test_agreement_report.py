"""Two runs of one checkpoint: documents find their partners, tokens and scores are compared, differences are shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_factory import make_run

from dare_bench.analysis.agreement import Agreement, agreement, match, question
from dare_bench.errors import RunError, UnknownNameError, UsageError
from dare_bench.reports.agreement_report import elements, record
from dare_bench.reports.elements import markdown
from dare_bench.runs.index import Document
from dare_bench.runs.reader import Run

Rows = Callable[[list[dict[str, Any]]], list[dict[str, Any]] | None]


def _first(tmp_path: Path, **more: Any) -> Run:
    return Run(make_run(tmp_path, "lm", **{"tasks": {"gsm8k": 0.5}, "n_docs": 6, **more}))


def _twin(first: Run, rows: Rows | None = None, traces: Rows | None = None, **block: Any) -> Run:
    """The same answers under OpenCompass: ids go backwards and start at 100, its own names, the given changes."""
    folder = first.path.parent / "oc"
    shutil.copytree(first.path, folder)
    for path in folder.glob("*_gsm8k_*.jsonl"):
        built = [json.loads(line) for line in path.read_text().splitlines()]
        for row in built:
            row["doc_id"] = 100 - row["doc_id"]
            if "metrics" in row:
                row["metrics"], row["accuracy"] = ["accuracy"], row.pop("exact_match")
        edit = rows if path.name.startswith("samples") else traces
        built = (edit(built) if edit else None) or built
        path.unlink()
        target = path.with_name(path.name.replace("gsm8k", "gsm8k_oc"))
        target.write_text("".join(json.dumps(row) + "\n" for row in reversed(built)))
    (results,) = folder.glob("results_*.json")
    text = results.read_text().replace('"gsm8k"', '"gsm8k_oc"').replace("exact_match", "accuracy")
    whole = json.loads(text)
    whole["dare_bench"] |= {"run_id": "oc", "harness": {"name": "opencompass", "version": "0.5.4"}, **block}
    results.write_text(json.dumps(whole))
    return Run(folder)


def _edit(number: int, **values: Any) -> Rows:
    def edit(rows: list[dict[str, Any]]) -> None:
        rows[number].update(values)

    return edit


def _text(found: Agreement, most: int | None = None) -> str:
    return markdown(elements(found, most)).replace("\\", "")


def test_the_same_answers_agree(tmp_path: Path) -> None:
    first = _first(tmp_path)
    result = agreement(first, _twin(first))
    assert [(p.first.doc_id, p.second.doc_id) for p in result.pairs] == [(i, 100 - i) for i in range(6)]
    assert (result.same_tokens, result.same_scores, result.only_first, result.only_second) == (6, 6, 0, 0)
    assert {(p.how, p.basis, p.same_prompt) for p in result.pairs} == {("prompt", "token ids", True)}
    assert result.settings == {"harness": ("lm-eval 0.4.13", "opencompass 0.5.4")} and result.differing == []
    assert "| same tokens | 6 of 6 (compared by token ids) |" in _text(result)


def test_one_other_token_is_seen_where_the_text_is_the_same(tmp_path: Path) -> None:
    def change(traces: list[dict[str, Any]]) -> None:
        traces[2]["events"][-1][3] += 1

    first = _first(tmp_path)
    result = agreement(first, _twin(first, traces=change))
    assert [p.first.doc_id for p in result.pairs if not p.same_tokens] == [2]
    assert result.pairs[2].first.answer == result.pairs[2].second.answer
    assert "same prompts and settings but different tokens in documents 2" in _text(result)


def test_the_token_that_stays_counts_not_how_it_came(tmp_path: Path) -> None:
    def another_way(traces: list[dict[str, Any]]) -> None:
        step, op, position, token, confidence = traces[0]["events"][0]
        remask = [[step, "set", position, token + 7, 0.1], [step, "remask", position, token + 7, None]]
        traces[0]["events"] = [*remask, *traces[0]["events"][1:], [99, op, position, token, confidence]]

    def cut_off(traces: list[dict[str, Any]]) -> None:
        traces[0]["events"].append([99, "remask", 0, 1, None])

    first = _first(tmp_path)
    assert agreement(first, _twin(first, traces=another_way)).same_tokens == 6
    shutil.rmtree(tmp_path / "oc")
    assert agreement(first, _twin(first, traces=cut_off)).same_tokens == 5, "a position that is masked at the end"


def test_without_traces_the_text_is_compared(tmp_path: Path) -> None:
    first = _first(tmp_path)
    second = _twin(first, rows=_edit(1, resps=[["something else"]]))
    path = second.traces_file("gsm8k_oc")
    assert path is not None
    path.unlink()
    result = agreement(first, second)
    assert result.same_tokens == 5 and {p.basis for p in result.pairs} == {"text"}
    assert "responses are compared as text" in _text(result)


def test_documents_whose_scores_differ_are_shown_with_both_extractions(tmp_path: Path) -> None:
    def other(rows: list[dict[str, Any]]) -> None:
        rows[0]["accuracy"] = 0.0
        rows[0]["dare_bench"][0]["extracted"] = "eighteen"
        rows[0]["target"] = "18.0"

    first = _first(tmp_path)
    target = next(first.samples("gsm8k"))["target"]
    result = agreement(first, _twin(first, rows=other))
    (pair,) = result.differing
    assert (pair.first.read, pair.second.read) == (target, "eighteen"), "filtered_resps where nothing was recorded"
    text = _text(result)
    assert "### Document 0 and 100: 1 and 0" in text and "the same tokens, the same prompt" in text
    for label, output in (
        ("extracted from the answer by the first", target), ("extracted from the answer by the second", "eighteen"),
        ("answer", target), ("target (second)", "18.0"), ("target (first)", target),
        ("end of the prompt", "Question 0: which digits?\nAnswer:"),
    ):  # fmt: skip
        assert f"{label}\n\n```text\n{output}\n```" in text, label


def test_the_row_of_the_scores_own_filter_is_read(tmp_path: Path) -> None:
    def strict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*rows, *({**row, "filter": "strict", "accuracy": 0.0, "filtered_resps": ["[none]"]} for row in rows)]

    first = _first(tmp_path)
    second = _twin(first, rows=strict)
    assert second.results_file is not None
    whole = json.loads(second.results_file.read_text())
    whole["results"]["gsm8k_oc"]["accuracy,strict"] = 0.0
    second.results_file.write_text(json.dumps(whole))
    assert agreement(first, Run(second.path)).same_scores == 6
    result = agreement(first, Run(second.path), scores=(None, "accuracy,strict"))
    assert result.same_scores == 3 and {p.second.read for p in result.differing} == {"[none]"}
    with pytest.raises(UnknownNameError, match="accuracy,strict"):
        agreement(first, Run(second.path), scores=(None, "accuracy,strikt"))


def test_only_so_many_documents_on_a_terminal(tmp_path: Path) -> None:
    def wrong(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["accuracy"] = 1.0 - row["accuracy"]

    first = _first(tmp_path)
    result = agreement(first, _twin(first, rows=wrong))
    assert _text(result, 2).count("### Document") == 2 and "The scores of 4 more documents differ" in _text(result, 2)
    assert _text(result).count("### Document") == 6
    assert sum(not pair["same_score"] for pair in record(result)["pairs"]) == 6
    json.dumps(record(result))


def test_settings_and_checkpoints_that_differ_are_named(tmp_path: Path) -> None:
    first = _first(tmp_path)
    assert first.block is not None
    model = first.block.model.model_dump() | {"content_hash": "sha256:other"}
    second = _twin(first, model=model)
    assert second.block is not None
    second.block.tasks["gsm8k_oc"].decoding |= {"steps": 8, "trajectory": False}
    result = agreement(first, second)
    assert result.settings["steps"] == (16, 8) and "trajectory" not in result.settings
    assert "not the same checkpoint" in _text(result) and "| steps | 16 | 8 |" in _text(result)


def test_likelihoods_are_compared_by_value(tmp_path: Path) -> None:
    def other(rows: list[dict[str, Any]]) -> None:
        rows[0]["dare_bench"][0]["value"] -= 1

    first = Run(make_run(tmp_path, "a", tasks={"choice_x": 0.5}, n_docs=4))
    path = first.path.parent / "b"
    shutil.copytree(first.path, path)
    second = Run(path)
    samples = second.samples_file("choice_x")
    assert samples is not None
    rows = list(second.samples("choice_x"))
    other(rows)
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = agreement(first, second)
    assert [p.same_tokens for p in result.pairs] == [False, True, True, True]
    assert result.pairs[0].basis == "likelihoods"


def test_which_task_is_meant(tmp_path: Path) -> None:
    first = _first(tmp_path, tasks={"gsm8k": 0.5, "math": 0.5})
    second = Run(make_run(tmp_path, "b", tasks={"x": 0.5, "y": 0.5}))
    with pytest.raises(
        UsageError, match=r"first run has gsm8k, math, the second x, y; select them: --task FIRST=SECOND"
    ):
        agreement(first, second)
    assert agreement(first, second, ("math", "y")).score_second.task == "y"
    with pytest.raises(UnknownNameError, match="task 'z' in b"):
        agreement(first, second, ("math", "z"))
    item = Run(make_run(tmp_path, "c", tasks={"math": 0.5}))
    assert agreement(first, item).score_first.task == "math" and agreement(item, first).score_second.task == "math"


def test_runs_that_have_nothing_to_compare(tmp_path: Path) -> None:
    first = _first(tmp_path)
    second = _twin(first)
    path = second.samples_file("gsm8k_oc")
    assert path is not None
    path.unlink()
    with pytest.raises(RunError, match="no sample lines of gsm8k_oc"):
        agreement(first, second)
    unfinished = tmp_path / "running"
    unfinished.mkdir()
    (unfinished / "run.json").write_text('{"run_id": "running"}')
    with pytest.raises(RunError, match="no results yet"):
        agreement(first, Run(unfinished))


def _doc(number: int, prompt: str, **doc: Any) -> Document:
    row = {"doc_id": number, "doc": doc or None, "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {}}}}
    return Document("t", number, [row])


def test_documents_find_each_other_by_prompt_then_question_then_number() -> None:
    first = [_doc(0, "P", question="one"), _doc(1, "Q1", question="Two  apples?"), _doc(2, "R1", question="three")]
    second = [_doc(0, "R2", question="drei"), _doc(1, "Q2", problem="two apples?"), _doc(2, "P", question="uno")]
    assert match(first, second) == [("0", "2", "prompt"), ("1", "1", "question")], "number 2 is taken by a surer match"
    second[0] = _doc(2, "R2", question="drei")
    second[2] = _doc(7, "P", question="uno")
    assert match(first, second)[2] == ("2", "2", "document id")
    assert match(first, second[:2]) == [("1", "1", "question")], "numbers say nothing where the counts differ"


def test_equal_prompts_pair_in_order_and_once() -> None:
    first, second = [_doc(i, "same") for i in range(3)], [_doc(i, "same") for i in (5, 6)]
    assert match(first, second) == [("0", "5", "prompt"), ("1", "6", "prompt")]


def test_what_a_document_asks() -> None:
    assert question({"answer": "x", "problem": "  What\u00a0IS ２+2? "}) == "what is 2+2?"
    assert question("Plain\ntext") == "plain text"
    assert question({"answer": "x", "question": " "}) is None and question(None) is None and question([1]) is None


def test_what_stands_around_the_documents_is_a_setting(tmp_path: Path) -> None:
    first = _first(tmp_path)
    second = _twin(first, seeds=[0, 1234, 1234, 99], repeats=4)
    second.results |= {"chat_template_sha": "81ccac1e89fc1d03", "system_instruction": "Be brief. " * 20}
    second.results["n-shot"] = {"gsm8k_oc": 5}
    first.results["configs"] = {"gsm8k": {"config": "gsm8k_0shot"}}
    second.results["configs"] = {"gsm8k_oc": {"config": "gsm8k_gen"}}
    assert second.block is not None
    second.block.model.dtype = "bfloat16"
    result = agreement(first, second)
    assert result.settings["chat template"] == ("not applied", "81ccac1e89fc…")
    assert result.settings["examples (n-shot)"] == (0, 5) and result.settings["few-shot seed"] == (1234, 99)
    assert result.settings["config"] == ("gsm8k_0shot", "gsm8k_gen") and result.settings["dtype"] == (
        "float32",
        "bfloat16",
    )
    assert result.settings["repeats"] == (1, 4)
    second.results["n-shot"] = second.results["configs"] = {}
    assert not {"config", "examples (n-shot)"} & agreement(first, second).settings.keys(), "not known is no difference"
    text = _text(result)
    assert "| system instruction | not set | Be brief. " in text and "… (200 characters) |" in text


def _asked(*prompts: str) -> Rows:
    def edit(rows: list[dict[str, Any]]) -> None:
        for row, prompt in zip(rows, prompts, strict=False):
            row["arguments"]["gen_args_0"]["arg_0"] = prompt

    return edit


def test_other_prompts_are_shown_once_where_scores_are_equal(tmp_path: Path) -> None:
    first = _first(tmp_path)
    result = agreement(first, _twin(first, rows=_asked("[user] one", "[user] two")))
    assert result.differing == [] and sum(not pair.same_prompt for pair in result.pairs) == 2
    text = _text(result)
    assert text.count("the first with different prompts") == 1 and "### Document 0 and 100, the first" in text
    assert "end of the prompt (second)\n\n```text\n[user] one\n```" in text


def test_prompts_that_part_far_from_their_ends(tmp_path: Path) -> None:
    first = _first(tmp_path, prompt="Example: 1+1=2. " + "x" * 1000)
    result = agreement(first, _twin(first, rows=_asked("Example: 2+2=4. " + "x" * 1000)))
    text = _text(result)
    assert "prompt from the first difference on (first)\n\n```text\nExample: 1+1=2." in text
    assert "prompt from the first difference on (second)\n\n```text\nExample: 2+2=4." in text


def test_runs_of_one_id_are_shown_by_path(tmp_path: Path) -> None:
    first = _first(tmp_path)
    second = Run(make_run(tmp_path / "again", "lm", tasks={"gsm8k": 0.5}, n_docs=6))
    assert f"| run | {first.path} | {second.path} |" in _text(agreement(first, second))
