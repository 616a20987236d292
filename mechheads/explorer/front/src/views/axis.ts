/** Axes of the scatter. */
import { extent, ticks } from "../card/numbers";
import type { Numbers } from "../table";

export interface Axis {
  /** Data -> pixels; NaN if there is no value. */
  readonly at: (value: number) => number;
  readonly ticks: readonly number[];
}

/** From pixel `start` to `end`, with a margin of 3%. */
export function axisOf({ values }: Numbers, start: number, end: number): Axis {
  const [least, most] = extent(values);
  const pad = (most - least) * 0.03;
  const [low, high] = [least - pad, most + pad];
  return { at: (value) => start + ((value - low) / (high - low)) * (end - start), ticks: ticks([low, high], 5) };
}
