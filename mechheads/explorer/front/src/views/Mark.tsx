/** One head as a mark: its category by hue and shape, or a number by its shade. */
import type { Model } from "../data";
import { classOf, DOT, lookOf, MISSING } from "../categories";
import { shadeOf } from "../shade";
import { numbersOf } from "../table";

interface Drawn {
  /** Classes of the mark. */
  readonly look: string;
  readonly hue: string | null;
  /** Of a category; null for none. */
  readonly shape: string | null;
  /** Place on the colour scale in percent. */
  readonly share: number | null;
}

/** How a head is drawn if colour stands for the column `colour`, or for categories if it is "". */
export function drawnAs(model: Model, head: number, colour: string): Drawn {
  const numbers = colour ? numbersOf(model, colour) : null;
  if (numbers) {
    const { kind, share } = shadeOf(numbers, head);
    return { look: kind, hue: null, shape: null, share };
  }
  const name = classOf(model, head);
  const look = lookOf(name);
  return { look: look ? "is-category" : name === MISSING && model.categories ? "is-missing" : "is-none", hue: look?.hue ?? null, shape: look?.shape ?? null, share: null };
}

/** Inline properties, set one by one as a content security policy allows. */
export function paint({ hue, share }: Drawn): Record<string, string> {
  if (hue) return { "--hue": hue };
  return share === null ? {} : { "--share": `${share.toFixed(1)}%` };
}

export function shapeOf(drawn: Drawn): string {
  return drawn.shape ?? DOT;
}
