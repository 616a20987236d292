/** Names of heads and their numbers. */
import type { Model } from "../data";

export function nameOf(model: Model, head: number): string {
  return `L${Math.floor(head / model.nHeads)}H${head % model.nHeads}`;
}

/** The number of a head such as "L23H4"; null if the model has none of this name. */
export function numberOf(model: Model, name: string): number | null {
  const found = /^L(\d+)H(\d+)$/.exec(name);
  if (!found) return null;
  const [layer, index] = [Number(found[1]), Number(found[2])];
  return layer < model.nLayers && index < model.nHeads ? layer * model.nHeads + index : null;
}

/** The other heads with the same keys and values, under grouped queries. */
export function sharedWith(model: Model, head: number): number[] {
  if (!model.nKvHeads || model.nKvHeads >= model.nHeads) return [];
  const size = model.nHeads / model.nKvHeads;
  const first = Math.floor(head / size) * size;
  return Array.from({ length: size }, (_, at) => first + at).filter((other) => other !== head);
}

/** What a head is called for what it does on ordinary text. */
export function behavioursOf({ behaviours }: Model, head: number): string[] {
  return behaviours?.of[head]?.flatMap((at) => behaviours.names[at]?.name || []) ?? [];
}

export function categoriesOf({ categories }: Model, head: number): string[] {
  return categories?.of[head]?.flatMap((at) => categories.names[at] || []) ?? [];
}

/** What a head is called on text and by its weights. */
export function labelsOf(model: Model, head: number): string[] {
  return [...behavioursOf(model, head), ...categoriesOf(model, head)];
}
