/**
 * What the reader has chosen. All of it but the hovered head stands in the address, so that a link shows the same.
 *
 * A pane reads `state.pane.value`, and calls `choose({ pane: "cause" })` to change it. Heads are numbers: layer * nHeads + head; in
 * the address they have their names.
 */
import { batch, signal, type Signal } from "@preact/signals";

export interface Values {
  /** The head whose card is open. */
  head: number | null;
  pins: readonly number[];
  /** The key of the question that is open; empty: that of the column that colours the map, or the first. */
  question: string;
  /** Names of columns; empty: the usual ones. */
  x: string;
  y: string;
  /** "" stands for categories, or for no colour; null for what is usual. */
  colour: string | null;
  /** What was typed into the search line. */
  filter: string;
  /** The column that the table is sorted by, with "-" in front for the largest first; "" for heads in order, null for what is usual. */
  sort: string | null;
  /** Columns of the table; none stands for the usual ones. */
  columns: readonly string[];
  /** How many heads with the largest values of the column `by` are marked; null for all. */
  top: number | null;
  by: string;
  /** A head of several categories has one colour that says how many, as in the paper. */
  oneColour: boolean;
  /** The open pane of the card. */
  pane: string;
  /** In the patterns of the card: the number of a prompt, of a token in it, and of the prompt beside it. */
  prompt: number | null;
  token: number | null;
  beside: number | null;
  /** In the texts of the card: the part of the head's activity. */
  part: string;
  /** The folded part of the page that was opened last, such as "circuits". */
  section: string;
}

/** The names of heads. */
export interface Naming {
  name(head: number): string;
  /** Null if there is no such head. */
  number(name: string): number | null;
}

const START: Values = {
  head: null,
  pins: [],
  question: "",
  x: "",
  y: "",
  colour: null,
  filter: "",
  sort: null,
  columns: [],
  top: null,
  by: "",
  oneColour: false,
  pane: "",
  prompt: null,
  token: null,
  beside: null,
  part: "",
  section: "",
};

type Signals = { readonly [K in keyof Values]: Signal<Values[K]> };

export const state: Signals = Object.fromEntries(Object.entries(START).map(([key, value]) => [key, signal(value)])) as Signals;

/** The head under the pointer or with the focus. Views mark it without drawing anew: `effect` on it and change classes. */
export const hovered = signal<number | null>(null);

let naming: Naming = { name: String, number: readNumber };

/** Write heads so in the address. */
export function nameHeads(by: Naming): void {
  naming = by;
}

/** Changes that the back button undoes; others replace the address. */
const STEPS: readonly (keyof Values)[] = ["head", "question"];

/** The values that a link in a sentence or a question sets. */
const LINKED = ["question", "x", "y", "colour", "filter", "sort", "top", "by", "section"] as const;

/** The state that a link opens; `link` has the keys and values of its address. */
export function linked(link: Readonly<Record<string, string>>): Values {
  return fromHash(new URLSearchParams(link).toString());
}

/** Open a link, and leave the open card and the rest as they are; the back button returns. */
export function follow(values: Values): void {
  choose(Object.fromEntries(LINKED.map((key) => [key, values[key]])), true);
}

/** Change some of what is chosen; `step`: the back button undoes it in any case. */
export function choose(changes: Partial<Values>, step = false): void {
  batch(() => {
    for (const key of Object.keys(changes) as (keyof Values)[]) {
      const to = changes[key];
      if (to === undefined || isSame(state[key].peek(), to)) continue;
      (state[key] as Signal<unknown>).value = to;
      step ||= STEPS.includes(key);
    }
  });
  remember(step);
}

/** Open the card of a head, and nothing else; null closes it. */
export function open(head: number | null, pane = state.pane.peek()): void {
  choose({ head, pane, token: null });
}

/** Pin a head, or take its pin away. */
export function pin(head: number): void {
  const pins = state.pins.peek();
  choose({ pins: pins.includes(head) ? pins.filter((each) => each !== head) : [...pins, head] });
}

