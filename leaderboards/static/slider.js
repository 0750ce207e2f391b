// The unmasking slider: the canvas after each step, of one response or of several together (`.together`). It reads the elements of the page: every token has its step, its
// confidence and its earlier states (see sample_canvas.py).
"use strict";
{
  const LEVELS = 10;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const counted = (n, singular, plural) => `${n} ${n === 1 ? singular : plural}`;

  // A position's states in order, {step, text, sure}; text is null where it was masked again.
  function statesOf(token) {
    const past = JSON.parse(token.dataset.w ?? "[]").map(([step, text, sure]) => ({ step, text: text === null ? null : drawn(text), sure }));
    if (token.dataset.s === undefined) return past;
    const sure = token.dataset.c === undefined ? null : Number(token.dataset.c);
    return [...past, { step: Number(token.dataset.s), text: token.textContent, sure }];
  }

  const drawn = (text) => text === "" ? "□" : text.replace(/\n+$/, "↵").replaceAll("\n", "↵\n");

  function cellsOf(canvas) {
    const cells = [];
    for (const token of canvas.querySelectorAll("b, .fold")) {
      if (token.localName === "b") {
        cells.push({ token, states: statesOf(token), mask: token.textContent.replace(/[^\n]/gu, "·"), first: token.textContent });
        continue;
      }
      for (const part of token.dataset.f.split(" ")) {  // equal tokens, folded: a tick for each
        const tick = document.createElement("i");
        token.append(tick);
        const [step, sure] = part.split(":");
        const states = step ? [{ step: Number(step), text: "", sure: sure ? Number(sure) : null }] : [];
        cells.push({ token: tick, states, mask: "", first: "" });
      }
    }
    return cells;
  }

  // What happened in each step: tokens written into masks, written over, masked again.
  function changesOf(cells) {
    const changes = new Map();
    for (const { states } of cells) {
      let before = null;
      for (const state of states) {
        const at = changes.get(state.step) ?? { written: 0, over: 0, again: 0 };
        changes.set(state.step, at);
        state.over = state.text !== null && before !== null;
        at[state.text === null ? "again" : state.over ? "over" : "written"] += 1;
        before = state.text;
      }
    }
    return changes;
  }

  function inWords(step, steps, change) {
    if (step === 0) return `step 0 of ${steps}: all masked`;
    const { written = 0, over = 0, again = 0 } = change ?? {};
    const parts = [];
    if (written || !(over || again)) parts.push(`${counted(written, "token", "tokens")} written`);
    if (over) parts.push(`${over} overwritten`);
    if (again) parts.push(`${again} remasked`);
    return `step ${step} of ${steps}: ${parts.join(", ")}`;
  }

  // A response on the page: `show(step)` draws it after that step, `words(step)` says what happened in it.
  function response(section) {
    const steps = Number(section.dataset.steps);
    const [lo, hi] = section.dataset.scale.split(" ").map(Number);
    const canvas = section.querySelector(".canvas");
    const cells = cellsOf(canvas);
    const changes = changesOf(cells);
    const level = (step) => steps <= 1 ? 0 : Math.floor((step - 1) * (LEVELS - 1) / (steps - 1));
    const bin = (sure) => Math.max(0, Math.min(LEVELS - 1, Math.floor((sure - lo) / (hi - lo || 1) * LEVELS)));

    const chart = section.querySelector("svg.order");
    const cursor = chart?.querySelector("path").cloneNode();
    cursor?.setAttribute("class", "cursor");
    cursor?.setAttribute("d", "");
    chart?.append(cursor);

    function paint(cell, now) {
      const state = cell.states.findLast((each) => each.step <= now);
      const written = state !== undefined && state.text !== null;
      const names = written ? [`s${level(state.step)}`, ...(state.sure === null ? [] : [`c${bin(state.sure)}`])] : [now < steps || cell.states.length ? "mask" : "never"];
      if (state && state.step === now && now > 0) names.push("now", ...(state.over ? ["over"] : []), ...(written ? [] : ["again"]));
      const key = names.join(" ") + (state ? state.step : "");
      if (cell.key === key) return;
      cell.key = key;
      cell.token.className = names.join(" ");
      if (cell.token.localName === "i") return;
      cell.token.textContent = written ? state.text : cell.states.length || now < steps ? cell.mask : cell.first;
      if (written) cell.token.dataset.s = state.step; else delete cell.token.dataset.s;
      if (written && state.sure !== null) cell.token.dataset.c = String(Math.round(state.sure * 100) / 100).replace(/^0\./, "."); else delete cell.token.dataset.c;
    }

    // Ticks of folded tokens have no look of their own yet.
    for (const cell of cells) if (cell.token.localName === "i") paint(cell, steps);
    for (const tick of canvas.querySelectorAll(".fold .now")) tick.classList.remove("now");

    // The history of a token, shown when the pointer is on it.
    canvas.addEventListener("pointerover", ({ target }) => {
      const cell = target.localName === "b" && cells.find((each) => each.token === target);
      if (!cell) return;
      const weight = target.dataset.v ? `\nweight in the update ${target.dataset.v}` : "";
      target.title = (cell.states.map(({ step, text, sure }) => text === null ? `step ${step}: remasked`
        : `step ${step} of ${steps}: ${JSON.stringify(text)}${sure === null ? "" : `, confidence ${sure}`}`).join("\n") || "never written") + weight;
    });

    return {
      steps,
      words: (now) => inWords(Math.min(now, steps), steps, changes.get(Math.min(now, steps))),
      show(step) {
        const now = Math.min(step, steps);
        for (const cell of cells) paint(cell, now);
        cursor?.setAttribute("d", now ? `M0 ${now}H${chart.viewBox.baseVal.width}` : "");
      },
    };
  }

  // The controls of one or more responses, in `place`; each step is one forward of all of them.
  function addPlayer(sections, place) {
    const parts = sections.map(response), steps = Math.max(...parts.map((part) => part.steps));
    const player = document.createElement("div");
    player.className = "player";
    const range = document.createElement("input");
    Object.assign(range, { type: "range", min: 0, max: steps, step: 1, value: steps });
    range.setAttribute("aria-label", "Unmasking step");
    const status = document.createElement("span");
    status.setAttribute("aria-hidden", "true");  // the slider itself announces it
    const button = (text, name, act) => {
      const element = document.createElement("button");
      element.type = "button";
      element.textContent = text;
      if (name) element.setAttribute("aria-label", name);
      element.addEventListener("click", act);
      return element;
    };
    const play = button("▶ Play", "", () => timer ? pause() : start());
    play.className = "play";
    const back = button("‹", "One step back", () => { pause(); show(Number(range.value) - 1); });
    const on = button("›", "One step forward", () => { pause(); show(Number(range.value) + 1); });
    player.append(play, back, range, on, status);
    place.append(player);
    const motion = () => { play.hidden = still.matches; if (still.matches) pause(); };

    function say(now) {
      const words = parts.length > 1 ? parts.map((part, at) => `${"AB"[at] ?? at + 1} ${part.words(now)}`).join("; ") : parts[0].words(now);
      const brief = parts.length > 2 ? `step ${now} of ${steps}` : words;
      range.setAttribute("aria-valuetext", brief);
      status.textContent = brief[0].toUpperCase() + brief.slice(1);
      back.disabled = now === 0;
      on.disabled = now === steps;
    }

    function show(step) {
      const now = Math.max(0, Math.min(steps, step));
      range.value = now;
      for (const part of parts) part.show(now);
      say(now);
    }

    // The whole animation takes about eight seconds, but no step is too short to see.
    let timer = 0;
    const stride = Math.ceil(steps / 160);
    function start() {
      if (Number(range.value) >= steps) show(0);
      play.textContent = "❚❚ Pause";
      timer = setInterval(() => {
        show(Number(range.value) + stride);
        if (Number(range.value) >= steps) pause();
      }, Math.max(50, Math.min(500, 8000 / steps)));
    }
    function pause() {
      clearInterval(timer);
      timer = 0;
      play.textContent = "▶ Play";
    }
    range.addEventListener("input", () => { pause(); show(Number(range.value)); });
    sections[0].closest("details")?.addEventListener("toggle", (event) => { if (!event.target.open) pause(); });
    still.addEventListener("change", motion);
    motion();
    say(steps);
    if (place.dataset.autoplay !== undefined && !still.matches) start();
  }

  // A canvas gets its slider when its document is opened, since a page may have many.
  const ready = new WeakSet();
  function open(root) {
    for (const place of root.querySelectorAll(".controls")) {
      if (ready.has(place) || place.closest("details:not([open])")) continue;
      const all = place.closest(".together")?.querySelectorAll(".unmasking") ?? [place.closest(".unmasking")];
      const sections = [...all].filter((section) => Number(section.dataset.steps));
      ready.add(place);
      if (sections.length) addPlayer(sections, place);
    }
  }
  document.addEventListener("toggle", (event) => { if (event.target.open) open(event.target); }, true);
  open(document);

  // Color by step or by confidence: one choice for all canvases of the page.
  document.addEventListener("change", ({ target }) => {
    if (!target.matches(".unmasking input[type=radio]")) return;
    for (const other of document.querySelectorAll(`.unmasking input[value=${target.value}]`)) other.checked = true;
  });
}
