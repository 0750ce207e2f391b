"""The static board: complete without JavaScript, inside its folder, and deaf to what models and data sets say."""

from __future__ import annotations

import errno
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from run_factory import make_run

from dare_bench.errors import RunError, SaveError, UnknownNameError, UsageError
from dare_bench.leaderboards.board import load_board
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.pages import slug
from dare_bench.leaderboards.sample_pages import PAGE_SIZE

TASKS = {"dare_sudoku": 0.95, "dare_countdown3": 0.4, "choice_x": 0.3}
VOID = {"meta", "link", "br", "hr", "img", "input", "rect", "path", "col"}
EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b]0;x\x07{{ 7*7 }}"


class Page(HTMLParser):
    """A page taken apart: balanced tags, links, ids, text, and every attribute."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.open, self.links, self.ids = path, [], [], set()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(path.read_text())
        self.close()
        assert self.open == [], f"{path}: {self.open} not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._attributes(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._attributes(tag, attrs)

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name in ("href", "src"):
                self.links.append(value or "")
            if name == "id":
                self.ids.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"{self.path}: unexpected </{tag}>, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        self.text += data


def pages(site: Path) -> list[Page]:
    return [Page(path) for path in sorted(site.rglob("*.html"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "best", tasks=TASKS, n_docs=60)
    fewer = {**TASKS, "dare_sudoku": 0.9}
    make_run(root, "few-steps", tasks=fewer, n_docs=60, decoding={"steps": 8}, created="2026-11-21T00:00:00")
    low = {task: share / 4 for task, share in TASKS.items()}
    make_run(root, "base", model="tiny-llada-base", tasks=low, n_docs=60, created="2026-11-18T00:00:00")
    make_run(root, "limited", tasks=TASKS, n_docs=50, limit=50, gpu="NVIDIA H200", created="2026-11-17T00:00:00")
    make_run(root, "failed", tasks=TASKS, n_docs=60, failures=2, status="incomplete", created="2026-11-16T00:00:00")
    make_run(root, "unfinished", tasks=TASKS, n_docs=10, done=False, created="2026-11-15T00:00:00")
    make_run(root, "old-prompts", tasks=TASKS, n_docs=60, fingerprint="v0", created="2026-11-14T00:00:00")
    make_run(root, "one-task", tasks={"dare_sudoku": 0.5}, n_docs=60, created="2026-11-13T00:00:00")
    out = tmp_path_factory.mktemp("site")
    report = build(root, out)
    assert report.runs == 8 and report.files == len([p for p in out.rglob("*") if p.is_file()])
    return out


def rows(site: Path) -> dict[str, str]:
    """The table's rows as text, by the page each leads to."""
    html = (site / "index.html").read_text().split("<tbody>")[1].split("</tbody>")[0]
    found = {}
    for row in html.split("<tr")[1:]:
        page = re.search(r'href="runs/([^/]+)/', row)
        assert page is not None
        found[page[1]] = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row.partition(">")[2])).strip()
    return found


