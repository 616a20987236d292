/** One-line descriptions of heads for hints, screen readers and the live region; messages to the reader. */
import { signal } from "@preact/signals";

import { labelsOf, nameOf } from "./card/heads";
import { CLUSTERS, show, withInterval } from "./card/numbers";
import type { Model } from "./data";
import { numbersOf } from "./table";

/** Text for the live region. */
export const announced = signal("");

export function announce(text: string): void {
  announced.value = text;
}

/** Text that is shown for a while. */
export const told = signal("");
const SHOWN_FOR = 6000;
let ends: ReturnType<typeof setTimeout>;

/** Say what a key or a button has done, if nothing else on the page shows it. */
export function tell(text: string): void {
  announce(text);
  told.value = text;
  clearTimeout(ends);
  ends = setTimeout(() => (told.value = ""), SHOWN_FOR);
}

/** "0.23 [0.20, 0.27], rank 3 of 270", or why there is no number. */
export function valueText(model: Model, name: string, head: number): string {
  const numbers = numbersOf(model, name);
  const value = numbers?.values[head] ?? NaN;
  if (!numbers || Number.isNaN(value)) return "not measured";
  const { column, low, high, p, q, ranks, known } = numbers;
  const parts = [withInterval(value, low?.[head], high?.[head], column.range ? CLUSTERS : "")];
  if (p && !Number.isNaN(p[head] ?? NaN)) parts.push(`family p ${show(p[head], 2)}`);
  if (q && !Number.isNaN(q[head] ?? NaN)) parts.push(`q ${show(q[head], 2)}`);
  if (column.role === "value") parts.push(`rank ${ranks[head]} of ${known}`);
  return parts.join(", ");
}

/** "L3H2, induction, Knowledge. Patching 0.23 ...". */
export function headText(model: Model, head: number, columns: readonly string[]): string {
  const values = columns.map((name) => `${numbersOf(model, name)?.column.label ?? name} ${valueText(model, name, head)}`);
  return `${[nameOf(model, head), ...labelsOf(model, head)].join(", ")}. ${values.join(". ")}`;
}
