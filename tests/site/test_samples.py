"""Sample pages: complete without scripts, small, and well-formed whatever a samples file holds."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from lineages import make_checkpoint, trained
from run_factory import make_run
from site_pages import board_data, plain

from dare_bench.analysis.unmasking import Write, unmasking
from dare_bench.errors import RunError
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.rendering import script_json
from dare_bench.leaderboards.sample_canvas import canvas
from dare_bench.leaderboards.sample_document import ANSWERS, anchor
from dare_bench.leaderboards.sample_pages import PAGE_SIZE
from dare_bench.runs.index import SampleIndex

TASK = "dare_sudoku"
VOID = {"meta", "link", "input", "path", "br"}
EVIL = (
    "</pre></script><script>window.pwned=1</script><img src=x onerror=window.pwned=1><!--\u202e\u2066\x1b]0;x\x07\x00"
)


class Strict(HTMLParser):
    """Balanced tags, ids once each, no attribute that could run; ``text`` is what a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "script":
            self.text += data


def lines_of(run: Path, kind: str = "samples") -> list[dict[str, Any]]:
    return [json.loads(line) for line in next(run.glob(f"{kind}_*")).read_text().splitlines()]


def put(run: Path, lines: list[Any], kind: str = "samples") -> None:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    next(run.glob(f"{kind}_*")).write_text(text)


def pages(root: Path, out: Path, problem: Any = None) -> list[Path]:
    build(root, out, on_problem=problem)
    return sorted((p for p in out.rglob("samples/*/*.html") if p.stem != "index"), key=lambda p: int(p.stem))


def only(root: Path, out: Path) -> str:
    (page,) = pages(root, out)
    return page.read_text()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs", "r", n_docs=2)


def test_pages_are_full_complete_and_lead_to_each_other(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=60)
    files = pages(tmp_path / "runs", tmp_path / "site")
    assert len(files) == -(-60 // PAGE_SIZE)
    ids = [result for file in files for result in re.findall(r'id="doc-(\d+)"', file.read_text())]
    assert ids == [str(i) for i in range(60)]
    first = Strict(files[0].read_text())
    for words in ("Question 0: which digits?", "Target", "exact_match 1", "Unmasking", "forward passes"):
        assert words in first.text, words
    assert '<a href="2.html" title="documents 25 to 49, 25 right">2' in files[0].read_text()
    assert '<a href="3.html" title="documents 50 to 59, 4 right, 6 wrong">3' in files[1].read_text()
    assert 'rel="prev" href="1.html"' in files[1].read_text() and 'rel="next" href="3.html"' in files[1].read_text()


def test_the_overview_leads_to_every_document_by_its_verdict(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=60)
    file = pages(tmp_path / "runs", tmp_path / "site")[0].with_name("index.html")
    html = file.read_text()
    wrong, right = html.split('id="wrong"')[1].split('id="right"')
    assert re.findall(r'href="(\d+)\.html#doc-(\d+)"', wrong) == [("3", str(i)) for i in range(54, 60)]
    assert len(re.findall(r'href="\d+\.html#doc-\d+"', right)) == 54
    for page, ident in re.findall(r'href="(\d+)\.html#(doc-\d+)"', html):
        assert f'id="{ident}"' in file.with_name(f"{page}.html").read_text()
    Strict(html)


def test_the_table_of_a_task_has_question_answer_target_score_and_passes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "r", n_docs=20)
    file = pages(tmp_path / "runs", tmp_path / "site")[0].with_name("index.html")
    html = file.read_text()
    heads = [plain(head) for head in re.findall(r"<th scope=\"col\".*?</th>", html.split("documents-table")[1])][:6]
    assert heads == ["Document", "Score", "Question", "Answer", "Target", "Passes"]
    (line,) = [line for line in lines_of(run) if line["doc_id"] == 19]
    first = html.split('<tbody id="wrong">')[1].split("</tr>")[1]
    answer, target = line["resps"][0][0], line["target"]
    assert plain(first) == f"19 ✗ 0 Question 19: which digits? Answer: {answer} {target} 12"


