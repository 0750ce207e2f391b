"""What tells one program from another: our code that can change an answer, and what it stands on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dare_bench import program
from dare_bench.runs.schema import Program

SOURCE = Path(program.__file__).parent


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, which from here on is the one that is looked at."""
    shutil.copytree(SOURCE, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "tiny", "*.json", "*.md"))
    monkeypatch.setattr("dare_bench.program._HERE", tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("model_adapters/sampling/tokens.py", "sampler"),
        ("model_adapters/scoring/score.py", "scorer"),
        ("model_adapters/llada/family.py", "adapters"),
        ("model_adapters/backbone/sdpa.py", "adapters"),
        ("diffusion/rng.py", "diffusion"),
        ("loading.py", "core"),
        ("cli/eval.py", None),
        ("leaderboards/board_ranking.py", None),
    ],
)
def test_a_change_of_a_file_shows_in_its_part(copy: Path, file: str, part: str | None) -> None:
    before = program.code.__wrapped__()
    assert before == program.code(), "the same code in another folder is the same program"
    (copy / file).write_text((copy / file).read_text() + "\nADDED = 1\n")
    after = program.code.__wrapped__()
    assert [name for name in before if before[name] != after[name]] == ([part] if part else [])
    reported = program.differences(before, after)
    assert reported == (f"{part} {before[part]} -> {after[part]}" if part else "")


SAMPLER = '''"""A module."""
from x import y
def f(a, *, b=None):
    """What it does."""
    return {**a, "x": f"{b!r:>{a}}", "y": -1.5, "z": u"t"}
class A:
    field: int = 3
    "What the field says."
'''
SAME = '''# A comment.
from x import y

def f(a, *, b=None,
      ):  # another
    return {**a, "x": f"{b!r:>{a}}", "y": -1.5, 'z': "t"}


class A:
    """Documented."""

    field: int = 3
'''


def test_comments_docstrings_and_layout_make_no_other_program(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "f.py").write_text(text)
        return program._digest(tmp_path, [tmp_path / "f.py"])

    assert digest(SAMPLER) == digest(SAME) == "ast:78593f960124"
    changes = (
        ("-1.5", "-1.25"),
        ("{**a,", "{"),
        ("b=None", "b=0"),
        ("3", "'3'"),
        ("!r", "!s"),
        ("import y", "import z"),
    )
    different = {digest(SAME.replace(old, new)) for old, new in changes}
    assert len(different) == len(changes) and digest(SAME) not in different


def test_trees_are_parsed_once_and_a_broken_cache_is_no_obstacle(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    first = program.code.__wrapped__()
    with monkeypatch.context() as patched:
        patched.setattr("ast.parse", lambda *_: pytest.fail("parsed again"))
        assert program.code.__wrapped__() == first
    (cached,) = (tmp_path / "cache").iterdir()
    for content in ("[]", "[1, 2]", "{", '{"a": 3}'):
        cached.write_text(content)
        assert program.code.__wrapped__() == first


def test_code_that_was_recorded_by_its_bytes_is_neither_equal_nor_different() -> None:
    now = program.code()
    before = {**now, "sampler": "0123456789ab", "core": "ba9876543210", "torch": "1.0"}
    text = f"torch 1.0 -> {now['torch']}, sampler, core: recorded by the bytes of the files, which cannot be compared"
    assert program.differences(before, now) == text and program.from_running(before) == text


def test_what_it_stands_on_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"torch", "transformers", "tokenizers"} <= program.code().keys()
    monkeypatch.setattr("dare_bench.program.installed", {"torch": "1.0"}.get)
    changed = program.code.__wrapped__()
    assert changed["torch"] == "1.0" and "transformers" not in changed
    assert f"transformers {program.code()['transformers']} -> none" in program.differences(program.code(), changed)


def test_several_programs_are_counted_and_named() -> None:
    item, two = ({**program.code(), "device": device} for device in ("cpu", "NVIDIA H200"))
    assert program.from_running(item) == program.from_running(two) == ""
    assert program.several([Program(parts=item, requests=3)]) == ""
    reported = program.several([Program(parts=item, requests=3), Program(parts=two, requests=2)])
    assert reported == "answered by 2 programs: 3 answers by the first, 2 by another (device cpu -> NVIDIA H200)"
    assert "not recorded" in program.several([Program(parts={}, requests=3), Program(parts=two, requests=2)])
