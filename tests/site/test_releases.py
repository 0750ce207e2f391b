"""A release keeps a board's table; an address of the site makes its previews absolute."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import pytest
from run_factory import make_run

from dare_bench.errors import UsageError
from dare_bench.leaderboards.builder import build


def table(path: Path) -> str:
    return path.read_text()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "one", model="pioneer", tasks={"task_a": 0.5}, n_docs=40)
    return tmp_path / "runs"


def test_a_release_stays_as_it_was_and_can_be_selected(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    before = json.loads((out / "data/releases/v1.json").read_bytes())
    assert '<a href="releases/v1.html">v1</a>' in table(out / "table.html")
    make_run(runs, "two", model="newcomer", content="c" * 64, tasks={"task_a": 1.0}, n_docs=40)
    build(runs, out, samples=False, release="v2")
    page = table(out / "releases/v1.html")
    assert "pioneer" in page and "newcomer" not in page and "50.0% (" in page
    assert 'href="../runs/one/index.html"' in page
    assert json.loads((out / "data/releases/v1.json").read_bytes()) == before
    assert re.findall(r'<a href="releases/[^>]+>(\w+)<', table(out / "table.html")) == ["v2", "v1"]
    assert "newcomer" in table(out / "releases/v2.html")
    rows = (out / "data/releases/v1.csv").read_text().splitlines()
    assert len(rows) == 2 and "task_a value" in rows[0]


def test_a_run_that_is_gone_has_no_link_in_a_release(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    make_run(tmp_path / "others", "two", model="newcomer", tasks={"task_a": 1.0}, n_docs=40)
    build(tmp_path / "others", out, samples=False)
    page = table(out / "releases/v1.html")
    assert "pioneer" in page and "runs/one" not in page


def test_a_release_is_not_overwritten(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    assert build(runs, out, samples=False, release="v1").parts_written == 0, "the same table again"
    make_run(runs, "two", model="newcomer", content="c" * 64, tasks={"task_a": 1.0}, n_docs=40)
    with pytest.raises(UsageError, match="the release v1 exists and has another table"):
        build(runs, out, samples=False, release="v1")


@pytest.mark.parametrize("name", ["../x", "a b", "", ".hidden", "x" * 41])
def test_a_name_is_a_file_name(runs: Path, tmp_path: Path, name: str) -> None:
    if not name:
        build(runs, tmp_path / "site", samples=False, release=name)
        assert not (tmp_path / "site/releases").exists()
        return
    with pytest.raises(UsageError, match="--release is"):
        build(runs, tmp_path / "site", samples=False, release=name)


def test_a_damaged_release_is_reported_and_left_out(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False, release="v1")
    (out / "data/releases/v1.json").write_text('{"name": "v1"}')
    problems: list[str] = []
    build(runs, out, samples=False, on_problem=problems.append)
    assert len(problems) == 1 and problems[0].endswith("v1.json is no release")
    assert "releases/" not in table(out / "table.html")


def test_addresses_are_absolute_where_the_site_is_known(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(runs, out, samples=False)
    assert "og:url" not in table(out / "index.html") and not (out / "preview.png").exists()
    build(runs, out, samples=False, url="https://example.org/board")
    assert '<meta property="og:url" content="https://example.org/board/">' in table(out / "index.html")
    page = table(out / "runs/one/index.html")
    assert '<meta property="og:url" content="https://example.org/board/runs/one/index.html">' in page
    assert '<meta property="og:image" content="https://example.org/board/preview.png">' in page
    assert 'xml:base="https://example.org/board/"' in table(out / "feed.xml")
    build(runs, out, samples=False)
    assert not (out / "preview.png").exists()


def test_the_preview_is_an_image_of_the_intervals(runs: Path, tmp_path: Path) -> None:
    build(runs, tmp_path / "site", samples=False, url="http://localhost:8000/")
    data = (tmp_path / "site/preview.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and (width, height) == (1200, 630) and len(rows) == 630 * 3601
    middle = rows[315 * 3601 + 1 : 316 * 3601]
    assert middle[600 * 3 : 600 * 3 + 3] == bytes((63, 79, 181)), "the score of 0.5 is in the middle"
    assert middle[:3] == bytes((252, 251, 249)) and middle[100 * 3 : 100 * 3 + 3] == bytes((229, 227, 221))


def test_the_documentation_is_a_link_of_every_page(runs: Path, tmp_path: Path) -> None:
    build(runs, tmp_path / "site", docs="../index.html")
    for place, link in (("index.html", "../index.html"), ("runs/one/index.html", "../../../index.html")):
        assert f'<a href="{link}">Docs</a></nav>' in (tmp_path / "site" / place).read_text()
    build(runs, tmp_path / "site", docs="https://example.org/docs/")
    assert '<a href="https://example.org/docs/">Docs</a>' in (tmp_path / "site/runs/one/index.html").read_text()
    for docs in ("javascript:alert(1)", "/docs"):
        with pytest.raises(UsageError, match="--docs is"):
            build(runs, tmp_path / "site", docs=docs)


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "https://", "https://a/?b", "javascript:alert(1)"])
def test_what_is_no_address_is_refused(runs: Path, tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="--url is"):
        build(runs, tmp_path / "site", url=url)