def test_runs_of_one_model_are_told_apart_on_their_pages(tmp_path: Path) -> None:
    for name, steps in (("one", 8), ("two", 16)):
        make_run(tmp_path / "runs", name, n_docs=2, decoding={"steps": steps})
    build(tmp_path / "runs", tmp_path / "site")
    for name, steps in (("one", 8), ("two", 16)):
        for place in ("1.html", "index.html"):
            html = (tmp_path / "site/runs" / name / "samples/dare_sudoku" / place).read_text()
            assert f"steps {steps}" in html and f"run <code>{name}</code>" in html


def test_a_trained_checkpoint_has_the_boards_name_on_its_sample_pages(tmp_path: Path) -> None:
    """In title, path and heading, also where a later checkpoint makes the name longer."""
    runs, out = tmp_path / "runs", tmp_path / "site"

    def named() -> dict[str, str]:
        build(runs, out)
        names = {row["run_id"]: row["name"] for row in board_data(out)["rows"]}
        for run_id, name in names.items():
            for place in ("1.html", "index.html"):
                html = unescape((out / "runs" / run_id / "samples" / TASK / place).read_text())
                title, path = html.split("<title>")[1].split("</title>")[0], html.split('class="crumbs"')[1]
                assert f" · {name}" in title and f'index.html">{name}</a>' in path, (run_id, place)
                assert f'<p class="facts">{name} · ' in html, (run_id, place)
        return names

    for seed in (1, 2):
        make_checkpoint(
            runs,
            f"{'long-' * 20}seed={seed}",
            0.5,
            trained(seed=seed),
            run_id=f"seed{seed}",
            decoding={"steps": 8 * seed},
        )
    first = named()
    assert first["seed1"] != first["seed2"] and first["seed2"].endswith("dare_sudoku, seed 2, step 100")
    make_checkpoint(runs, "rate", 0.5, trained(seed=2, settings={"learning_rate": 0.1}))
    assert named()["seed2"] == f"{first['seed2']}, learning_rate 0.001"


def test_tokens_carry_step_and_confidence_and_equal_ones_are_folded(tmp_path: Path, run: Path) -> None:
    html = only(tmp_path / "runs", tmp_path / "site")
    shown = html.split('class="canvas"')[1].split("</div>")[0]
    result = {
        int(s): (int(level), c)
        for level, s, c in re.findall(r'<b class="s(\d) c\d" data-s=(\d+) data-c=([\d.]+)>', shown)
    }
    trace = lines_of(run, "traces")[0]
    folds = re.findall(r'data-f="([^"]+)">&lt;\|endoftext\|&gt; × (\d+)', shown)
    pairs = [pair.split(":") for fold, _ in folds for pair in fold.split()]
    seen = {step: confidence for step, (_, confidence) in result.items()} | {int(s): c for s, c in pairs}
    assert {step + 1: round(c, 2) for step, _, _, _, c in trace["events"]} == {s: float(c) for s, c in seen.items()}
    assert folds and len(pairs) == sum(int(count) for _, count in folds)
    levels = [result[step][0] for step in sorted(result)]
    assert levels == sorted(levels) and (1 not in result or result[1][0] == 0)


def test_what_was_written_over_is_told_with_its_text() -> None:
    trace = {"pieces": ["b", "<x>", "c"], "others": {"7": "a<b"}, "events": [
        [0, "set", 0, 7, 0.25], [1, "set", 0, 8, 0.5], [1, "set", 1, 5, 0.9], [2, "remask", 1, 5, 0.1],
        [3, "set", 1, 6, None], [3, "set", 2, 99, 1.0], [4, "remask", 2, 99, None]]}  # fmt: skip
    order = unmasking(trace)
    assert order.pieces[0].past == (Write(1, "a<b", 0.25),) and order.edited == 1
    assert order.pieces[1].past == (Write(2, "", 0.9), Write(3, None, None)) and order.remasked == 2
    assert order.pieces[2].step is None and order.pieces[2].past == (Write(4, "", 1.0), Write(5, None, None))
    html = canvas(order, 10)
    reported = [json.loads(unescape(text)) for text in re.findall(r'data-w="([^"]*)"', html)]
    assert reported[0] == [[1, "a<b", 0.25]] and reported[1] == [[2, "", 0.9], [3, None, None]]
    assert "<x>" not in html and "a<b" not in html
    assert "<b class=s6 data-s=4 data-w=" in html and "<b class=never data-w=" in html


