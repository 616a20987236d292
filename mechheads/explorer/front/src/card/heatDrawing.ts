/** Draws a window of a heat map of attention, on a canvas or as SVG. */
import { drawOrder, labelStep, queriesOf, shade, type Window } from "./heat";
import type { Sparse } from "./sparse";
import { asLabel } from "./tokens";

export interface Place {
  readonly query: number;
  readonly key: number;
}

export interface Look {
  /** CSS colours. */
  readonly ink: string;
  readonly faint: string;
  readonly cell: string;
  /** The colour of a cell below 0. */
  readonly below: string;
  readonly mark: string;
  readonly font: string;
}

/** Where the map lies in the drawing: labels are to its left and below it. */
export interface Frame {
  /** The side of the map. */
  readonly size: number;
  readonly left: number;
  readonly below: number;
}

/** Pixels between labels, and from a label to the edge. */
const LABEL = 14;
const EDGE = 5;
/** Smaller cells are drawn larger, to be seen. */
const SMALLEST = 1.25;

/** A map that is ready to be drawn again and again. */
export interface Prepared {
  readonly from: Sparse;
  readonly order: Uint32Array;
  readonly queries: Uint16Array;
}

export function prepare(from: Sparse): Prepared {
  return { from, order: drawOrder(from), queries: queriesOf(from) };
}

/** What can be drawn on: a canvas, or a list of SVG elements. */
interface Pen {
  box(x: number, y: number, width: number, height: number, colour: string, opacity: number): void;
  text(text: string, x: number, y: number, colour: string, turned: boolean): void;
  line(points: readonly (readonly [number, number])[], colour: string): void;
  frame(x: number, y: number, width: number, height: number, colour: string): void;
}

export function draw(pen: Pen, map: Prepared, window: Window, frame: Frame, look: Look, at: Place | null): void {
  drawCells(pen, map, window, frame, look);
  drawMarks(pen, map, window, frame, look, at);
}

/** What changes only if the window does. */
export function drawCells(pen: Pen, { from, order, queries }: Prepared, window: Window, frame: Frame, look: Look): void {
  const { size, left } = frame;
  const cell = size / window.span;
  const x = (key: number) => left + (key - window.key) * cell;
  const y = (query: number) => (query - window.query) * cell;
  const side = Math.max(cell, SMALLEST);
  for (const entry of order) {
    const query = queries[entry] ?? 0;
    const key = from.keys[entry] ?? 0;
    if (query + 1 <= window.query || key + 1 <= window.key) continue;
    if (query >= window.query + window.span || key >= window.key + window.span) continue;
    const [start, top] = [Math.max(x(key), left), Math.max(y(query), 0)];
    const right = Math.min(x(key) + side, left + size);
    const bottom = Math.min(y(query) + side, size);
    const weight = from.weights[entry] ?? 0;
    pen.box(start, top, right - start, bottom - top, weight < 0 ? look.below : look.cell, shade(weight));
  }
  diagonal(pen, window, frame, look, cell);
  pen.frame(left, 0, size, size, look.faint);
}

/** Labels, and the mark of a cell. */
export function drawMarks(pen: Pen, { from }: Prepared, window: Window, frame: Frame, look: Look, at: Place | null): void {
  labels(pen, from, window, frame, look, at);
  if (!at) return;
  const cell = frame.size / window.span;
  const [x, y] = [frame.left + (at.key - window.key) * cell, (at.query - window.query) * cell];
  const side = Math.max(cell, SMALLEST) + 2;
  if (x >= frame.left - 1 && y >= -1 && x < frame.left + frame.size && y < frame.size) pen.frame(x - 1, y - 1, side, side, look.mark);
}

