/** What each view says of one head, in numbers and words. */
import type { Column, Head, Model, Num, Question, Verdict, View } from "../data";
import { byQuestion } from "../table";
import { CLUSTERS, known, measured, plural, rankOf, withInterval, type Rank } from "./numbers";

export interface Line {
  readonly view: View;
  readonly value: Num;
  readonly low: Num;
  readonly high: Num;
  readonly p: Num;
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

/** The lines of each question. `data` is the head's card, if it is loaded: it says how many prompts there were. */
export function linesOf(model: Model, head: number, data: Head | null = null): { question: Question | null; lines: Line[] }[] {
  const columns = columnsOf(model);
  return byQuestion(model).map(({ question, views }) => ({ question, lines: views.map((view) => lineOf(model, columns, view, head, data)) }));
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
    p: numberOf(columns, view.p, head),
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
    [n(data?.cause?.find(({ name }) => name === view || (view === "direct" && name === "attribution"))?.values), "pair"],
    [n(data?.safety?.find(({ ablation }) => view === `ships_${ablation}`)?.values), "request"],
    [n(data?.roles?.find(({ role }) => role === view)?.values), "start"],
    [view === "phi" ? (data?.weights?.[0]?.pairs?.length ?? 0) : 0, "pair"],
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

/** A value of a view with its interval as the card shows it: shares as percentages, "70% [60%, 81%]". */
export function shownOf(model: Model, view: View, head: number): string {
  const columns = columnsOf(model);
  return shown(view, numberOf(columns, view.value, head), numberOf(columns, view.low, head), numberOf(columns, view.high, head));
}

export function shown({ unit, range }: Pick<View, "unit" | "range">, value: Num, low: Num, high: Num): string {
  if (!unit.startsWith("share")) return withInterval(value, low, high, range ? CLUSTERS : "");
  const [at, from, to] = [value, low, high].map((each) => (known(each) ? 100 * each : null));
  return withInterval(at, from, to, range ? CLUSTERS : "").replace(/\d(?=[\s,)\]]|$)/g, "$&%");
}

/** What speaks against each other about a head, within one question. */
export function tensionsOf(model: Model, head: number): { a: View; b: View; text: string }[] {
  return model.tensions.flatMap(({ a, b, text }) => {
    const [one, other] = [a, b].map(({ view, verdict }) => model.views.find(({ name, verdict: { values } }) => name === view && values[head] === verdict));
    return one && other ? [{ a: one, b: other, text }] : [];
  });
}

/** "a, b and c". */
export function listed(names: readonly string[]): string {
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}` : (names[0] ?? "");
}
