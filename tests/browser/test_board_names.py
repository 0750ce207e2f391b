"""Names of the table in a real browser: no two rows read the same, and the search knows what was left out."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from browsing import Look, fits, settle
from lineages import make_family
from run_factory import make_run

from dare_bench.leaderboards.builder import build

TASKS = {"dare_sudoku": 0.95, "dare_countdown3": 0.4, "choice_x": 0.3}
VISIBLE_NAMES = """() => [...document.querySelectorAll("table.board tbody th")].map((head) => {
  const seen = [];
  const within = (part, node) => {
    const box = node.getBoundingClientRect(), isBox = getComputedStyle(node).display !== "inline";
    return (!isBox || (part.right <= box.right + 1 && part.bottom <= box.bottom + 1))
      && (node === head || within(part, node.parentElement));
  };
  const texts = document.createTreeWalker(head, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const range = document.createRange();
    seen.push([...text.data].filter((letter, at) => {
      range.setStart(text, at);
      range.setEnd(text, at + 1);
      const parts = [...range.getClientRects()];
      return parts.length && parts.every((part) => within(part, text.parentElement));
    }).join(""));
  }
  return seen.join(" ");
})"""
"""The letters of each name and its chips that are not cut off."""


@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
def test_no_two_rows_read_the_same(look: Look, tmp_path: Path, phone: bool) -> None:
    stem = "a-model-with-a-long-name-of-its-family"
    names = [f"{stem}-7b-instruct-{end}" for end in ("chat", "math")]  # they differ at the end,
    names += [f"{stem}-{middle}-trained-with-reinforcement" for middle in ("sft", "dpo")]  # in the middle,
    for number, name in enumerate(names):
        make_run(tmp_path / "runs", f"r{number}", model=name, content=f"{number:064x}", tasks=TASKS)
    for number in range(2):  # and at the end of their settings
        decoding = {"stop": ["the end of an answer of this model"], "block_length": 8, "steps": 8 + number}
        make_run(tmp_path / "runs", f"s{number}", model=names[0], content="0" * 64, tasks=TASKS, decoding=decoding)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/table.html", phone=phone)
    seen = page.evaluate(VISIBLE_NAMES)
    assert len(seen) == 6 and len({*seen}) == 6, seen
    assert fits(page)
    page.get_by_role("searchbox").or_(page.locator("summary", has_text="Filters")).first.click()
    page.get_by_role("searchbox").fill("sft")
    assert page.locator("table.board tbody tr").count() == 1, "the search looks at the whole name"
    page.get_by_role("searchbox").fill("")
    if not phone:
        assert page.locator(".board a > .cut").first.inner_text() == ""
        page.get_by_role("checkbox", name="Detailed").check()
        assert page.locator(".board th > div > a").first.inner_text() in names, "here it is whole"


def test_settings_behind_folded_seeds_can_be_read_beside_many_tasks(look: Look, tmp_path: Path) -> None:
    tasks = {f"a_task_{at}": 0.5 for at in range(9)}
    for seed, temperature in itertools.product(range(3), (0.0, 0.5, 1.0)):
        decoding = {"temperature": temperature, "seed": seed}
        name, known = f"s{seed}-t{temperature}", {"model": "LLaDA-8B-Instruct", "documents": "same"}
        make_run(tmp_path / "runs", name, tasks=tasks, decoding=decoding, **known)  # type: ignore[arg-type]
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/table.html")
    page.set_viewport_size({"width": 1440, "height": 900})
    seen = page.evaluate(VISIBLE_NAMES)
    assert len(seen) == 3 and all(f"temperature {value}" in "".join(seen) for value in ("0.0", "0.5", "1.0")), seen


def test_a_seed_is_found_in_the_row_of_its_recipe(look: Look, tmp_path: Path) -> None:
    make_family(tmp_path / "runs")
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/table.html", query="?q=seed+1")
    settle(page)
    found = page.locator("table.board tbody th").all_inner_texts()
    assert found and all("seeds" in name or "seed 1" in name for name in found)
    page.get_by_role("searchbox").fill("seed 7")
    settle(page)
    assert page.get_by_role("status").first.inner_text().startswith("0 of")


def test_on_a_phone_no_chip_is_cut_off(look: Look, tmp_path: Path) -> None:
    make_family(tmp_path / "runs")
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/table.html", phone=True)
    card = page.locator(".scroll").bounding_box()
    chips = page.locator("table.board tbody th i")
    rights = chips.evaluate_all("nodes => nodes.map((node) => node.getBoundingClientRect().right)")
    assert card and len(rights) > 10 and max(rights) <= card["x"] + card["width"]


def test_every_row_is_one_line_and_three_tasks_fit_on_a_desk(look: Look, tmp_path: Path) -> None:
    """With what is long: names, badges, the facts of trainings, hardware."""
    make_family(tmp_path / "runs")
    make_run(tmp_path / "runs", "part", model="a-name-" * 9, tasks=TASKS, n_docs=9, limit=9, gpu="A processor " * 4)
    build(tmp_path / "runs", tmp_path / "site", samples=False)
    page = look(tmp_path / "site/table.html")
    page.set_viewport_size({"width": 1440, "height": 900})
    heights = page.locator("table.board tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert len(heights) > 5 and all(36 <= height <= 37 for height in heights), heights
    assert page.locator("#rows").evaluate("box => box.scrollWidth <= box.clientWidth")
    names = page.locator("table.board tbody th > div > a").evaluate_all(
        "nodes => nodes.map((it) => it.scrollWidth - it.clientWidth)"
    )
    assert names == [0] * len(names), "what stands after a name is cut off before it"
    (cut,) = page.locator("td[title]").all()
    assert cut.get_attribute("title") == ("A processor " * 4).strip() and cut.evaluate(
        "it => it.scrollWidth > it.clientWidth"
    )
