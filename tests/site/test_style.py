"""Style sheets: the colors of text follow the scheme alone."""

from __future__ import annotations

import re

from dare_bench.leaderboards.rendering import HERE

BLOCK = re.compile(r"^@(?:media|container) [^{]*width[^{]*\{(.*?)^\}", re.MULTILINE | re.DOTALL)
COLOR = re.compile(r"(?:[\s;{]|^)((?:[\w-]*color|background|opacity|fill|filter|text-decoration|--[\w-]+)[\w-]*)\s*:")


def test_no_color_of_text_depends_on_the_width() -> None:
    """So :func:`browsing.faults_in_all_views` sees every color in few views."""
    blocks = {file.name: "".join(BLOCK.findall(file.read_text())) for file in (HERE / "static").glob("*.css")}
    assert sum(map(bool, blocks.values())) > 4
    assert {name: found for name, text in blocks.items() if (found := COLOR.findall(text))} == {}
