"""The pages of a run and of a replayed step: what came out, what it takes to do it again, every number of the
record, hostile texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lineages import WEIGHTED, completion, record
from run_factory import make_run
from site_pages import EVIL, Page, change, plain

from dare_bench.analysis.names import Checkpoint, CheckpointName, full_names
from dare_bench.leaderboards.answer_pages import write_rollout
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.run_page import score_tree
from dare_bench.runs.reader import Run


def test_run_page_has_what_it_takes_to_do_it_again(site: Path) -> None:
    text = Page(site / "runs" / "few-steps" / "index.html").text
    for words in ("dare-bench eval --model tiny-llada", "steps", "low_confidence", "2.13.0", "python 0, numpy 1234",
                  "sha256:abab", "mc_num", "lm-eval 0.4.13", "412 MB", "sampler: llada"):  # fmt: skip
        assert words in text, words
    failed = Page(site / "runs" / "failed" / "index.html").text
    assert "6 samples have no answer" in failed and "9000 tokens" in failed


def test_no_page_names_the_folders_of_the_machine(tmp_path: Path) -> None:
    home = "/home/somebody/secret"
    run = make_run(tmp_path / "runs", "r", failures=1, status="incomplete")

    def alter(results: dict[str, Any]) -> None:
        block = results["dare_bench"]
        block["command"] = f"dare-bench eval --model {home}/tiny --output-path={home}/runs/ --gen-kwargs a=1/2"
        block["notes"] = [f"data set {home}/x.jsonl is local: see https://example.org/a/b"]
        block["failures"][0]["error"] = f"cannot read '{home}/y.json'"
        block["events"] = [{"what": "read", "file": f"{home}/z.json"}]
        block["model"] |= {
            "path": f"{home}/tiny",
            "lineage": FIRST | {"base": f"{home}/base", "data": f"{home}/d.jsonl"},
        }

    change(run, alter)
    build(tmp_path / "runs", tmp_path / "site")
    for file in (tmp_path / "site").rglob("*"):
        assert not file.is_file() or b"somebody" not in file.read_bytes(), file
    text = Page(tmp_path / "site/runs/r/index.html").text
    for words in ("eval --model tiny --output-path=runs --gen-kwargs a=1/2", "x.jsonl is local: see https://example.org/a/b",
                  "cannot read 'y.json'"):  # fmt: skip
        assert words in text, words


FIRST = {"base": "tiny-llada-base", "method": "sft", "peft": None, "data": "a.jsonl", "step": 9, "steps": 9, "seed": 1}
LAST = {"base": "one", "method": "vrpo", "peft": "lora", "data": "b.jsonl", "step": 5, "steps": 10, "seed": 0}


def made_of(run: Path, lineage: dict[str, Any]) -> None:
    change(run, lambda results: results["dare_bench"]["model"].update(lineage=lineage))


def test_a_trained_checkpoint_says_what_it_was_made_of(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "tuned", model="a-very-long-name-of-a-sweep")
    made_of(run, {**LAST, "data": EVIL, "parents": [FIRST]})
    build(tmp_path / "runs", tmp_path / "site")
    run_page = Page(tmp_path / "site/runs/tuned/index.html")
    page = Page(tmp_path / "site" / next((tmp_path / "site/checkpoints").glob("*.html")))
    board = Page(tmp_path / "site/table.html")
    assert f"../../checkpoints/{page.path.name}" in run_page.links
    for text in (board.words, run_page.words, page.words):
        assert "tiny-llada-base → SFT → VRPO (LoRA)" in text and "seed 0, step 5" in text
    assert "a-very-long-name" not in board.text and "a-very-long-name-of-a-sweep" in run_page.text
    assert "SFT on a.jsonl, step 9 of 9, seed 1" in page.words and "step 5 of 10, seed 0" in page.words
    assert "<script>alert" not in board.path.read_text() + page.path.read_text()


def test_checkpoints_that_would_be_called_alike_are_told_apart(tmp_path: Path) -> None:
    for number, rate in enumerate((0.001, 0.003)):
        run = make_run(tmp_path / "runs", f"r{number}", model=f"m{number}")
        made_of(run, {**FIRST, "settings": {"learning_rate": rate, "rows": 5}})
    twin = make_run(tmp_path / "runs", "r2", model="m2")
    made_of(twin, {**FIRST, "seed": 2})
    build(tmp_path / "runs", tmp_path / "site")
    titles = [plain(Page(tmp_path / "site" / "runs" / f"r{n}" / "index.html").path.read_text()) for n in range(3)]
    assert "seed 1, step 9, learning_rate 0.001" in titles[0] and "learning_rate 0.003" in titles[1]
    assert "rows 5," not in titles[0] and "learning_rate" not in titles[2]


def test_names_of_one_lineage_evaluated_twice_differ_by_content() -> None:
    checkpoints = [Checkpoint("a", content, "", "float32") for content in ("sha256:1111111", "sha256:2222222")]
    named = full_names((checkpoint, FIRST) for checkpoint in checkpoints)
    assert {name.title for name in named.values()} == {"tiny-llada-base → SFT"}
    assert sorted(name.detail[-15:] for name in named.values()) == ["111111, float32", "222222, float32"]
    assert full_names([(Checkpoint("plain", "x"), None)]) == {Checkpoint("plain", "x"): CheckpointName("plain")}


def test_trainings_of_other_lengths_are_told_apart_by_their_steps() -> None:
    named = full_names((Checkpoint("a", str(steps)), {**FIRST, "steps": steps}) for steps in (9, 18))
    ends = [name.detail.partition("step 9")[2] for name in named.values()]
    assert ends == [", 9 steps in all", ", 18 steps in all"]


def test_groups_stand_before_their_members(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "r", tasks={"part_a": 0.5, "part_b": 0.5, "alone": 0.5}, n_docs=4)

    def grouped(results: dict[str, Any]) -> None:
        results["groups"] = {"whole": {"alias": "whole", "exact_match,none": 0.5}}
        results["group_subtasks"] |= {"whole": ["part_a", "part_b"]}

    change(run, grouped)
    tree = [(depth, score.task) for depth, score in score_tree(Run(run))]
    assert tree == [(0, "alone"), (0, "whole"), (1, "part_a"), (1, "part_b")] or tree == [
        (0, "whole"), (1, "part_a"), (1, "part_b"), (0, "alone"),
    ]  # fmt: skip
    build(tmp_path / "runs", tmp_path / "site")
    html = (tmp_path / "site" / "runs" / "r" / "index.html").read_text()
    assert html.count('class="in1"') == 2 and '<tr class="group">' in html


def test_what_else_a_run_knows_is_told(tmp_path: Path) -> None:
    """Published scores, answers read, code run, data revisions: on the page of the run that has them, and no other."""
    run = make_run(tmp_path / "runs", "rich", tasks={"dare_sudoku": 0.5}, n_docs=20)
    make_run(tmp_path / "runs", "poor", tasks={"dare_sudoku": 0.5}, n_docs=20)
    recipe = {
        "name": "llada/sudoku",
        "published": {"value": 0.612, "n": 500, "source": "a paper, table 2", "measures": "accuracy"},
        "score": {"task": "dare_sudoku", "metric": "exact_match", "filter": "none"}, "settings": "partly",
        "missing": ["which seed"], "deviations": ["steps: 16 for 128"], "doubts": ["hardware unknown"],
    }  # fmt: skip

    def dress(results: dict[str, Any]) -> None:
        results["dare_bench"] |= {
            "recipes": [
                recipe,
                {**recipe, "name": "none/such", "score": {"task": "other"}, "published": {"value": None}},
            ],
            "extraction": {"dare_sudoku": {"none": {"matched": 15, "no_match": 3, "odd": 2}}},
            "execution": {"level": "bubblewrap", "statuses": {"passed": 7, "timeout": 2}, "timeout": 20.0},
        }
        config = {"dataset_path": "org/data", "dataset_name": "main", "dataset_kwargs": {"revision": "abc123"}}
        results["configs"]["dare_sudoku"] |= config

    change(run, dress)
    build(tmp_path / "runs", tmp_path / "site")
    rich, poor = (plain((tmp_path / "site" / "runs" / name / "index.html").read_text()) for name in ("rich", "poor"))
    for words in ("Published scores", "61.2", "n 500", "50.0", "29.9–70.1", "partly", "which seed",
                  "steps: 16 for 128", "hardware unknown", "a paper, table 2", "not measured in this run",
                  "Answer extraction", "no match", "odd", "75.0", "passed 7", "timeout 2",
                  "sandbox of level bubblewrap", "20 s at most", "org/data main", "abc123"):  # fmt: skip
        assert words in rich, words
    for words in ("published", "Answer extraction", "Executed code", "abc123"):
        assert words not in poor, words


def test_a_run_says_why_it_is_not_ranked_and_where_its_checkpoint_stands_otherwise(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "site"
    make_run(runs, "whole", tasks={"dare_sudoku": 0.5})
    make_run(runs, "beside", tasks={"dare_countdown3": 0.5})
    make_run(runs, "quick", tasks={"dare_sudoku": 0.4}, decoding={"steps": 4}, created="2026-11-01T00:00:00")
    build(runs, out)
    page = Page(out / "runs" / "whole" / "index.html")
    assert "shares its row with dare_countdown3" in page.words and "../../runs/beside/index.html" in page.links
    (checkpoint,) = (out / "checkpoints").glob("*.html")
    assert f"../../checkpoints/{checkpoint.name}" in page.links
    assert "3 runs" in Page(checkpoint).words and "../runs/quick/index.html" in Page(checkpoint).links
    assert "1 of 2 tasks missing dare_countdown3" in Page(out / "runs" / "quick" / "index.html").words
    make_run(runs, "quicker", tasks={"dare_sudoku": 0.4}, decoding={"steps": 2}, created="2026-11-01T00:00:00")
    build(runs, out)
    assert "4 runs" in Page(checkpoint).words


def canvases(html: str) -> list[list[dict[str, str]]]:
    """The attributes of the tokens of each canvas, folds left out."""
    found = re.findall(r'<div class="canvas".*?</div>', html, re.DOTALL)
    return [
        [dict(re.findall(r"data-([scvu])=(\S+?)(?=[ >])", tag)) for tag in re.findall(r"<b [^>]*>", canvas)]
        for canvas in found
    ]


def test_each_token_has_its_forward_its_confidence_and_its_weight(tmp_path: Path) -> None:
    html = write_rollout(record(WEIGHTED), tmp_path / "r.html").read_text()
    first, second = canvases(html)
    assert first[:3] == [
        {"s": "2", "c": ".50", "v": "+.02", "u": "5"},
        {"s": "1", "c": ".25", "v": "−.0012", "u": "-1"},
        {"s": "3", "c": "1"},
    ]
    assert len(first) == 3 and 'class="fold"' in html, "equal end tokens without a weight are folded"
    assert [token.get("v") for token in second] == [None, "+.004", None, None, None, "−.01", None], "those with one not"
    assert [token.get("u") for token in second if "u" in token] == ["2", "-3"], "one scale for the whole page"
    assert re.search(r"less likely −0.02.*\+0.02 likelier", html)


def test_the_table_has_every_number_as_text(tmp_path: Path) -> None:
    html = write_rollout(record(WEIGHTED), tmp_path / "r.html").read_text()
    rows = [re.sub(r"<[^>]+>", "|", row) for row in re.findall(r'<tr><th scope="row".*?</tr>', html)]
    cells = [[cell for cell in row.split("|") if cell] for row in rows]
    assert cells[0] == ["1", "3", "2", "0.5", "+0.02"] and cells[1][2:] == ["1", "0.25", "−0.0012"]
    assert cells[6] == ["7", "&lt;eos&gt;", "–", "–", "0"] and len(cells) == 14


def test_the_page_says_what_the_step_is(tmp_path: Path) -> None:
    page = Page(write_rollout(record(WEIGHTED), tmp_path / "three words.html"))
    assert "Rollout of step 4" in page.text and "Step 4 of 6 · rollout 2, inner iteration 2 of 2" in page.text
    assert "sampled from checkpoint-2 · updated from checkpoint-3" in page.text
    assert "reward 0.25" in page.text and "advantage +0.5" in page.text and "advantage −0.5" in page.text
    assert "2 of 7 tokens have a weight." in page.text
    files = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert files and all((tmp_path / link).is_file() for link in files)


def test_without_weights_the_page_says_so(tmp_path: Path) -> None:
    unknown = record([completion(None, 0.5, logprobs=[])], updated_from=None)
    page = Page(write_rollout(unknown, tmp_path / "r.html"))
    assert "were not kept, so that tokens have no weights here" in page.text
    assert ("input", "value", "weight") not in page.attributes and "have a weight" not in page.text
    (tokens,) = canvases(page.path.read_text())
    assert tokens[0] == {"s": "2"}, "a forward without a recorded probability"


def test_texts_are_text(tmp_path: Path) -> None:
    evil = completion([1.0] * 7, 1.0, text=EVIL, where=EVIL, prompt_text=EVIL, pieces=[EVIL] * 7)
    page = Page(write_rollout(record([evil], sampled_from=EVIL), tmp_path / "r.html"))
    html = page.path.read_text()
    assert "<script>alert" not in html and "<img" not in html and "\u202e" not in html and "\x1b" not in html
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert "<script>alert(1)" in page.text
