// Optional: a link above the table of a task's documents shows only those of its result, all of the task.
"use strict";
{
  const links = [...document.querySelectorAll("nav.segments a")];
  const rows = [...document.querySelectorAll(".documents-table tbody tr")];

  function choose() {
    const link = links.find((each) => each.hash === location.hash) ?? links[0];
    const kind = link.hash.slice(1);
    for (const row of rows) {
      row.hidden = !(kind === "all" || (kind === "unread" ? "unread" in row.dataset : row.parentElement.id === kind));
    }
    for (const each of links) {
      if (each === link) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
  }

  addEventListener("hashchange", choose);
  choose();
}
