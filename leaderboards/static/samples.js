// Optional controls of sample pages: show only right, wrong or unread documents, and go to a document.
"use strict";
{
  const tools = document.querySelector(".tools");
  const samples = [...document.querySelectorAll(".sample")];
  const here = Number(tools.dataset.page);
  const table = document.getElementById("pages");
  // The first document of each page.
  const pages = table ? JSON.parse(table.textContent) : null;
  const KINDS = { all: "All", right: "Right", wrong: "Wrong", unread: "Not read" };

  const notice = document.createElement("p");
  notice.className = "notice";
  notice.setAttribute("role", "status");
  tools.after(notice);
  const box = tools.querySelector(".choose");

  const group = document.createElement("div");
  group.className = "segments";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Documents to show");
  const [all, right, wrong, unread] = tools.dataset.all.split(" ").map(Number);
  const total = { all, right, wrong, unread };
  const alone = samples.length === all;
  const buttons = Object.entries(KINDS).filter(([kind]) => kind !== "unread" || total.unread)
    .map(([kind, name]) => {
      const button = document.createElement("button");
      button.type = "button";
      const count = document.createElement("small");
      count.textContent = total[kind];
      button.append(name, " ", count);
      // Of several pages: the table of the task has all documents of that result.
      button.addEventListener("click", () => (alone ? choose(kind) : location.assign(`index.html#${kind}`)));
      group.append(button);
      return [kind, button];
    });
  box.append(group);

  function choose(show) {
    buttons.forEach(([kind, button]) => button.setAttribute("aria-pressed", String(alone && kind === show)));
    for (const sample of samples) sample.hidden = show !== "all" && !sample.dataset.is.split(" ").includes(show);
  }
  choose("all");

  // --- Go to a document, on this page or on its own. Ids that are not ascending numbers are looked up in the overview of
  // all documents.
  const numbered = pages && pages.every((first, at) => /^\d{1,15}$/.test(first) && (!at || Number(first) > Number(pages[at - 1])));
  const form = document.createElement("form");
  form.className = "jump";
  const label = document.createElement("label");
  const input = document.createElement("input");
  input.type = "text";
  input.autocomplete = "off";
  label.append("Document ", input);
  const go = document.createElement("button");
  go.textContent = "Go";
  form.append(label, go);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) find(`doc-${input.value.trim()}`, true);
  });
  box.append(form);

  function find(anchor, byHand) {
    const body = document.getElementById(anchor);
    if (body && body.closest(".sample")) {
      const sample = body.closest(".sample");
      sample.hidden = false;
      sample.open = true;
      sample.scrollIntoView();
      if (byHand) sample.querySelector("summary").focus({ preventScroll: true });
      notice.textContent = "";
      return;
    }
    const id = anchor.slice(4);
    if (numbered && /^\d{1,15}$/.test(id)) {
      let page = 1;
      while (page < pages.length && Number(pages[page]) <= Number(id)) page += 1;
      if (page !== here) { location.assign(`${page}.html#doc-${Number(id)}`); return; }
    } else if (byHand) {
      location.assign("index.html");
      return;
    }
    notice.textContent = `This task has no document ${id}.`;
  }

  function byHash() {
    let anchor = "";
    try { anchor = decodeURIComponent(location.hash.slice(1)); } catch { /* no address of ours */ }
    if (anchor.startsWith("doc-")) find(anchor, false);
  }
  addEventListener("hashchange", byHash);
  byHash();
}
