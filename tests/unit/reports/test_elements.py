"""Reports as text, where what a model wrote is never markup; scores as the Hugging Face Hub reads them, read back by
its own parsers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile_external import DATA
from huggingface_hub import EvalResult, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from rich.console import Console
from run_factory import make_run

from dare_bench.analysis.run_finder import open_run
from dare_bench.errors import RunError, UnknownNameError, UsageError
from dare_bench.formatting import bounds, percent
from dare_bench.reports.elements import Bullets, Heading, Paragraph, ReportTable, Verbatim, markdown, narrowing, show
from dare_bench.reports.hub import HubDataset, HubResult, card_of, card_result, entry_file, parse_datasets, results_of
from dare_bench.runs.reader import Run

NASTY = "| a | <b> [x](y) `code` *bold* \x1b[31mred\nnext"


def test_numbers() -> None:
    assert (percent(0.7968), percent(None), percent(-0.01, "+"), percent(0.1, "+")) == ("79.68", "—", "-1.00", "+10.00")
    assert (bounds(0.1, 0.25), bounds(None, 1.0), bounds(-0.1, 0.2, sign="+")) == (
        "10.00 to 25.00",
        "—",
        "-10.00 to +20.00",
    )


def test_words_in_a_table_cannot_break_it() -> None:
    lines = markdown([ReportTable(("name", "value"), [(NASTY, "1")])]).splitlines()
    assert len(lines) == 3
    assert lines[2].replace("\\|", "").count("|") == 3, "the cell's own bars are escaped"
    assert "\x1b" not in lines[2] and "<b>" not in lines[2].replace("\\<", "")


def test_words_in_lines_stay_on_them() -> None:
    text = markdown([Heading("# two\nlines"), Paragraph("- no list\nhere"), Bullets(["a\nb"])])
    assert text.split("\n\n") == ["## # two lines", "- no list here", "- a b\n"]


def test_a_models_text_is_fenced_by_more_than_it_can_close() -> None:
    text = markdown([Verbatim("answer", "```\n# not a heading\n`````\n\x1b]0;title\x07")])
    assert text.startswith("answer\n\n``````text\n") and text.endswith("\n``````\n")
    assert "\x1b" not in text and "# not a heading" in text


def test_the_terminal_gets_the_same_words_and_no_commands() -> None:
    out = io.StringIO()
    pieces = [
        Heading("head"), Paragraph("line [red]x[/red]"), Bullets(["item"]), ReportTable(("a", "b"), [("1", NASTY)]),
        Verbatim("said", NASTY),
    ]  # fmt: skip
    show(pieces, Console(file=out, width=120, markup=False, highlight=False))
    text = out.getvalue()
    for words in ("head", "line [red]x[/red]", "- item", "said:", "␛[31mred", "next"):
        assert words in text, words
    assert "\x1b" not in text


ROWS = [
    ("oc", "lukaemon_mmlu_world_religions", "accuracy", "0.00 to 79.35", "1 of 171"),
    ("lm-eval", "hellaswag", "exact_match,strict-match", "-79.68 (-81.76 to -30.64)", "2 of 10042"),
]


def _shown(width: int) -> list[str]:
    out = io.StringIO()
    table = ReportTable(("harness", "task", "metric", "95%", "n"), ROWS)
    show([table], Console(file=out, width=width, markup=False, highlight=False))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [120, 90, 80, 60, 40, 31])
def test_a_narrow_table_cuts_no_word(width: int) -> None:
    lines = _shown(width)
    assert max(len(line.rstrip()) for line in lines) <= width
    text = " ".join(lines)
    for word in ("religions", "hellaswag", "accuracy", "lm-eval", "-81.76", "79.35", "10042"):
        assert word in text, word


def test_what_a_narrow_table_turns_into() -> None:
    assert len(_shown(120)) == 4, "side by side"
    for width in (80, 40):
        lines = _shown(width)
        assert lines[:4] == ["", "harness: oc", "task: lukaemon_mmlu_world_religions", "metric: accuracy"]
        assert len([line for line in lines if not line]) == 2, "a list for each row"


def test_a_narrow_terminal_has_the_widest_form_that_fits() -> None:
    table = narrowing(("task", "metric", "n"), [("a" * 20, "b" * 20, "c" * 20)], ("n", "metric"))
    for width, columns in ((64, "abc"), (63, "ab"), (41, "a")):
        out = io.StringIO()
        show([table], Console(file=out, width=width, markup=False, highlight=False))
        assert out.getvalue().splitlines()[-1].split() == [letter * 20 for letter in columns]


def test_a_terminal_may_show_less_than_the_file() -> None:
    out = io.StringIO()
    show([Bullets(["long. Very long."], ["long."])], Console(file=out, width=80, markup=False, highlight=False))
    assert out.getvalue().strip() == "- long." and markdown([Bullets(["a", "b"], ["c"])]) == "- a\n- b\n"


GSM8K = {"dataset_path": "openai/gsm8k", "dataset_name": "main", "test_split": "test"}


def edit(run: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    (file,) = run.glob("results_*.json")
    whole = json.loads(file.read_text())
    change(whole)
    file.write_text(json.dumps(whole))
    return run


def gsm8k(root: Path, config: dict[str, Any] | None = None, **named: Any) -> Run:
    """A run of gsm8k, 15 of 20 right, with the configuration that lm-eval records."""
    run = make_run(root, named.pop("run_id", "r"), **{"tasks": {"gsm8k": 0.75}, **named})
    return Run(edit(run, lambda whole: whole["configs"].update(gsm8k={"task": "gsm8k", **(config or GSM8K)})))


def only(run: Run, *words: str, **named: Any) -> HubResult:
    (built,), _ = results_of(run, parse_datasets(words), **named)
    return built


def test_an_entry_has_what_the_hub_needs_and_the_rest_in_its_notes(tmp_path: Path) -> None:
    result = only(gsm8k(tmp_path, decoding={"temperature": 0.5}, created="2026-11-20T10:30:00.123456+02:00"))
    (entry,) = parse_eval_result_entries(yaml.safe_load(entry_file(result, "https://example.org/run")))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("openai/gsm8k", "main", 75.0)
    assert entry.date == "2026-11-20T08:30:00Z" and entry.source_url == "https://example.org/run"
    assert entry.verify_token is None and entry.dataset_revision is None
    reported = (entry.notes or "").split("; ")
    assert reported[:3] == ["exact_match in percent", "n=20", "95 % interval 53.1 to 88.8 (Wilson)"]
    assert "gen_length 16, steps 16, block_length 16, temperature 0.5" in (entry.notes or "")
    assert {"0-shot", "sampler exactness tier E1", "lm-eval 0.4.13, dare-bench 0.1.0"} <= set(reported)
    assert f"settings fingerprint {result.score.fingerprint}" in (entry.notes or "")
    assert result.path == f".eval_results/gsm8k-{result.score.fingerprint[:8]}.yaml"


def test_the_notes_of_an_external_result_have_no_path_of_the_machine() -> None:
    result = only(open_run(DATA / "lm-eval" / "tiny-llada"), "dare_sudoku=me/sudoku", allow_partial=True)
    assert "external, written by the command-line tool of lm-eval" in result.notes and str(DATA) not in result.notes


def test_fractions_and_scores_that_are_no_shares_stay_as_they_are(tmp_path: Path) -> None:
    run = gsm8k(tmp_path)
    assert only(run, scale="fraction").value == 0.75 and "percent" not in only(run, scale="fraction").notes
    edit(run.path, lambda whole: whole["results"].update(gsm8k={"word_perplexity,none": 0.5}))
    assert only(Run(run.path)).value == 0.5


@pytest.mark.parametrize(
    "config",
    [
        {"dataset_path": "json", "dataset_kwargs": {"data_files": "x.json"}},
        {"dataset_path": "some/set", "dataset_kwargs": {"data_dir": "x"}},
        {**GSM8K, "custom_dataset": "def dataset(): ..."},
        {"dataset_path": "/data/gsm8k"},
        {"dataset_path": None},
        {"path": "opencompass/gsm8k"},
    ],
)
def test_a_data_set_is_never_made_up(tmp_path: Path, config: dict[str, Any]) -> None:
    run = gsm8k(tmp_path, config)
    assert results_of(run, {}) == (
        [], ["gsm8k: its data set on the hub is unknown; name it: --dataset gsm8k=ID:TASK_ID"],
    )  # fmt: skip
    assert only(run, "gsm8k=openai/gsm8k:gsm8k").dataset == HubDataset("openai/gsm8k", "gsm8k", named=True)


def test_a_folder_of_that_name_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = gsm8k(tmp_path)
    (tmp_path / "openai" / "gsm8k").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert results_of(run, {})[0] == []


def test_the_data_set_of_the_command_wins_and_its_revision_is_told(tmp_path: Path) -> None:
    run = gsm8k(tmp_path, {**GSM8K, "dataset_kwargs": {"revision": "a" * 40}})
    assert only(run).dataset == HubDataset("openai/gsm8k", "main", "main", "test", "a" * 40)
    assert only(run, "gsm8k=me/mine").dataset == HubDataset("me/mine", "default")


def test_a_group_has_a_data_set_if_its_parts_share_one(tmp_path: Path) -> None:
    def group(second: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
        def change(whole: dict[str, Any]) -> None:
            whole["groups"] = {"g": {"exact_match,none": 0.5}}
            whole["group_subtasks"] = {"g": ["a", "b"]}
            whole["configs"] |= {"a": GSM8K, "b": second}

        return change

    run = make_run(tmp_path, tasks={"a": 0.5, "b": 0.5})
    assert only(Run(edit(run, group(GSM8K)))).dataset.id == "openai/gsm8k"
    edit(run, group({**GSM8K, "dataset_name": "socratic"}))
    assert results_of(Run(run), {})[0] == []
    (part,), left_out = results_of(Run(run), parse_datasets(["a=openai/gsm8k:gsm8k"]))
    assert part.score.task == "a" and left_out[0].startswith("g: ")


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"limit": 20}, "limited to 20 of 200 documents"),
        ({"failures": 2, "status": "incomplete"}, "2 documents have no answer and are left out"),
        ({"done": False}, "the run is not finished"),
        ({"status": "incomplete"}, "the run is incomplete"),
    ],
)
def test_partial_scores_are_refused_or_say_so(tmp_path: Path, named: dict[str, Any], why: str) -> None:
    run = gsm8k(tmp_path, **named)
    with pytest.raises(RunError, match=f"{why}; such a score is exported only with --allow-partial"):
        results_of(run, {})
    assert only(run, allow_partial=True).notes.startswith(f"PARTIAL: {why}; exact_match")


def test_wrong_words(tmp_path: Path) -> None:
    for word in ("gsm8k", "=openai/gsm8k", "gsm8k=", "gsm8k=a/b/c", "gsm8k=a b"):
        with pytest.raises(UsageError, match="expected TASK=ID or TASK=ID:TASK_ID"):
            parse_datasets([word])
    with pytest.raises(UnknownNameError, match="unknown task 'gsm'; closest: gsm8k"):
        results_of(gsm8k(tmp_path), parse_datasets(["gsm=openai/gsm8k"]))


def test_two_settings_are_two_files_and_a_run_made_again_is_the_same_file(tmp_path: Path) -> None:
    first, again = gsm8k(tmp_path), gsm8k(tmp_path, run_id="again", created="2026-11-21T10:00:00")
    other = gsm8k(tmp_path, run_id="other", decoding={"steps": 8})
    assert only(first).path == only(again).path != only(other).path
    odd = make_run(tmp_path, "odd", tasks={"../a b/c": 0.5})
    assert only(Run(odd), "../a b/c=me/x").path.startswith(".eval_results/a-b-c-")


def index_of(card: str) -> tuple[str, list[EvalResult]]:
    return model_index_to_eval_results(yaml.safe_load(card.split("---\n")[1])["model-index"])


def test_two_tasks_of_one_data_set_stay_two_results(tmp_path: Path) -> None:
    run = make_run(tmp_path, tasks={"gsm8k": 0.5, "gsm8k_cot": 0.75})
    edit(run, lambda whole: (whole["configs"].update(gsm8k=GSM8K, gsm8k_cot=GSM8K), whole["n-shot"].update(gsm8k=5)))
    built, _ = results_of(Run(run), {})
    _, result = index_of(card_of("ours", [card_result(item, "https://example.org") for item in built]))
    assert [(item.task_name, item.metric_value, item.dataset_args) for item in result] == [
        ("gsm8k", 50.0, {"num_few_shot": 5}), ("gsm8k_cot", 75.0, {"num_few_shot": 0}),
    ]  # fmt: skip
    assert result[0].source_url == "https://example.org" and result[0].dataset_split == "test"
    assert result[0].metric_args == {"notes": built[0].notes}
