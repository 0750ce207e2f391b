// Optional: charts are complete without this file. It shows labels at the marks in place of the browser's slow tooltips,
// highlights families from the legend, and gives each chart one tab stop with arrow keys between its marks.
"use strict";

for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector("svg[viewBox][role]");
  if (!svg) continue;
  const links = [...svg.querySelectorAll("a")];
  const middle = (link) => {
    const box = link.lastElementChild.getBoundingClientRect();
    return { x: box.left + box.width / 2, y: box.top + box.height / 2, top: box.top, bottom: box.bottom };
  };

  // The label. The marks' names move from <title> to aria-label, else the browser would show both.
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  figure.append(tip);
  for (const link of links) {
    const title = link.querySelector("title");
    link.setAttribute("aria-label", title.textContent);
    title.remove();
    link.addEventListener("pointerenter", () => show(link));
    link.addEventListener("focus", () => show(link));
    link.addEventListener("pointerleave", hide);
    link.addEventListener("blur", hide);
  }

  function show(link) {
    const [first, ...rest] = link.getAttribute("aria-label").split("\n");
    const name = document.createElement("strong");
    name.textContent = first;
    tip.replaceChildren(name, ...rest.map((line) => {
      const part = document.createElement("span");
      part.textContent = line;
      return part;
    }));
    tip.hidden = false;
    const outer = figure.getBoundingClientRect(), at = middle(link);
    const left = at.x - outer.left - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(0, Math.min(left, outer.width - tip.offsetWidth))}px`;
    const above = at.top - tip.offsetHeight - 10;
    tip.style.top = `${(above < 0 ? at.bottom + 10 : above) - outer.top}px`;
  }

  function hide() {
    tip.hidden = true;
  }

  // From left to right, regardless of the order in which they are drawn.
  const order = links.map((link) => [link, middle(link)]).sort(([, a], [, b]) => a.x - b.x || b.y - a.y).map(([link]) => link);
  rove(svg, () => order);
  svg.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // The legend: pointing at a family, or pressing its button, dims the others.
  const entries = [...figure.querySelectorAll(".chart-legend .family")];
  if (entries.length < 2) continue;
  const family = (item) => [...item.classList].find((name) => /^f\d+$/.test(name));
  const marks = [...svg.querySelectorAll("a[class^=f], g.series")];
  let pressed = null;
  const lift = (wanted) => marks.forEach((mark) => mark.classList.toggle("off", wanted !== null && family(mark) !== wanted));
  const buttons = entries.map((entry) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.append(...entry.childNodes);
    entry.append(button);
    button.addEventListener("pointerenter", () => lift(family(entry)));
    button.addEventListener("pointerleave", () => lift(pressed));
    button.addEventListener("click", () => {
      pressed = pressed === family(entry) ? null : family(entry);
      entries.forEach((each) => each.firstChild.setAttribute("aria-pressed", String(family(each) === pressed)));
      lift(pressed);
    });
    return button;
  });
  rove(entries[0].parentNode, () => buttons);
}
