// Comfort on every page, which is complete without it.
"use strict";

// A copy button beside commands, where the browser lets a page write to the clipboard.
for (const box of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  const said = document.createElement("span");
  said.className = "sr";
  said.setAttribute("role", "status");
  const say = (text, spoken) => { button.textContent = text; said.textContent = spoken; };
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      say("Copied", "Copied to the clipboard");
    } catch {
      say("Not allowed", "The browser does not allow copying here");
    }
    setTimeout(() => say("Copy", ""), 2000);
  });
  box.append(button, said);
}

// A link to a document opens it.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const box = target && target.closest("details");
  if (box) { box.open = true; box.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
