/** What the names in the search line stand for: questions, columns, relations, categories and what heads are called. */
import type { Column, Model } from "../data";
import { numberOf } from "../card/heads";
import { countOf } from "../page";
import { columnOf, numbersOf, scoresOf } from "../table";

export type Test = (head: number) => boolean;
export type Value = (head: number) => number;

/** A name with what it means, where that is not plain. */
export interface Found<T> {
  readonly is: T;
  readonly note?: string;
}

/** So many letters may stand for the name that they begin. */
const LEAST_LETTERS = 4;

function key(name: string): string {
  return name.toLowerCase().replace(/[\s_-]+/g, " ").trim();
}

/** Numbers of a head: a column, the beginning of its name, "q", or phi of a relation. */
export function valueNamed(model: Model, name: string): Found<Value> | null {
  const typed = key(name);
  const numeric = model.columns.filter((column) => column.kind === "number");
  const exact = columnNamed(model, name);
  if (exact) return { is: read(model, exact.name) };
  if (typed === "q") return leastQ(model);
  const relation = model.categories?.relations.findIndex((each) => key(each.name) === typed) ?? -1;
  if (relation >= 0) return { is: (head) => model.categories?.phi[head]?.[relation] ?? NaN };
  const starting = typed ? numeric.filter((column) => column.role === "value" && key(column.name).startsWith(typed)) : [];
  const [first, ...others] = starting;
  if (!first) return null;
  const also = others.length ? `; also: ${others.map((column) => column.name).join(", ")}` : "";
  return { is: read(model, first.name), note: `${name} stands for ${first.name}${also}` };
}

/** A column of numbers by its name or its label. */
export function columnNamed(model: Model, name: string): Column | undefined {
  const numeric = model.columns.filter((column) => column.kind === "number");
  return numeric.find((column) => key(column.name) === key(name)) ?? numeric.find((column) => key(column.label) === key(name));
}

function read(model: Model, name: string): Value {
  const values = numbersOf(model, name)?.values;
  return (head) => values?.[head] ?? NaN;
}

function leastQ(model: Model): Found<Value> | null {
  const columns = model.columns.filter((column) => column.role === "q");
  if (!columns.length) return null;
  const values = columns.map((column) => read(model, column.name));
  return {
    is: (head) => values.map((value) => value(head)).reduce((a, b) => (Number.isNaN(a) || b < a ? b : a), NaN),
    note: columns.length > 1 ? `q is the smallest of ${columns.map((column) => column.name).join(", ")}` : undefined,
  };
}

/** A condition by a name alone: heads, layers, categories, names, relations. */
export function conditionNamed(model: Model, name: string): Found<Test> | null {
  const head = numberOf(model, name.toUpperCase());
  if (head !== null) return { is: (each) => each === head };
  const place = /^([LH])(\d{1,6})$/i.exec(name);
  if (place) return placed(model, place[1]?.toUpperCase() ?? "L", Number(place[2]));
  const typed = key(name);
  const { categories, behaviours } = model;
  if (categories) {
    if (typed === "unclassified") return { is: (each) => categories.of[each]?.length === 0 };
    const several = /^(\d{1,3}) categories$/.exec(typed);
    if (several) return { is: (each) => categories.of[each]?.length === Number(several[1]) };
    const category = categories.names.findIndex((each) => key(each) === typed);
    if (category >= 0) return { is: (each) => categories.of[each]?.includes(category) ?? false };
    const relation = categories.relations.findIndex((each) => key(each.name) === typed);
    if (relation >= 0) return implementing(model, relation);
  }
  const called = behaviours?.names.findIndex((each) => key(each.name) === typed) ?? -1;
  if (called >= 0) return { is: (each) => behaviours?.of[each]?.includes(called) ?? false };
  return inTable(model, typed);
}

