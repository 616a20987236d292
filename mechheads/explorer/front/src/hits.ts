/** Which heads are marked: those that the search line and the "top" slider leave. */
import { computed, type ReadonlySignal } from "@preact/signals";

import { countOf, modelOf } from "./page";
import { understand, type Understood } from "./search/parse";
import { state } from "./state";
import { chosen, numbersOf, usual } from "./table";

export interface Hits {
  /** 1 for each head that is marked. */
  readonly is: Uint8Array;
  readonly count: number;
  /** Whether anything is left out. */
  readonly narrowed: boolean;
}

const understood = new Map<number, ReadonlySignal<Understood>>();
const found = new Map<number, ReadonlySignal<Hits>>();

function kept<T>(where: Map<number, ReadonlySignal<T>>, model: number, make: () => T): T {
  let signal = where.get(model);
  if (!signal) where.set(model, (signal = computed(make)));
  return signal.value;
}

/** What the search line means for a model. */
export function understoodFor(model: number): Understood {
  return kept(understood, model, () => understand(state.filter.value, modelOf(model)));
}

export function hitsOf(model: number): Hits {
  return kept(found, model, () => {
    const its = modelOf(model);
    const { test } = understoodFor(model);
    const top = state.top.value;
    const ranks = top === null ? null : numbersOf(its, chosen(its, state.by.value, usual(its).by))?.ranks;
    const is = Uint8Array.from({ length: countOf(its) }, (_, head) => {
      const rank = ranks?.[head] ?? 0;
      const among = top === null || !ranks || (rank > 0 && rank <= top);
      return among && test(head) ? 1 : 0;
    });
    const count = is.reduce((sum, each) => sum + each, 0);
    return { is, count, narrowed: count < is.length };
  });
}
