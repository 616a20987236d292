/** Colours of numbers: how far along a scale a value lies. The ends of the scale are variables of the style sheet. */
import type { Numbers } from "./table";

export interface Shade {
  /** A class: is-high and is-low are the two halves of a signed scale. */
  readonly kind: "is-scaled" | "is-high" | "is-low" | "is-missing";
  /** From 0 to 100. */
  readonly share: number;
}

/** The ends of the scale: centred on 0 if the column is signed. */
export function endsOf({ column, least, most }: Numbers): [number, number] {
  if (least > most) return [0, 1];
  if (column.signed) {
    const furthest = Math.max(Math.abs(least), Math.abs(most)) || 1;
    return [-furthest, furthest];
  }
  const low = Math.min(least, 0) === 0 && least < most / 2 ? 0 : least;
  return low === most ? [low, low + 1] : [low, most];
}

export function shadeOf(numbers: Numbers, head: number): Shade {
  const value = numbers.values[head] ?? NaN;
  if (Number.isNaN(value)) return { kind: "is-missing", share: 0 };
  const [low, high] = endsOf(numbers);
  if (numbers.column.signed) return { kind: value < 0 ? "is-low" : "is-high", share: (100 * Math.abs(value)) / high };
  return { kind: "is-scaled", share: (100 * (value - low)) / (high - low) };
}
