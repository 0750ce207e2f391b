// The board's controls. The table is complete without them; DataTables sorts and filters its rows.
"use strict";

{
  const element = document.querySelector("table.board");
  const heads = [...element.tHead.rows[0].cells].map((head) => ({
    key: head.dataset.key,
    task: head.dataset.task,
    name: head.textContent.trim().replace(/\s+/g, " "),
    first: head.dataset.first ?? "asc",
    text: "text" in head.dataset,
    score: "score" in head.dataset,
    head,
  }));
  const facts = [...element.tBodies[0].rows].map((row) => ({
    words: words(described(row)),
    family: row.dataset.family,
    hardware: row.dataset.hardware,
    tier: row.dataset.tier,
    status: "badged" in row.dataset ? "badged" : row.classList.contains("off") ? "unranked" : "ranked",
  }));

  // The cells by row and column; those of hidden columns are not in the page.
  const cells = [...element.tBodies[0].rows].map((row) => [...row.cells]);

  // The search looks at a row's name, settings and seeds, not at its date, badges, scores and hashes.
  function described(row) {
    const texts = [...row.querySelectorAll("th > small, th > i")].flatMap((part) => [...part.childNodes])
      .filter((node) => node.nodeType === 3);
    const seeds = [...row.querySelectorAll("th > small:not(:last-child) > a")].map((link) => `seed ${link.textContent}`);
    return [row.querySelector("th > a"), ...texts].map((node) => node.textContent).concat(seeds).join(" ");
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

  // Numbers, with empty cells last in both directions.
  DataTable.ext.type.order["board-asc"] = (a, b) => order(a, b, 1);
  DataTable.ext.type.order["board-desc"] = (a, b) => order(a, b, -1);
  function order(a, b, way) {
    if (a === "" || b === "") return (a === "") - (b === "");
    return way * (Number(a) - Number(b));
  }

  const board = new DataTable(element, {
    paging: false, info: false, autoWidth: false, orderMulti: false, order: [],
    layout: { topStart: null, topEnd: null, bottomStart: null, bottomEnd: null },
    language: { zeroRecords: 'No matching rows. <button type="button">Show all rows</button>' },
    columns: heads.map(({ first, text }) => ({
      type: text ? "html" : "board",
      className: "",
      orderSequence: first === "desc" ? ["desc", "asc", ""] : ["asc", "desc", ""],
    })),
  });
  board.search.fixed("view", (_text, _data, row) => fits(facts[row]));

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
    board.order(at === own ? [] : [[at, heads[at].first]]);
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
  element.tBodies[0].addEventListener("click", ({ target }) => { if (target.closest(".dt-empty button")) reset.click(); });
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
  const tools = document.querySelector(".tools");
  tools.append(field("Search", search), filters,
    make("div", { className: "right" }, count, make("div", { className: "view" }, "this view: ",
      button("CSV", () => download("csv")), button("JSON", () => download("json")))));
  tools.setAttribute("role", "search");
  tools.setAttribute("aria-label", "Rows and columns of the board");

  // The headings are one tab stop, with arrow keys between them.
  const sorters = () => [...element.tHead.querySelectorAll("[role=button]")];
  const rove = (wanted) => sorters().forEach((each) => { each.tabIndex = each === wanted ? 0 : -1; });
  element.tHead.addEventListener("focusin", (event) => rove(event.target.closest("[role=button]")));
  element.tHead.addEventListener("keydown", (event) => {
    const each = sorters(), at = each.indexOf(event.target);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: each.length - 1 }[event.key];
    if (at < 0 || next === undefined || !each[next]) return;
    event.preventDefault();
    each[next].focus();
  });

  // The score that the rows are sorted by ranks them, without one the board's own. Its bands and intervals, with bars
  // from 0 to 100 beside shares, come from the board's data.
  const own = heads.findIndex(({ head }) => "ranks" in head.dataset);
  let ranking = own, withBars = own;
  showPasses();

  // True if the numbers of passes are others than before.
  function showPasses() {
    let differ = false;
    facts.forEach((row, number) => {
      const text = passesBehind(number, ranking), cell = cells[number][nfe];
      row.passes = Number(text) || null;
      if (cell.dataset.order === text) return;
      differ = true;
      cell.dataset.order = text;
      cell.textContent = text ? figure(Number(text)) : unknownPasses[number];
      board.cell(number, nfe).invalidate("dom");
    });
    passes.offer(facts.map((row) => row.passes));
    return differ;
  }

  function figure(value) {
    const fractionDigits = value >= 1000 ? 0 : 1;
    return value.toLocaleString("en", { minimumFractionDigits: fractionDigits, maximumFractionDigits: fractionDigits });
  }

  // True if the rows have other numbers of passes by that score.
  function rank() {
    const [sorted] = board.order();
    const before = ranking;
    ranking = sorted?.[1] && heads[sorted[0]].score ? sorted[0] : own;
    rankers.value = heads[ranking]?.key ?? "";
    if (ranking === before) return false;
    const differ = showPasses();
    passes.say(best());
    heads.forEach(({ head }, at) => head.toggleAttribute("data-ranks", at === ranking));
    // Without waiting where possible: the browser then lays out the table once, with rows and ranks in their order.
    if (BoardDownload.loaded) showRanks(BoardDownload.loaded);
    else BoardDownload.load(element.dataset.source).then(showRanks)
      .catch((error) => { count.textContent = `Ranks cannot be shown: ${error.message}`; });
    return differ;
  }

  function showRanks({ record, names }) {
    const at = ranking, task = heads.filter((head) => head.task).indexOf(heads[at]);
    record.rows.forEach((row, number) => {
      const score = task < 0 ? { value: row.mean, ...row.mean_interval, is_share: true } : row.scores[names[task]];
      const band = at === own ? row.rank_band : score?.rank_band;
      const place = cells[number][0];
      place.textContent = band ? [...new Set(band)].join("–") : "–";
      place.parentNode.classList.toggle("off", !band);
      if (withBars >= 0) cells[number][withBars].classList.remove("ranks");
      if (withBars >= 0) cells[number][withBars].querySelector(".bar")?.remove();
      if (at >= 0 && score?.value != null) cells[number][at].classList.add("ranks");
      if (at >= 0 && score?.is_share && score.lo != null) drawInterval(cells[number][at], score);
    });
    withBars = at;
  }

  const emptyBar = make("template", {
    innerHTML: '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><path d="M0 4h100"/><path/><path/></svg>',
  }).content.firstElementChild;

  function drawInterval(cell, { value, lo, hi }) {
    const [middle, left, right] = [value, lo, hi].map((end) => 100 * end), text = cell.querySelector("b");
    const bar = document.importNode(emptyBar, true);
    bar.children[1].setAttribute("d", `M${left} 4h${Math.max(right - left, 0.5)}`);
    bar.children[2].setAttribute("d", `M${Math.min(Math.max(middle, 0.7), 99.3)} 0v8`);
    (text.closest("a") ?? text).after(bar);
  }

  // The best of the rows that are shown, by the score that ranks: its name, its value, and in brackets what tells it
  // from other rows of its name.
  function best() {
    const way = heads[ranking]?.first === "asc" ? -1 : 1;
    const value = (row) => way * Number(cells[row][ranking].dataset.order);
    const rows = ranking < 0 ? [] : board.rows({ search: "applied" }).indexes().toArray()
      .filter((row) => facts[row].status !== "badged" && cells[row][ranking].dataset.order !== "");
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
    const [at, way] = board.order()[0] ?? [];
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
    board.order(at < 0 ? [] : [[at, way]]);
    draw();
  }

  function draw() {
    wanted = terms(search.value);
    boxes.forEach((box, at) => { if (box) board.column(at).visible(box.checked, false); });
    rank();
    board.draw();
    if (!sorters().includes(document.activeElement)) rove(sorters()[0]);
    const rows = board.rows({ search: "applied" }).count();
    count.textContent = rows === facts.length ? `${rows} rows` : `${rows} of ${facts.length} rows`;
    passes.say(best());
  }

  const keep = () => {
    BoardAddress.write(view());
    reset.hidden = !BoardAddress.written;
  };
  const changed = () => { draw(); keep(); };
  for (const control of [search, ...Object.values(selects), ...boxes.filter(Boolean), detailed, passes.range]) {
    control.addEventListener("input", changed);
  }
  board.on("order", () => {
    const again = rank();  // before the rows are drawn in that order
    setTimeout(() => {
      const third = board.order()[0]?.[1] === "";  // a third click: the order of the ranks again
      if (third) board.order([]);
      if (third || again) draw();
      keep();
    });
  });
  columns.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && columns.open) { columns.open = false; columns.firstElementChild.focus(); }
  });
  addEventListener("click", (event) => { if (!columns.contains(event.target)) columns.open = false; });
  const restore = () => show(Object.fromEntries(BoardAddress.read()));
  addEventListener("popstate", restore);
  restore();
  reset.hidden = !Object.values(view()).some(Boolean);

  async function download(kind) {
    const rows = board.rows({ search: "applied", order: "applied" }).indexes().toArray();
    const shown = new Set(heads.filter((_, at) => !boxes[at] || boxes[at].checked).map((head) => head.key));
    try {
      const data = await BoardDownload.load(element.dataset.source);
      const tasks = heads.filter((head) => head.task).map((head) => shown.has(head.key));
      if (kind === "csv") BoardDownload.save(`${element.dataset.name}.csv`, BoardDownload.csv(data, rows, shown), "text/csv");
      else BoardDownload.save(`${element.dataset.name}.json`, BoardDownload.json(data, rows, tasks), "application/json");
    } catch (error) {
      count.textContent = `Download failed: ${error.message}`;
    }
  }
}
