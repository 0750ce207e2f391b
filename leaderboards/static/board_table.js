// The table's rows and columns: sorted by a heading, filtered, some columns hidden. Rows below the window follow a moment
// later, so that an order or a filter is seen at once.
"use strict";

class BoardTable {
  constructor(element) {
    this.body = element.tBodies[0];
    this.headRow = element.tHead.rows[0];
    this.heads = [...this.headRow.cells];
    this.rows = [...this.body.rows];
    this.cells = this.rows.map((row) => [...row.cells]);
    this.order = null;  // {at, way}: the column, "asc" or "desc"; null for the order of the ranks
    this.shown = this.rows.map((_, number) => number);
    this.columns = this.heads.map(() => true);
    this.widths = [];
    this.keys = this.heads.map((head, at) => {
      const texts = "text" in head.dataset;
      return this.cells.map((row) => (texts ? row[at].textContent.toLowerCase() : BoardTable.number(row[at].dataset.order)));
    });
    this.sorters = this.heads.map((head) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      return button;
    });
    this.headRow.addEventListener("click", ({ target }) => {
      const at = this.heads.indexOf(target.closest("th"));
      if (at >= 0) this.turn(at);
    });
    rove(this.headRow, () => this.sorters.filter((sorter) => sorter.isConnected));
  }

  static number(text) {
    return text === "" ? null : Number(text);
  }

  // Called after a click on a heading.
  onOrder() {}

  // The first click sorts by the column, the second turns the order around, the third is the order of the ranks again.
  turn(at) {
    const first = this.first(at), other = first === "asc" ? "desc" : "asc";
    if (this.order?.at !== at) this.order = { at, way: first };
    else this.order = this.order.way === first ? { at, way: other } : null;
    this.onOrder();
  }

  first(at) {
    return this.heads[at].dataset.first ?? "asc";
  }

  // Numbers of the rows that ``fits`` lets through, in their order; rows without a value are last in both directions.
  sorted(fits) {
    const rows = this.rows.map((_, number) => number).filter(fits);
    if (!this.order) return rows;
    const keys = this.keys[this.order.at], way = this.order.way === "asc" ? 1 : -1;
    const compare = typeof keys[0] === "string" ? new Intl.Collator("en", { numeric: true }).compare : (a, b) => a - b;
    return rows.sort((a, b) => {
      const [one, other] = [keys[a], keys[b]];
      if (one === other) return 0;
      if (one === null || other === null) return one === null ? 1 : -1;
      return way * compare(one, other);
    });
  }

  // Before a change, while no layout waits (the table would be laid out twice): to the top, with the columns' widths.
  prepare() {
    this.body.parentNode.parentNode.scrollTop = 0;
    this.widths = this.heads.map((head) => head.offsetWidth);
  }

  // ``columns``: for each, whether it is shown. ``empty``: the row that stands where there is no other.
  draw(fits, columns, empty) {
    const rows = this.sorted(fits);
    if (columns.some((is, at) => is !== this.columns[at])) {
      const left = (cells) => cells.filter((_, at) => columns[at]);
      this.headRow.replaceChildren(...left(this.heads));
      this.rows.forEach((row, number) => row.replaceChildren(...left(this.cells[number])));
      this.columns = columns;
      if (!this.sorters.some((sorter) => sorter.isConnected && sorter.tabIndex === 0)) left(this.sorters)[0].tabIndex = 0;
    }
    this.heads.forEach((head, at) => {
      if (at === this.order?.at) head.setAttribute("aria-sort", this.order.way === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    if (rows.length === this.shown.length && rows.every((row, at) => row === this.shown[at])) return;
    this.shown = rows;
    const first = Math.max(30, Math.ceil(innerHeight / 36));
    this.body.replaceChildren(...(rows.length ? rows.slice(0, first).map((row) => this.rows[row]) : [empty]));
    this.follow(rows, first, first, 120);
  }

  // No column of facts becomes narrower until all rows have followed. ``wait``: milliseconds, until the first are painted.
  follow(rows, from, count, wait = 30) {
    clearTimeout(this.waiting);
    const more = from < rows.length;
    this.body.parentNode.ariaBusy = more ? "true" : null;
    this.heads.forEach((head, at) => {
      if (!("score" in head.dataset)) head.style.minWidth = more && this.widths[at] ? `${this.widths[at]}px` : "";
    });
    if (!more) return;
    this.waiting = setTimeout(() => {
      this.body.append(...rows.slice(from, from + count).map((row) => this.rows[row]));
      this.follow(rows, from + count, count);
    }, wait);
  }
}
