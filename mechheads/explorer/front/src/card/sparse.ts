/** The larger attention weights of one head in one text, or the difference of two. */

/** Rows are queries. The entries of row q are `starts[q]` to `starts[q + 1]` of `keys` and `weights`. */
export interface Sparse {
  readonly tokens: readonly string[];
  readonly starts: Uint32Array;
  readonly keys: Uint16Array;
  /** From 0 to 1; of a difference from -1 to 1. */
  readonly weights: Float32Array;
}

export interface Entry {
  readonly query: number;
  readonly key: number;
  readonly weight: number;
}

/** Entries in any order; of two with the same query and key the later one counts, and zeros are left out. */
export function sparse(tokens: readonly string[], entries: Iterable<Entry>): Sparse {
  const rows: Map<number, number>[] = tokens.map(() => new Map());
  for (const { query, key, weight } of entries) {
    if (weight !== 0) rows[query]?.set(key, weight);
  }
  const starts = new Uint32Array(tokens.length + 1);
  rows.forEach((row, query) => (starts[query + 1] = (starts[query] ?? 0) + row.size));
  const keys = new Uint16Array(starts[tokens.length] ?? 0);
  const weights = new Float32Array(keys.length);
  rows.forEach((row, query) => {
    let at = starts[query] ?? 0;
    for (const key of [...row.keys()].sort((a, b) => a - b)) {
      keys[at] = key;
      weights[at++] = row.get(key) ?? 0;
    }
  });
  return { tokens, starts, keys, weights };
}

/** The entries of one query. */
export function row(from: Sparse, query: number): Entry[] {
  const found: Entry[] = [];
  const end = from.starts[query + 1] ?? 0;
  for (let at = from.starts[query] ?? end; at < end; at++) {
    found.push({ query, key: from.keys[at] ?? 0, weight: from.weights[at] ?? 0 });
  }
  return found;
}

/** The entries of one key: the queries that attend to it. */
export function column(from: Sparse, key: number): Entry[] {
  const found: Entry[] = [];
  for (let query = key; query < from.tokens.length; query++) {
    for (const entry of row(from, query)) if (entry.key === key) found.push(entry);
  }
  return found;
}

/** The weight of one pair, or null if it was too small to be stored. */
export function weightAt(from: Sparse, query: number, key: number): number | null {
  return row(from, query).find((entry) => entry.key === key)?.weight ?? null;
}

/** The most that a pair can have that is not stored: the smallest stored weight, or the rest of the row if that is less. */
export function leftAtMost(from: Sparse, query: number): number {
  const kept = row(from, query);
  const left = 1 - kept.reduce((sum, { weight }) => sum + weight, 0);
  return Math.max(0, Math.min(left, ...kept.filter(({ key }) => key !== 0).map(({ weight }) => weight)));
}

/** The weights of one text minus those of another with as many tokens, pair by pair; pairs that are not stored count as 0. */
export function difference(left: Sparse, right: Sparse): Sparse {
  const tokens = left.tokens.map((token, at) => (token === right.tokens[at] ? token : `${token} /${right.tokens[at] ?? ""}`));
  const entries = tokens.flatMap((_, query) => {
    const [mine, other] = [left, right].map((side) => new Map(row(side, query).map(({ key, weight }) => [key, weight])));
    const keys = new Set([...(mine?.keys() ?? []), ...(other?.keys() ?? [])]);
    return [...keys].map((key) => ({ query, key, weight: (mine?.get(key) ?? 0) - (other?.get(key) ?? 0) }));
  });
  return sparse(tokens, entries);
}

/** The mean attention, over the queries after the first, to the token that is `back` tokens before (0: the token itself). */
export function shareBack(from: Sparse, back: number): number {
  const queries = from.tokens.map((_, query) => query).filter((query) => query >= Math.max(back, 1));
  return queries.reduce((sum, query) => sum + (weightAt(from, query, query - back) ?? 0), 0) / Math.max(queries.length, 1);
}

/** Each row divided by its sum. */
export function normalized(from: Sparse): Sparse {
  const weights = new Float32Array(from.weights);
  for (let query = 0; query < from.tokens.length; query++) {
    const [start, end] = [from.starts[query] ?? 0, from.starts[query + 1] ?? 0];
    const sum = weights.subarray(start, end).reduce((total, weight) => total + weight, 0);
    if (sum > 0) for (let at = start; at < end; at++) weights[at] = (weights[at] ?? 0) / sum;
  }
  return { ...from, weights };
}

/** The mean attention to the first token, over the queries after it. */
export function firstShare(from: Sparse): number {
  const n = from.tokens.length;
  let sum = 0;
  for (let query = 1; query < n; query++) sum += weightAt(from, query, 0) ?? 0;
  return n > 1 ? sum / (n - 1) : 0;
}
