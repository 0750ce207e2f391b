// Comfort only: every page is complete without this file.
"use strict";

// Sorting: each heading of a .sortable table becomes a button; empty cells stay last in both directions.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head, column));
  });

  function sort(head, column) {
    const now = head.getAttribute("aria-sort");
    const first = head.dataset.first === "down" ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    const order = now === first ? other : first;
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const numbers = head.dataset.kind === "number";
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const way = numbers ? Number(x) - Number(y) : x.localeCompare(y);
      return order === "ascending" ? way : -way;
    });
    body.append(...rows);
  }
}

// A copy button beside commands, where the browser lets a page write to the clipboard.
for (const box of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(box.querySelector("code").textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  box.append(button);
}

// A link to a document opens it.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const box = target && target.closest("details");
  if (box) { box.open = true; box.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