def test_pages_are_well_formed_and_links_lead_somewhere_inside(site: Path) -> None:
    seen = pages(site)
    assert len(seen) > 20
    for page in seen:
        for link in page.links:
            if link.startswith(("#", "data:,")):
                assert link == "data:," or link[1:] in page.ids
                continue
            target = (page.path.parent / unquote(link)).resolve()
            assert target.is_file() and site.resolve() in target.parents, f"{page.path}: {link}"
        assert len(page.ids) == len([1 for _, name, _ in page.attributes if name == "id"]), "an id is used twice"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".js"):
            assert not re.search(r"(?:https?:)?//[a-z]|@import|url\(", re.sub(r"// .*", "", path.read_text()), re.I), (
                path
            )
    for page in pages(site):
        policy = [value for tag, name, value in page.attributes if tag == "meta" and value.startswith("default-src")]
        assert policy and "'unsafe" not in policy[0]
        inline = [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
        assert inline == [] and page.tags.count("script") == 1 and "style" not in page.tags


def test_rows_carry_score_interval_size_tier_settings_and_speed(site: Path) -> None:
    row = rows(site)["best"]
    assert "95.0 86.3–98.3" in row  # Wilson, 57 of 60
    assert "n 60 · E1" in row and "E2" in row
    assert re.search(r"· [0-9a-f]{6} ", row)
    assert "12.0" in row and "0.92" in row and "Test CPU" in row
    assert rows(site)["few-steps"].count("steps 8") == 1
    assert "NVIDIA H200" in rows(site)["limited"]


def with_extraction(folder: Path, extraction: dict[str, dict[str, dict[str, int]]]) -> None:
    """Statuses of answers put into a run's results file."""
    (path,) = folder.glob("results_*.json")
    results = json.loads(path.read_text())
    results["dare_bench"]["extraction"] = extraction
    path.write_text(json.dumps(results))


def test_how_many_answers_could_be_read_stands_beside_the_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "some", tasks=TASKS, n_docs=20)
    counts = {"dare_sudoku": {"none": {"matched": 11, "ambiguous": 2, "truncated": 7}}}
    with_extraction(run, {**counts, "dare_countdown3": {"none": {"matched": 20}}})
    make_run(tmp_path / "runs", "none", tasks=TASKS, n_docs=20)
    out = tmp_path / "site"
    build(tmp_path / "runs", out)
    assert "read 65.0 %" in rows(out)["some"] and "read 100" not in rows(out)["some"]
    assert "read" not in rows(out)["none"]
    titles = [value for _, name, value in Page(out / "index.html").attributes if name == "title"]
    assert "an answer was read from 100.0 % of the responses" in titles
    page = (out / "runs" / "some" / "index.html").read_text()
    table = re.sub(r"<[^>]+>", " ", page.split("<table")[1].split("</table>")[0])
    assert "Extracted" in table and "65.0" in table and "100.0" in table
    assert "Extracted" not in (out / "runs" / "none" / "index.html").read_text()
    saved = json.loads((out / "data" / "board.json").read_text())
    assert sorted(str(row["scores"]["dare_sudoku"]["extraction_rate"]) for row in saved["rows"]) == ["0.65", "None"]


def ranks_of(root: Path, out: Path, board: str = "default") -> dict[str, tuple[int | None, list[str]]]:
    build(root, out, board=board)
    data = json.loads((out / "data" / "board.json").read_text())
    return {row["run_id"]: (row["rank"], row["badges"]) for row in data["rows"]}


