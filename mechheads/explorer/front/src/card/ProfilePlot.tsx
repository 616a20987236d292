/** Two heads, by where they stand among all heads in each column. */
import { shortened } from "../table";
import { scale } from "./numbers";
import { Figure, useWidth } from "./parts";

export interface ProfileRow {
  readonly label: string;
  /** From 0 (smallest of all heads) to 1. */
  readonly one: number | null;
  readonly other: number | null;
  readonly texts: readonly [string, string];
}

interface Props {
  name: string;
  rows: readonly ProfileRow[];
  one: string;
  other: string;
}

const ROW = 20;
const AXIS = 24;

export function ProfilePlot({ name, rows, one, other }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const label = Math.min(245, Math.round(width * 0.45));
  const most = Math.floor(label / 6.8);
  const x = scale([0, 1], label + 8, Math.max(width - 10, label + 20));
  const height = rows.length * ROW + AXIS;
  return (
    <Figure
      name={name}
      caption={
        <>
          Rank among all heads, from the smallest to the largest value: <span class="card-one">{one}</span> <span class="card-other">{other}</span>
        </>
      }
    >
      <div ref={box} class="card-wide">
        {width > 0 && (
          <svg class="card-drawing" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={`Ranks of ${one} and ${other} in ${rows.length} columns`}>
            {rows.map((row, at) => (
              <Row key={row.label} {...{ row, x, label, most, one, other }} y={at * ROW + ROW / 2} />
            ))}
            <g class="card-axis" aria-hidden="true">
              <text x={x(0)} y={height - 8}>
                smallest
              </text>
              <text x={x(1)} y={height - 8} text-anchor="end">
                largest
              </text>
            </g>
          </svg>
        )}
      </div>
    </Figure>
  );
}

interface RowProps {
  row: ProfileRow;
  x: (value: number) => number;
  y: number;
  label: number;
  most: number;
  one: string;
  other: string;
}

function Row({ row, x, y, label, most, one, other }: RowProps) {
  const said = `${row.label}: ${one} ${row.texts[0]}, ${other} ${row.texts[1]}`;
  const short = row.label.length > most ? shortened(row.label) : row.label;
  const name = short.length > most ? `${short.slice(0, most - 1)}\u2026` : short;
  return (
    <g role="img" aria-label={said}>
      <title>{said}</title>
      <rect class="card-catch" x={0} y={y - ROW / 2} width={x(1)} height={ROW} />
      <text x={label} y={y + 4} text-anchor="end">
        {name}
      </text>
      <line class="card-grid" x1={x(0)} x2={x(1)} y1={y} y2={y} />
      {row.one !== null && row.other !== null && <line class="card-gap" x1={x(row.one)} x2={x(row.other)} y1={y} y2={y} />}
      {row.other !== null && <circle class="card-other-dot" cx={x(row.other)} cy={y} r={5} />}
      {row.one !== null && <circle class="card-dot" cx={x(row.one)} cy={y} r={3.5} />}
    </g>
  );
}
