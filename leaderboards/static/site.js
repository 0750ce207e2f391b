// Optional additions to every page.
"use strict";

// A group of controls is one tab stop, with arrow keys between them. ``items``: those that are in the page, in order.
function rove(group, items, first = items()[0]) {
  const stop = (item) => { for (const each of items()) each.setAttribute("tabindex", each === item ? "0" : "-1"); };
  group.addEventListener("focusin", ({ target }) => { if (items().includes(target)) stop(target); });
  group.addEventListener("keydown", (event) => {
    const each = items(), at = each.indexOf(document.activeElement);
    const next = {
      ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: each.length - 1,
    }[event.key];
    if (at < 0 || !each[next]) return;
    event.preventDefault();
    each[next].focus();
  });
  stop(first);
}

for (const tabs of document.querySelectorAll(".tabs")) {
  const links = [...tabs.querySelectorAll("a")];
  rove(tabs, () => links, links.find((link) => link.ariaCurrent) ?? links[0]);
}

// A copy button beside commands, if the browser lets a page write to the clipboard.
for (const box of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  const status = document.createElement("span");
  status.className = "sr";
  status.setAttribute("role", "status");
  const say = (text, spoken) => { button.textContent = text; status.textContent = spoken; };
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      say("Copied", "Copied to the clipboard");
    } catch {
      say("Not allowed", "The browser does not allow copying here");
    }
    setTimeout(() => say("Copy", ""), 2000);
  });
  box.append(button, status);
}

// A link to a document opens it.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const box = target && target.closest("details");
  if (box) { box.open = true; box.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