def test_confidences_that_are_no_probabilities_have_their_own_scale() -> None:
    events = [[0, "set", 0, 1, -3.0], [1, "set", 1, 1, -1.0], [2, "set", 2, 1, 0.0]]
    order = unmasking({"pieces": ["a", "b", "c"], "events": events})
    assert order.scale == (-3.0, 0.0) and [piece.sure for piece in order.pieces] == [0, 6, 9]
    assert unmasking({"pieces": ["a"], "events": [[0, "set", 0, 1, 0.55]]}).pieces[0].sure == 5


def test_extraction_sandbox_filters_and_fields_are_shown(tmp_path: Path, run: Path) -> None:
    lines = lines_of(run)
    lines[0]["dare_bench"][0] |= {"extraction": "no_match", "extracted": "[invalid]",
                                  "verdict": {"status": "timeout", "level": "bubblewrap", "seconds": 3.0}}  # fmt: skip
    lines[0]["doc"] = {"test": "assert f(1) == 2", "question": lines[0]["doc"]["question"]}
    flexible = {**lines[0], "filter": "flexible", "filtered_resps": ["forty-two"], "exact_match": 0.0}
    put(run, [*lines, flexible])
    html = only(tmp_path / "runs", tmp_path / "site")
    first = Strict(html).text
    for words in ("no match", "[invalid]", "timeout", "bubblewrap, 3 s", "flexible", "forty-two", "exact_match 0",
                  "assert f(1) == 2", "not read"):  # fmt: skip
        assert words in first, words
    assert 'data-is="right unread"' in html and html.count("not read") == 1
    assert "question</dt>" not in html, "the prompt shows it already"


def test_repeats_are_shown_one_by_one_and_a_thousand_are_cut(tmp_path: Path, run: Path) -> None:
    lines = lines_of(run)
    lines[0]["resps"] = [[f"answer {i}" for i in range(3)]]
    lines[1]["resps"] = [[f"again {i}" for i in range(1000)]]
    put(run, lines)
    html = only(tmp_path / "runs", tmp_path / "site")
    text = Strict(html).text
    assert "3 answers" in text and all(f"answer {i}" in text for i in range(3))
    assert f"again {ANSWERS - 1}" in text and f"again {ANSWERS}\n" not in text
    assert f"{1000 - ANSWERS} more answers" in text and len(html) < 60_000


def test_a_first_line_break_of_an_answer_is_kept(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=1, answer="\n12")
    assert '<pre class="text" dir="auto">\n\n12</pre>' in only(tmp_path / "runs", tmp_path / "site")


def test_long_canvases_do_not_make_big_pages(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=25, decoding={"gen_length": 1024}, answer="0123456789" * 103)
    files = pages(tmp_path / "runs", tmp_path / "site")
    assert len(files) > 3 and max(file.stat().st_size for file in files) < 300_000
    ids = [result for file in files for result in re.findall(r'id="doc-(\d+)"', file.read_text())]
    assert ids == [str(i) for i in range(25)]


