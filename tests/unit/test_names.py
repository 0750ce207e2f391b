"""One name for one thing: a reader who meets a class finds it by its name."""

from __future__ import annotations

import ast
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from paths import ROOT
from require import need, need_package

FOLDERS = ("dare_bench", "leaderboards", "model_adapters", "reports", "scripts", "tasks", "trainers")


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(set)
    for folder in FOLDERS:
        for path in (ROOT / folder).resolve().rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(str(path.resolve().relative_to(ROOT.resolve())))
    assert places
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


# -- What a test lacks: skipped, or failed where DARE_REQUIRE names it -------------------------------------------------


ABSENT = "no_such_thing_anywhere"
OUTCOMES = pytest.mark.parametrize(
    ("required", "outcome", "says"),
    [
        (None, pytest.skip.Exception, f"{ABSENT} is not installed"),
        ("git,other", pytest.skip.Exception, f"{ABSENT} is not installed"),
        (f"{ABSENT}_either", pytest.skip.Exception, f"{ABSENT} is not installed"),
        (f"git,{ABSENT},other", pytest.fail.Exception, f"{ABSENT} is required here"),
    ],
)


@pytest.fixture(autouse=True)
def _not_required(monkeypatch):
    monkeypatch.delenv("DARE_REQUIRE", raising=False)


@OUTCOMES
@pytest.mark.parametrize(("ask", "name"), [(need, ABSENT), (need_package, ABSENT), (need_package, f"{ABSENT}.part")])
def test_what_is_absent_skips_or_fails(monkeypatch, ask, name, required, outcome, says):
    if required is not None:
        monkeypatch.setenv("DARE_REQUIRE", required)
    # The two outcomes are no Exceptions, and each other's neither: pytest.raises would let the wrong one through.
    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception)) as result:
        ask(name)
    assert result.type is outcome
    assert says in str(result.value)


def test_what_is_there_is_given(monkeypatch, tmp_path):
    tool = tmp_path / ABSENT
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DARE_REQUIRE", f"{ABSENT},json")
    assert Path(need(ABSENT)) == tool
    assert need_package("json.decoder") is sys.modules["json.decoder"]
    tool.chmod(0o644)
    assert shutil.which(ABSENT) is None
    with pytest.raises(pytest.fail.Exception):
        need(ABSENT)


def test_a_package_that_is_there_and_broken_is_no_skip(monkeypatch, tmp_path):
    (tmp_path / "broken_for_a_test.py").write_text("import no_such_thing_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=ABSENT):
        need_package("broken_for_a_test")
