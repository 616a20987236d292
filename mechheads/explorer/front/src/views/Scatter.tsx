/** Every head as a point: any column across, up and as colour. */
import { effect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";

import { tickText } from "../card/numbers";
import { useWidth } from "../card/parts";
import { useMarks } from "../marks";
import { countOf, model } from "../page";
import { keyOn, pointAt, pressed } from "../pointing";
import { headText } from "../say";
import { hovered, state } from "../state";
import { chosen, colourOf, numbersOf, titled, usual, type Numbers } from "../table";
import { axisOf, type Axis } from "./axis";
import { drawnAs, PointMark } from "./Mark";
import { focusMark, keepOneStop } from "./roving";

const LEFT = 58;
const BOTTOM = 44;
const TOP = 10;
const RIGHT = 12;
/** How near the pointer must be to a point, in pixels. */
const REACH = 24;

interface Point {
  readonly head: number;
  readonly x: number;
  readonly y: number;
}

export function Scatter() {
  const its = model.value;
  const usually = usual(its);
  const [across, up] = [chosen(its, state.x.value, usually.x), chosen(its, state.y.value, usually.y)];
  const colour = colourOf(its);
  const [x, y] = [numbersOf(its, across), numbersOf(its, up)];
  if (!x || !y) return <p class="mh-empty">This page has no numbers to draw.</p>;
  return <Plot x={x} y={y} colour={colour} />;
}

interface PlotProps {
  x: Numbers;
  y: Numbers;
  colour: string;
}

function Plot({ x, y, colour }: PlotProps) {
  const its = model.value;
  const [box, width] = useWidth<HTMLDivElement>();
  const svg = useRef<SVGSVGElement>(null);
  const rings = { hovered: useRef<SVGCircleElement>(null), open: useRef<SVGCircleElement>(null) };
  const bars = { x: useRef<SVGPathElement>(null), y: useRef<SVGPathElement>(null) };
  const height = Math.round(Math.max(260, Math.min(440, width * 0.72)));
  const { right, upward, points, left } = useMemo(() => {
    const right = axisOf(x, LEFT, width - RIGHT);
    const upward = axisOf(y, height - BOTTOM, TOP);
    const all = Array.from({ length: countOf(its) }, (_, head) => ({ head, x: right.at(x.values[head] ?? NaN), y: upward.at(y.values[head] ?? NaN) }));
    const points = all.filter((point) => !Number.isNaN(point.x) && !Number.isNaN(point.y));
    return { right, upward, points, left: all.length - points.length };
  }, [x, y, width, height]);
  useMarks(svg, [its, x, y, colour, width], (what, element) => {
    const ring = rings[what].current;
    const transform = element?.getAttribute("transform");
    ring?.classList.toggle("is-away", !transform);
    if (transform) ring?.setAttribute("transform", transform.replace(/ ?scale\(.*/, ""));
  });
  useEffect(
    () =>
      effect(() => {
        const head = hovered.value;
        bars.x.current?.setAttribute("d", head === null ? "" : whisker(x, right, head, (at) => `${at} ${upward.at(y.values[head] ?? NaN)}`));
        bars.y.current?.setAttribute("d", head === null ? "" : whisker(y, upward, head, (at) => `${right.at(x.values[head] ?? NaN)} ${at}`));
      }),
    [x, y, right, upward],
  );
  const radius = points.length > 2000 ? 3.2 : points.length > 600 ? 4 : 4.8;
  const nearest = (event: MouseEvent) => nearestTo(points, svg.current, event);
  const current = state.head.peek();
  const focusable = points.find(({ head }) => head === current)?.head ?? points[0]?.head;
  useLayoutEffect(() => keepOneStop(svg.current, focusable));
  return (
    <div class="mh-scatter" ref={box}>
      {width > 0 && (
        <svg
          ref={svg}
          class="mh-drawing"
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          onPointerMove={(event) => pointAt(nearest(event), event)}
          onPointerLeave={() => pointAt(null)}
          onClick={(event) => pressed(nearest(event), event)}
        >
          <Grid x={x} y={y} right={right} upward={upward} width={width} height={height} />
          <path class="mh-bar" ref={bars.x} />
          <path class="mh-bar" ref={bars.y} />
          <g
            role="listbox"
            aria-orientation="horizontal"
            aria-label={`Heads of ${its.name}: ${titled(x.column)} across, ${titled(y.column)} up. Left and right arrows go along the first, up and down along the second.`}
            onFocusIn={(event) => {
              const target = event.target as Element;
              pointAt(Number(target.getAttribute("data-head")), target);
            }}
            onFocusOut={() => pointAt(null)}
            onKeyDown={(event) => {
              keyOn(event);
              walk(event, points, svg.current);
            }}
          >
            {points.map((point) => (
              <PointMark
                key={point.head}
                drawn={drawnAs(its, point.head, colour)}
                role="option"
                data-head={point.head}
                tabindex={point.head === focusable ? 0 : -1}
                aria-selected="false"
                aria-label={headText(its, point.head, [...new Set([x.column.name, y.column.name])])}
                transform={`translate(${point.x.toFixed(1)} ${point.y.toFixed(1)}) scale(${radius})`}
              />
            ))}
          </g>
          <circle class="mh-ring is-open-ring is-away" ref={rings.open} r="9" aria-hidden="true" />
          <circle class="mh-ring is-away" ref={rings.hovered} r="9" aria-hidden="true" />
        </svg>
      )}
      {left > 0 && <p class="mh-note">{left === 1 ? "1 head is not drawn: it has no value here." : `${left.toLocaleString("en-US")} heads are not drawn: they have no value here.`}</p>}
    </div>
  );
}

function nearestTo(points: readonly Point[], svg: SVGSVGElement | null, event: MouseEvent): number | null {
  if (!svg) return null;
  const { left, top } = svg.getBoundingClientRect();
  const [x, y] = [event.clientX - left, event.clientY - top];
  let best: number | null = null;
  let least = REACH * REACH;
  for (const point of points) {
    const away = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (away < least) [best, least] = [point.head, away];
  }
  return best;
}

/** The interval of a value as a line, cut at the ends of the axis. */
function whisker({ low, high }: Numbers, axis: Axis, head: number, point: (at: number) => string): string {
  const [from, to] = [axis.at(low?.[head] ?? NaN), axis.at(high?.[head] ?? NaN)];
  const path = `M${point(from)}L${point(to)}`;
  return path.includes("NaN") ? "" : path;
}

function walk(event: KeyboardEvent, points: readonly Point[], svg: Element | null): void {
  const by = { ArrowLeft: "x", ArrowRight: "x", ArrowUp: "y", ArrowDown: "y" }[event.key] as "x" | "y" | undefined;
  const head = Number((event.target as Element).getAttribute("data-head"));
  if (!by || !svg) return;
  event.preventDefault();
  const order = points.toSorted((a, b) => a[by] - b[by] || a.head - b.head);
  const at = order.findIndex((point) => point.head === head);
  const to = order[at + (event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1)];
  if (to) focusMark(svg, to.head);
}

interface GridProps {
  x: Numbers;
  y: Numbers;
  right: Axis;
  upward: Axis;
  width: number;
  height: number;
}

function Grid({ x, y, right, upward, width, height }: GridProps) {
  const floor = height - BOTTOM;
  return (
    <g class="mh-axis" aria-hidden="true">
      {right.ticks.map((tick) => (
        <g key={tick} transform={`translate(${right.at(tick)} 0)`}>
          <path class="mh-gridline" d={`M0 ${TOP}V${floor}`} />
          <text y={floor + 15} text-anchor="middle">{tickText(tick)}</text>
        </g>
      ))}
      {upward.ticks.map((tick) => (
        <g key={tick} transform={`translate(0 ${upward.at(tick)})`}>
          <path class="mh-gridline" d={`M${LEFT} 0H${width - RIGHT}`} />
          <text x={LEFT - 6} y="4" text-anchor="end">{tickText(tick)}</text>
        </g>
      ))}
      <text class="mh-axis-title" x={(LEFT + width - RIGHT) / 2} y={height - 6} text-anchor="middle">{titled(x.column)}</text>
      <text class="mh-axis-title" transform={`translate(12 ${(TOP + floor) / 2}) rotate(-90)`} text-anchor="middle">{titled(y.column)}</text>
    </g>
  );
}
