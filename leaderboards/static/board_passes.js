// "At most N passes": a slider over the numbers of forward passes per request that the rows have. Above it stands the
// best row within that budget.
"use strict";

class BoardPasses {
  // ``known``: the number of passes of each row, null where it is unknown.
  constructor(known) {
    this.steps = [...new Set(known.filter(Boolean).map(Math.ceil))].sort((a, b) => a - b);
    this.useful = this.steps.length > 1;
    this.range = document.createElement("input");
    Object.assign(this.range, { type: "range", min: 0, max: Math.max(this.steps.length - 1, 0), step: 1, autocomplete: "off" });
    this.range.value = this.range.max;
    this.range.setAttribute("aria-label", "Most forward passes per request");
    this.words = document.createElement("span");
    this.words.setAttribute("aria-live", "polite");
    this.field = document.createElement("div");
    this.field.className = "passes";
    this.field.append(this.words, this.range);
  }

  // The limit as it stands in the address; empty where every number is allowed.
  get most() {
    return this.range.value === this.range.max ? "" : String(this.steps[Number(this.range.value)]);
  }

  set most(text) {
    const at = text ? this.steps.findLastIndex((step) => step <= Number(text)) : -1;
    this.range.value = at < 0 ? this.range.max : at;
  }

  allow(passes) {
    return this.most === "" || (passes !== null && Math.ceil(passes) <= Number(this.most));
  }

  say(best) {
    const limit = this.most === "" ? "any number of passes" : `at most ${this.most} passes`;
    this.range.setAttribute("aria-valuetext", limit);
    this.words.textContent = `${limit[0].toUpperCase()}${limit.slice(1)}: ${best ? `best is ${best}` : "no ranked row"}`;
  }
}
