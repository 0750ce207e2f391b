// What "Detailed" shows of every score (interval, n, tier, fingerprint), for one score: while the pointer rests on its
// cell, or after a click. Without scripts, and by keyboard, "Detailed" shows it.
"use strict";

{
  const table = document.querySelector("table.board");
  const box = document.createElement("div");
  box.className = "score-details";
  box.popover = "manual";
  document.querySelector("main").append(box);
  let shown = null, pinned = false, waiting = 0;

  const scoreAt = (target) => target.closest?.("tbody td:has(> small)");
  const expanded = () => document.getElementById("detailed").checked;

  function show(cell) {
    hide();
    const [interval, small] = [cell.querySelector(":scope > span"), cell.querySelector(":scope > small")];
    const head = document.createElement("b");
    head.textContent = `${cell.dataset.of} ${cell.querySelector("b").textContent}`;
    const lines = [interval, small].filter(Boolean).map((part) => {
      const line = document.createElement("div");
      line.append(...part.cloneNode(true).childNodes);
      return line;
    });
    box.replaceChildren(head, ...lines);
    box.showPopover();
    const at = cell.getBoundingClientRect(), size = box.getBoundingClientRect();
    const below = at.bottom + size.height + 4 <= innerHeight;
    box.style.left = `${Math.max(8, Math.min(at.right - size.width, innerWidth - size.width - 8))}px`;
    box.style.top = `${below ? at.bottom + 2 : at.top - size.height - 2}px`;
    shown = cell;
  }

  function hide() {
    clearTimeout(waiting);
    if (shown) box.hidePopover();
    shown = null;
    pinned = false;
  }

  table.addEventListener("pointerover", ({ target, pointerType }) => {
    const cell = scoreAt(target);
    if (pinned || cell === shown || pointerType !== "mouse") return;
    hide();
    if (cell && !expanded()) waiting = setTimeout(() => show(cell), 250);
  });
  table.addEventListener("pointerleave", () => { if (!pinned) hide(); });
  document.addEventListener("click", ({ target }) => {
    const cell = table.contains(target) && !target.closest("a") && scoreAt(target);
    const again = pinned && cell === shown;
    hide();
    if (cell && !again && !expanded()) { show(cell); pinned = true; }
  });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hide(); });
  document.addEventListener("scroll", hide, { capture: true, passive: true });
}
