/** Axes of the scatter: linear or logarithmic. */
import { ticks } from "../card/numbers";
import type { Numbers } from "../table";

export interface Axis {
  /** Data -> pixels; NaN if a value cannot be shown. */
  readonly at: (value: number) => number;
  readonly ticks: readonly number[];
}

/** From pixel `start` to `end`, with a margin of 3%. A logarithmic axis leaves out what is not above 0. */
export function axisOf({ values }: Numbers, log: boolean, start: number, end: number): Axis {
  const shown = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  const map = log ? Math.log10 : (value: number) => value;
  let [low, high] = [Infinity, -Infinity];
  for (const value of shown) {
    low = Math.min(low, map(value));
    high = Math.max(high, map(value));
  }
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const pad = (high - low) * 0.03;
  [low, high] = [low - pad, high + pad];
  const at = (value: number) => (log && value <= 0 ? NaN : start + ((map(value) - low) / (high - low)) * (end - start));
  const found = log ? decades(low, high) : ticks([low, high], 5);
  return { at, ticks: found };
}

/** 1, 10, 100 ...; with 2 and 5 if there are few; linear steps within one decade. */
function decades(low: number, high: number): number[] {
  if (high - low < 0.7) return ticks([10 ** low, 10 ** high], 4).filter((tick) => tick > 0);
  const factors = high - low < 2.5 ? [1, 2, 5] : [1];
  const step = Math.max(1, Math.ceil((high - low) / 8));
  const found: number[] = [];
  for (let power = Math.floor(low); power <= high; power += step) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
}
