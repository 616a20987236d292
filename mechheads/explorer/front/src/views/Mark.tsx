/** One head as a mark: its categories by hue and shape, or a number by its shade. */
import type { Model } from "../data";
import { DOT, looksOf, type Look } from "../categories";
import { shadeOf } from "../shade";
import { state } from "../state";
import { numbersOf } from "../table";

export interface Drawn {
  /** Classes of the mark. */
  readonly look: string;
  /** Of its categories; empty for none. */
  readonly looks: readonly Look[];
  /** Place on the colour scale in percent. */
  readonly share: number | null;
}

/** How a head is drawn if colour stands for the column `colour`, or for categories if it is "". */
export function drawnAs(model: Model, head: number, colour: string): Drawn {
  const numbers = colour ? numbersOf(model, colour) : null;
  if (numbers) {
    const { kind, share } = shadeOf(numbers, head);
    return { look: kind, looks: [], share };
  }
  const looks = looksOf(model, head, state.oneColour.value);
  return looks.length ? categorical(looks) : { look: model.categories && !model.categories.of[head] ? "is-missing" : "is-none", looks, share: null };
}

/** The mark of some categories. */
export function categorical(looks: readonly Look[]): Drawn {
  return { look: looks.length > 1 ? "is-several" : "is-category", looks, share: null };
}

/** Inline properties, set one by one as a content security policy allows. */
export function paint({ looks, share }: Drawn): Record<string, string> {
  if (looks.length) return { "--hue": looks[0]?.hue ?? "" };
  return share === null ? {} : { "--share": `${share.toFixed(1)}%` };
}

export function shapeOf({ looks }: Drawn): string {
  return looks[0]?.shape ?? DOT;
}

/** What a cell of the map holds: its hues, cut diagonally if it has several categories, and their shapes. */
export function CellMark({ drawn, width, height, rounded }: { drawn: Drawn; width: number; height: number; rounded: boolean }) {
  const { looks } = drawn;
  const size = Math.min(width, height) * (GLYPHS[looks.length] ?? 0.1);
  const [w, h] = [width - 1, height - 1];
  const places = looks.length > 1 ? bands(looks.length) : [];
  return (
    <>
      {places.map(({ corners }, at) => (
        <polygon key={at} class="mh-band" style={{ "--hue": looks[at]?.hue ?? "" }} points={corners.map(([x, y]) => `${(0.5 + x * w).toFixed(2)} ${(0.5 + y * h).toFixed(2)}`).join(" ")} />
      ))}
      <rect x="0.5" y="0.5" width={w} height={h} rx={rounded ? 2 : 0} />
      {looks.map(({ shape }, at) => {
        const [x, y] = places[at]?.middle ?? [0.5, 0.5];
        return <path key={at} d={shape} transform={`translate(${(0.5 + x * w).toFixed(2)} ${(0.5 + y * h).toFixed(2)}) scale(${size.toFixed(2)})`} />;
      })}
    </>
  );
}

/** How large a shape is beside the smaller side of its cell, for 1, 2 and 3 of them. */
const GLYPHS = [0, 0.26, 0.19, 0.13];

type Point = readonly [x: number, y: number];

interface Band {
  readonly corners: readonly Point[];
  readonly middle: Point;
}

/**
 * The unit square, cut into `n` parts of the same size by lines from lower left to upper right; the first is at the upper left.
 * A line holds the points with x + y = s. Up to s = 1 it cuts off a triangle of size s * s / 2. `explorer/page.py` cuts so too.
 */
function bands(n: number): Band[] {
  const cut = (share: number) => (share <= 0.5 ? Math.sqrt(2 * share) : 2 - Math.sqrt(2 * (1 - share)));
  return Array.from({ length: n }, (_, at) => {
    const [from, to] = [cut(at / n), cut((at + 1) / n)];
    const ends = (s: number): [Point, Point] => (s <= 1 ? [[s, 0], [0, s]] : [[1, s - 1], [s - 1, 1]]);
    const [a, b] = ends(from);
    const [c, d] = ends(to);
    const corners: Point[] = [a, ...(from < 1 && to > 1 ? [[1, 0] as const] : []), c, d, ...(from < 1 && to > 1 ? [[0, 1] as const] : []), b];
    const middle = at === 0 ? to / 3 : at === n - 1 ? 1 - (2 - from) / 3 : (from + to) / 4;
    return { corners, middle: [middle, middle] };
  });
}

/** A point of the scatter: its shape, or a disc of as many sectors as it has categories. */
export function PointMark({ drawn, ...about }: { drawn: Drawn } & Record<string, unknown>) {
  const { looks } = drawn;
  if (looks.length < 2) return <path {...about} class={`mh-point ${drawn.look}`} d={shapeOf(drawn)} style={paint(drawn)} />;
  return (
    <g {...about} class={`mh-point ${drawn.look}`}>
      {looks.map(({ hue }, at) => <path key={at} d={sector(at, looks.length)} style={{ "--hue": hue }} />)}
    </g>
  );
}

function sector(at: number, n: number): string {
  const point = (turn: number) => `${(1.05 * Math.sin(2 * Math.PI * turn)).toFixed(3)} ${(-1.05 * Math.cos(2 * Math.PI * turn)).toFixed(3)}`;
  // Two halves are cut as the cells of the map are.
  const start = n === 2 ? 0.125 : 0;
  const [from, to] = [start - (at + 1) / n, start - at / n];
  return `M0 0L${point(from)}A1.05 1.05 0 0 1 ${point(to)}Z`;
}
