"""Each developer script is one that somebody runs: make, CI, a document, or another script."""

from __future__ import annotations

import re

from paths import ROOT

SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))
CALLERS = ("Makefile", "*.md", ".github/**/*.yml", "docs/**/*.md", "model_adapters/**/*.md", "tasks/**/*.md")


def test_each_script_is_called() -> None:
    called = "\n".join(file.read_text() for pattern in CALLERS for file in ROOT.glob(pattern))
    imported = "\n".join(file.read_text() for file in SCRIPTS)
    idle = [
        str(script.relative_to(ROOT))
        for script in SCRIPTS
        if str(script.relative_to(ROOT)) not in called
        and not re.search(
            rf"^ *(from [\w.]*\b{script.stem} import|(from [\w.]+ )?import .*\b{script.stem}\b)", imported, re.M
        )
        and f'"{script.name}"' not in imported
        and script.name != "__init__.py"
    ]
    assert len(SCRIPTS) > 10 and idle == []
