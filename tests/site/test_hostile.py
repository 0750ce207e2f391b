"""Result files that are damaged or hostile never spoil the board, hide or run anything; what the server answers, to
whom; colors of text follow the scheme alone."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from run_factory import make_run
from site_pages import EVIL, board_data, change, pages

from dare_bench.leaderboards.builder import build
from dare_bench.leaderboards.rendering import HERE
from dare_bench.leaderboards.server import SiteServer

HIDING = "\u202e\u2066\u200b\u00ad\U000e0041\x00\x1b\x9b"
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\U000e0000-\U000e0fff]")


def put(results: dict[str, Any], place: str, value: Any) -> None:
    *way, last = place.split("/")
    for name in way:
        results = results.setdefault(name, {})
    results[last] = value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("results/dare_sudoku", 5),
        ("results/dare_sudoku", None),
        ("groups", [1]),
        ("group_subtasks", None),
        ("group_subtasks/dare_sudoku", 5),
        ("group_subtasks/dare_sudoku", [["x"]]),
        ("configs", "none"),
        ("configs/dare_sudoku", 5),
        ("versions", 3),
        ("n-shot", [1]),
        ("n-samples", 7),
        ("higher_is_better", None),
        ("higher_is_better/dare_sudoku", "yes"),
        ("dare_bench/cost/nfe", 10**400),
        ("dare_bench/tasks", 10**400),
        ("dare_bench/model/parameters", 10**200),
        ("dare_bench/model/lineage", {"base": "b", "method": "sft", "parents": 5}),
    ],
)
def test_a_results_file_of_another_shape_leaves_its_run_out(tmp_path: Path, place: str, value: Any) -> None:
    make_run(tmp_path / "runs", "sound")
    change(make_run(tmp_path / "runs", "off"), lambda results: put(results, place, value))
    reported: list[str] = []
    report = build(tmp_path / "runs", tmp_path / "site", on_problem=reported.append)
    assert report.runs == 1 and [row["run_id"] for row in board_data(tmp_path / "site")["rows"]] == ["sound"]
    assert (
        len(reported) == 1
        and place.split("/")[-1] in reported[0]
        and len(reported[0]) < 700
        and "\n" not in reported[0]
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("results/dare_sudoku/exact_match,none", 10**400),
        ("results/dare_sudoku/exact_match_stderr,none", 10**400),
        ("results/dare_sudoku/exact_match,none", float("nan")),
    ],
)  # fmt: skip
def test_a_number_beyond_all_measure_ends_no_build(tmp_path: Path, place: str, value: Any) -> None:
    change(make_run(tmp_path / "runs", "odd"), lambda results: put(results, place, value))
    assert build(tmp_path / "runs", tmp_path / "site").runs == 1


def test_results_nested_without_end_leave_their_run_out(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "sound")
    off = make_run(tmp_path / "runs", "off")
    next(off.glob("results_*")).write_text("[" * 100_000)
    reported: list[str] = []
    assert build(tmp_path / "runs", tmp_path / "site", on_problem=reported.append).runs == 1
    assert len(reported) == 1 and "nested deeper" in reported[0]


@pytest.mark.parametrize("text", [HIDING + EVIL, "é" * 400, "x" * 900], ids=["marks", "file name", "long"])
def test_whatever_a_run_is_called_pages_show_it_and_stay_small(tmp_path: Path, text: str) -> None:
    board = tmp_path / "board.yaml"
    board.write_text(json.dumps({"title": "T" + text, "about": "A" + text, "tasks": ["dare_sudoku", "t" + text]}))

    def alter(results: dict[str, Any]) -> None:
        block = results["dare_bench"]
        for part in ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples", "group_subtasks"):
            results[part]["t" + text] = results[part]["dare_sudoku"]
        block["tasks"]["t" + text] = block["tasks"]["dare_sudoku"]
        for name in ("family", "dtype", "content_hash", "name"):
            block["model"][name] += text
        for name in ("run_id", "command", "suite"):
            block[name] = f"{text}{block.get(name)}"
        block["environment"] |= {"gpu": "GPU " + text, "more": text}
        block["decoding_requested"] = {text: text}
        block["notes"], block["events"] = [text], [{"what": text, "more": text}]
        block["failures"] = [{"task": text, "doc_id": text, "error": text}]

    for number in range(2):
        change(make_run(tmp_path / "runs", f"r{number}", model=f"m{number}", content=f"{number}" * 64), alter)
    build(tmp_path / "runs", tmp_path / "site", board=["default", str(board)])
    built = pages(tmp_path / "site")
    assert len(built) > 8
    for page in built:
        html = page.path.read_text()
        assert HIDDEN.search(html) is None, (page.path, HIDDEN.search(html))
        assert "<script>" not in html and "img" not in page.tags and len(html) < 400_000, page.path
        assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]


SERVED = ["/", "/index.html", "/index.html?view=1", "/data/board.json", "/part/", "/linked.html", "//index.html"]
REFUSED = [
    "/out/secret.txt", "/out/", "/file", "/circle", "/data/", "/data", "/.hidden", "/.git/config", "/shown", "/fifo",
    "/listed/", "/%00", "/index.html%00", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/../secret.txt", "/" + "a" * 5000,
    "/%", "/%zz", "/%ff%fe", "/%ed%b2%80", "/index.html/", "http://[/", "*", "nothing",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteServer]:
    site, outside = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("secret")
    (site.parent / "secret.txt").write_text("secret")
    for name in ("index.html", "data/board.json", "part/index.html", ".hidden", ".git/config"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("hello")
    (site / "listed").mkdir()
    os.mkfifo(site / "fifo")
    links = {"out": outside, "file": outside / "secret.txt", "linked.html": "index.html", "circle": "circle",
             "shown": ".hidden", "listed/index.html": outside / "secret.txt"}  # fmt: skip
    for name, target in links.items():
        (site / name).symlink_to(target)
    with SiteServer(site, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def answer(server: SiteServer, path: str, host: str | None = "localhost", method: str = "GET") -> tuple[int, bytes]:
    """Status and body of a request that is sent as it is; clients would tidy it up first."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as client:
        line = f"Host: {host}\r\n" if host is not None else ""
        client.sendall(f"{method} {path} HTTP/1.1\r\n{line}\r\n".encode("latin-1"))
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("path", SERVED)
def test_files_of_the_site_are_served(server: SiteServer, path: str) -> None:
    assert answer(server, path) == (200, b"hello")
    assert answer(server, path, method="HEAD") == (200, b"")