@pytest.mark.parametrize(
    "text",
    [EVIL, "\u2028\u2029\u200b\ufeff", "\ud800x\udfff", "a\x00b\x1b[2J\x9b\x7f\r", "x" * 1_000_000,
     "<b>" * 300_000, "\u202e" * 300_000, "&lt;&amp;", "\n" * 5000, ""],
    ids=["html", "lines", "surrogates", "controls", "long", "long-html", "long-bidi", "entities", "breaks", "empty"],
)  # fmt: skip
def test_hostile_text_is_text_wherever_it_stands(tmp_path: Path, run: Path, text: str) -> None:
    lines, traces = lines_of(run), lines_of(run, "traces")
    name = text[:900] or "empty"
    lines[0] |= {"target": text, "filter": name, "resps": [[text]], "filtered_resps": [text], "metrics": ["m", name],
                 "m": text, name: text, "doc_id": name, "doc": {text: text + "!"}}  # fmt: skip
    lines[0]["arguments"]["gen_args_0"]["arg_0"] = text
    lines[0]["dare_bench"][0] |= {
        "extraction": name, "extracted": text, "verdict": {"status": name, "level": name, "seconds": 1.0},
    }  # fmt: skip
    traces[0] |= {"doc_id": name, "pieces": [text, text + "\n" + text, "x"], "others": {"7": text},
                  "events": [[0, "set", 0, 7, 0.5], [1, "set", 0, 8, 0.6], [1, "set", 2, 9, 0.5]]}  # fmt: skip
    put(run, lines)
    put(run, traces, "traces")
    page = pages(tmp_path / "runs", tmp_path / "site")[0]
    assert page.stat().st_size < 500_000
    for file in (page, page.with_name("index.html")):
        html = file.read_text()
        seen = Strict(html)
        assert "img" not in seen.tags and set(re.findall(r"<script(?! src=)[^>]*>", html)) <= {
            '<script type="application/json" id="pages">'
        }
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]", html)
        assert "<script>window" not in html and html.count("<b>") == 1, "the score in the frame"
    assert len(json.loads(block(page))) in (1, 2), "a page is full by its size, too"


def block(page: Path) -> str:
    result = re.search(r'<script type="application/json" id="pages">(.*?)</script>', page.read_text(), re.S)
    assert result is not None
    return result[1]


def test_the_data_block_holds_no_markup_and_reads_back() -> None:
    value = [["</script><!--&\u2028\u2029\ud800", 1], "ü"]
    text = script_json(value)
    assert not re.search("[<>&\u2028\u2029]", text) and text.isascii() and json.loads(text) == value


def test_events_at_places_that_are_not_there_spoil_nothing(tmp_path: Path, run: Path) -> None:
    traces = lines_of(run, "traces")
    events = [[0, "set", 10**9, 1, 0.5], [0, "set", -5, 1, 0.5]]
    put(run, [traces[0] | {"events": events}, traces[1]], "traces")
    html = only(tmp_path / "runs", tmp_path / "site")
    assert "Question 0" in Strict(html).text
    assert html.count('class="canvas"') >= 1, "the other document keeps its canvas"


