// A tick before each name of the table, and a link to the comparison of two to five ticked rows.
"use strict";
{
  const MOST = 5;
  const bar = document.createElement("div");
  bar.className = "compare-bar";
  bar.setAttribute("role", "status");
  bar.hidden = true;
  const ticks = [];
  for (const row of document.querySelectorAll("table.board tbody tr")) {
    // A row of one run has its name only in the link to its page.
    const runs = row.dataset.runs ?? [...row.querySelectorAll("th small a")].at(-1).href.match(/runs\/([^/]+)\//)[1];
    if (!runs) continue;
    const tick = document.createElement("input");
    tick.type = "checkbox";
    tick.className = "tick";
    tick.autocomplete = "off";
    tick.setAttribute("aria-label", `Compare ${row.querySelector("th a").textContent}, ${runs}`);
    tick.addEventListener("change", () => choose(tick));
    row.querySelector("th").prepend(tick);
    ticks.push([tick, runs]);
  }
  document.querySelector("main").append(bar);

  const chosen = [];  // in the order of ticking: the first one is the reference
  function choose(tick) {
    const [, runs] = ticks.find(([each]) => each === tick);
    if (tick.checked) chosen.push(runs); else chosen.splice(chosen.indexOf(runs), 1);
    for (const [each] of ticks) each.disabled = chosen.length >= MOST && !each.checked;
    bar.hidden = !chosen.length;
    const address = chosen.map((each, at) => `${"abcde"[at]}=${each}`).join("&");
    const link = Object.assign(document.createElement("a"), {
      href: `${document.querySelector("table.board").dataset.root}compare.html?${address}`, textContent: `Compare ${chosen.length} rows`,
    });
    bar.replaceChildren(chosen.length > 1 ? link : "Tick one more row to compare.");
  }
}
