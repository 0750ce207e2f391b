// What compare.html?a=RUN&b=RUN shows, as data: scripts of runs are loaded, rows paired by document. A row is one run or
// several of different tasks, "RUN,RUN".
"use strict";

const Comparison = (() => {
  const store = new Map(), loading = new Map();
  window.dareData = (place, value) => store.set(place, value);

  // The data of a script of the site. A page opened from a disk may load scripts, but no other files.
  function load(place) {
    if (!loading.has(place)) {
      loading.set(place, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = place;
        script.onload = () => (store.has(place) ? resolve(store.get(place)) : reject(new Error(`${place} has no data`)));
        script.onerror = () => reject(new Error(`${place} is missing`));
        document.head.append(script);
      }));
    }
    return loading.get(place);
  }

  async function row(runs) {
    const slugs = runs.split(",").filter((slug) => /^[A-Za-z0-9._-]+$/.test(slug));
    if (!slugs.length) throw new Error(`${runs} names no run`);
    const records = await Promise.all(slugs.map((slug) => load(`data/verdicts/${slug}.js`)));
    const scores = new Map();
    for (const record of records) {
      for (const score of record.scores) if (!scores.has(score.task)) scores.set(score.task, { ...score, record });
    }
    return { ...records[0], notes: [...new Set(records.flatMap((record) => record.notes))], scores };
  }

  // Why two scores are not comparable; "" if they are.
  function breaks(first, second) {
    if (first.record.harness !== second.record.harness) return "the harnesses differ";
    if (first.key !== second.key) return `the metrics differ: ${first.key} and ${second.key}`;
    if (first.definition !== second.definition) return "the task's prompts, filters or scorer changed";
    const limited = first.limited || second.limited, same = String(first.n) === String(second.n);
    const template = first.template && second.template && first.template !== second.template;
    if (first.prompts === second.prompts) return "";
    if (first.context !== second.context || (first.template !== second.template && !template)) return "the prompts differ";
    return template || limited || !same ? "" : "the prompts or documents differ";
  }

  // The documents of both, in the order of the first: {task, id, first, second}.
  function documents(first, second) {
    const others = new Map(second.strata.map((stratum) => [stratum.task, stratum]));
    return first.strata.flatMap((stratum) => {
      const other = others.get(stratum.task);
      if (!other) return [];
      const ids = stratum.ids ?? Array.from(stratum.values, (_, at) => String(at));
      const places = new Map((other.ids ?? Array.from(other.values, (_, at) => String(at))).map((id, at) => [id, at]));
      return ids.flatMap((id, at) => places.has(id)
        ? [{ task: stratum.task, id, first: Number(stratum.values[at]), second: Number(other.values[places.get(id)]) }] : []);
    });
  }

  const mean = (values) => values.reduce((total, value) => total + value, 0) / values.length;

  // One task of two rows.
  function item(task, first, second) {
    const both = documents(first, second), [a, b] = ["first", "second"].map((side) => both.map((doc) => doc[side]));
    const paired = both.length > 0;
    const difference = paired ? PairedTests.difference(a, b)
      : PairedTests.unpaired({ ...first, n: first.n[0] }, { ...second, n: second.n[0] });
    const values = paired ? [mean(a), mean(b)] : [first.value, second.value];
    return { task, first, second, values, difference, both, breaks: breaks(first, second), share: first.share && second.share };
  }

  // Each of the other rows against the first one, in every task that both have; p is adjusted over all of these.
  function compare([reference, ...others]) {
    const items = others.flatMap((other, at) => [...reference.scores.keys()].filter((task) => other.scores.has(task))
      .map((task) => ({ ...item(task, reference.scores.get(task), other.scores.get(task)), other: at + 1 })));
    const adjusted = PairedTests.holm(items.map(({ difference }) => difference.p));
    return items.map((each, at) => {
      const sign = each.first.higher ? 1 : -1;
      return { ...each, adjusted: adjusted[at], sign, verdict: PairedTests.verdict(sign * each.difference.value, adjusted[at]) };
    });
  }

  // The recorded answers of a row to a document: [question, target, [answer, ...], what was read or null, anchor], and its page.
  async function answers(score, task, id) {
    const pages = score.record.answers[task];
    if (!pages) return null;
    let at = pages.ids ? pages.ids.indexOf(id) : Number(id), page = 0;
    while (page < pages.sizes.length && at >= pages.sizes[page]) at -= pages.sizes[page++];
    const data = await load(`${pages.folder}/${page + 1}.js`);
    return data[id] && { data: data[id], href: `${pages.folder}/${page + 1}.html#${data[id][4]}` };
  }

  return { row, compare, answers };
})();
