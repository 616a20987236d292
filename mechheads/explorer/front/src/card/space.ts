/** What the space of a head looks like: coordinates, kinds of tokens, and how a cloud fits into a square. */
import type { Cloud, Space, SpacePane } from "../data";

const SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Numbers from 0 to 1 that stand as signs of base64, one for each. */
export function unpacked(text: string): number[] {
  return Array.from(text, (sign) => Math.max(SIGNS.indexOf(sign), 0) / 63);
}

export interface Place {
  readonly x: number;
  readonly y: number;
}

/** The coordinates of every token. */
export function places({ points, ends: [[left, right], [bottom, top]] }: Cloud): Place[] {
  const shares = unpacked(points);
  const n = shares.length / 2;
  return Array.from({ length: n }, (_, at) => ({
    x: left + (right - left) * (shares[at] ?? 0),
    y: bottom + (top - bottom) * (shares[n + at] ?? 0),
  }));
}

/** Maps of both coordinates into a square with a margin, on one scale, so that distances can be compared. */
export function square({ ends: [across, up] }: Cloud, size: number, margin: number): { x: (value: number) => number; y: (value: number) => number } {
  const widest = Math.max(across[1] - across[0], up[1] - up[0]) || 1;
  const per = (size - 2 * margin) / widest;
  const middle = ([low, high]: readonly [number, number]) => (low + high) / 2;
  return { x: (value) => size / 2 + (value - middle(across)) * per, y: (value) => size / 2 - (value - middle(up)) * per };
}

/** The cloud of q, k or z of a head; a head that shares its keys has the k of another. */
export function cloudOf(space: Space, pane: SpacePane, which: "q" | "k" | "z"): Cloud | null {
  const found = pane[which];
  if (typeof found !== "string") return found;
  const other = space.heads[found]?.k;
  return other === undefined || typeof other === "string" ? null : other;
}

/** The tokens that are shown, as numbers of words. */
export function wordsOf({ windows, window, position }: Space): number[] {
  return window.map((at, dot) => windows[at]?.[position[dot] ?? 0] ?? 0);
}

export const KINDS = ["a word after a space", "letters without a space before", "a number", "punctuation or a line end"] as const;

/** The kind of a token, as its place in `KINDS`. */
export function kindOf(token: string): number {
  if (/\p{N}/u.test(token)) return 2;
  if (/\p{L}/u.test(token)) return /^\s/u.test(token) ? 0 : 1;
  return 3;
}
