// The rows that the address names (compare.html?a=RUN&b=RUN, up to e), compared: a table, a forest of tasks, and every
// document that changed. Without such an address the page is as it was built.
"use strict";
{
  const SHOWN = 25, LISTED = 50;  // documents that are listed at once, of one task and of all
  const query = new URLSearchParams(location.search);
  const wanted = ["a", "b", "c", "d", "e"].map((name) => query.get(name)).filter(Boolean);
  if (wanted.length > 1) {
    document.documentElement.classList.add("comparing");  // before the first paint: nothing moves later
    addEventListener("DOMContentLoaded", () => show().catch(failed));
  }

  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children.filter((child) => child !== null && child !== ""));
    return node;
  };
  const fine = (text, className = "fine") => (text ? make("span", { className, textContent: text }) : null);
  const letter = (at) => "ABCDE"[at];
  const link = (href, text) => make("a", { href, textContent: text });

  // --- Numbers, as dare_bench/formatting.py writes them.
  const number = (value, share) => (value === null ? "–" : share ? (100 * value).toFixed(1) : String(Number(value.toPrecision(4))));
  const score = (value, share) => number(value, share) + (share ? "%" : "");
  function signed(value, share) {
    const text = share ? (100 * value).toFixed(1) : String(Number(value.toPrecision(3)));
    return Number(text) === 0 ? text.replace("-", "") : text.startsWith("-") ? text.replace("-", "−") : `+${text}`;
  }
  const bounds = ({ lo, hi }, share) => (lo === null ? "no interval" : `${signed(lo, share)} to ${signed(hi, share)}`);
  const pText = (p) => (p === null ? "—" : p < 1e-4 ? "< 0.0001" : p < 0.01 ? p.toFixed(4) : p < 0.995 ? p.toFixed(3) : "1");
  const tone = (verdict) => (verdict === "better" || verdict === "worse" ? verdict : "none");
  const MARKS = { better: "▲ better", worse: "▼ worse" };

  function failed(error) {
    document.querySelector("#picked").replaceChildren(make("p", { className: "warned", textContent:
      `These rows cannot be compared: ${error.message}. Tick two to five rows in the table.` }));
  }

  async function show() {
    const rows = await Promise.all(wanted.map(Comparison.row));
    const items = Comparison.compare(rows);
    document.querySelector("h1").textContent = rows.length > 2 ? `${rows.length} rows compared` : heading(...rows, items);
    document.title = document.querySelector("h1").textContent;
    const picked = document.querySelector("#picked");
    if (!items.length) throw new Error("they have no task in common");
    picked.replaceChildren(heads(rows), table(items, rows.length), forest(items, rows.length), notes(items),
      ...items.map((item) => changes(item, rows, items.length)).filter(Boolean), unchanged(items, rows.length));
  }

  // The two names; of one name twice, what differs: what it was trained with, or its settings in the tasks of both.
  function heading(first, second, items) {
    if (first.title !== second.title) return `${second.title} against ${first.title}`;
    const pairs = [[first.detail, second.detail], ...items.map((item) => [item.first.settings, item.second.settings])]
      .map((sides) => sides.map((side) => side.split(", ").filter(Boolean)));
    const [before, after] = [0, 1].map((at) => [...new Set(pairs.flatMap((sides) =>
      sides[at].filter((fact) => !sides[1 - at].includes(fact))))].join(", "));
    return before && after ? `${first.title}: ${after} against ${before}` : `${first.title}: two rows`;
  }

  function heads(rows) {
    return make("dl", { className: "runs" }, ...rows.map((row, at) => make("div", {}, make("dt", { textContent: letter(at) }),
      make("dd", {}, link(row.checkpoint, row.title), fine(row.detail), fine(row.settings), ...row.notes.map((note) => fine(note, "fine mind")),
        make("span", { className: "fine" }, link(row.page, `run of ${row.created}`))))));
  }

  // --- The table of differences.
  const title = (item, count) => (count > 2 ? `${item.task}, A to ${letter(item.other)}` : item.task);

  function table(items, count) {
    const names = ["Task", count > 2 ? "Reference" : "A", count > 2 ? "Other" : "B", "Difference", items.length > 1 ? "p adjusted" : "p", "Result", "Documents"];
    const head = make("tr", {}, ...names.map((text, at) => make("th", { scope: "col", className: at && at !== 5 ? "num" : "", textContent: text })));
    const box = make("div", { className: "scroll", tabIndex: 0 }, make("table", { className: "plain compared cards" },
      make("thead", {}, head), make("tbody", {}, ...items.map((item) => line(item, count)))));
    for (const row of box.querySelectorAll("tbody tr")) [...row.cells].slice(1).forEach((cell, at) => (cell.dataset.of = names[at + 1]));
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Table of differences");
    return box;
  }

  function line(item, count) {
    const { difference, share } = item;
    const cell = (...children) => make("td", { className: "num" }, ...children);
    const whole = (side) => side.lo !== null && (!difference.paired || side.n[0] === difference.n);  // the interval is that of all its documents
    const value = (at, side) => cell(score(item.values[at], share), fine(whole(side) ? `${number(side.lo, share)}–${number(side.hi, share)}` : ""));
    const better = item.sign > 0 ? difference.won : difference.lost, worse = difference.won + difference.lost - better;
    const result = item.breaks ? fine(`not comparable: ${item.breaks}`, "shown none")
      : fine(MARKS[item.verdict] ?? item.verdict, `shown ${tone(item.verdict)}`);
    return make("tr", {},
      make("th", { scope: "row" }, title(item, count), fine(item.first.key.replace(/,none$/, "") + (item.sign < 0 ? ", lower is better" : ""))),
      value(0, item.first), value(1, item.second),
      cell(make("span", { className: "value", textContent: signed(difference.value, share) }), fine(bounds(difference, share))),
      cell(pText(item.adjusted)), make("td", {}, result),
      cell(String(difference.n), fine(difference.paired ? `${better} better · ${worse} worse` : "unpaired")));
  }

  function notes(items) {
    const tests = [...new Set(items.map(({ difference }) => difference.test))].join(", ");
    const closed = items.some(({ difference }) => difference.closed) ? " Where dare-bench compare draws random numbers (its bootstrap of"
      + " 50 or more changed documents, and its permutation test), this page has a closed form: an adjusted Wald interval, and for values other than 0"
      + " and 1 the t test with it." : "";
    const unpaired = items.some(({ difference }) => !difference.paired) ? " Unpaired: a row has no sample lines, so the intervals of"
      + " both scores are compared, as if their documents differed." : "";
    const fewer = items.some(({ difference, first, second }) => difference.paired && difference.n < Math.max(first.n[0], second.n[0]))
      ? " The rows were scored on different documents; the scores here are over the documents that both have." : "";
    const several = items.length > 1 ? `; p is adjusted by Holm’s method over all ${items.length} comparisons on this page, intervals are not`
      : "; p is that of this pair alone";
    return make("p", { className: "facts", textContent: `The difference is ${items.some((item) => item.other > 1) ? "the other row" : "B"} minus A over the`
      + ` documents of both, in points for shares, with the 95% interval. Test: ${tests}, two-sided${several}.${inMatrices()}${fewer}${closed}${unpaired}` });
  }

  // The p of this pair in the matrices of the page, where it is adjusted over their pairs.
  function inMatrices() {
    const cells = [...document.querySelectorAll("table.matrix td:not(.mirrored)")].filter((cell) => cell.querySelector("a.value")?.search === location.search);
    return cells.map((cell) => {
      const section = cell.closest("section"), p = cell.querySelector(".fine:last-child").textContent;
      const pairs = section.querySelector("[data-pairs]").textContent, verdict = cell.matches(".none") ? "no difference shown" : "a significant difference";
      return pairs === "1 pair" ? "" : ` Adjusted over the ${pairs} of “${section.querySelector("h2").textContent}”: ${p}, ${verdict}.`;
    }).join("");
  }

  // --- The forest of tasks.
  const SVG = make("div", { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;
  function draw(tag, attributes, ...children) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // Both ends of a long name, its end alone where these are those of another: 38 characters fit on a phone.
  function shortened(names) {
    const labels = names.map((name) => (name.length > 38 ? `${name.slice(0, 22).trimEnd()}…${name.slice(-15).trimStart()}` : name));
    return names.map((name, at) => (labels.indexOf(labels[at]) === labels.lastIndexOf(labels[at]) ? labels[at] : `…${name.slice(-37).trimStart()}`));
  }

  function forest(items, count) {
    const shown = items.filter((item) => item.share && !item.breaks);
    if (!shown.length) return "";
    const ends = shown.flatMap(({ sign, difference: { value, lo, hi } }) => [value, lo ?? value, hi ?? value].map((end) => sign * end));
    const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5].find((size) => Math.max(...ends.map(Math.abs)) / size <= 4) ?? 0.5;
    const lo = step * Math.min(0, Math.floor(Math.min(...ends) / step)), hi = step * Math.max(1, Math.ceil(Math.max(...ends) / step));
    const x = (value) => 12 + 576 * (value - lo) / (hi - lo), bottom = 12 + 46 * shown.length;
    const ticks = Array.from({ length: Math.round((hi - lo) / step) + 1 }, (_, at) => lo + at * step);
    const axes = draw("g", { class: "axes", "aria-hidden": "true" },
      draw("path", { class: "grid", d: ticks.map((tick) => `M${x(tick)} 12V${bottom}`).join("") }),
      draw("path", { class: "base", d: `M12 ${bottom}H588` }), draw("path", { class: "zero", d: `M${x(0)} 12V${bottom + 5}` }),
      draw("g", { class: "mid" }, ...ticks.map((tick) => draw("text", { x: x(tick), y: bottom + 9, dy: ".8em" }, signed(tick, true).replace(/\.0$/, "")))),
      ...[[12, "", "← worse"], [300, " mid", "points"], [588, " end", "better →"]].map(([at, kind, text]) =>
        draw("text", { class: `name${kind}`, x: at, y: bottom + 52 }, text)));
    const labels = shortened(shown.map((item) => title(item, count)));
    const effects = shown.map((item, at) => {
      const top = 12 + 46 * at, { value, lo: left, hi: right } = item.difference;
      const [from, to] = [left, right].map((end) => x(item.sign * (end ?? value)));
      return draw("g", { class: `effect ${tone(item.verdict)}` },
        draw("text", { x: 19, y: top + 16 }, labels[at]),
        draw("path", { class: "whisker", d: left === null ? "" : `M${from} ${top + 31}H${to}M${from} ${top + 27}v8M${to} ${top + 27}v8` }),
        draw("circle", { class: "dot", cx: x(item.sign * value), cy: top + 31, r: 5 }));
    });
    const caption = make("figcaption", { id: "forest", textContent: "Differences, 95% intervals" });
    const figure = make("figure", { className: "chart forest" }, caption);
    figure.append(draw("svg", { viewBox: `0 0 600 ${bottom + 58}`, role: "img", "aria-labelledby": "forest" }, axes, ...effects));
    return figure;
  }

  // --- The documents that changed, of one task: worse ones first.
  function changes(item, rows, count) {
    const step = Math.max(5, Math.min(SHOWN, Math.floor(LISTED / count)));
    const changed = item.both.filter((doc) => doc.first !== doc.second)
      .sort((one, other) => item.sign * (one.second - one.first) - item.sign * (other.second - other.first));
    if (!changed.length) return null;
    const list = make("div", {}), more = make("button", { type: "button", className: "more-documents" });
    let listed = 0;
    const extend = () => {
      const all = changed.length - listed <= step + 5;  // no button for a few
      list.append(...changed.slice(listed, all ? undefined : listed + step).map((doc) => flip(doc, item)));
      listed += step;
      more.hidden = all;
      more.textContent = `Show ${step} more of ${changed.length - listed}`;
    };
    more.addEventListener("click", extend);
    extend();
    const worse = changed.filter((doc) => item.sign * (doc.second - doc.first) < 0).length;
    return make("section", {}, make("h2", { textContent: `${title(item, rows.length)}: documents that changed` }),
      make("p", { className: "facts", textContent: `${worse} worse and ${changed.length - worse} better in ${letter(item.other)}.` }), list, more);
  }

  // The comparisons in which all documents have equal values, in one sentence.
  function unchanged(items, count) {
    const equal = items.filter((item) => item.both.length && item.both.every((doc) => doc.first === doc.second));
    if (!equal.length) return "";
    const where = equal.length === items.length ? "" : ` in ${equal.map((item) => title(item, count)).join("; ")}`;
    return make("p", { className: "facts", textContent: `No document changed${where}: each has the same value in both rows.` });
  }

  function flip(doc, item) {
    const way = item.sign * (doc.second - doc.first) < 0 ? "worse" : "better";
    const several = item.first.strata.length > 1 ? `${doc.task} ` : "";
    const body = make("div", { className: "body" }, make("p", { className: "facts", textContent: "Loading the answers …" }));
    const details = make("details", { className: "flip" }, make("summary", {}, fine(MARKS[way], `shown ${way}`), " ",
      fine(several + doc.id, "doc"), " ", fine(`${number(doc.first, false)} → ${number(doc.second, false)}`, "gist")), body);
    details.addEventListener("toggle", () => fill(body, doc, item), { once: true });
    return details;
  }

  async function fill(body, doc, item) {
    try {
      const [first, second] = await Promise.all([item.first, item.second].map((side) => Comparison.answers(side, doc.task, doc.id)));
      if (!first || !second) throw new Error("a run has no sample page of this document");
      const [question, target] = first.data;
      body.replaceChildren(make("h3", { textContent: "Question" }), text([question]), make("h3", { textContent: "Target" }), text([target]),
        make("div", { className: "sides" }, side("A", first, first, doc.first), side(letter(item.other), first, second, doc.second)));
    } catch (error) {
      body.replaceChildren(make("p", { className: "facts", textContent: `The answers cannot be shown: ${error.message}.` }));
    }
  }

  const text = (parts) => make("pre", { className: "text", dir: "auto" }, ...parts);

  // A row's answers; words that only one of the two has are marked.
  function side(name, first, own, value) {
    const [, , answers, read] = own.data, isFirst = own === first;
    const marked = answers.map((answer, at) => (isFirst ? text([answer || "(empty)"]) : text(differing(first.data[2][at] ?? "", answer))));
    return make("div", { className: "side" }, make("h3", {}, `${name} `, make("span", { className: "metric", textContent: number(value, false) }), " ",
      link(own.href, "document")), ...marked, read === null ? null
      : make("p", { className: "read" }, "read as ", make("code", { textContent: read || "(nothing)" })));
  }

  function differing(before, after) {
    const tags = { gone: "del", new: "ins" };
    const parts = TextDiff.compare(before, after).map(([kind, words]) => (tags[kind] ? make(tags[kind], { textContent: words }) : words));
    return parts.length ? parts : ["(empty)"];
  }
}
