// "At most N passes": a slider over the numbers of forward passes per request that the rows have. Above it stands the
// best row within that budget.
"use strict";

class BoardPasses {
  constructor() {
    this.steps = [];
    this.limit = Infinity;
    this.range = document.createElement("input");
    Object.assign(this.range, { type: "range", min: 0, max: 0, step: 1, autocomplete: "off" });
    this.range.setAttribute("aria-label", "Most forward passes per request");
    this.range.addEventListener("input", () => { this.limit = this.steps[Number(this.range.value)]; });
    this.words = document.createElement("span");
    this.words.setAttribute("aria-live", "polite");
    this.field = document.createElement("div");
    this.field.className = "passes";
    this.field.append(this.words, this.range);
  }

  // ``known``: the number of passes of each row, null where it is unknown. The limit stays.
  offer(known) {
    this.steps = [...new Set(known.filter(Boolean).map(Math.ceil))].sort((a, b) => a - b);
    this.range.max = Math.max(this.steps.length - 1, 0);
    this.place();
  }

  place() {
    this.range.value = Math.max(this.steps.findLastIndex((step) => step <= this.limit), 0);
  }

  // The limit as it stands in the address; empty where it allows every number of passes.
  get most() {
    return this.limit < (this.steps.at(-1) ?? 0) ? String(this.limit) : "";
  }

  set most(text) {
    this.limit = Number(text) || Infinity;
    this.place();
  }

  allow(passes) {
    return this.most === "" || (passes !== null && Math.ceil(passes) <= this.limit);
  }

  say(best) {
    const limit = this.most === "" ? "any number of passes" : `at most ${this.most} passes`;
    this.range.setAttribute("aria-valuetext", limit);
    this.words.textContent = `${limit[0].toUpperCase()}${limit.slice(1)}: ${best ? `best is ${best}` : "no ranked row"}`;
  }
}
