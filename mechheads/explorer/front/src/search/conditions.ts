/** What can stand in the search line, as a menu. */
import type { Model, Question } from "../data";
import { quoted } from "./names";

interface Condition {
  readonly text: string;
  /** As it stands in the line. */
  readonly line: string;
}

interface Group {
  readonly label: string;
  readonly conditions: readonly Condition[];
}

export function conditionsOf({ behaviours, categories, questions }: Model): Group[] {
  const named = (names: readonly string[]) => names.map((name) => ({ text: name, line: quoted(name) }));
  const groups = [
    { label: "In the table of a question, of so many heads", conditions: questions.map(({ title, rows }) => inTable(title, title, rows)) },
    { label: "In a table by this measure, of so many heads", conditions: questions.filter(({ kind }) => kind !== "text" && kind !== "weights").flatMap(measures) },
    { label: "Does this on ordinary text", conditions: named(behaviours?.names.map(({ name }) => name) ?? []) },
    { label: "Category by weights", conditions: named(categories?.names ?? []) },
    { label: "Relation by weights", conditions: named(categories?.relations.map(({ name }) => name) ?? []) },
  ];
  return groups.filter(({ conditions }) => conditions.length > 0);
}

function measures({ rows }: Question): Condition[] {
  return [...new Map(rows.map(({ column, measured }) => [column, measured]))].map(([column, measured]) => inTable(measured, column, rows.filter((row) => row.column === column)));
}

function inTable(text: string, name: string, rows: Question["rows"]): Condition {
  return { text: `${text} (${new Set(rows.map(({ head }) => head)).size})`, line: quoted(name) };
}

/** The line with one more condition, which must hold too. */
export function withCondition(line: string, condition: string): string {
  const before = line.trim();
  if (!before) return condition;
  return `${/,|\||\bor\b/i.test(before) ? `(${before})` : before} and ${condition}`;
}

/** A line that ends with alternatives from some names, such as `phi > 0.2 and (Knowledge, Linguistic)`, taken apart. */
interface Ending {
  /** What must hold besides; "" for nothing. */
  readonly rest: string;
  readonly named: readonly string[];
}

function endingOf(line: string, names: readonly string[]): Ending {
  const typed = line.trim();
  const known = new Map(names.map((name) => [quoted(name).toLowerCase(), name]));
  const one = [...known.keys()].sort((a, b) => b.length - a.length).map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|");
  const list = `(?:${one})(?:\\s*(?:,|\\bor\\b)\\s*(?:${one}))*`;
  const whole = new RegExp(`^(?:${list}|\\(\\s*${list}\\s*\\))$`, "iu").test(typed);
  const after = new RegExp(`^(.*\\S)\\s+and\\s+((?:${one})|\\(\\s*${list}\\s*\\))$`, "isu").exec(typed);
  const [, rest = "", end = ""] = whole ? ["", "", typed] : (after ?? []);
  if (!end || !shapeOf(rest).closed || shapeOf(rest).either) return { rest: typed, named: [] };
  const found = end.match(new RegExp(one, "giu")) ?? [];
  return { rest: inner(rest), named: found.flatMap((each) => known.get(each.toLowerCase()) ?? []) };
}

/** Whether every parenthesis is closed in order, and whether an "or" stands outside of them. */
function shapeOf(line: string): { closed: boolean; either: boolean } {
  let [depth, least, either] = [0, 0, false];
  for (const [part] of line.matchAll(/"[^"]*"|[(),|]|\bor\b/gi)) {
    if (part === "(") depth++;
    else if (part === ")") least = Math.min(least, --depth);
    else if (!part.startsWith('"') && depth === 0) either = true;
  }
  return { closed: depth === 0 && least === 0, either };
}

/** A line without the parentheses around all of it. */
function inner(line: string): string {
  const found = /^\((.*)\)$/s.exec(line)?.[1]?.trim();
  return found !== undefined && shapeOf(found).closed ? found : line;
}

/** Which of some names the line ends with as alternatives. */
export function namedIn(line: string, names: readonly string[]): readonly string[] {
  return endingOf(line, names).named;
}

/**
 * The line after a name was chosen in a legend: it alone of `names`, or none of them if it was it alone. With `also`, it is added
 * to those that are chosen, or taken from them.
 */
export function toggled(line: string, names: readonly string[], name: string, also: boolean): string {
  const { rest, named } = endingOf(line, names);
  const had = named.includes(name);
  const next = also ? (had ? named.filter((each) => each !== name) : [...named, name]) : had && named.length === 1 ? [] : [name];
  const list = next.map(quoted).join(", ");
  if (!list) return rest;
  return rest ? withCondition(rest, next.length > 1 ? `(${list})` : list) : list;
}
