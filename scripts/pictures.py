"""Screenshots for docs/: pages of a site in a browser.

    make demo && .venv/bin/python scripts/pictures.py demo/site
    .venv/bin/python scripts/pictures.py FOLDER

Pictures are made of the pages that the folder has: the demo's site, or a folder with ``paper``, ``rl``, ``ci`` and
``board``, in which the commands of docs/tutorial-paper.md and so on were run. Needs Chromium (or Chrome) and the
packages of the dev extra.
"""

from __future__ import annotations

import argparse
import io
import shutil
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path("docs")


@dataclass(frozen=True, slots=True)
class Picture:
    """A page (the first match of a pattern), the size of the window, and the element that is shown, if not all."""

    page: str
    width: int
    height: int
    element: str = ""


PICTURES = {
    "board.png": Picture("index.html", 1380, 900),
    "samples.png": Picture("runs/*tiny-llada-dare*/samples/*sudoku*/1.html", 1380, 900),
    "tutorial-paper.png": Picture("paper/site/checkpoints/*.html", 760, 900, "#passes-0"),
    "tutorial-rl.png": Picture("rl/site/lineage/index.html", 760, 900, "#steps-1"),
    "tutorial-ci.png": Picture("ci/changed.html", 1080, 460),
    "tutorial-board.png": Picture("board/site/table.html", 1120, 380),
}
STEP = 12
"""The step at which the unmasking slider is set."""
COLORS = 256
"""Number of colors of a picture: it takes half of the space, and looks the same."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    args = parser.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise SystemExit(f"no browser: install one of {', '.join(names)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name, picture in PICTURES.items():
            place = next(args.site.glob(picture.page), None)
            if place is None:
                continue
            size = {"width": picture.width, "height": picture.height}
            page = browser.new_page(viewport=size, reduced_motion="reduce")
            page.goto(place.resolve().as_uri())
            slider = page.get_by_role("slider", name="Unmasking step").first
            if slider.count():
                slider.fill(str(STEP))
                page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            shown = page.locator(picture.element) if picture.element else page
            image = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
            image.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(DOCS / name, optimize=True)
            print(DOCS / name)
        browser.close()


if __name__ == "__main__":
    main()
