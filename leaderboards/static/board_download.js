// The current view as CSV and as JSON: its rows in their order, its columns. The numbers come from the board's own data
// file, unrounded; it is a script, so that a page opened from a disk may load it, too.
"use strict";

const BoardDownload = {
  data: null,

  load(source) {
    BoardDownload.data ??= new Promise((resolve, reject) => {
      window.dareBoard = resolve;
      const script = document.createElement("script");
      script.src = source;
      script.addEventListener("error", () => { BoardDownload.data = null; reject(new Error(`${source} is missing`)); });
      document.head.append(script);
    });
    return BoardDownload.data;
  },

  // ``rows``: numbers of the rows in the data; ``keys``: those of the columns shown.
  csv({ table }, rows, keys) {
    const shown = table.keys.flatMap((key, at) => (keys.has(key) ? [at] : []));
    const lines = [table.heads, ...rows.map((row) => table.rows[row])];
    return lines.map((line) => shown.map((at) => BoardDownload.cell(line[at])).join(",") + "\r\n").join("");
  },

  cell(text) {
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  },

  // ``tasks``: for each of the record's columns, whether it is shown.
  json({ record, names }, rows, tasks) {
    const columns = record.columns.filter((_, at) => tasks[at]);
    const picked = rows.map((row) => {
      const scores = names.filter((_, at) => tasks[at]).map((name) => [name, record.rows[row].scores[name]]);
      return { ...record.rows[row], scores: Object.fromEntries(scores) };
    });
    return `${JSON.stringify({ ...record, columns, rows: picked }, null, 2)}\n`;
  },

  save(name, text, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  },
};
