/** Which heads are marked: those that the search line and the "top" slider leave. */
import { computed } from "@preact/signals";

import { countOf, model } from "./page";
import { understand } from "./search/parse";
import { state } from "./state";
import { chosen, numbersOf, usual } from "./table";

export interface Hits {
  /** 1 for each head that is marked. */
  readonly is: Uint8Array;
  readonly count: number;
  /** Whether anything is left out. */
  readonly narrowed: boolean;
}

/** What the search line means. */
export const understood = computed(() => understand(state.filter.value, model.value));

export const hits = computed((): Hits => {
  const its = model.value;
  const { test } = understood.value;
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