@pytest.mark.parametrize("change", [{"filtered_resps": {"a": [1]}}, {"doc": [1]}, {"exact_match": [0]}], ids=str)
def test_values_of_any_kind_are_shown(tmp_path: Path, run: Path, change: dict[str, Any]) -> None:
    lines = lines_of(run)
    put(run, [lines[0] | change, lines[1]])
    assert "Question 1" in Strict(only(tmp_path / "runs", tmp_path / "site")).text


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("traces", {"events": [["0", "set", 0, 1, 0.5], [0, "set", None, 1, 0.5], [0, "set", 0, 1], 7, None, {}]}),
        ("traces", {"events": [[0, "set", 0, 1, float("nan")], [2, "set", 2, 1, "x"]]}),
        ("traces", {"events": [[10**30, "set", 0, 1, 0.5], [-1, "set", 0, 1, 0.5], [True, "set", 0, 1, 10**400]]}),
        ("traces", {"events": [[0, {}, 0, 1, 0.5]], "others": [1, 2]}),
        ("traces", {"events": "soon", "pieces": "none"}),
        ("traces", {"events": {"a": 1}, "pieces": [None, 1, {"<i>": []}]}),
        ("traces", {"key": ["<i>"], "pieces": ["x"] * 9}),
        *(("samples", change) for change in (
            {"arguments": ["a", 1]}, {"arguments": {"gen_args_0": "text"}}, {"resps": "text"}, {"resps": {"a": 1}},
            {"metrics": "acc"}, {"metrics": [["m"], None, 3]}, {"dare_bench": "x"}, {"dare_bench": [1, None, [2]]},
            {"target": {"a": None}}, {"doc_id": {"a": 1}}, {"doc_id": None}, {"exact_match": float("nan")},
            {"exact_match": 10**400}, {"filter": None}, {"dare_bench": [{"key": "a/9999999999999999/0/0"}]},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_a_line_of_another_shape_is_named_and_leaves_no_page(
    tmp_path: Path, run: Path, kind: str, change: dict[str, Any]
) -> None:
    lines = lines_of(run, kind)
    put(run, [lines[0] | change, *lines[1:]], kind)
    reported: list[str] = []
    assert pages(tmp_path / "runs", tmp_path / "site", reported.append) == []
    assert len(reported) == 1 and "line 1 is damaged" in reported[0] and "\n" not in reported[0]


def test_bytes_that_are_no_utf8_are_marked(tmp_path: Path, run: Path) -> None:
    file = next(run.glob("samples_*"))
    file.write_bytes(file.read_bytes().replace(b"which digits", b"which \xff\xfe digits"))
    assert "which �� digits" in only(tmp_path / "runs", tmp_path / "site")


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"doc_id": 7, "doc"', "[" * 100_000, '{"doc_id": 7, "a": ' + "9" * 5000 + "}"]
)
def test_a_line_that_cannot_be_read_is_named_and_leaves_no_page(tmp_path: Path, run: Path, line: str) -> None:
    put(run, [*lines_of(run), line + "\n"])
    reported: list[str] = []
    assert pages(tmp_path / "runs", tmp_path / "site", reported.append) == []
    assert len(reported) == 1 and "line 3 is damaged" in reported[0] and "\n" not in reported[0]
    (row,) = json.loads((tmp_path / "site/data/board.json").read_text())["rows"]
    assert row["badges"] == ["edited"] and row["rank"] is None


def test_right_to_left_answers_do_not_turn_the_page_round(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=1, answer="שלום", prompt="مرحبا")
    html = only(tmp_path / "runs", tmp_path / "site")
    for part in re.findall(r"<[^<]*>[^<]*(?:שלום|مرحبا)", html):
        assert 'dir="auto"' in part, part


def test_an_edited_file_is_shown_as_it_is_now_and_says_so(tmp_path: Path, run: Path) -> None:
    assert "was changed after the run" not in only(tmp_path / "runs", tmp_path / "site")
    lines = lines_of(run)
    lines[0]["target"] = "changed by hand"
    put(run, lines)
    html = only(tmp_path / "runs", tmp_path / "site")
    assert "changed by hand" in html and "The samples file of this task was changed after the run" in html
    put(run, [{**line, "repeat": 1} for line in lines_of(run, "traces")], "traces")
    assert "The traces file of this task was changed after the run" in only(tmp_path / "runs", tmp_path / "site")


def test_older_runs_do_not_know_and_say_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "r", n_docs=2, digests=False)
    put(run, lines_of(run))
    assert "was changed after the run" not in only(tmp_path / "runs", tmp_path / "site")


def test_ids_of_any_kind_have_an_anchor() -> None:
    assert anchor(17) == "doc-17" and anchor("gsm8k-3.a") == "doc-gsm8k-3.a"
    built = {anchor(text) for text in ("a b", "a/b", "a-b", '"><script>', "", "x" * 500)}
    assert len(built) == 6 and all(re.fullmatch(r"doc-[A-Za-z0-9._-]+", each) for each in built)


def test_the_index_reads_no_more_of_a_line_than_its_document(tmp_path: Path, run: Path) -> None:
    line = lines_of(run)[0]
    rows = [{**line, "doc_id": doc, "note": note} for doc, note in ((1, 1), ("b\u00e9", 2))]
    other = {**{name: value for name, value in line.items() if name != "doc_id"}, "note": 3, "doc_id": 1}
    file = tmp_path / "samples.jsonl"
    text = [json.dumps(rows[0]), "", json.dumps(rows[1]), json.dumps(other), '{"doc_id": 9, oops', ""]
    file.write_text("\n".join(text))
    index = SampleIndex("t", file, None)
    assert index.ids == ["1", "bé", "9"] and [row["note"] for row in index.document(1).rows] == [1, 3]
    assert index.document("bé").rows == [rows[1]]
    with pytest.raises(RunError, match="line 5 is damaged: not JSON"):
        index.document(9)
