/** Converts attention from the page's data to `Sparse`. */
import type { Attention, Example, Shared } from "../data";
import { normalized, sparse, type Entry, type Sparse } from "./sparse";

function* entriesOf({ first, keys, weights }: Attention): Generator<Entry> {
  for (let query = 0; query < first.length; query++) {
    yield { query, key: 0, weight: (first[query] ?? 0) / 255 };
    for (const [at, key] of (keys[query] ?? []).entries()) {
      yield { query, key, weight: (weights[query]?.[at] ?? 0) / 255 };
    }
  }
}

export function decode(tokens: readonly string[], attention: Attention): Sparse {
  return sparse(tokens, entriesOf(attention));
}

/** Attention times the norm of what each token offers; each row sums to 1, over the keys in the data. */
export function moved(tokens: readonly string[], attention: Attention, sizes: readonly number[]): Sparse {
  const entries = [...entriesOf(attention)];
  return normalized(sparse(tokens, entries.map((entry) => ({ ...entry, weight: (entry.weight * (sizes[entry.key] ?? 0)) / 255 }))));
}

export function tokensOf(shared: Shared, { window }: Example): string[] {
  return (shared.windows[window] ?? []).map((word) => shared.words[word] ?? "");
}
