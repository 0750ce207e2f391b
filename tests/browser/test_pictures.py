"""The first screens of six pages look as approved: at three widths, light and dark; at most 0.5% of pixels differ.

After a change that is wanted, `make approve` writes the pictures again; look at them before they are committed. They
hold for the browser and the fonts with which they were taken (pictures/about.json): with others the test skips.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from browsing import Look
from lineages import make_family
from PIL import Image, ImageChops
from run_factory import alter, make_run

from dare_bench.leaderboards.builder import build

PICTURES = Path(__file__).with_name("pictures")
ABOUT = PICTURES / "about.json"
RENEW = os.environ.get("DARE_RENEW_PICTURES") == "1"
PAGES = ("Overview", "Table", "Speed", "Unmasking", "Compare", "Training")
"""By their links in the navigation."""
SCREENS = ((1440, 900), (1024, 768), (390, 844))
SCHEMES = ("light", "dark")
"""Of a width one picture is kept, in which they stand below each other."""
SHARE = 0.005
"""Share of the pixels that may differ."""
SHADES = 16
"""Number of colors of a kept picture."""
VISIBLE = 48
"""Difference of a color channel, of 255, from which a pixel differs: more than the reduction to 16 colors changes."""
TEXT = "Accuracy 97.5–98.3% of Rows, dare_sudoku"
MEASURED = """(text) => ["body", "code"].map((name) => {
  const line = document.createElement("span");
  line.style.cssText = "position: absolute; white-space: nowrap; font-size: 100px";
  if (name === "code") line.style.fontFamily = "monospace";
  line.textContent = text;
  document.body.append(line);
  const { width, height } = line.getBoundingClientRect();
  line.remove();
  return [width, height].map((length) => Math.round(length));
})"""
"""Width and height of a line in the fonts of the pages, in pixels: other fonts, or other versions, have others."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site that is the same whenever and wherever it is built."""
    root, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("site")
    make_family(root)
    for number, family in enumerate(("llada", "dream", "sdar")):
        for steps in (4, 8, 16):
            run = make_run(
                root,
                f"{family}-{steps}",
                model=f"tiny-{family}",
                content=f"{number:064x}",
                tasks={"dare_sudoku": 0.9 - number / 10 - 1 / steps, "choice_x": 0.5, "dare_sort": 0.7},
                n_docs=40,
                n_total=40,
                documents="same",
                decoding={"steps": steps},
            )
            alter(run, model__family=family, cost__nfe=steps * 100)
    build(root, out)
    return out


def shown(page: Any) -> dict[str, Any]:
    """The browser, and the measures of its fonts."""
    return {"browser": page.context.browser.version, "fonts": page.evaluate(MEASURED, TEXT)}


def reduced(picture: Image.Image) -> Image.Image:
    """In few colors: a screen takes 25 KB instead of 100."""
    return picture.convert("RGB").quantize(SHADES, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def differing(one: Image.Image, other: Image.Image) -> float:
    """The share of pixels that visibly differ; 1 for pictures of different sizes."""
    if one.size != other.size:
        return 1.0
    difference = ImageChops.difference(one.convert("RGB"), other.convert("RGB"))
    most = ImageChops.lighter(ImageChops.lighter(*difference.split()[:2]), difference.split()[2])
    counts = most.histogram()
    return sum(counts[VISIBLE:]) / sum(counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_approved(look: Look, site: Path, tmp_path: Path, name: str) -> None:
    page = look(site / "index.html")
    about, place = shown(page), page.get_by_role("navigation", name="Site").get_by_role("link", name=name, exact=True)
    page.goto((site / str(place.get_attribute("href"))).as_uri())
    approved = json.loads(ABOUT.read_text()) if ABOUT.is_file() else None
    if not RENEW and approved != about:
        was = "none are approved yet" if approved is None else f"they are of {approved}, and this is {about}"
        pytest.skip(f"pictures of pages: {was}; make approve takes them again")
    wrong = []
    for width, height in SCREENS:
        page.set_viewport_size({"width": width, "height": height})
        kept, both = f"{name.lower()}-{width}.png", Image.new("RGB", (width, 2 * height))
        boxes = dict(zip(SCHEMES, ((0, 0, width, height), (0, height, width, 2 * height)), strict=True))
        for scheme, box in boxes.items():
            page.emulate_media(color_scheme=scheme)
            # What stands still when a table scrolls is drawn where it was first, to the pixel: so all is drawn again.
            page.evaluate("document.body.hidden = true; document.body.offsetHeight; document.body.hidden = false")
            both.paste(Image.open(io.BytesIO(page.screenshot(animations="disabled"))), box)
        if RENEW:
            PICTURES.mkdir(exist_ok=True)
            ABOUT.write_text(json.dumps(about) + "\n")
            reduced(both).save(PICTURES / kept, optimize=True)
            continue
        before = Image.open(PICTURES / kept).convert("RGB")
        for scheme, box in boxes.items():
            if (share := differing(before.crop(box), both.crop(box))) > SHARE:
                both.save(tmp_path / kept)
                wrong.append(f"{kept}, {scheme}: {share:.1%} of the pixels differ, see {tmp_path / kept}")
    assert wrong == [], "\n".join([*wrong, "if this is wanted: make approve"])


def test_a_visible_change_of_one_percent_is_seen_and_fewer_colors_are_not() -> None:
    page = Image.radial_gradient("L").resize((300, 100)).convert("RGB")
    assert differing(reduced(page), page) < SHARE / 2
    other = page.copy()
    other.paste((255, 0, 0), (0, 0, 30, 10))
    assert differing(reduced(page), other) > SHARE
    assert differing(page, page.resize((300, 101))) == 1.0