def test_a_failed_document_of_a_newer_run_unranks_no_complete_one(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_run(root, "a", n_docs=200, created="2026-11-20T00:00:00")
    make_run(root, "b", n_docs=200, failures=1, status="incomplete", created="2026-11-21T00:00:00")
    assert ranks_of(root, tmp_path / "site") == {"a": (1, []), "b": (None, ["incomplete"])}
    # Not even when the newer one asked otherwise: only what was answered whole says how a task is now.
    make_run(root, "c", n_docs=200, fingerprint="v2", failures=1, status="incomplete", created="2026-11-22T00:00:00")
    ranks = ranks_of(root, tmp_path / "site")
    assert ranks["a"] == (1, []) and ranks["c"] == (None, ["incomplete", "stale"])


def test_other_prompts_are_told_from_another_task_version(tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "site"
    make_run(root, "now", created="2026-11-21T00:00:00")
    make_run(root, "shots", prompts="five examples", created="2026-11-20T00:00:00")
    make_run(root, "old", prompts="five examples", fingerprint="v0", created="2026-11-19T00:00:00")
    make_run(root, "old-limited", fingerprint="v0", limit=10, created="2026-11-18T00:00:00")
    ranks = ranks_of(root, out)
    assert ranks["now"] == (1, []) and ranks["shots"] == (None, ["prompts"]) and ranks["old"] == (None, ["stale"])
    assert ranks["old-limited"] == (None, ["limited", "stale"])
    assert "other prompts" in rows(out)["shots"] and "other task version" in rows(out)["old"]


def test_a_board_without_ranks_says_why(tmp_path: Path) -> None:
    root, out, board = tmp_path / "runs", tmp_path / "site", tmp_path / "board.yaml"
    make_run(root, "whole")

    def said() -> str:
        return re.sub(r"\s+", " ", Page(out / "index.html").text)

    board.write_text("title: x\nrank_by: none\n")
    assert ranks_of(root, out, str(board)) == {"whole": (None, [])}
    assert "No row is ranked here: this board is declared without a ranking." in said()
    assert "badge" not in said() and "badges say why" not in (out / "index.html").read_text()
    make_run(root, "whole", limit=3)
    ranks_of(root, out)
    assert "No row is ranked here: the badges say why." in said()
    make_run(root, "whole")
    ranks_of(root, out)
    assert "No row is ranked here" not in said() and "Rows with a badge are shown but not ranked." in said()


def test_the_demos_board_fits_our_tasks(tmp_path: Path) -> None:
    make_run(tmp_path, "demo", tasks={"dare_sudoku": 0.9, "dare_countdown3": 0.4, "dare_arithmetic": 0.5})
    assert ranks_of(tmp_path, tmp_path / "site", "demo") == {"demo": (1, [])}


def test_ranks_are_bands_and_badged_rows_have_none(site: Path) -> None:
    data = json.loads((site / "data" / "board.json").read_text())
    ranks = {row["run_id"]: (row["rank"], row["rank_shared"], row["badges"]) for row in data["rows"]}
    assert ranks["best"] == (1, True, []) and ranks["few-steps"] == (1, True, [])
    assert ranks["base"] == (3, False, [])
    assert ranks["limited"] == (None, False, ["limited"])
    assert ranks["failed"] == (None, False, ["incomplete"])
    assert ranks["unfinished"][0] is None and "running" in ranks["unfinished"][2]
    assert ranks["old-prompts"] == (None, False, ["stale"])
    assert ranks["one-task"] == (None, False, ["missing"])
    badges = {"limited": "limit 50", "failed": "incomplete: 6 failed", "unfinished": "not finished",
              "old-prompts": "other task version", "one-task": "2 of 3 tasks missing"}  # fmt: skip
    for run_id, text in badges.items():
        assert text in rows(site)[run_id], run_id
        assert rows(site)[run_id].startswith("–"), run_id
    assert [row["run_id"] for row in data["rows"]][-1] == "one-task"


def test_run_page_has_what_it_takes_to_do_it_again(site: Path) -> None:
    text = Page(site / "runs" / "few-steps" / "index.html").text
    for words in ("dare-bench eval --model tiny-llada", "steps", "low_confidence", "2.13.0", "python 0, numpy 1234",
                  "sha256:abab", "mc_num", "lm-eval 0.4.13", "412 MB", "sampler: llada"):  # fmt: skip
        assert words in text, words
    failed = Page(site / "runs" / "failed" / "index.html").text
    assert "6 samples have no answer" in failed and "9000 tokens" in failed


def test_sample_pages_are_paged_and_complete(site: Path) -> None:
    folder = site / "runs" / "best" / "samples" / "dare_sudoku"
    files = sorted(folder.glob("*.html"), key=lambda p: int(p.stem))
    assert len(files) == -(-60 // PAGE_SIZE)
    ids = [f for file in files for f in re.findall(r'id="doc-(\d+)"', file.read_text())]
    assert ids == [str(i) for i in range(60)]
    assert "page 2 of 3" in Page(files[1]).text
    first = Page(files[0])
    for words in ("Question 0: which digits?", "target", "filtered", "exact_match 1", "Order of unmasking"):
        assert words in first.text, words


def test_tokens_are_coloured_by_step_and_say_it_in_words(site: Path) -> None:
    html = (site / "runs" / "best" / "samples" / "dare_sudoku" / "1.html").read_text()
    found = re.findall(r'class="tok s(\d)" title="step (\d+) of 16, confidence 0\.\d+">[^<]*<sup>(\d+)</sup>', html)
    assert len(found) > 8 * 8
    assert all(step == shown for _, step, shown in found)
    level = {int(step): int(at) for at, step, _ in found}
    assert level[1] == 0 and level[16] == 9 and all(level[a] <= level[b] for a in level for b in level if a < b)
    css = (site / "static" / "board.css").read_text()
    assert all(f".s{at} " in css for at in range(10)) and "prefers-color-scheme: dark" in css
    assert "endoftext|&gt; × " in html


def test_choices_are_shown_with_their_likelihoods(site: Path) -> None:
    text = Page(site / "runs" / "best" / "samples" / "choice_x" / "1.html").text
    assert "a red apple" in text and "-1.500" in text and "± 0.050" in text and "likeliest" in text


def test_hostile_text_is_text(tmp_path: Path) -> None:
    """Prompt, answer, pieces, target, task, model, run id, failure and settings all try to break out."""
    task = "../../../up<script>alert(2)</script>"
    folder = make_run(tmp_path / "runs", "r", model=EVIL, tasks={task: 0.5}, n_docs=2, prompt=EVIL, answer=EVIL)
    file = next(folder.glob("results_*.json"))
    results = json.loads(file.read_text())
    block = results["dare_bench"]
    block["run_id"] = f"../../{EVIL}"
    block["decoding_requested"] = {EVIL: EVIL}
    block["failures"] = [{"task": task, "doc_id": EVIL, "error": EVIL}]
    block["notes"], block["command"], block["environment"][EVIL] = [EVIL], EVIL, EVIL
    block["tasks"][task]["decoding"][EVIL] = EVIL
    file.write_text(json.dumps(results))
    samples = next(folder.glob("samples_*.jsonl"))
    lines = [{**json.loads(line), "target": EVIL, "filter": "none", EVIL: EVIL} for line in samples.open()]
    samples.write_text("".join(json.dumps({**line, "metrics": [*line["metrics"], EVIL]}) + "\n" for line in lines))
    traces = next(folder.glob("traces_*.jsonl"))
    lines = [{**json.loads(line), "pieces": [EVIL, EVIL + "\n" + EVIL, EVIL]} for line in traces.open()]
    traces.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "deep" / "site"
    build(tmp_path / "runs", out)
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["site"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "runs"]
    seen = pages(out)
    assert len(seen) == 3
    for page in seen:
        assert page.tags.count("script") == 1 and "img" not in page.tags, page.path
        assert "alert(1)" in page.text and "49" not in page.text.split("{{")[0][-4:]
        html = page.path.read_text()
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", html), page.path
        assert "<script>alert" not in html
    assert "⟨U+202E⟩" in seen[-1].text and "␛]0;x␇" in seen[-1].text


def test_slugs_are_safe_and_do_not_collide() -> None:
    assert slug("gsm8k_cot-v1.2") == "gsm8k_cot-v1.2"
    for name in ("..", ".", "", "a/b", "../x", ".hidden", "a\x00b", "x" * 300, "ü", "con<>"):
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}", slug(name)), name
    assert slug("a/b") != slug("a-b") and slug("a/b") != slug("a:b")


def test_long_texts_are_cut_and_say_so(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=1, prompt="y" * 1_000_000)
    build(tmp_path / "runs", tmp_path / "site")
    page = next((tmp_path / "site").rglob("1.html"))
    assert page.stat().st_size < 100_000 and "980,000 more characters" in page.read_text()


def test_rebuild_replaces_its_own_and_keeps_what_is_not_its_own(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "gone", n_docs=2)
    make_run(tmp_path / "runs", "stays", n_docs=2)
    out = tmp_path / "site"
    build(tmp_path / "runs", out)
    (out / "CNAME").write_text("example.org")
    (out / "runs" / "gone" / "mine.txt").write_text("mine")
    (out / "runs" / "stays" / "index.html").write_text("spoilt")
    for path in (tmp_path / "runs" / "gone").iterdir():
        path.unlink()
    build(tmp_path / "runs", out)
    assert (out / "CNAME").read_text() == "example.org"
    assert [p.name for p in (out / "runs" / "gone").iterdir()] == ["mine.txt"]
    assert not (out / "data" / "runs" / "gone.json").exists()
    assert "tiny-llada" in (out / "runs" / "stays" / "index.html").read_text()
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    build(tmp_path / "runs", out)
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_a_forged_file_list_cannot_delete_outside(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", n_docs=1)
    build(tmp_path / "runs", tmp_path / "site")
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "site" / "data" / "files.json").write_text('{"files": ["../precious", "/etc/hostname", 3, "nothing"]}')
    build(tmp_path / "runs", tmp_path / "site")
    assert (tmp_path / "precious").read_text() == "keep"


def test_damaged_runs_are_named_and_the_rest_is_built(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "good", n_docs=2)
    bad = make_run(tmp_path / "runs", "bad", n_docs=2)
    next(bad.glob("results_*")).write_text("{")
    half = make_run(tmp_path / "runs", "half", n_docs=2)
    next(half.glob("samples_*")).write_text("no json\n")
    told: list[str] = []
    report = build(tmp_path / "runs", tmp_path / "site", on_problem=told.append)
    assert report.runs == 2 and len(told) == 2 and report.left_out == told
    assert any("bad" in text for text in told) and any("line 1 is damaged" in text for text in told)
    assert (tmp_path / "site" / "runs" / "half" / "index.html").is_file()
    for page in pages(tmp_path / "site"):
        assert page.text


def test_the_same_run_in_two_places_is_two_rows_and_twice_named_is_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "r", n_docs=1)
    make_run(tmp_path / "b", "r", n_docs=1)
    report = build([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "r"], tmp_path / "site")
    assert report.runs == 2
    assert sorted(p.name for p in (tmp_path / "site" / "runs").iterdir()) == ["r", "r--2"]


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs", "r", n_docs=1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SaveError, match="no space left on device"):
        build(tmp_path / "runs", tmp_path / "site")


def test_no_runs_and_wrong_places_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no run below"):
        build(tmp_path / "empty", tmp_path / "site")
    make_run(tmp_path / "runs", "r", n_docs=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        build(tmp_path / "runs", tmp_path / "file")


def test_boards_are_declared_in_yaml(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "r", tasks=TASKS, n_docs=30)
    board = tmp_path / "mine.yaml"
    board.write_text(
        "title: <b>Mine</b>\ntasks:\n  - dare_countdown3\n"
        "  - {task: dare_sudoku, label: Sudoku, metric: 'exact_match,none'}\nrank_by: dare_sudoku\n"
    )
    build(tmp_path / "runs", tmp_path / "site", board=str(board))
    page = Page(tmp_path / "site" / "index.html")
    assert "<b>Mine</b>" in page.text and "Sudoku" in page.text and "choice_x" not in page.text
    data = json.loads((tmp_path / "site" / "data" / "board.json").read_text())
    assert data["rows"][0]["rank"] == 1 and data["rows"][0]["mean"] == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title: x\ncolour: red\n", "'colour' is no field of a board"),
        ("title: x\ntasks: []\n", "at least one task"),
        ("title: x\ntasks: [a, a]\n", "once"),
        ("title: x\ntasks: [a]\nrank_by: b\n", "allowed: mean, none, a"),
        ("title: x\ntitle: y\n", "written twice"),
    ],
)
def test_a_board_that_is_off_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "b.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_board(str(file))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_our_boards_load_and_an_unknown_one_names_the_closest() -> None:
    assert load_board("default").tasks == "all" and load_board("demo").title
    with pytest.raises(UnknownNameError, match="demo"):
        load_board("demmo")


def test_a_trained_checkpoint_says_what_it_was_made_of(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "tuned", model="sft")
    results = next(run.glob("results_*.json"))
    said = json.loads(results.read_text())
    first = {
        "base": "tiny-llada-base",
        "method": "sft",
        "peft": None,
        "data": "a.jsonl",
        "step": 9,
        "steps": 9,
        "seed": 1,
    }
    last = {"base": "one", "method": "vrpo", "peft": "lora", "data": EVIL, "step": 5, "steps": 10, "seed": 0}
    said["dare_bench"]["model"]["lineage"] = {**last, "parents": [first]}
    results.write_text(json.dumps(said))
    build(tmp_path / "runs", tmp_path / "site")
    for page in (tmp_path / "site/index.html", tmp_path / "site/runs/tuned/index.html"):
        text = Page(page).text
        assert "one: vrpo (lora) on " in text and "step 5 of 10, seed 0" in text
        assert ", after tiny-llada-base: sft on a.jsonl, step 9 of 9, seed 1" in text
        assert "<script>alert" not in page.read_text()
