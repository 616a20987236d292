/** Where a head stands among all, from 0 (smallest) to 1 (largest). */
import { known, type Maybe } from "./numbers";

/** The share of other heads with a smaller value; equal ones count half. Null if the head has no value. */
export function shareBelow(values: readonly Maybe[], at: number): number | null {
  const mine = values[at];
  if (!known(mine)) return null;
  let below = 0;
  let others = 0;
  for (const [index, value] of values.entries()) {
    if (index === at || !known(value)) continue;
    others++;
    below += value < mine ? 1 : value === mine ? 0.5 : 0;
  }
  return others ? below / others : 0.5;
}
