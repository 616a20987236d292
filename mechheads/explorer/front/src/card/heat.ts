/** Which part of a large heat map is on the screen, and what to draw of it. */
import type { Sparse } from "./sparse";

/** A square window on a map of n x n cells: its first query and key, and how many cells it spans. */
export interface Window {
  readonly query: number;
  readonly key: number;
  readonly span: number;
}

const LEAST = 4;

export function whole(n: number): Window {
  return { query: 0, key: 0, span: Math.max(n, 1) };
}

/** The window moved and shrunk so that it lies on the map. */
export function within(n: number, { query, key, span }: Window): Window {
  const size = Math.min(Math.max(span, Math.min(LEAST, n)), Math.max(n, 1));
  const place = (start: number) => Math.min(Math.max(start, 0), Math.max(n - size, 0));
  return { query: place(query), key: place(key), span: size };
}

/** Zoom by a factor (above 1 goes closer) around a point of the map, which stays where it is on the screen. */
export function zoom(n: number, from: Window, factor: number, query: number, key: number): Window {
  const span = within(n, { ...from, span: from.span / factor }).span;
  const share = span / from.span;
  return within(n, { query: query - (query - from.query) * share, key: key - (key - from.key) * share, span });
}

/** The window with a cell brought into sight. */
export function reveal(n: number, from: Window, query: number, key: number): Window {
  const move = (start: number, at: number) => Math.min(Math.max(start, at + 1 - from.span), at);
  return within(n, { query: move(from.query, query), key: move(from.key, key), span: from.span });
}

/** Whether a cell is in sight. */
export function inside(window: Window, query: number, key: number): boolean {
  const seen = (start: number, at: number) => at >= start && at < start + window.span;
  return seen(window.query, query) && seen(window.key, key);
}

/** The cell under a point of the drawing, or null outside the map or above the diagonal. */
export function cellAt(n: number, window: Window, size: number, x: number, y: number): [number, number] | null {
  const key = Math.floor(window.key + (x / size) * window.span);
  const query = Math.floor(window.query + (y / size) * window.span);
  return key >= 0 && query >= 0 && query < n && key <= query ? [query, key] : null;
}

/** The order in which entries are drawn: the largest last, so that nothing hides them when cells are below a pixel. */
export function drawOrder({ weights }: Sparse): Uint32Array {
  return Uint32Array.from(weights.keys()).sort((a, b) => Math.abs(weights[a] ?? 0) - Math.abs(weights[b] ?? 0));
}

/** The query of each entry. */
export function queriesOf({ starts, keys }: Sparse): Uint16Array {
  const found = new Uint16Array(keys.length);
  for (let query = 0; query + 1 < starts.length; query++) found.fill(query, starts[query], starts[query + 1]);
  return found;
}

/** How dark a cell is, from 0 to 1: the root of the size of its weight, so that a tenth is still seen. */
export function shade(weight: number): number {
  return Math.sqrt(Math.min(Math.abs(weight), 1));
}

/** The interval of labels, in tokens, at which each label has `least` pixels. */
export function labelStep(span: number, size: number, least: number): number {
  const need = (least * span) / size;
  if (need <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(need));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= need) ?? Math.ceil(need);
}
