/** Two heads, or two models, number by number. */
import { known, places, show, showTo } from "../card/numbers";
import { UNCLASSIFIED } from "../categories";
import type { Column, Model, Verdict } from "../data";
import { valueText } from "../say";
import { columnOf, numbersOf, titled } from "../table";

export interface Row {
  readonly group: string;
  readonly label: string;
  readonly left: string;
  readonly right: string;
  /** Left minus right; "" if it is not defined. */
  readonly difference: string;
  /** From -1 to 1: the difference relative to the spread of the column. */
  readonly share: number;
}

export interface Side {
  readonly model: Model;
  readonly head: number;
}

/** `decimals`: the places that the less certain of the two earns; null without intervals. */
function difference(left: number, right: number, spread: number, decimals: number | null = null): Pick<Row, "difference" | "share"> {
  if (Number.isNaN(left) || Number.isNaN(right)) return { difference: "", share: 0 };
  const by = left - right;
  return { difference: by > 0 ? `+${showTo(by, decimals)}` : showTo(by, decimals), share: spread > 0 ? Math.max(-1, Math.min(1, by / spread)) : 0 };
}

/** Whether a column has values of the model itself, and not how a view of it changed from another model. */
function isMeasured({ views }: Model, { name, role }: Column): boolean {
  return role === "value" && !views.some((view) => name === `${view.name}_change`);
}

/** Every measure of two heads. Columns that one model lacks have nothing on its side. */
export function ofHeads(left: Side, right: Side): Row[] {
  const names = new Set([left, right].flatMap(({ model }) => model.columns.filter((column) => isMeasured(model, column)).map((column) => column.name)));
  return [...names].map((name) => {
    const column = columnOf(left.model, name) ?? columnOf(right.model, name);
    const [a, b] = [numbersOf(left.model, name), numbersOf(right.model, name)];
    const about = { group: column?.group ?? "", label: column ? titled(column) : name };
    if (column?.kind === "text") {
      const text = ({ model, head }: Side) => String(columnOf(model, name)?.values[head] ?? "") || "\u2013";
      return { ...about, left: text(left), right: text(right), difference: text(left) === text(right) ? "same" : "", share: 0 };
    }
    const spread = Math.max(a ? a.most - a.least : 0, b ? b.most - b.least : 0);
    const earned = [places(a?.low?.[left.head], a?.high?.[left.head]), places(b?.low?.[right.head], b?.high?.[right.head])].filter((each) => each !== null);
    return {
      ...about,
      left: valueText(left.model, name, left.head),
      right: valueText(right.model, name, right.head),
      ...difference(a?.values[left.head] ?? NaN, b?.values[right.head] ?? NaN, spread, earned.length ? Math.min(...earned) : null),
    };
  });
}

export interface Said {
  readonly title: string;
  readonly left: Verdict | null;
  readonly right: Verdict | null;
}

/** The verdict of every view on two heads. */
export function verdicts(left: Side, right: Side): Said[] {
  const titles = new Map([left, right].flatMap(({ model }) => model.views.map((view) => [view.name, view.title] as const)));
  const of = ({ model, head }: Side, name: string) => model.views.find((view) => view.name === name)?.verdict.values[head] ?? null;
  return [...titles].map(([name, title]) => ({ title, left: of(left, name), right: of(right, name) }));
}

/** Shares of heads by category, name and verdict, and the median of every measure of two models. */
export function ofModels(left: Model, right: Model): Row[] {
  return [
    ...shares("Categories by weights, share of heads", categoryShares(left), categoryShares(right)),
    ...shares("Names on text, share of heads", nameShares(left), nameShares(right)),
    ...shares("Verdict is yes, share of heads", yesShares(left), yesShares(right)),
    ...medians(left, right),
  ];
}

type Shares = Map<string, number>;

function shares(group: string, left: Shares, right: Shares): Row[] {
  return [...new Set([...left.keys(), ...right.keys()])].map((label) => {
    const [a, b] = [left.get(label) ?? NaN, right.get(label) ?? NaN];
    return { group, label, left: asShare(a), right: asShare(b), ...differenceOfShares(a, b) };
  });
}

function asShare(value: number): string {
  return Number.isNaN(value) ? "not measured" : `${(100 * value).toFixed(1)}%`;
}

function differenceOfShares(a: number, b: number): Pick<Row, "difference" | "share"> {
  if (Number.isNaN(a) || Number.isNaN(b)) return { difference: "", share: 0 };
  const points = 100 * (a - b);
  return { difference: `${points > 0 ? "+" : points < 0 ? "\u2212" : ""}${Math.abs(points).toFixed(1)} points`, share: a - b };
}

function count(labels: Iterable<string>, names: readonly string[], of: number): Shares {
  const found = new Map(names.map((name) => [name, 0]));
  for (const label of labels) found.set(label, (found.get(label) ?? 0) + 1);
  return new Map([...found].map(([name, n]) => [name, of ? n / of : NaN]));
}

/** A head of several categories counts for each of them. */
function categoryShares({ categories }: Model): Shares {
  if (!categories) return new Map();
  const reached = categories.of.filter((of) => of !== null);
  const names = [...categories.names, UNCLASSIFIED];
  return count(reached.flatMap((of) => (of.length ? of.map((at) => names[at] ?? "") : UNCLASSIFIED)), names, reached.length);
}

function nameShares({ behaviours }: Model): Shares {
  if (!behaviours) return new Map();
  const names = behaviours.names.map(({ name }) => name);
  return count(behaviours.of.flat().map((at) => names[at] ?? ""), names, behaviours.of.length);
}

function yesShares(model: Model): Shares {
  return new Map(
    model.views.map(({ title, verdict }) => {
      const measured = verdict.values.filter((value) => value !== null);
      return [title, measured.length ? measured.filter((value) => value === "yes").length / measured.length : NaN];
    }),
  );
}

function medians(left: Model, right: Model): Row[] {
  const names = new Set([left, right].flatMap((model) => model.columns.filter((column) => column.kind === "number" && isMeasured(model, column)).map(({ name }) => name)));
  return [...names].map((name) => {
    const [a, b] = [numbersOf(left, name), numbersOf(right, name)];
    const column = (a ?? b)?.column;
    const [x, y] = [median(a?.values), median(b?.values)];
    const spread = Math.max(a ? a.most - a.least : 0, b ? b.most - b.least : 0);
    return { group: "Median over heads", label: column ? titled(column) : name, left: shown(x), right: shown(y), ...difference(x, y, spread) };
  });
}

function shown(value: number): string {
  return known(value) ? show(value) : "not measured";
}

function median(values: Float64Array | undefined): number {
  const order = values?.filter(Number.isFinite).sort() ?? new Float64Array();
  const middle = order.length >> 1;
  const high = order[middle] ?? NaN;
  return order.length % 2 ? high : (high + (order[middle - 1] ?? NaN)) / 2;
}
