/** Lines that the search line understands in a model, as examples. */
import { nameOf } from "../card/heads";
import type { Model } from "../data";
import { numbersOf, usual } from "../table";
import { quoted } from "./names";
import { understand } from "./parse";

export interface Example {
  readonly line: string;
  readonly what: string;
}

const NUMBERS = "numbers of any column; the beginning of its name is enough";

const LINES: readonly (readonly [line: string, what: string])[] = [
  ["induction", "what heads are called on text"],
  ["Knowledge, Linguistic", "categories, which a click in the legend chooses too; a comma means or"],
  ["country_to_capital", "heads whose weights implement a relation"],
  ["country_to_capital > 0.3", "phi of a relation"],
  ["capital and patching > 0.2", "the heads in the table of a question, and a second condition"],
  ["patching > 0.2", NUMBERS],
  ["0.1 < phi < 0.5", "between two numbers"],
  ["q < .05", "the smallest q of any view"],
  ["patching", "the heads in the tables by this measure"],
  ["not (L0 or L1) and names = induction", "not, or, and, parentheses"],
];
const PLACEHOLDER = ["induction", "patching > 0.2"];

/** The first head, the reader's own scores, then what the model has: of one without names, its numbers. */
export function examplesOf(model: Model): Example[] {
  const name = nameOf(model, Math.max(0, numbersOf(model, usual(model).by)?.ranks.indexOf(1) ?? 0));
  const known = LINES.filter(([line]) => understand(line, model).error === null).map(([line, what]) => ({ line, what }));
  const head = { line: name, what: `one head; ${name.replace(/H.*/, "")} is its layer` };
  const own = model.questions.find(({ kind, rows }) => kind === "own" && rows.length > 0);
  if (own) {
    const mine = [{ line: above(model, own.view ?? "", 0.9), what: NUMBERS }, { line: quoted(own.title), what: "the heads in the table of a question" }];
    return [head, ...mine, ...known.filter(({ what }) => what !== NUMBERS)];
  }
  return known.length ? [head, ...known] : [head, ...ofNumbers(model)];
}

/** What stands in the empty line. */
export function placeholderOf(model: Model): string {
  const [head, ...others] = examplesOf(model).map(({ line }) => line);
  const first = PLACEHOLDER.filter((line) => others.includes(line));
  return [head, ...(first.length === PLACEHOLDER.length ? first : others.slice(0, 2))].join(", ");
}

/** Conditions that some of the heads meet. */
function ofNumbers(model: Model): Example[] {
  const { x, by } = usual(model);
  return [
    { line: above(model, by, 0.9), what: NUMBERS },
    { line: `${above(model, by, 0.75)} and not ${above(model, x, 0.5)}`, what: "and, or, not, parentheses" },
  ];
}

function above(model: Model, name: string, share: number): string {
  return `${quoted(name)} > ${Number(quantile(numbersOf(model, name)?.values, share).toPrecision(1))}`;
}

function quantile(values: Float64Array | undefined, share: number): number {
  const order = values?.filter(Number.isFinite).sort() ?? new Float64Array();
  return order[Math.floor(share * (order.length - 1))] ?? 0;
}