@pytest.mark.parametrize("path", REFUSED)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_nothing_else_is_served(server: SiteServer, path: str, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, body = answer(server, path, method=method)
    assert status == 404 and b"secret" not in body and b"hello" not in body
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:8000", "[::1]:1"])
def test_this_machine_may_have_any_port(server: SiteServer, host: str) -> None:
    assert answer(server, "/", host) == (200, b"hello")


@pytest.mark.parametrize("host", [None, "", "rebound.example", "localhost.example:8000", "localhost\r\nHost: x", "::1"])
def test_other_names_of_this_machine_are_refused(server: SiteServer, host: str | None) -> None:
    status, body = answer(server, "/", host)
    assert status == 421 and b"hello" not in body


def test_a_request_that_fails_is_one_line(
    server: SiteServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = iter([RuntimeError("no luck"), BrokenPipeError()])

    def fail(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr(server, "finish_request", fail)
    for _ in range(2):
        server.process_request_thread(socket.socket(), ("127.0.0.1", 1))
    assert capsys.readouterr().err == "a request was not answered: RuntimeError('no luck')\n"


BLOCK = re.compile(r"^@(?:media|container) [^{]*width[^{]*\{(.*?)^\}", re.MULTILINE | re.DOTALL)
COLOR = re.compile(r"(?:[\s;{]|^)((?:[\w-]*color|background|opacity|fill|filter|text-decoration|--[\w-]+)[\w-]*)\s*:")


def test_no_color_of_text_depends_on_the_width() -> None:
    """So :func:`browsing.faults_in_all_views` sees every color in few views."""
    blocks = {file.name: "".join(BLOCK.findall(file.read_text())) for file in (HERE / "static").glob("*.css")}
    assert sum(map(bool, blocks.values())) > 4
    assert {name: found for name, text in blocks.items() if (found := COLOR.findall(text))} == {}