/** The diagonal, above which there is nothing: no query sees a later key. */
function diagonal(pen: Pen, window: Window, { size, left }: Frame, look: Look, cell: number): void {
  const offset = (window.query - window.key) * cell;
  const clip = (value: number) => Math.min(Math.max(value, 0), size);
  const start: [number, number] = [left + clip(offset + cell), clip(-offset - cell)];
  const end: [number, number] = [left + clip(size + offset + cell), clip(size - offset - cell)];
  if (end[0] > start[0]) pen.line([start, end], look.faint);
}

function labels(pen: Pen, from: Sparse, window: Window, { size, left, below }: Frame, look: Look, at: Place | null): void {
  const cell = size / window.span;
  const step = labelStep(window.span, size, LABEL);
  const most = Math.max(3, Math.floor(left / 6.6) - 1);
  const name = (token: number) => (step === 1 ? asLabel(from.tokens[token] ?? "", most) : String(token));
  const first = (start: number) => Math.ceil(start / step) * step;
  const near = (token: number, place: number | undefined) => place !== undefined && Math.abs(token - place) * cell < LABEL;
  const side = (start: number, place: number | undefined, write: (token: number, middle: number, colour: string, text: string) => void) => {
    for (let token = first(start); token < Math.min(start + window.span, from.tokens.length); token += step) {
      const middle = Math.max((token + 0.5 - start) * cell, EDGE);
      if (middle <= size - EDGE / 2 && !near(token, place)) write(token, middle, look.ink, name(token));
    }
    if (place === undefined) return;
    const middle = (place + 0.5 - start) * cell;
    if (middle >= 0 && middle <= size) write(place, middle, look.mark, asLabel(from.tokens[place] ?? "", most));
  };
  side(window.query, at?.query, (_, middle, colour, text) => pen.text(text, left - 5, middle, colour, false));
  if (below) side(window.key, at?.key, (_, middle, colour, text) => pen.text(text, left + middle, size + 6, colour, true));
}

export function canvasPen(context: CanvasRenderingContext2D, look: Look): Pen {
  context.font = look.font;
  context.textAlign = "right";
  context.textBaseline = "middle";
  let fill = "";
  let alpha = 1;
  const opaque = () => (context.globalAlpha = alpha = 1);
  return {
    box(x, y, width, height, colour, opacity) {
      if (colour !== fill) context.fillStyle = fill = colour;
      if (opacity !== alpha) context.globalAlpha = alpha = opacity;
      context.fillRect(x, y, width, height);
    },
    text(text, x, y, colour, turned) {
      opaque();
      context.fillStyle = fill = colour;
      context.save();
      context.translate(x, y);
      if (turned) context.rotate(-Math.PI / 2);
      context.fillText(text, 0, 0);
      context.restore();
    },
    line(points, colour) {
      opaque();
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.beginPath();
      points.forEach(([x, y]) => context.lineTo(x, y));
      context.stroke();
    },
    frame(x, y, width, height, colour) {
      opaque();
      context.strokeStyle = colour;
      context.lineWidth = 1.5;
      context.strokeRect(x, y, width, height);
    },
  };
}

export function svgPen(svg: SVGSVGElement, look: Look): Pen {
  const add = (name: string, values: Record<string, string | number>, text?: string) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) element.setAttribute(key, String(value));
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };
  return {
    box: (x, y, width, height, fill, opacity) => add("rect", { x, y, width, height, fill, "fill-opacity": opacity }),
    text(text, x, y, fill, turned) {
      const transform = `translate(${x} ${y})${turned ? " rotate(-90)" : ""}`;
      const font = { "font-family": "sans-serif", "font-size": parseFloat(look.font) || 11 };
      add("text", { transform, fill, "text-anchor": "end", "dominant-baseline": "central", ...font }, text);
    },
    line: (points, stroke) => add("polyline", { points: points.map((each) => each.join(",")).join(" "), stroke, fill: "none" }),
    frame: (x, y, width, height, stroke) => add("rect", { x, y, width, height, stroke, fill: "none", "stroke-width": 1.5 }),
  };
}
