/** The columns of a model as numbers, and which are usual. */
import type { Column, Model, Question } from "./data";
import { countOf } from "./page";
import { state } from "./state";

/** A column of numbers; NaN is missing. */
export interface Numbers {
  readonly column: Column;
  readonly values: Float64Array;
  readonly low: Float64Array | null;
  readonly high: Float64Array | null;
  readonly p: Float64Array | null;
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
    p: raw(model, column.p),
    q: raw(model, column.q),
    ranks: rank(values, column.signed),
    known: finite.length,
    least: finite.reduce((a, b) => Math.min(a, b), Infinity),
    most: finite.reduce((a, b) => Math.max(a, b), -Infinity),
  };
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

/** Whether there is any column about heads besides their layer and number. */
export function hasValues({ columns }: Model): boolean {
  return columns.some(({ role }) => role === "value");
}

/** The question that is open: the chosen one, that of the column that colours the map, or the first. */
export function questionOf(model: Model): Question | undefined {
  const { questions, categories } = model;
  const colour = state.colour.value;
  const coloured = colour === "" ? questions.find(({ kind }) => categories && kind === "weights") : questions.find(({ key }) => key === columnOf(model, colour ?? "")?.question);
  return questions.find(({ key }) => key === state.question.value) ?? coloured ?? questions[0];
}

/** The columns with scores of their own, in the order of the questions. */
export function scoresOf(model: Model): Column[] {
  return model.questions.flatMap(({ views }) => views).flatMap((name) => columnOf(model, name) ?? []);
}

/** Columns of numbers that have a value of their own: for axes, colours and sizes. */
export function measures(model: Model): Column[] {
  return model.columns.filter((column) => column.kind === "number" && (column.role === "value" || column.role === "place"));
}

/** Whether a column is about the open question, or about none. */
function isOfOpen(model: Model, { question }: Column): boolean {
  const open = questionOf(model);
  return !open || question === null || question === open.key;
}

/** The numbers of the open question, what ranks its heads first. */
function inOrder(model: Model): string[] {
  const open = questionOf(model);
  const values = open ? [open.view ?? "", ...open.views] : [];
  const rest = measures(model).filter(({ role, question }) => role === "value" && (!open || question === open.key));
  return [...new Set([...values, ...rest.map(({ name }) => name)])].filter((name) => numbersOf(model, name)?.known);
}

/** What the axes and the rank use if nothing else is chosen. */
export function usual(model: Model): { x: string; y: string; by: string } {
  const [by = "", x = "layer"] = inOrder(model);
  return { x, y: by || "head", by: by || "layer" };
}

/** The column that colours the map; "" stands for categories, or for no colour. */
export function colourOf(model: Model): string {
  const name = state.colour.value;
  const kind = questionOf(model)?.kind ?? "weights";
  const usually = model.categories && kind === "weights" ? "" : (inOrder(model)[0] ?? "");
  return chosen(model, name ?? "", name === "" ? "" : usually);
}

/** What the table is sorted by: what ranks the heads of the open question, the head furthest from 0 first. */
export function sortOf(model: Model): string {
  const numbers = questionOf(model) ? numbersOf(model, usual(model).by) : null;
  return state.sort.value ?? (numbers?.known ? `${-numbers.least > numbers.most ? "" : "-"}${numbers.column.name}` : "");
}

/** The chosen column if the model has it as numbers, or another. */
export function chosen(model: Model, name: string, otherwise: string): string {
  return numbersOf(model, name) ? name : otherwise;
}

/** Columns of the table if none were chosen: what heads are called and every view, or every value if there are no views. */
export function usualColumns(model: Model): string[] {
  const values = model.columns.filter((column) => column.role === "value" && isOfOpen(model, column));
  const views = scoresOf(model).map(({ name }) => name);
  return (values.some(({ name }) => views.includes(name)) ? values.filter(({ kind, name }) => kind === "text" || views.includes(name)) : values).map(({ name }) => name);
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
