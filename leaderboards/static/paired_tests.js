// Paired tests of two scores of the same documents, as dare_bench/analysis/paired_tests.py has them. Where that draws
// random numbers, these have a closed form, and the result says so (`closed`).
"use strict";

const PairedTests = (() => {
  const Z = 1.959963984540054, LEVEL = 0.95;  // the normal distribution's 97.5% quantile
  const ENOUGH_CHANGES = 50, MOST_DRAWN = 2000, RESAMPLES = 9999;
  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // --- Distributions.
  const logFactorials = [0];
  function logFactorial(n) {
    for (let at = logFactorials.length; at <= n; at += 1) logFactorials.push(logFactorials[at - 1] + Math.log(at));
    return logFactorials[n];
  }

  // P(X <= k) of n fair coins.
  function binomialBelow(k, n) {
    let total = 0;
    for (let at = 0; at <= k; at += 1) {
      total += Math.exp(logFactorial(n) - logFactorial(at) - logFactorial(n - at) - n * Math.LN2);
    }
    return total;
  }

  // Lanczos' approximation of log Gamma (g = 7, nine terms).
  const LANCZOS = [0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7];
  function logGamma(x) {
    const t = x + 6.5;
    const series = LANCZOS.slice(1).reduce((total, term, at) => total + term / (x + at), LANCZOS[0]);
    return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(t) - t + Math.log(series);
  }

  // The regularized incomplete beta function, by Lentz's continued fraction (Numerical Recipes 6.4).
  function incompleteBeta(a, b, x) {
    if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
    const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x));
    return x < (a + 1) / (a + b + 2) ? front * fraction(a, b, x) / a : 1 - front * fraction(b, a, 1 - x) / b;
  }

  function fraction(a, b, x) {
    const tiny = 1e-300, safe = (value) => (Math.abs(value) < tiny ? tiny : value);
    let c = 1, d = 1 / safe(1 - (a + b) * x / (a + 1)), result = d;
    for (let m = 1; m < 500; m += 1) {
      const even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
      const odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
      let step = 1;
      for (const term of [even, odd]) {
        d = 1 / safe(1 + term * d);
        c = safe(1 + term / c);
        step = c * d;
        result *= step;
      }
      if (Math.abs(step - 1) < 1e-15) break;
    }
    return result;
  }

  // P(|T| > t) of Student's t.
  const studentBeyond = (t, freedom) => incompleteBeta(freedom / 2, 0.5, freedom / (freedom + t * t));
  const normalBeyond = (z) => studentBeyond(z, 1e9);

  function studentQuantile(freedom) {
    let lo = 0, hi = 1000;
    for (let at = 0; at < 200 && hi - lo > 1e-13 * hi; at += 1) {
      const middle = (lo + hi) / 2;
      if (studentBeyond(middle, freedom) > 1 - LEVEL) lo = middle; else hi = middle;
    }
    return (lo + hi) / 2;
  }

  // --- Tests.
  const mcnemar = (won, lost) => Math.min(1, 2 * binomialBelow(Math.min(won, lost), won + lost));

  // Holm's adjustment; null stays null and does not count.
  function holm(values) {
    const known = values.filter((value) => value !== null).sort((a, b) => a - b);
    const adjusted = new Map();
    let largest = 0;
    known.forEach((value, smaller) => {
      largest = Math.max(largest, Math.min(1, (known.length - smaller) * value));
      if (!adjusted.has(value)) adjusted.set(value, largest);
    });
    return values.map((value) => (value === null ? null : adjusted.get(value)));
  }

  // All ways to choose the signs of the changes.
  function exactPermutation(changed) {
    let totals = [0];
    for (const change of changed) totals = totals.flatMap((total) => [total + change, total - change]);
    const seen = sum(changed), near = 100 * Number.EPSILON * Math.abs(seen);
    const less = totals.filter((total) => total <= seen + near).length;
    const greater = totals.filter((total) => total >= seen - near).length;
    return Math.min(1, 2 * Math.min(less, greater) / totals.length);
  }

  // Wald's interval with two added documents, one won and one lost by `size`; `error` is its standard error.
  function adjusted(changes, shares) {
    const n = changes.length, size = shares ? 1 : typicalChange(changes);
    if (size === 0 || (n < 2 && !shares)) return { lo: null, hi: null, method: "none", error: 0 };
    const mean = sum(changes) / (n + 2);
    const variance = (sum(changes.map((change) => change * change)) + 2 * size * size) / (n + 2) - mean * mean;
    const error = Math.sqrt(variance / (n + 2));
    const half = (shares ? Z : studentQuantile(n + 1)) * error;
    if (shares) return { lo: Math.max(-1, mean - half), hi: Math.min(1, mean + half), method: "Bonett-Price", error };
    return { lo: mean - half, hi: mean + half, method: "adjusted Student t", error };
  }

  function typicalChange(changes) {
    const changed = changes.filter(Boolean);
    const one = changed.every((change) => change > 0) || changed.every((change) => change < 0);
    if (one) return Math.max(0, ...changed.map(Math.abs));
    return Math.sqrt(sum(changed.map((change) => change * change)) / changed.length);
  }

  function student(changes) {
    const n = changes.length, mean = sum(changes) / n;
    const error = Math.sqrt(sum(changes.map((change) => (change - mean) ** 2)) / (n - 1) / n);
    return { mean, error, p: studentBeyond(Math.abs(mean) / error, n - 1), half: studentQuantile(n - 1) * error };
  }

  function test(changes, shares, won, lost, bounds) {
    if (shares) return [mcnemar(won, lost), "exact McNemar", false];
    const changed = changes.filter(Boolean);
    if (changed.length < 2) return [1, "paired permutation", false];
    if (changed.length > MOST_DRAWN) return [student(changes).p, "paired Student t", false];
    if (2 ** changed.length <= RESAMPLES) return [exactPermutation(changed), "paired permutation", false];
    const mean = Math.abs(sum(changes) / changes.length);
    return [studentBeyond(mean / bounds.error, changes.length + 1), "adjusted Student t", true];
  }

  // Second minus first: values of the same documents in one order, at least one.
  function difference(first, second) {
    const changes = second.map((value, at) => value - first[at]), n = changes.length;
    const won = changes.filter((change) => change > 0).length, lost = changes.filter((change) => change < 0).length;
    const shares = [...first, ...second].every((value) => value === 0 || value === 1);
    const bounds = adjusted(changes, shares);
    const [p, name, drawn] = test(changes, shares, won, lost, bounds);
    let { lo, hi, method } = bounds, closed = drawn;
    if (won + lost >= ENOUGH_CHANGES && new Set(changes).size > 1) {
      closed ||= n <= MOST_DRAWN;
      if (n > MOST_DRAWN && !shares) {
        const { mean, half } = student(changes);
        [lo, hi, method] = [mean - half, mean + half, "paired Student t"];
      }
    }
    const value = sum(changes) / n;
    if (lo !== null) [lo, hi] = asTested(lo, hi, p, value);
    return { value, lo, hi, n, p, method, test: name, won, lost, closed, paired: true };
  }

  // The interval contains 0 unless the test rejects it.
  function asTested(lo, hi, p, value) {
    if (p > 1 - LEVEL) return [Math.min(lo, 0), Math.max(hi, 0)];
    return value > 0 ? [Math.max(lo, 0), hi] : [lo, Math.min(hi, 0)];
  }

  // From both intervals, as if the documents differed: {value, lo, hi, n} of each.
  function unpaired(first, second) {
    const value = second.value - first.value, known = [first.lo, first.hi, second.lo, second.hi].every((end) => end !== null);
    const lo = known ? value - Math.hypot(second.value - second.lo, first.hi - first.value) : null;
    const hi = known ? value + Math.hypot(second.hi - second.value, first.value - first.lo) : null;
    const half = !known ? 0 : value > 0 ? value - lo : hi - value;
    const p = half > 0 ? normalBeyond(Math.abs(value) / half * Z) : known && value === 0 ? 1 : null;
    return { value, lo, hi, n: Math.min(first.n, second.n), p, method: "unpaired, from both intervals", test: "the unpaired interval",
      won: 0, lost: 0, closed: false, paired: false };
  }

  function verdict(gain, p) {
    if (p === null) return "cannot tell";
    if (p > 1 - LEVEL || gain === 0) return "no difference shown";
    return gain > 0 ? "better" : "worse";
  }

  return { difference, unpaired, holm, mcnemar, verdict, studentBeyond };
})();
