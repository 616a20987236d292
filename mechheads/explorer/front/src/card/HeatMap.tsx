/** A heat map of attention, or of the difference of two: zoom by wheel, keys or buttons, move by dragging, read by pointer or arrow keys. */
import { useMemo, useRef, useState } from "preact/hooks";

import { lookOf, useDrag, usePaint, useWheel } from "./canvas";
import { cellAt, inside, reveal, whole, within, zoom, type Window } from "./heat";
import { canvasPen, draw, drawCells, drawMarks, prepare, svgPen, type Frame, type Place } from "./heatDrawing";
import { percent } from "./numbers";
import { Figure, useWidth } from "./parts";
import { leftAtMost, row, weightAt, type Sparse } from "./sparse";
import { asChip } from "./tokens";
import { TokenRail } from "./TokenRail";

const STEP = 1.5;
const LARGEST = 640;
const LARGEST_CELL = 40;

interface Props {
  attention: Sparse;
  /** The name of the files that are saved. */
  name: string;
  /** The query that is marked at first. */
  query?: number | null;
  /** Whether `attention` is a difference. */
  signed?: boolean;
  /** Called when the reader fixes a cell by a click or a key. */
  onCell?: (place: Place) => void;
}

export function HeatMap({ attention, name, query, onCell, signed = false }: Props) {
  const n = attention.tokens.length;
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [window, setWindow] = useState<Window>(() => whole(n));
  const [at, setAt] = useState<Place | null>(() => startOf(attention, query ?? null));
  const ready = useMemo(() => prepare(attention), [attention]);
  const frame = frameOf(width, n);
  const toCell = (event: MouseEvent): Place | null => {
    const { left, top } = (event.currentTarget as Element).getBoundingClientRect();
    const found = cellAt(n, window, frame.size, event.clientX - left - frame.left, event.clientY - top);
    return found && { query: found[0], key: found[1] };
  };
  const point = (place: Place | null) => setAt((now) => (!place || (now && now.query === place.query && now.key === place.key) ? now : place));
  const drag = useDrag(frame.size, window, (moved) => setWindow((now) => (now.span === n ? now : within(n, moved))));
  const zoomBy = (factor: number, centre: Place | null = at && inside(window, at.query, at.key) ? at : null) => {
    const { query, key } = centre ?? { query: window.query + window.span / 2, key: window.key + window.span / 2 };
    setWindow((now) => zoom(n, now, factor, query + 0.5, key + 0.5));
  };
  const fix = (place: Place) => {
    setAt(place);
    setWindow((now) => reveal(n, now, place.query, place.key));
    onCell?.(place);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const stepsOf: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const step = stepsOf[event.key];
    if (step) {
      const start = at ?? { query: Math.floor(window.query + window.span / 2), key: Math.floor(window.key) };
      const query = Math.min(Math.max(start.query + (at ? step[0] : 0), 0), n - 1);
      const key = Math.min(Math.max(start.key + (at ? step[1] : 0), 0), query);
      fix({ query, key });
    } else if (event.key === "+" || event.key === "=") zoomBy(STEP);
    else if (event.key === "-") zoomBy(1 / STEP);
    else if (event.key === "0") setWindow(whole(n));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  usePaint(
    canvas,
    (context, look) => drawCells(canvasPen(context, look), ready, window, frame, look),
    [ready, window],
    (context, look) => drawMarks(canvasPen(context, look), ready, window, frame, look, at),
    [width, at],
  );
  useWheel(canvas, (event) => {
    const { left, top } = event.currentTarget.getBoundingClientRect();
    const share = (place: number) => window.span * (place / frame.size);
    const [query, key] = [window.query + share(event.clientY - top), window.key + share(event.clientX - left - frame.left)];
    if (event.deltaY > 0 && window.span === n) return false;
    setWindow(zoom(n, window, Math.exp(-event.deltaY / 300), query, key));
    return true;
  });
  const asSvg = () => {
    if (!canvas.current) return null;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const [w, h] = [frame.left + frame.size + 1, frame.size + frame.below];
    svg.setAttribute("width", String(w));
    svg.setAttribute("height", String(h));
    svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    const look = lookOf(canvas.current);
    draw(svgPen(svg, look), ready, window, frame, look, at);
    return svg;
  };
  return (
    <Figure name={name} caption={`Rows are queries, columns are keys. ${signed ? "Blue: more on the left; red: more on the right. Attention that was not kept counts as 0." : "The stronger the colour, the more attention."}`} asSvg={asSvg}>
      <div class="card-zoom">
        <button type="button" class="card-small" aria-label="Zoom in" onClick={() => zoomBy(STEP)}>
          +
        </button>
        <button type="button" class="card-small" aria-label="Zoom out" onClick={() => zoomBy(1 / STEP)}>
          {"\u2212"}
        </button>
        <button type="button" class="card-small" disabled={window.span === n} onClick={() => setWindow(whole(n))}>
          show all
        </button>
        <Legend />
      </div>
      <div class="card-map">
        <div ref={box} class="card-wide">
          <canvas
            ref={canvas}
            class={`card-drawing card-heat${window.span < n ? " card-heat-close" : ""}`}
            role="application"
            aria-roledescription="heat map"
            tabIndex={0}
            aria-label={`${signed ? "Difference of the attention" : "Attention"} between ${n} tokens. Arrow keys move the marked cell, plus and minus zoom, 0 shows all.`}
            width={1}
            height={1}
            style={{ width: `${frame.left + frame.size + 2}px`, height: `${frame.size + frame.below}px` }}
            onKeyDown={onKey}
            onPointerDown={drag.start}
            onPointerMove={(event) => (drag.move(event) ? undefined : point(toCell(event)))}
            onPointerUp={(event) => {
              const place = drag.end(event) ? null : toCell(event);
              if (place) fix(place);
            }}
            onPointerCancel={drag.end}
            onDblClick={(event) => zoomBy(STEP * STEP, toCell(event))}
          />
        </div>
        <div>
          <p class="card-readout" aria-live="polite">
            {at ? said(attention, at, signed) : "Point at a cell, or use the arrow keys. Wheel, + and \u2212 zoom; drag to move."}
          </p>
          <TokenRail attention={attention} at={at} onChoose={fix} />
        </div>
      </div>
    </Figure>
  );
}

/** The key that a query attends to most, besides the first token. */
function startOf(attention: Sparse, query: number | null): Place | null {
  if (query === null || query >= attention.tokens.length) return null;
  const best = row(attention, query).reduce((a, b) => (b.key !== 0 && Math.abs(b.weight) > Math.abs(a.weight) ? b : a), { query, key: 0, weight: 0 });
  return { query, key: best.key };
}

/** Room for labels, and a square map for n tokens. */
function frameOf(width: number, n: number): Frame {
  const left = width < 480 ? 50 : 76;
  return { left, below: left, size: Math.max(Math.min(width - left - 4, LARGEST, n * LARGEST_CELL), 40) };
}

function said(attention: Sparse, { query, key }: Place, signed: boolean): string {
  const weight = weightAt(attention, query, key);
  const token = (place: number) => `\u201c${asChip(attention.tokens[place] ?? "")}\u201d (${place})`;
  if (signed) return `${token(query)} gives ${token(key)} ${weight === null ? "as much of its attention on both sides, or too little to be kept" : `${percent(Math.abs(weight))} more of its attention on the ${weight > 0 ? "left" : "right"}`}`;
  const value = weight === null ? `at most ${percent(leftAtMost(attention, query))} (not kept)` : percent(weight);
  return `${token(query)} gives ${token(key)} of its attention: ${value}`;
}

function Legend() {
  return (
    <span class="card-scale" role="img" aria-label="Scale: the strength of the colour is the square root of the attention">
      <span>0</span>
      <span class="card-scale-light" />
      <span>25%</span>
      <span class="card-scale-strong" />
      <span>100%</span>
    </span>
  );
}
