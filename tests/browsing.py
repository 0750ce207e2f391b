"""Pages in a real browser: opening them, what axe finds wrong with them, and what no page of ours may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

DESKTOP, PHONE = {"width": 1380, "height": 900}, {"width": 390, "height": 844}
Look = Callable[..., Any]
Scripts = bool | Literal["empty"]


class Tabs:
    """The pages of a browser: one with scripts, one without, and one with empty scripts. Tests use them one after the
    other, because a new page costs the browser half a second."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._kept: dict[Scripts, Any] = {}
        self._trouble: list[str] = []

    def looking(self) -> Iterator[Look]:
        """Yields ``look(file, phone=False, dark=False, scripts=True, query="", fresh=False)``, which opens a file by
        ``file://`` and returns Playwright's page. ``scripts``: False turns JavaScript off, "empty" leaves it on but
        gives the page empty scripts, so that axe can look at it. The page is that of the last call with the same
        ``scripts``; ``fresh`` asks for one that is thrown away afterwards, for what cannot be undone: permissions, and
        a clock that a test moves.

        Afterwards raises AssertionError if a page wrote to the console, threw, asked for a dialog, or asked for
        anything that was not there or came from elsewhere.
        """
        self._trouble.clear()
        used: dict[Scripts, Any] = {}
        thrown_away: list[Any] = []

        def open_page(
            file: Path,
            *,
            phone: bool = False,
            dark: bool = False,
            scripts: Scripts = True,
            query: str = "",
            fresh: bool = False,
        ) -> Any:
            if fresh:
                page = self._new(scripts)
                thrown_away.append(page)
            else:
                if scripts in used:
                    _leave(used[scripts])
                if scripts not in self._kept:
                    self._kept[scripts] = self._new(scripts)
                page = used[scripts] = self._kept[scripts]
            page.set_viewport_size(PHONE if phone else DESKTOP)
            page.emulate_media(media="null", color_scheme="dark" if dark else "light", reduced_motion="reduce")
            page.goto(file.resolve().as_uri() + query)
            return page

        yield open_page
        for page in used.values():
            _leave(page)
        for page in thrown_away:
            page.context.close()
        assert self._trouble == [], "\n".join(self._trouble)

    def _new(self, scripts: Scripts) -> Any:
        context = self._browser.new_context(java_script_enabled=bool(scripts), accept_downloads=True)
        if scripts == "empty":
            context.route("**/*.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
        page, trouble = context.new_page(), self._trouble
        page.set_default_timeout(10_000)
        page.on("console", lambda message: trouble.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("requestfailed", lambda request: _not_loaded(request, trouble))
        page.on("request", lambda request: _local(request.url, trouble))
        return page


def _leave(page: Any) -> None:
    """Make a page ready for the next file: nothing that was chosen is remembered, and the pointer is in a corner."""
    page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.mouse.move(0, 0)


def _not_loaded(request: Any, trouble: list[str]) -> None:
    """A page that leads to another one cancels what it is still loading: that is no fault of a file."""
    if request.failure != "net::ERR_ABORTED":
        trouble.append(f"not loaded: {request.url}")


def _local(url: str, trouble: list[str]) -> None:
    if not url.startswith(("file:", "data:", "blob:", "about:")):
        trouble.append(f"asked for {url}")


def settle(page: Any) -> None:
    """Wait until a page's scripts have done what they put off by timers of no length, and no table is busy (rows below
    the window follow a moment later)."""
    page.evaluate("""async () => {
        const wait = () => new Promise((done) => setTimeout(done));
        do await wait(); while (document.querySelector("[aria-busy=true]"));
        await wait();
    }""")


COLORS = ("color-contrast", "link-in-text-block")
"""Axe's rules of colors; the first takes most of its time."""


def faults(page: Any, *rules: str, colors: bool = True) -> list[str]:
    """What axe finds wrong with a page as it stands, in one line each; empty if nothing. Needs scripts on. ``rules``:
    only these; ``colors``: also those of colors.

    Sheets are not preloaded: axe would fetch them, which the pages' own policy forbids.
    """
    from axe_playwright_python.sync_playwright import Axe

    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    options: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
    if rules:
        options["runOnly"] = list(rules)
    if not colors:
        options["rules"] = {rule: {"enabled": False} for rule in COLORS}
    violations = page.evaluate("options => axe.run(options).then(results => results.violations)", options)
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']} {node['html'][:120]}"
        for violation in violations
        for node in violation["nodes"]
    ]


def faults_in_all_views(page: Any) -> list[str]:
    """What axe finds wrong with a page on a phone and on a desktop, in the dark and in the light, and where it scrolls
    sideways.

    The page is loaded once: its scripts ask neither for the width nor for the system's colors, style sheets alone
    follow them. Colors do not depend on the width (tests/site/test_style.py), and a desktop shows more than a phone:
    so colors are looked at on a desktop alone, and what a phone alone shows in ``test_board_page.py``. The page is left
    as it was on a light desktop.
    """
    faulty = []
    views: tuple[tuple[str, str, tuple[str, ...], bool], ...] = (
        ("phone", "light", (), False), ("desktop", "dark", COLORS, True), ("desktop", "light", (), True),
    )  # fmt: skip
    for name, scheme, rules, colors in views:
        page.set_viewport_size(PHONE if name == "phone" else DESKTOP)
        page.emulate_media(color_scheme=scheme)
        faulty += [f"{scheme} {name}: {fault}" for fault in faults(page, *rules, colors=colors)]
        if not fits(page):
            faulty.append(f"{name}: the page scrolls sideways")
    return faulty


def fits(page: Any) -> bool:
    """Does the page itself not scroll sideways?"""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def layout_shift(page: Any) -> float:
    """How much of a page has moved since it was opened (the sum of its layout shifts)."""
    return float(
        page.evaluate(
            """() => new Promise((done) => {
                let sum = 0;
                new PerformanceObserver((list) => { for (const each of list.getEntries()) sum += each.value; })
                    .observe({ type: "layout-shift", buffered: true });
                setTimeout(() => done(sum), 300);
            })"""
        )
    )


SMALL_TEXT = """() => [...document.querySelectorAll("main *, header *, footer *")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true })
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((node) => [parseFloat(getComputedStyle(node).fontSize) * (node.getScreenCTM?.().a ?? 1), node])
  .filter(([size]) => size < 11.95).map(([size, node]) => `${size.toFixed(1)} px: ${node.outerHTML.slice(0, 90)}`)"""
"""Visible text below 12 px as it is drawn, also in charts, which are scaled."""

CLIPPED_TEXT = """() => {
  const cut = (text) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    const out = (rect, box, x, y) => (x && (rect.left < box.left - 1 || rect.right > box.right + 1))
      || (y && (rect.top < box.top - 2 || rect.bottom > box.bottom + 2));
    return [...range.getClientRects()].filter((rect) => rect.width).some((rect) => {
      for (let at = text.parentElement; at !== document.body; at = at.parentElement) {
        const { display, overflowX, overflowY, textOverflow } = getComputedStyle(at);
        if (["auto", "scroll"].includes(overflowX) || ["auto", "scroll"].includes(overflowY)) return false;
        const hides = (overflow) => display !== "inline" && ["hidden", "clip"].includes(overflow);
        const [x, y] = [hides(overflowX) && textOverflow !== "ellipsis", hides(overflowY)];
        if (out(rect, at.getBoundingClientRect(), x, y)) return true;
      }
      return false;
    });
  };
  const seen = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  for (let text = seen.nextNode(); text; text = seen.nextNode()) {
    const node = text.parentElement;
    const isText = text.data.trim() && !node.closest(".sr, script, style");
    if (isText && node.checkVisibility({ visibilityProperty: true }) && cut(text))
      found.push(`cut off: ${text.data.trim().slice(0, 60)}`);
  }
  return found;
}"""
"""Visible text that a box cuts off without an ellipsis; a box that scrolls cuts off nothing."""

BELOW_FOOTER = """() => {
  const height = document.documentElement.scrollHeight;
  return height <= innerHeight ? 0 : height - scrollY - document.querySelector("footer").getBoundingClientRect().bottom;
}"""


def breaches(page: Any, height: int = 6000) -> list[str]:
    """Where a page breaks a rule for all of our pages: it is at most ``height`` pixels high and ends with its footer,
    nothing has moved since it was opened, text is readable and targets can be hit."""
    found = [*page.evaluate(SMALL_TEXT), *page.evaluate(CLIPPED_TEXT), *faults(page, "target-size")]
    if (actual := page.evaluate("document.documentElement.scrollHeight")) > height:
        found.append(f"{actual} px high")
    if (below := page.evaluate(BELOW_FOOTER)) > 100:
        found.append(f"{below:.0f} px below the footer")
    if not fits(page):
        found.append("it scrolls sideways")
    if (shift := layout_shift(page)) >= 0.05:
        found.append(f"a layout shift of {shift:.2f}")
    return found