// ---------------------------------------------------------------------------------------------- the address

function isSame(a: Values[keyof Values], b: Values[keyof Values]): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function write(value: Values[keyof Values]): string {
  if (value === null) return "";
  if (typeof value === "boolean") return value ? "1" : "0";
  if (Array.isArray(value)) return value.map((each) => (typeof each === "string" ? encodeURIComponent(each) : naming.name(each))).join(",");
  return String(value);
}

/** What is chosen, as the part of the address after "#". */
export function toHash(): string {
  return hashOf(Object.fromEntries(Object.entries(state).map(([key, each]) => [key, each.peek()])) as unknown as Values);
}

/** What differs from the start, as the part of an address after "#". */
export function hashOf(values: Values): string {
  const parts = new URLSearchParams();
  for (const key of Object.keys(START) as (keyof Values)[]) {
    const value = values[key];
    if (isSame(value, START[key])) continue;
    parts.set(key, key === "head" && value !== null ? naming.name(Number(value)) : write(value));
  }
  return parts.toString();
}

function readHeads(text: string): number[] {
  return text.split(",").flatMap((part) => naming.number(part) ?? []);
}

function readNumber(text: string): number | null {
  return /^\d{1,9}$/.test(text) ? Number(text) : null;
}

/** What an address says; all that is missing or makes no sense is as at the start. */
export function fromHash(hash: string): Values {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const values: Record<string, unknown> = { ...START };
  for (const [key, start] of Object.entries(START)) {
    const text = parts.get(key);
    if (text === null) continue;
    if (key === "head") values[key] = naming.number(text);
    else if (key === "pins") values[key] = readHeads(text);
    else if (key === "columns") values[key] = text.split(",").filter(Boolean).map(decoded);
    else if (typeof start === "boolean") values[key] = text === "1";
    else if (typeof start === "string" || key === "colour" || key === "sort") values[key] = text;
    else values[key] = text === "" ? null : (readNumber(text) ?? start);
  }
  return values as unknown as Values;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Whether the address is ours: not in a notebook, nor in a frame that has none. */
let ours = false;
let written = "";

/** Browsers refuse many changes of the address within seconds, as when a slider is moved: then it follows a little later. */
const MOST = 50;
const WITHIN = 10_000;
const LATER = 500;
let changed: number[] = [];
let waiting = false;

function remember(step: boolean): void {
  if (!ours || waiting) return;
  const now = performance.now();
  changed = changed.filter((time) => now - time < WITHIN);
  if (changed.length < MOST) {
    changed.push(now);
    put(step ? "pushState" : "replaceState");
    return;
  }
  waiting = true;
  setTimeout(() => {
    waiting = false;
    put("replaceState");
  }, LATER);
}

function put(how: "pushState" | "replaceState"): void {
  const hash = toHash();
  if (hash === written) return;
  written = hash;
  history[how](null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function take(values: Values): void {
  batch(() => {
    for (const key of Object.keys(values) as (keyof Values)[]) {
      if (!isSame(state[key].peek(), values[key])) (state[key] as Signal<unknown>).value = values[key];
    }
  });
  written = toHash();
}

/** Whether the address stores what is chosen. */
export function hasAddress(): boolean {
  return ours;
}

/**
 * Read the address now and whenever it changes. `mend` takes away what this page does not have; `saved` is the view that a saved
 * page opens at if its address names none.
 */
export function followAddress(mend: (values: Values) => Values, saved = ""): void {
  ours = /^(file|https?):$/.test(location.protocol);
  if (ours && saved && !location.hash) history.replaceState(null, "", `#${saved}`);
  const read = () => take(mend(fromHash(location.hash)));
  addEventListener("popstate", read);
  addEventListener("hashchange", read);
  read();
}

/** Set the choices for a page whose address names none. */
export function beginWith(values: Partial<Values>): void {
  Object.assign(START, values);
}

/** Start without an address, as in a notebook. */
export function startWith(mend: (values: Values) => Values): void {
  take(mend({ ...START }));
}
