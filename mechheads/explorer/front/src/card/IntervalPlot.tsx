/** A value with its interval, among the values of all heads. */
import type { Num } from "../data";
import { extent, known, scale, withInterval } from "./numbers";

interface Props {
  value: Num;
  low: Num;
  high: Num;
  /** Faint marks to compare with; also the scale. */
  all?: readonly Num[];
  /** The value of a head that does nothing. */
  none?: number;
  width?: number;
  height?: number;
}

const MARGIN = 6;

export function IntervalPlot({ value, low, high, all = [], none = 0, width = 180, height = 26 }: Props) {
  const domain = extent([...all, value, low, high], none);
  const x = scale(domain, MARGIN, width - MARGIN);
  const middle = height / 2 - 3;
  const marks = all.filter(known).map((each) => `M${x(each).toFixed(1)} ${height - 5}v4`);
  const text = known(value) ? withInterval(value, low, high) : "no value";
  return (
    <svg class="card-drawing card-interval" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={text}>
      <line class="card-none" x1={x(none)} x2={x(none)} y1={1} y2={height - 6} />
      <path class="card-rug" d={marks.join("")} />
      {known(low) && known(high) && (
        <path class="card-whisker" d={`M${x(low)} ${middle - 4}v8M${x(low)} ${middle}H${x(high)}M${x(high)} ${middle - 4}v8`} />
      )}
      {known(value) && <circle class="card-dot" cx={x(value)} cy={middle} r={height < 20 ? 3 : 4} />}
      <title>{text}</title>
    </svg>
  );
}
