/** Hue and shape of each category: the paper's hues, and a shape for readers who cannot tell them apart. */
import type { Model } from "./data";

export interface Look {
  readonly name: string;
  readonly hue: string;
  /** A path within -1 to 1. */
  readonly shape: string;
}

export const SQUARE = "M-.8-.8H.8V.8H-.8Z";
export const CIRCLE = "M-.95 0A.95.95 0 1 1 .95 0A.95.95 0 1 1-.95 0Z";
export const DIAMOND = "M0-1.1L1.1 0L0 1.1L-1.1 0Z";
export const TRIANGLE = "M0-1L1.05.85H-1.05Z";
const PLUS = "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z";
const STAR = "M0-1.15L.3-.38L1.1-.35L.48.15L.7.95L0 .5L-.7.95L-.48.15L-1.1-.35L-.3-.38Z";
const DOWN = "M0 1L1.05-.85H-1.05Z";
const CROSS = "M-.95-.5L-.5-.95L0-.45L.5-.95L.95-.5L.45 0L.95.5L.5.95L0 .45L-.5.95L-.95.5L-.45 0Z";
export const DOT = "M-.7 0A.7.7 0 1 1 .7 0A.7.7 0 1 1-.7 0Z";

const PAPER: Record<string, [hue: string, shape: string]> = {
  Knowledge: ["#ff7f0e", CIRCLE],
  Translation: ["#d62728", TRIANGLE],
  Algorithmic: ["#1f77b4", SQUARE],
  Linguistic: ["#2ca02c", DIAMOND],
  "2 categories": ["#9467bd", PLUS],
  "3 categories": ["#8c564b", STAR],
  "4 categories": ["#e377c2", CROSS],
};
const FURTHER = ["#17becf", "#bcbd22", "#aec7e8", "#98df8a", "#ffbb78", "#c5b0d5", "#f7b6d2"];
const SHAPES = [DOWN, CROSS, STAR, PLUS, DIAMOND, TRIANGLE, SQUARE];

/** Heads of no category, and heads that were not reached. */
export const UNCLASSIFIED = "Unclassified";
export const MISSING = "Not measured";

/** The classes of a head: its categories, or `UNCLASSIFIED` or `MISSING` alone. */
export function classesOf({ categories }: Model, head: number): string[] {
  const of = categories?.of[head];
  if (!of) return [MISSING];
  return of.length ? of.map((at) => categories.names[at] ?? UNCLASSIFIED) : [UNCLASSIFIED];
}

/** The class of a head of several categories if it has one colour, as in the paper's map; also in the search line. */
export function severalName(n: number): string {
  return `${n} categories`;
}

/** How many heads have each number of categories from 2 on. */
export function severals({ categories }: Model): Map<number, number> {
  const found = new Map<number, number>();
  for (const of of categories?.of ?? []) if (of && of.length > 1) found.set(of.length, (found.get(of.length) ?? 0) + 1);
  return new Map([...found].sort(([a], [b]) => a - b));
}

/** The marks of a head: one for each category, or one for all of them if `oneColour` is set; none if it has no category. */
export function looksOf(model: Model, head: number, oneColour: boolean): Look[] {
  const names = classesOf(model, head);
  return (oneColour && names.length > 1 ? [severalName(names.length)] : names).flatMap((name) => lookOf(name) ?? []);
}

const looks = new Map<string, Look>();

/** Hue and shape; null for heads of no category. */
export function lookOf(name: string): Look | null {
  if (name === UNCLASSIFIED || name === MISSING) return null;
  let look = looks.get(name);
  if (!look) {
    const at = looks.size;
    const [hue, shape] = PAPER[name] ?? [FURTHER[at % FURTHER.length] ?? "#17becf", SHAPES[at % SHAPES.length] ?? CROSS];
    looks.set(name, (look = { name, hue, shape }));
  }
  return look;
}
