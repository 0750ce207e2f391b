"""A real browser for the pages: Debian's (or Ubuntu's) Chromium, driven by Playwright, with axe for accessibility."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Look, Tabs
from require import lacks, need_package

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    need_package("axe_playwright_python")
    sync_api = need_package("playwright.sync_api")
    path = os.environ.get("DARE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        lacks("chromium")
    with sync_api.sync_playwright() as playwright:
        # Root has no sandbox of Chromium's own; the pages are ours.
        built = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield built
        built.close()


@pytest.fixture(scope="session")
def tabs(browser: Any) -> Tabs:
    return Tabs(browser)


@pytest.fixture
def look(tabs: Tabs) -> Iterator[Look]:
    """Opens pages; see :class:`browsing.Tabs`."""
    yield from tabs.looking()