/** The heads in the table of a question, or those in any table by one measure. */
function inTable(model: Model, typed: string): Found<Test> | null {
  const question = model.questions.find((each) => key(each.title) === typed || key(each.key) === typed);
  const rows = question?.rows ?? model.questions.flatMap((each) => each.rows).filter((row) => key(row.measured) === typed || key(row.column) === typed);
  if (!question && !rows.length) return null;
  const heads = new Set(rows.map((row) => numberOf(model, row.head)));
  return { is: (head) => heads.has(head), note: question ? `the heads in the table of ${question.title}` : `the heads in the tables by ${rows[0]?.measured}` };
}

/** The one question, or else behaviour, category or relation, whose name has a word that begins so; null if there are none or several. */
export function conditionWith(model: Model, part: string): Found<Test> | null {
  const typed = key(part);
  if (typed.length < LEAST_LETTERS) return null;
  const begins = (names: readonly string[]) => names.filter((name) => ` ${key(name)}`.includes(` ${typed}`));
  const questions = begins(model.questions.map(({ title }) => title));
  const names = questions.length ? questions : begins(conditionNames(model));
  const [name] = names;
  const found = name !== undefined && names.length === 1 ? conditionNamed(model, name) : null;
  return found && { is: found.is, note: `${part} stands for ${found.note ?? name}` };
}

function conditionNames({ behaviours, categories }: Model): string[] {
  return [
    ...(behaviours?.names.map((each) => each.name) ?? []),
    ...(categories?.names ?? []),
    ...(categories?.relations.map((each) => each.name) ?? []),
  ];
}

function placed(model: Model, what: string, number: number): Found<Test> | null {
  if (number >= (what === "L" ? model.nLayers : model.nHeads)) return null;
  return { is: (each) => (what === "L" ? Math.floor(each / model.nHeads) : each % model.nHeads) === number };
}

function implementing(model: Model, relation: number): Found<Test> {
  const { relations, phi, of, floor } = model.categories ?? { relations: [], phi: [], of: [], floor: null };
  const category = relations[relation]?.category ?? -1;
  const least = floor ?? 0.1;
  return {
    is: (each) => (of[each]?.includes(category) ?? false) && (phi[each]?.[relation] ?? NaN) >= least,
    note: `${relations[relation]?.name}: heads of its category whose phi is at least ${least}`,
  };
}

/** A text column that equals a word. */
export function equals(model: Model, name: string, word: string): Found<Test> | null {
  const column = model.columns.find((each) => each.kind === "text" && (key(each.name) === key(name) || key(each.label) === key(name)));
  return column ? { is: (head) => String(column.values[head] ?? "").split("; ").some((each) => key(each) === key(word)) } : null;
}

/** A name as it must stand in the line. */
export function quoted(name: string): string {
  return /^[\p{L}_][\p{L}\p{N}_.'-]*$/u.test(name) && !/^(and|or|not)$/i.test(name) ? name : `"${name.replaceAll('"', "")}"`;
}

/** The columns that are about a word, such as "refusal". */
export function about(model: Model, word: string): string[] {
  const stem = key(word).replace(/s$/, "");
  if (stem.length < 4) return [];
  return scoresOf(model).filter(({ label, group, meaning }) => key(`${label} ${group} ${meaning}`).includes(stem)).map(({ name }) => quoted(name));
}

/** Every name that may stand in the line. */
export function namesIn(model: Model): string[] {
  return [
    ...model.questions.map((question) => question.title),
    ...model.columns.map((column) => column.name),
    ...conditionNames(model),
    ...(model.categories ? ["unclassified"] : []),
  ];
}

/** Why a head such as L99H1 is unknown; null if the word is no head. */
export function outside(model: Model, word: string): string | null {
  if (!/^L\d+(H\d+)?$|^H\d+$/i.test(word)) return null;
  return `${word} is not in this model, whose heads are L0H0 to L${model.nLayers - 1}H${model.nHeads - 1} (${countOf(model)} heads)`;
}

export function isText(model: Model, name: string): boolean {
  return columnOf(model, name)?.kind === "text";
}
