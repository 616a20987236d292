/** The page's data. */
import { computed, signal } from "@preact/signals";

import type { Model, Page } from "./data";
import type { Values } from "./state";
import { nameOf } from "./card/heads";

export const page = signal({} as Page);

export const model = computed(() => page.value.model);

export function countOf({ nLayers, nHeads }: Model): number {
  return nLayers * nHeads;
}

/** Such as "L23H4". */
export function titleOf(head: number): string {
  return nameOf(model.value, head);
}

/** What was chosen, without what the page does not have. */
export function mend(values: Values): Values {
  const has = (head: number) => head < countOf(page.value.model);
  return {
    ...values,
    head: values.head !== null && has(values.head) ? values.head : null,
    pins: values.pins.filter(has),
    top: values.top && values.top > 0 ? values.top : null,
  };
}
