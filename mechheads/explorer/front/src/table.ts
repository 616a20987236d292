/** The columns of a model as numbers, and which are usual. */
import type { Column, Model, View } from "./data";
import { countOf } from "./page";

/** A column of numbers; NaN is missing. */
export interface Numbers {
  readonly column: Column;
  readonly values: Float64Array;
  readonly low: Float64Array | null;
  readonly high: Float64Array | null;
  readonly q: Float64Array | null;
  /** 1 for the largest value, or the largest absolute value of a signed column; 0 if it is missing. */
  readonly ranks: Int32Array;
  /** How many are known. */
  readonly known: number;
  readonly least: number;
  readonly most: number;
}

const made = new WeakMap<Model, Map<string, Numbers | null>>();

export function columnOf(model: Model, name: string): Column | undefined {
  return model.columns.find((column) => column.name === name);
}

/** A column of numbers by its name; null if there is none. */
export function numbersOf(model: Model, name: string): Numbers | null {
  let mine = made.get(model);
  if (!mine) made.set(model, (mine = new Map()));
  let found = mine.get(name);
  if (found === undefined) {
    const column = columnOf(model, name);
    mine.set(name, (found = column?.kind === "number" ? read(model, column) : null));
  }
  return found;
}

function raw(model: Model, name: string | null): Float64Array | null {
  const column = name === null ? undefined : columnOf(model, name);
  return column ? Float64Array.from(column.values, (value) => (typeof value === "number" ? value : NaN)) : null;
}

function read(model: Model, column: Column): Numbers {
  const values = raw(model, column.name) ?? new Float64Array(countOf(model)).fill(NaN);
  const finite = values.filter(Number.isFinite);
  return {
    column,
    values,
    low: raw(model, column.low),
    high: raw(model, column.high),
    q: raw(model, column.q),
    ranks: rank(values, isAbsolute(model, column)),
    known: finite.length,
    least: finite.reduce((a, b) => Math.min(a, b), Infinity),
    most: finite.reduce((a, b) => Math.max(a, b), -Infinity),
  };
}

function isAbsolute(model: Model, column: Column): boolean {
  const view = viewOf(model, column.name);
  return view ? view.rankBy === "absolute" : column.signed;
}

function rank(values: Float64Array, absolute: boolean): Int32Array {
  const size = (head: number) => (absolute ? Math.abs(values[head] ?? NaN) : (values[head] ?? NaN));
  const order = Array.from(values.keys()).filter((head) => Number.isFinite(values[head]));
  order.sort((a, b) => size(b) - size(a) || a - b);
  const ranks = new Int32Array(values.length);
  order.forEach((head, at) => {
    const before = order[at - 1];
    ranks[head] = before !== undefined && size(before) === size(head) ? (ranks[before] ?? 0) : at + 1;
  });
  return ranks;
}

export function viewOf(model: Model, column: string): View | undefined {
  return model.views.find((view) => view.value === column);
}

/** Whether anything is known of single heads, besides where they are. */
export function hasValues({ columns }: Model): boolean {
  return columns.some(({ role }) => role === "value");
}

/** Columns of numbers that have a value of their own: for axes, colours and sizes. */
export function measures(model: Model): Column[] {
  return model.columns.filter((column) => column.kind === "number" && (column.role === "value" || column.role === "place"));
}

/** What the axes and the rank use if nothing else is chosen: the reader's own scores first, one alone against layers. */
export function usual(model: Model): { x: string; y: string; by: string } {
  const known = model.views.filter((view) => numbersOf(model, view.value)?.known);
  const [own, views] = [strongestFirst(model, known.filter(({ own }) => own)), known].map((some) => some.map((view) => view.value)) as [string[], string[]];
  const rest = measures(model).filter((column) => column.role === "value").map((column) => column.name);
  const order = [...new Set([...own, ...views, ...rest])];
  if (order.length < 2) return { x: "layer", y: order[0] ?? "head", by: order[0] ?? "layer" };
  const y = own.length < views.length && views.includes("patching") ? "patching" : (order[1] ?? "head");
  const x = order.find((name) => name !== y) ?? "layer";
  return { x, y, by: own[0] ?? y };
}

/** Views in order, but of one result, such as of its positions, those with the largest values first. */
function strongestFirst(model: Model, views: readonly View[]): View[] {
  const place = ({ group, name }: View) => views.findIndex((view) => (group === null ? view.name === name : view.group === group));
  const size = ({ value }: View) => Math.max(...(numbersOf(model, value)?.values ?? []).map(Math.abs).filter(Number.isFinite), 0);
  return [...views].sort((a, b) => place(a) - place(b) || (a.own && b.own ? size(b) - size(a) : 0));
}

/** What colours the map at first: categories (""), or else the first view. */
export function usualColour(model: Model): string {
  return model.categories ? "" : ([...strongestFirst(model, model.views).map((view) => view.value), ...measures(model).filter((column) => column.role === "value").map((column) => column.name)][0] ?? "");
}

/** How the table is sorted at first: by the reader's own scores if there are any, the head furthest from 0 first. */
export function usualSort(model: Model): string {
  const [first] = strongestFirst(model, model.views.filter(({ own }) => own));
  const numbers = first ? numbersOf(model, first.value) : null;
  if (!numbers?.known) return "";
  return `${-numbers.least > numbers.most ? "" : "-"}${numbers.column.name}`;
}

/** The chosen column if the model has it as numbers, or another. */
export function chosen(model: Model, name: string, otherwise: string): string {
  return numbersOf(model, name) ? name : otherwise;
}

/** Columns of the table if none were chosen: what heads are called and every view, or every value if there are no views. */
export function usualColumns(model: Model): string[] {
  const values = model.columns.filter((column) => column.role === "value");
  if (!model.views.length) return values.map((column) => column.name);
  const texts = values.filter((column) => column.kind === "text");
  return [...texts.map((column) => column.name), ...ownFirst(model).map((view) => view.value)];
}

/** The views, those of the reader's own scores first. */
export function ownFirst({ views }: Model): View[] {
  return [...views.filter(({ own }) => own), ...views.filter(({ own }) => !own)];
}

/** Five letters or a few more, the last one before a vowel, of a word that has more than ten. */
const LONG_WORD = /(?<!\p{L})(?=\p{L}{11})(\p{L}{4,}?[^aeiouy\P{L}])(?=[aeiouy])\p{L}+/giu;

/** A label for a heading, its long words cut: "Ships, undiff.". */
export function shortened(label: string): string {
  return label.replace(LONG_WORD, "$1.");
}

/** A column's label with its unit. */
export function titled({ label, unit }: Column): string {
  return unit ? `${label} (${unit})` : label;
}
