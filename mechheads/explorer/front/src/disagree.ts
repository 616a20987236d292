/** Heads for which two views of one question speak against each other. */
import type { Model, Tension, View } from "./data";
import { quoted } from "./search/names";
import { numbersOf } from "./table";

export interface Disagreement {
  readonly tension: Tension;
  readonly a: View;
  readonly b: View;
  /** The heads for which both verdicts hold, those with the largest difference of ranks first. */
  readonly heads: readonly number[];
  /** The line of the search that finds them. */
  readonly line: string;
}

/** The disagreements about a question; those without a head are left out. */
export function disagreementsOf(model: Model, question: string): Disagreement[] {
  return model.tensions.filter((tension) => tension.question === question).flatMap((tension) => one(model, tension) ?? []);
}

export function headsOf(found: readonly Disagreement[]): number[] {
  return [...new Set(found.flatMap(({ heads }) => heads))];
}

function one(model: Model, tension: Tension): Disagreement | null {
  const [a, b] = [tension.a, tension.b].map(({ view }) => model.views.find(({ name }) => name === view));
  if (!a || !b) return null;
  const holds = (head: number) => a.verdict.values[head] === tension.a.verdict && b.verdict.values[head] === tension.b.verdict;
  const heads = Array.from(a.verdict.values.keys()).filter(holds);
  if (!heads.length) return null;
  const apart = (head: number) => side(model, a, tension.a.verdict, head) + side(model, b, tension.b.verdict, head);
  heads.sort((one, other) => apart(other) - apart(one) || one - other);
  return { tension, a, b, heads, line: `${condition(a, tension.a.verdict)} and ${condition(b, tension.b.verdict)}` };
}

/** The higher, the more the value speaks for the verdict: early in the ranking for a yes, late for the others. */
function side(model: Model, view: View, verdict: string, head: number): number {
  const rank = numbersOf(model, view.value)?.ranks[head] ?? 0;
  return verdict === "yes" ? -rank : rank;
}

function condition(view: View, verdict: string): string {
  return `${quoted(view.name)} = ${verdict}`;
}
