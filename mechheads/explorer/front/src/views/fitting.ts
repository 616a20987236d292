/** Which columns of the table there is room for, and how wide each is. */
import { nameOf } from "../card/heads";
import { chance, exact, placesOf, showTo } from "../card/numbers";
import type { Column, Model } from "../data";
import { countOf } from "../page";
import { columnOf, numbersOf, shortened, usual, usualColumns } from "../table";

/** A column of the table; null is the column of the heads' names. */
export interface Fitted {
  readonly column: Column | null;
  readonly width: number;
}

/** Left and right of a cell's text, in pixels; the style sheet has the same. */
const PADDING = 2 * 10;
/** Texts wider than this share of the table, within these pixels, are cut off. */
const WIDEST = { share: 0.3, least: 110, most: 180 };

/** What a cell shows: the numbers of a column all have the decimals that its widest interval earns, and one more. */
export function cellText(model: Model, column: Column, head: number): string {
  const value = column.values[head];
  if (typeof value !== "number") return value ? value : "\u2013";
  if (column.role === "place") return String(value);
  return column.role === "p" || column.role === "q" ? chance(value) : showTo(value, decimalsOf(model, column));
}

const decimals = new WeakMap<Column, number>();

function decimalsOf(model: Model, column: Column): number {
  let found = decimals.get(column);
  if (found === undefined) {
    const ends = endsOf(model, column);
    const rows = column.values.map((value, head) => ({ value: typeof value === "number" ? value : null, low: ends?.low?.[head], high: ends?.high?.[head] }));
    decimals.set(column, (found = Math.max(0, placesOf(rows, 1))));
  }
  return found;
}

/** The same to the last digit, with what it measures. */
export function cellTitle(model: Model, column: Column, head: number): string | undefined {
  const value = column.values[head];
  if (value === null || value === undefined || value === "") return undefined;
  const numbers = numbersOf(model, column.name);
  const text = typeof value === "number" ? exact(value, numbers?.low?.[head], numbers?.high?.[head]) : value;
  return `${column.label}: ${text}${column.unit && ` ${column.unit}`}`;
}

/** The interval of a column, or of the value that it belongs to. */
function endsOf(model: Model, column: Column): { low: Float64Array | null; high: Float64Array | null } | null {
  return numbersOf(model, column.role === "low" || column.role === "high" ? (column.of ?? "") : column.name);
}

const drawing = document.createElement("canvas").getContext("2d");
const known = new WeakMap<Model, Map<string, number>>();

/** The width and the font of the table. */
export interface Room {
  readonly width: number;
  /** In the form that a canvas takes. */
  readonly font: string;
}

/** The width of a column in pixels: of its heading and of its longest text. */
function widthOf(model: Model, column: Column | null, { width: room, font }: Room): number {
  let mine = known.get(model);
  if (!mine) known.set(model, (mine = new Map()));
  const key = `${column?.name ?? ""} ${font}`;
  let width = mine.get(key);
  if (width === undefined) {
    const texts = Array.from({ length: countOf(model) }, (_, head) => (column ? cellText(model, column, head) : nameOf(model, head)));
    const longest = texts.reduce((a, b) => (b.length > a.length ? b : a), "");
    const wide = (text: string, bold: boolean) => {
      if (!drawing) return 8 * text.length;
      drawing.font = `${bold ? "600 " : ""}${font}`;
      return drawing.measureText(text).width;
    };
    const heading = wide(column ? shortened(column.label) : "Head", true);
    mine.set(key, (width = Math.ceil(Math.max(heading, 1.03 * wide(longest, column === null))) + PADDING));
  }
  if (column?.kind !== "text") return width;
  return Math.min(width, Math.max(WIDEST.least, Math.min(WIDEST.most, WIDEST.share * room)));
}

/** The columns of these names with their widths; the heads' names come first. */
export function fitted(model: Model, names: readonly string[], room: Room): Fitted[] {
  const columns = [null, ...names.flatMap((name) => columnOf(model, name) ?? [])];
  return columns.map((column) => ({ column, width: widthOf(model, column, room) }));
}

/** Of the usual columns those that there is room for: first what heads are ranked by, then categories, names and views. */
export function fitting(model: Model, room: Room): string[] {
  const all = usualColumns(model);
  const texts = all.filter((name) => columnOf(model, name)?.kind === "text");
  const first = [usual(model).by, ...["categories", "names"].filter((name) => texts.includes(name))];
  const order = [...first.filter((name) => all.includes(name)), ...all.filter((name) => !texts.includes(name)), ...texts];
  let left = room.width - widthOf(model, null, room);
  const taken = new Set<string>();
  for (const name of order) {
    const column = columnOf(model, name);
    const width = column && !taken.has(name) ? widthOf(model, column, room) : Infinity;
    if (width > left) continue;
    left -= width;
    taken.add(name);
  }
  return all.filter((name) => taken.has(name));
}
