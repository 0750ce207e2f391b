"""What ``leaderboard serve`` answers: files of the site, to requests for this machine, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from dare_bench.leaderboards.server import SiteServer

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
