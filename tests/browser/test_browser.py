"""The fixture itself: what it is to catch, it catches."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import Look, Tabs, faults, fits


def test_a_clean_page_is_clean(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "clean.html"
    file.write_text("<!doctype html><html lang=en><title>t</title><main><h1>Hello</h1><p>text</p></main></html>")
    page = look(file, phone=True)
    assert faults(page) == [] and fits(page)


def test_what_is_wrong_is_seen(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    wide = "<p><svg width=2000 height=10></svg></p>"
    file.write_text(f"<!doctype html><title>t</title><main><h1>x</h1><img src='data:,'><button></button>{wide}</main>")
    page = look(file, dark=True, scripts="empty")
    result = " ".join(faults(page))
    assert "html-has-lang" in result and "image-alt" in result and "button-name" in result
    assert not fits(page)


def test_scripts_can_be_off(look: Look, tmp_path: Path) -> None:
    file = tmp_path / "plain.html"
    file.write_text("<!doctype html><html lang=en><title>t</title><script>document.title = 'run'</script>")
    assert look(file).title() == "run" and look(file, scripts=False).title() == "t"


@pytest.mark.parametrize(
    "body",
    [
        "<script>console.error('bad')</script>",
        "<script>throw new Error('bad')</script>",
        "<script>alert(1)</script>",
        "<link rel=stylesheet href='missing.css'>",
        "<img src='http://127.0.0.1:9/x.png' alt=''>",
    ],
)
def test_trouble_fails_the_test(tabs: Tabs, tmp_path: Path, body: str) -> None:
    file = tmp_path / "trouble.html"
    file.write_text(f"<!doctype html><html lang=en><title>t</title>{body}")
    built = tabs.looking()
    next(built)(file).wait_for_timeout(100)
    with pytest.raises(AssertionError):
        next(built)
