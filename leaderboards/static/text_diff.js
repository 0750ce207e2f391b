// The words of two texts as runs of equal and different ones: the longest common subsequence.
"use strict";

const TextDiff = (() => {
  const MOST = 1500;  // words; the table has a cell for each pair
  const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

  // [[kind, text], ...] of the second text against the first: "same", "gone" (only the first), "new" (only the second).
  function compare(first, second) {
    const a = words(first), b = words(second), parts = [];
    let start = 0, end = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
    while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
    const add = (kind, text) => {
      if (!text) return;
      if (parts.at(-1)?.[0] === kind) parts.at(-1)[1] += text; else parts.push([kind, text]);
    };
    add("same", a.slice(0, start).join(""));
    middle(a.slice(start, a.length - end), b.slice(start, b.length - end), add);
    add("same", a.slice(a.length - end).join(""));
    return parts;
  }

  function middle(a, b, add) {
    if (a.length > MOST || b.length > MOST) {
      add("gone", a.join(""));
      add("new", b.join(""));
      return;
    }
    const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
      }
    }
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { add("same", a[i]); i += 1; j += 1; }
      else if (i < a.length && (j === b.length || longest[i + 1][j] >= longest[i][j + 1])) { add("gone", a[i]); i += 1; }
      else { add("new", b[j]); j += 1; }
    }
  }

  return { compare };
})();
