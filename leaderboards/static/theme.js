// Light or dark, by the system or by the reader's choice. Runs in the head, before anything is painted.
"use strict";
{
  const KEY = "dare-bench-colours";
  const CHOICES = ["auto", "light", "dark"];
  const root = document.documentElement;

  const kept = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }  // a browser may store nothing for files
  };
  const apply = (choice) => {
    if (choice === "light" || choice === "dark") root.dataset.theme = choice;
    else delete root.dataset.theme;
  };
  apply(kept());

  document.addEventListener("DOMContentLoaded", () => {
    const group = document.createElement("div");
    group.className = "segments";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Color theme");
    const buttons = CHOICES.map((choice) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = choice[0].toUpperCase() + choice.slice(1);
      button.addEventListener("click", () => {
        try { localStorage.setItem(KEY, choice); } catch { /* then it applies to this page only */ }
        apply(choice);
        show();
      });
      group.append(button);
      return button;
    });
    const show = () => buttons.forEach((button, at) =>
      button.setAttribute("aria-pressed", String(CHOICES[at] === (root.dataset.theme ?? "auto"))));
    show();
    rove(group, () => buttons, buttons.find((button) => button.ariaPressed === "true"));
    document.querySelector("header.site > .theme")?.append(group);
    addEventListener("storage", (event) => { if (event.key === KEY) { apply(event.newValue); show(); } });
  });
}
