// The board's controls. The table is complete without them; BoardTable sorts and filters its rows.
"use strict";

{
  const element = document.querySelector("table.board");
  const table = new BoardTable(element);
  const { cells } = table;  // by row and column; those of hidden columns are not in the page
  const heads = table.heads.map((head, at) => ({
    key: head.dataset.key,
    task: head.dataset.task,
    name: head.textContent.trim().replace(/\s+/g, " "),
    first: table.first(at),
    score: "score" in head.dataset,
    head,
  }));
  const facts = table.rows.map((row) => ({
    words: words(described(row)),
    family: row.dataset.family,
    hardware: row.dataset.hardware,
    tier: row.dataset.tier,
    status: "badged" in row.dataset ? "badged" : row.classList.contains("off") ? "unranked" : "ranked",
  }));

  // The search looks at a row's name, settings and seeds, not at its date, badges, scores and hashes.
  function described(row) {
    const texts = [...row.querySelectorAll("th > small, th i")].flatMap((part) => [...part.childNodes])
      .filter((node) => node.nodeType === 3);
    const seeds = [...row.querySelectorAll("th > small:not(:last-child) > a")].map((link) => `seed ${link.textContent}`);
    return [row.querySelector("th a"), ...texts].map((node) => node.textContent).concat(seeds).join(" ");
  }

  // Lowercase words and numbers, each with a space on both sides: " tiny llada steps 16 temperature 0.5 ".
  function words(text) {
    return ` ${(text.toLowerCase().match(/\d+\.\d+|[\p{L}\p{N}]+/gu) ?? []).join(" ")} `;
  }

  // What a row has to have: whole words, a number together with the word before it ("seed 1"). The last word may be
  // the beginning of one, as long as it is being typed.
  function terms(query) {
    const found = [];
    for (const word of words(query).trim().split(" ")) {
      if (/^\d/.test(word) && found.length) found.push(`${found.pop()}${word} `);
      else if (word) found.push(` ${word} `);
    }
    if (/\p{L}$/u.test(query) && found.length) found.push(found.pop().trimEnd());
    return found;
  }

  // Controls.
  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const field = (label, control) => make("label", {}, make("span", { textContent: label }), control);

  let wanted = [];
  const search = make("input", { type: "search", autocomplete: "off", spellcheck: false });
  const selects = {};
  for (const [name, label] of [["status", "Rows"], ["family", "Family"], ["hardware", "Hardware"], ["tier", "Tier"]]) {
    const values = [...new Set(facts.map((row) => row[name]))].filter(Boolean).sort();
    if (values.length < 2) continue;
    selects[name] = make("select", {}, make("option", { value: "", textContent: "all" }),
      ...values.map((value) => make("option", { value, textContent: value })));
    selects[name].label = label;
  }

  const scores = heads.filter((head) => head.score);
  const rankers = make("select", {}, ...scores.map(({ key, task }) =>
    make("option", { value: key, textContent: task ?? "Mean" })));
  rankers.addEventListener("input", () => {
    const at = heads.findIndex(({ key }) => key === rankers.value);
    table.order = at === own ? null : { at, way: heads[at].first };
    changed();
  });

  // The forward passes behind the score that ranks: of a task, those of the task; of the mean, those of all tasks.
  const nfe = heads.findIndex(({ key }) => key === "nfe");
  const shownPasses = cells.map((row) => row[nfe].dataset.order);
  const passesBehind = (row, at) => cells[row][at]?.dataset.passes ?? shownPasses[row];
  const unknownPasses = cells.map((row) => (row[nfe].textContent === "unknown" ? "unknown" : "–"));
  const passes = new BoardPasses();
  const boxes = heads.map(({ key, name }) =>
    key === "model" ? null : make("input", { type: "checkbox", checked: true, value: key, title: name }));
  const detailed = document.getElementById("detailed");
  const choices = make("div", { className: "choices" },
    ...heads.flatMap(({ name }, at) => (boxes[at] ? [make("label", {}, boxes[at], ` ${name}`)] : [])));
  boxes.forEach((box) => box?.removeAttribute("title"));
  const columns = make("details", { className: "columns" }, make("summary", { textContent: "Columns" }), choices);

  const button = (text, action) => make("button", { type: "button", textContent: text, onclick: action });
  const reset = button("Reset", () => { show({}); keep(); });
  const nothing = make("tr", {}, make("td", { className: "empty", colSpan: heads.length }, "No matching rows. ",
    button("Show all rows", () => reset.click())));
  const count = make("p", { className: "count" });
  count.setAttribute("role", "status");
  // On a phone filters and columns are behind one button; elsewhere they stand beside the search.
  const narrow = matchMedia("(max-width: 46rem)");
  const filters = make("details", { className: "filters" }, make("summary", { textContent: "Filters" }),
    ...(scores.length > 1 ? [field("Rank by", rankers)] : []),
    ...Object.values(selects).map((select) => field(select.label, select)), columns, reset);
  const allPasses = facts.flatMap((_, row) => heads.map((_, at) => Math.ceil(passesBehind(row, at)))).filter(Boolean);
  const limitable = new Set(allPasses).size > 1;
  const unfold = () => {
    filters.open = !narrow.matches;
    if (!limitable) return;
    if (narrow.matches) columns.before(passes.field);
    else document.querySelector("header.top").append(passes.field);
  };
  narrow.addEventListener("change", unfold);
  unfold();
  const views = ["CSV", "JSON"].map((name) => button(name, () => download(name.toLowerCase())));
  const tools = document.querySelector(".tools");
  tools.append(field("Search", search), filters,
    make("div", { className: "right" }, count, make("div", { className: "view" }, "this view: ", ...views)));
  rove(views[0].parentNode, () => views);
  tools.setAttribute("role", "search");
  tools.setAttribute("aria-label", "Rows and columns of the board");

  // The score that the rows are sorted by ranks them, without one the board's own. Its bands, and its intervals, which are
  // bars from 0 to 100 beside shares, are in its cells.
  const own = heads.findIndex(({ head }) => "ranks" in head.dataset);
  let ranking = own;
  showPasses();

  function showPasses() {
    facts.forEach((row, number) => {
      const text = passesBehind(number, ranking), cell = cells[number][nfe];
      row.passes = table.keys[nfe][number] = BoardTable.number(text);
      if (cell.dataset.order === text) return;
      cell.dataset.order = text;
      cell.textContent = text ? figure(Number(text)) : unknownPasses[number];
    });
    passes.offer(facts.map((row) => row.passes));
  }

  function figure(value) {
    const fractionDigits = value >= 1000 ? 0 : 1;
    return value.toLocaleString("en", { minimumFractionDigits: fractionDigits, maximumFractionDigits: fractionDigits });
  }

  // ``before``: the score that ranked so far.
  function showRanks(before) {
    heads.forEach(({ head }, at) => head.toggleAttribute("data-ranks", at === ranking));
    cells.forEach((row) => {
      const [was, cell] = [row[before], row[ranking]];
      was?.classList.remove("ranks");
      was?.querySelector(".bar")?.remove();
      if (cell?.dataset.order) cell.classList.add("ranks");
      const [band, left, right] = cell?.dataset.rank?.split(" ") ?? [];
      if (right) drawInterval(cell, Number(left), Number(right));
      row[0].textContent = band || "–";
      row[0].parentNode.classList.toggle("off", !band);
    });
  }

  const emptyBar = make("template", {
    innerHTML: '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><path d="M0 4h100"/><path/><path/></svg>',
  }).content.firstElementChild;

  function drawInterval(cell, left, right) {
    const middle = 100 * cell.dataset.order, text = cell.querySelector("b");
    const bar = document.importNode(emptyBar, true);
    bar.children[1].setAttribute("d", `M${left} 4h${Math.max(right - left, 0.5)}`);
    bar.children[2].setAttribute("d", `M${Math.min(Math.max(middle, 0.7), 99.3)} 0v8`);
    (text.closest("a") ?? text).after(bar);
  }

  // The best of the rows that are shown, by the score that ranks: its name, its value, and in brackets what tells it
  // from other rows of its name.
  function best() {
    const way = heads[ranking]?.first === "asc" ? -1 : 1;
    const value = (row) => way * table.keys[ranking][row];
    const rows = ranking < 0 ? [] : table.shown
      .filter((row) => facts[row].status !== "badged" && table.keys[ranking][row] !== null);
    if (!rows.length) return "";
    const first = rows.reduce((one, other) => (value(other) > value(one) ? other : one));
    const name = cells[first][1].querySelector("a").textContent, score = cells[first][ranking].querySelector("b").textContent;
    const own = [...cells[first][1].querySelectorAll("i.own")].map((chip) => chip.textContent).join(", ");
    return own ? `${name} ${score} (${own})` : `${name} ${score}`;
  }

  // The view: from the controls to the table and the address, and back.
  function fits(row) {
    if (Object.entries(selects).some(([name, select]) => select.value && row[name] !== select.value)) return false;
    if (!passes.allow(row.passes)) return false;
    return wanted.every((term) => row.words.includes(term));
  }

  function view() {
    const shown = heads.filter((_, at) => boxes[at]?.checked);
    const tasks = heads.filter((head) => head.task);
    const picked = shown.filter((head) => head.task);
    const hidden = boxes.filter((box, at) => box && !box.checked && !heads[at].task);
    const { at, way } = table.order ?? {};
    const key = way ? heads[at].key : "", ranks = way && heads[at].score && way === heads[at].first;
    return {
      rank: ranks ? key : "",
      sort: ranks || !way ? "" : (way === "desc" ? "-" : "") + key,
      q: search.value.trim(),
      ...Object.fromEntries(Object.entries(selects).map(([name, select]) => [name, select.value])),
      tasks: picked.length === tasks.length ? "" : picked.map((head) => head.key).join(",") || "none",
      hide: hidden.map((box) => box.value).join(","),
      passes: passes.most,
      detailed: detailed.checked ? "1" : "",
    };
  }

  function show(wanted) {
    search.value = wanted.q ?? "";
    for (const [name, select] of Object.entries(selects)) {
      select.value = wanted[name] ?? "";
      if (select.selectedIndex < 0) select.value = "";
    }
    const tasks = wanted.tasks ? wanted.tasks.split(",") : null;
    const hidden = (wanted.hide ?? "").split(",");
    boxes.forEach((box, at) => {
      if (box) box.checked = heads[at].task && tasks ? tasks.includes(box.value) : !hidden.includes(box.value);
    });
    detailed.checked = wanted.detailed === "1";
    passes.most = wanted.passes ?? "";
    const ranked = heads.findIndex(({ key, score }) => score && key === wanted.rank);
    const at = ranked < 0 ? heads.findIndex(({ key }) => key === wanted.sort?.replace(/^-/, "")) : ranked;
    const way = ranked < 0 ? (wanted.sort?.startsWith("-") ? "desc" : "asc") : heads[at].first;
    table.order = at < 0 ? null : { at, way };
    draw();
  }

  function draw() {
    wanted = terms(search.value);
    const before = ranking;
    ranking = table.order && heads[table.order.at].score ? table.order.at : own;
    rankers.value = heads[ranking]?.key ?? "";
    if (ranking !== before) showPasses();
    table.draw((row) => fits(facts[row]), boxes.map((box) => box?.checked ?? true), nothing);
    if (ranking !== before) showRanks(before);  // most rows are not in the page now
    const rows = table.shown.length;
    count.textContent = rows === facts.length ? `${rows} rows` : `${rows} of ${facts.length} rows`;
    passes.say(best());
  }

  const keep = () => {
    BoardAddress.write(view());
    reset.hidden = !BoardAddress.written;
  };
  const changed = () => {
    table.prepare();
    draw();
    keep();
  };
  for (const control of [search, ...Object.values(selects), ...boxes.filter(Boolean), detailed, passes.range]) {
    control.addEventListener("input", changed);
  }
  table.onOrder = changed;
  columns.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && columns.open) { columns.open = false; columns.firstElementChild.focus(); }
  });
  addEventListener("click", (event) => { if (!columns.contains(event.target)) columns.open = false; });
  const restore = () => show(Object.fromEntries(BoardAddress.read()));
  addEventListener("popstate", restore);
  restore();
  reset.hidden = !Object.values(view()).some(Boolean);

  async function download(kind) {
    const shown = new Set(heads.filter((_, at) => !boxes[at] || boxes[at].checked).map((head) => head.key));
    try {
      const data = await BoardDownload.load(element.dataset.source);
      const tasks = heads.filter((head) => head.task).map((head) => shown.has(head.key));
      if (kind === "csv") BoardDownload.save(`${element.dataset.name}.csv`, BoardDownload.csv(data, table.shown, shown), "text/csv");
      else BoardDownload.save(`${element.dataset.name}.json`, BoardDownload.json(data, table.shown, tasks), "application/json");
    } catch (error) {
      count.textContent = `Download failed: ${error.message}`;
    }
  }
}
