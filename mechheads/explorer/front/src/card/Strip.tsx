/** Strip plots: one dot for each prompt, and the mean with its interval. */
import { useState } from "preact/hooks";

import type { Num } from "../data";
import { extent, known, plural, scale, show, ticks, tickText, withInterval } from "./numbers";
import { Figure, useWidth } from "./parts";
import { spread } from "./spread";

export interface StripRow {
  readonly name: string;
  readonly values: readonly Num[];
  readonly mean: Num;
  readonly low: Num;
  readonly high: Num;
}

interface Props {
  /** The name of the files that are saved. */
  name: string;
  caption: string;
  unit: string;
  rows: readonly StripRow[];
  /** What each dot is, in the order of `values`; shown as plain text. */
  dots: (at: number) => string;
  /** What the dots are called: "prompt", "request", "fit". */
  of: string;
  domain?: readonly [number, number];
}

const ROW = 46;
const AXIS = 36;
const BAND = 28;
const RADIUS = 3.2;

export function Strip({ name, caption, unit, rows, dots, of, domain }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<{ row: number; dot: number } | null>(null);
  const label = width < 480 ? 0 : 164;
  const top = label ? 0 : 16;
  const height = rows.length * (ROW + top) + AXIS;
  const ends = domain ?? extent(rows.flatMap((row) => [...row.values, row.mean, row.low, row.high]), 0);
  const x = scale(ends, label + 10, Math.max(width - 12, label + 20));
  const chosen = at && rows[at.row]?.values[at.dot];
  const anyDot = rows.some(({ values }) => values.some(known));
  const said = at && known(chosen) ? `${show(chosen)} ${unit}: ${dots(at.dot)}` : null;
  return (
    <Figure name={name} caption={anyDot ? caption : "Line: mean"}>
      <div ref={box} class="card-wide">
        {width > 0 && (
          <svg class="card-drawing" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={caption}>
            <Axis x={x} ends={ends} from={0} to={height - AXIS} unit={unit} n={width < 480 ? 3 : 6} />
            {rows.map((row, index) => (
              <Row
                key={row.name}
                row={row}
                x={x}
                y={index * (ROW + top) + top + ROW / 2}
                width={width}
                labelled={label > 0}
                unit={unit}
                of={of}
                said={at?.row === index ? said : null}
                chosen={at?.row === index ? at.dot : null}
                onChoose={(dot) => setAt(dot === null ? null : { row: index, dot })}
              />
            ))}
          </svg>
        )}
      </div>
      <p class="card-readout" aria-live="polite">
        {said ?? (anyDot ? `Point at a dot, or use the arrow keys, to see its ${of}.` : `The value of each ${of} was not kept: lines are means.`)}
      </p>
    </Figure>
  );
}

interface AxisProps {
  x: (value: number) => number;
  ends: readonly [number, number];
  from: number;
  to: number;
  unit: string;
  n: number;
}

function Axis({ x, ends, from, to, unit, n }: AxisProps) {
  return (
    <g class="card-axis" aria-hidden="true">
      {ticks(ends, n).map((tick) => (
        <g key={tick}>
          <line class={tick === 0 ? "card-none" : "card-grid"} x1={x(tick)} x2={x(tick)} y1={from} y2={to} />
          <text x={x(tick)} y={to + 14} text-anchor="middle">
            {tickText(tick)}
          </text>
        </g>
      ))}
      <text x={(x(ends[0]) + x(ends[1])) / 2} y={to + 30} text-anchor="middle">
        {unit}
      </text>
    </g>
  );
}

interface RowProps {
  row: StripRow;
  x: (value: number) => number;
  y: number;
  width: number;
  labelled: boolean;
  unit: string;
  of: string;
  chosen: number | null;
  /** The chosen dot in words. */
  said: string | null;
  onChoose: (dot: number | null) => void;
}

function Row({ row, x, y, width, labelled, unit, of, chosen, said, onChoose }: RowProps) {
  const shown = row.values.map((value, dot) => ({ value, dot })).filter(({ value }) => known(value));
  const sorted = [...shown].sort((a, b) => Number(a.value) - Number(b.value));
  const heights = spread(shown.map(({ value }) => x(Number(value))), RADIUS * 2.1, ROW / 2 - RADIUS - 8);
  const place = sorted.findIndex(({ dot }) => dot === chosen);
  const role = shown.length ? { role: "slider" as const, "aria-valuemin": 1, "aria-valuemax": shown.length, "aria-valuenow": place + 1, "aria-valuetext": said ?? `no ${of}` } : { role: "img" as const };
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !sorted.length) return;
    event.preventDefault();
    event.stopPropagation();
    const next = place < 0 ? (step > 0 ? 0 : sorted.length - 1) : Math.min(Math.max(place + step, 0), sorted.length - 1);
    onChoose(sorted[next]?.dot ?? null);
  };
  const summary = known(row.mean)
    ? `${row.name}: ${withInterval(row.mean, row.low, row.high)} ${unit}, ${plural(shown.length, of)}`
    : `${row.name}: not measured`;
  return (
    <g class="card-row" tabindex={0} {...role} aria-label={summary} onKeyDown={move} onBlur={() => onChoose(null)}>
      <rect class="card-focus" x={1} y={y - ROW / 2 + 1} width={Math.max(width - 2, 1)} height={ROW - 2} />
      <text x={labelled ? 0 : 2} y={labelled ? y + 4 : y - ROW / 2 - 3}>
        {row.name}
      </text>
      {known(row.low) && known(row.high) && (
        <rect class="card-band" x={x(row.low)} y={y - BAND / 2} width={Math.max(x(row.high) - x(row.low), 1)} height={BAND} />
      )}
      {shown.map(({ value, dot }, index) => (
        <circle
          key={dot}
          class={dot === chosen ? "card-prompt card-prompt-on" : "card-prompt"}
          cx={x(Number(value))}
          cy={y + (heights[index] ?? 0)}
          r={dot === chosen ? RADIUS + 1.5 : RADIUS}
          onPointerEnter={() => onChoose(dot)}
        />
      ))}
      {known(row.mean) && <path class="card-mean" d={`M${x(row.mean)} ${y - BAND / 2}v${BAND}`} />}
      {!known(row.mean) && (
        <text class="card-missing" x={x(0)} y={y + 4}>
          not measured
        </text>
      )}
    </g>
  );
}
