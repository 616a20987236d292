/** The page's data, and the model that is chosen. */
import { computed, signal } from "@preact/signals";

import type { Model, Page } from "./data";
import { state, type Ref, type Values } from "./state";
import { nameOf } from "./card/heads";

export const page = signal<Page>({ schema: 1, kind: "run", version: "", title: "", models: [], live: null, start: null });

export function modelOf(number: number): Model {
  const model = page.value.models[number];
  if (!model) throw new Error(`The page has no model ${number}.`);
  return model;
}

export const model = computed(() => modelOf(state.model.value));

export function countOf({ nLayers, nHeads }: Model): number {
  return nLayers * nHeads;
}

/** Such as "L23H4", with the model if the page has several. */
export function titleOf({ model, head }: Ref): string {
  const its = modelOf(model);
  return page.value.models.length > 1 ? `${its.name} ${nameOf(its, head)}` : nameOf(its, head);
}

/** What was chosen, without what the page does not have. */
export function mend(values: Values): Values {
  const { models } = page.value;
  const model = models[values.model] ? values.model : 0;
  const has = (ref: Ref) => ref.head < (models[ref.model] ? countOf(modelOf(ref.model)) : 0);
  return {
    ...values,
    model,
    head: values.head !== null && has({ model, head: values.head }) ? values.head : null,
    pins: values.pins.filter(has),
    top: values.top && values.top > 0 ? values.top : null,
  };
}
