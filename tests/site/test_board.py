"""The static site: complete without JavaScript, inside its folder, deaf to what models and data sets say; and a page
for each task where a board has more gaps than scores."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from run_factory import make_run
from site_pages import EVIL, Page, pages

from dare_bench.errors import RunError, SaveError, UsageError
from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.rendering import slug


def test_pages_are_well_formed_and_links_lead_somewhere_inside(site: Path) -> None:
    seen = pages(site)
    assert len(seen) > 20
    for page in seen:
        for link in page.links:
            if link.startswith(("#", "data:image/svg+xml,")):
                assert link[0] != "#" or link[1:] in page.ids
                continue
            target = (page.path.parent / unquote(link.partition("#")[0].partition("?")[0])).resolve()
            assert target.is_file() and site.resolve() in target.parents, f"{page.path}: {link}"
        assert len(page.ids) == len([1 for _, name, _ in page.attributes if name == "id"]), "an id is used twice"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".js") and path.parent.name != "data":
            text = re.sub(r"// .*", "", path.read_text())
            assert not re.search(r"(?:https?:)?//[A-Za-z]|@import|\burl\(", text), path
    for page in pages(site):
        policy = [value for tag, name, value in page.attributes if tag == "meta" and value.startswith("default-src")]
        assert policy and "'unsafe" not in policy[0]
        inline = [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
        assert inline == [] and "style" not in page.tags, page.path
        scripts = re.findall(r"<script([^>]*)>([^<]*)</script>", page.path.read_text())
        assert len(scripts) == page.tags.count("script") and "theme.js" in scripts[0][0], page.path
        for attributes, text in scripts:
            assert (" src=" in attributes and not text) or 'type="application/json"' in attributes, page.path


def test_choices_are_shown_with_their_likelihoods(site: Path) -> None:
    text = Page(site / "runs" / "best" / "samples" / "choice_x" / "1.html").text
    assert "a red apple" in text and "-1.500" in text and "± 0.050" in text and "most likely" in text


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
    block["execution"] = {"level": EVIL, "statuses": {EVIL: 1}}
    block["extraction"] = {task: {EVIL: {EVIL: 1}}}
    block["recipes"] = [{"name": EVIL, "published": {"value": 0.5, "source": EVIL, "measures": EVIL},
                         "score": {"task": task}, "settings": EVIL, "missing": [EVIL]}]  # fmt: skip
    training = {"base": EVIL, "method": EVIL, "peft": EVIL, "data": EVIL, "settings": {EVIL: EVIL}, "data_hash": EVIL}
    block["model"]["lineage"] = {**training, "parents": [training]}
    results["configs"][task] = {"dataset_path": EVIL, "dataset_kwargs": {"revision": EVIL}}
    results["versions"][task] = EVIL
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
    assert len(seen) >= 3
    for page in seen:
        scripts = re.findall(r"<script(?: src=| type=\"application/json\")[^>]*>[^<]*</script>", page.path.read_text())
        assert page.tags.count("script") == len(scripts) and "img" not in page.tags, page.path
        assert "alert(1)" in page.text and "␇49" not in page.text, page.path
        html = page.path.read_text()
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", html), page.path
        assert "<script>alert" not in html
    (sample,) = (page for page in seen if "samples" in page.path.parts and page.path.name == "1.html")
    assert "␇{{ 7*7 }}" in sample.text  # templates are not applied to what models wrote
    assert "⟨U+202E⟩" in sample.text and "␛]0;x␇" in sample.text


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
    (out / "runs" / "stays" / "index.html").write_text("spoiled")
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
    reported: list[str] = []
    report = build(tmp_path / "runs", tmp_path / "site", on_problem=reported.append)
    assert report.runs == 2 and len(reported) == 2 and report.left_out == reported
    assert any("bad" in text for text in reported) and any("line 1 is damaged" in text for text in reported)
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
    with pytest.raises(RunError, match="no runs in"):
        build(tmp_path / "empty", tmp_path / "site")
    make_run(tmp_path / "runs", "r", n_docs=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        build(tmp_path / "runs", tmp_path / "file")


def make_runs(root: Path) -> None:
    for at in range(4):
        make_run(root, f"a{at}", model=f"m{at}", content=f"{at:064x}", tasks={"task_a": at / 4}, n_docs=40)
    make_run(root, "b", model="m4", content="b" * 64, tasks={"task_b": 0.5, "task_c": 0.2}, n_docs=40)


@pytest.fixture(scope="module")
def sparse_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    make_runs(root)
    build(root, out)
    return out


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><div><a [^>]*>([^<]+)</a>', page)


def test_the_navigation_leads_to_the_task_with_the_most_scores(sparse_site: Path) -> None:
    for place in ("index.html", "table.html"):
        page = (sparse_site / place).read_text()
        assert re.search(r'<a href="boards/table-task_a\.html"[^>]*>Table</a>', page), place
    page = (sparse_site / "boards/table-task_a.html").read_text()
    assert names(page) == ["m3", "m2", "m1", "m0"], "rows without a score of the task are not there"
    assert '<a href="../boards/table-task_a.html" aria-current="page">Table</a>' in page
    tabs = re.search(r'<nav class="tabs".*?</nav>', page)
    assert tabs and re.findall(r">([^<]+)</a>", tabs[0]) == ["task_a", "task_b", "task_c", "All tasks"]


def test_each_task_ranks_its_rows_by_its_own_score(sparse_site: Path) -> None:
    record = json.loads((sparse_site / "data/boards/table-task_a.json").read_bytes())
    assert record["rank_by"] == "task_a" and record["rows"][0]["rank"] == 1
    assert not [row for row in record["rows"] if row["badges"]], "no row lacks a task here"
    assert len(json.loads((sparse_site / "data/board.json").read_bytes())["rows"]) == 5, (
        "all rows are in the board's data"
    )
    assert (sparse_site / "data/boards/table-task_b.csv").is_file() and (
        sparse_site / "data/boards/table-task_b.md"
    ).is_file()


def test_a_full_board_is_one_table(tmp_path: Path) -> None:
    for at in range(2):
        tasks = {"task_a": 0.5, **({"task_b": 0.5} if at else {})}
        make_run(tmp_path / "runs", f"r{at}", model=f"m{at}", content=f"{at:064x}", tasks=tasks, n_docs=5)
    build(tmp_path / "runs", tmp_path / "site")
    assert not (tmp_path / "site/boards").exists() and 'class="tabs"' not in (tmp_path / "site/table.html").read_text()


def test_columns_of_one_task_have_pages_of_their_own(tmp_path: Path) -> None:
    for at in range(5):
        make_run(tmp_path / "runs", f"r{at}", model=f"m{at}", content=f"{at:064x}", tasks={f"t{at}": 0.5}, n_docs=5)
    board = tmp_path / "board.yaml"
    board.write_text(
        "title: Two\ntasks:\n- {task: t0}\n- {task: t0, metric: 'exact_match,none'}\n- t1\n- t2\n- t3\nrank_by: none\n"
    )
    build(tmp_path / "runs", tmp_path / "site", board=str(board), samples=False)
    assert len(list((tmp_path / "site/boards").glob("table-t0*.html"))) == 2
