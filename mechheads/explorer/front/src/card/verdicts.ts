/** What each view says of one head, in numbers and words. */
import type { Column, Head, Model, Num, Verdict, View } from "../data";
import { ownFirst } from "../table";
import { known, measured, plural, rankOf, type Rank } from "./numbers";

export interface Line {
  readonly view: View;
  readonly value: Num;
  readonly low: Num;
  readonly high: Num;
  readonly q: Num;
  /** Among all heads, by value or absolute value. */
  readonly rank: Rank | null;
  /** What it was measured on, such as "20 requests"; empty if that is not known. */
  readonly measuredOn: string;
  readonly verdict: Verdict | null;
  /** What the number means for this head; why there is none, if it is missing. */
  readonly sentence: string;
  /** The values of all heads, to compare with. */
  readonly all: readonly Num[];
}

type Named = ReadonlyMap<string, Column>;

export function columnsOf(model: Model): Named {
  return new Map(model.columns.map((column) => [column.name, column]));
}

/** `data` is the head's card, if it is loaded: it says how many prompts there were. */
export function linesOf(model: Model, head: number, data: Head | null = null): Line[] {
  const columns = columnsOf(model);
  return ownFirst(model).map((view) => lineOf(model, columns, view, head, data));
}

function lineOf(model: Model, columns: Named, view: View, head: number, data: Head | null): Line {
  const value = numberOf(columns, view.value, head);
  const [low, high] = [numberOf(columns, view.low, head), numberOf(columns, view.high, head)];
  const all = valuesOf(columns, view, model.nLayers * model.nHeads);
  const ranked = view.rankBy === "absolute" ? all.map((each) => (each === null ? null : Math.abs(each))) : all;
  const relation = columns.get("best_relation")?.values[head];
  return {
    view,
    value,
    low,
    high,
    q: numberOf(columns, view.q, head),
    rank: rankOf(ranked, head),
    measuredOn: counted(view.name, data),
    verdict: view.verdict.values[head] ?? null,
    sentence: value === null ? missing(model) : fill(view, { value, low, high, relation: String(relation ?? "") }),
    all,
  };
}

/** The values of a view for all heads. */
export function valuesOf(columns: Named, view: View, nHeads: number): Num[] {
  return Array.from({ length: nHeads }, (_, at) => numberOf(columns, view.value, at));
}

function numberOf(columns: Named, name: string | null, head: number): Num {
  const value = name === null ? null : columns.get(name)?.values[head];
  return typeof value === "number" && known(value) ? value : null;
}

/** How many prompts, requests, starts or pairs a view has of a head. */
function counted(view: string, data: Head | null): string {
  const n = (values: readonly Num[] | undefined) => values?.filter(known).length ?? 0;
  const counts: [number, string][] = [
    [n(data?.cause?.effects.find(({ name }) => name === view || (view === "direct" && name === "attribution"))?.values), "prompt"],
    [n(data?.safety?.ships.find(({ ablation }) => view === `ships_${ablation}`)?.values), "request"],
    [n(data?.roles?.roles.find(({ role }) => role === view)?.values), "start"],
    [view === "phi" ? (data?.weights?.relations[0]?.pairs?.length ?? 0) : 0, "pair"],
  ];
  const found = counts.find(([count]) => count > 0);
  return found ? plural(...found) : "";
}

function missing(model: Model): string {
  return model.interrupted
    ? "Not measured: the work was interrupted before this head was reached."
    : "Not measured for this head.";
}

interface Blanks {
  value: number;
  low: Num;
  high: Num;
  relation: string;
}

/** The view's sentence with its blanks filled: shares as percentages, without their unit, as in the sentences at the top. */
export function fill(view: View, { value, low, high, relation }: Blanks): string {
  const share = view.unit.startsWith("share");
  const [times, sign] = share ? [100, "%"] : [1, ""];
  const [from, to] = [known(low) ? times * low : null, known(high) ? times * high : null];
  const said = (number: Num) => (known(number) ? measured(number, from, to) + sign : "unknown");
  const texts: Record<string, string> = {
    value: said(times * value),
    low: said(from),
    high: said(to),
    unit: view.unit,
    relation: relation.replace(/_/g, " ") || "any relation",
  };
  const sentence = share ? view.sentence.replace(" {unit}", "") : view.sentence;
  return sentence.replace(/\{(\w+)\}/g, (whole, name: string) => texts[name] ?? whole);
}

export interface Agreement {
  /** Whether one view says yes and another no. */
  readonly disagree: boolean;
  readonly text: string;
}

/** How the views agree about a head: who says what, and the tensions that hold. */
export function agreementOf(model: Model, lines: readonly Line[]): Agreement {
  const verdicts = new Map(lines.map((line) => [line.view.name, line.verdict]));
  const holds = ({ view, verdict }: { view: string; verdict: Verdict }) => verdicts.get(view) === verdict;
  const found = model.tensions.filter(({ a, b }) => holds(a) && holds(b)).map(({ text }) => text);
  const answered = new Set(lines.filter((line) => matters(line) === "yes").map(({ view }) => view.group));
  // Views of one group come from the same numbers: if one of them has found something, the others do not speak against it.
  const open = lines.filter((line) => matters(line) === "yes" || !line.view.group || !answered.has(line.view.group));
  const said = (verdict: Verdict) => open.filter((line) => matters(line) === verdict).map(({ view }) => view.title.replace(/, (.+)$/, " ($1)"));
  const [yes, no, unclear] = [said("yes"), said("no"), said("unclear")];
  if (yes.length && no.length) found.unshift(`The views disagree: ${listed(yes)} found something, ${listed(no)} did not${unclear.length ? `; ${listed(unclear)} cannot tell` : ""}.`);
  else if (yes.length && unclear.length) found.unshift(`${listed(yes)} found something; ${listed(unclear)} cannot tell.`);
  else if (yes.length) found.unshift(yes.length === 1 ? `${listed(yes)} found something.` : "All views that measured this head found something.");
  else if (unclear.length) found.unshift(`${listed(unclear)} cannot tell${no.length ? "; the other views found no evidence that this head matters" : ""}.`);
  else if (no.length) found.unshift("No view found evidence that this head matters.");
  return { disagree: yes.length > 0 && no.length > 0, text: found.join(" ") };
}

/** What a category by weights means beside what the head is called on ordinary text; null if it has no category. */
export function besides(behaviours: readonly string[], categories: readonly string[]): string | null {
  if (!categories.length) return null;
  if (behaviours.includes("sink")) return "On ordinary text it mostly rests on the first token: it maps what its weights map in some contexts only.";
  if (!behaviours.length) return "Where it looks on ordinary text has no simple name. That speaks neither for nor against what its weights map.";
  return "Where a head looks and what it maps are two questions: the names on text speak neither for nor against the category.";
}

/** Whether a view says that the head matters. One says the opposite: a head that the gates find irrelevant does not. */
function matters({ view, verdict }: Line): Verdict | null {
  if (view.name !== "irrelevance") return verdict;
  return verdict === "yes" ? "no" : null;
}

/** "a, b and c". */
export function listed(names: readonly string[]): string {
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}` : (names[0] ?? "");
}
