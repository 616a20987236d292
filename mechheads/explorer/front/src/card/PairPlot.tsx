/** Two effects against each other, one dot for each pair of prompts. */
import { useState } from "preact/hooks";

import type { Effect } from "../data";
import { extent, known, scale, show, ticks, tickText } from "./numbers";
import { Figure, stepped, useWidth } from "./parts";

interface Props {
  name: string;
  x: Effect;
  y: Effect;
  dots: (at: number) => string;
}

const LEFT = 52;
const BELOW = 40;

export function PairPlot({ name, x, y, dots }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const size = Math.max(Math.min(width - LEFT - 12, 340), 60);
  const points = x.values.flatMap((value, pair) => {
    const other = y.values[pair];
    return known(value) && known(other) ? [{ pair, x: value, y: other }] : [];
  });
  const ends = extent(points.flatMap((point) => [point.x, point.y]), 0);
  const across = scale(ends, LEFT, LEFT + size);
  const up = scale(ends, size + 8, 8);
  const sorted = [...points].sort((a, b) => a.x - b.x);
  const found = points.find(({ pair }) => pair === at);
  const said = found ? `${x.title} ${show(found.x)}, ${y.title} ${show(found.y)}: ${dots(found.pair)}` : null;
  const move = (event: KeyboardEvent) => {
    const now = sorted.findIndex(({ pair }) => pair === at);
    const next = stepped(event.key, now, sorted.length);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    setAt(sorted[next]?.pair ?? null);
  };
  const caption = `${y.title} against ${x.title}. On the line, the two are equal.`;
  return (
    <Figure name={name} caption={caption}>
      <div ref={box} class="card-wide">
        {width > 0 && (
          <svg
            class="card-drawing"
            width={LEFT + size + 12}
            height={size + BELOW + 8}
            viewBox={`0 0 ${LEFT + size + 12} ${size + BELOW + 8}`}
            role="slider"
            aria-label={`${caption}. ${points.length} pairs`}
            aria-valuemin={1}
            aria-valuemax={points.length}
            aria-valuenow={sorted.findIndex(({ pair }) => pair === at) + 1}
            aria-valuetext={said ?? "no pair"}
            tabindex={0}
            onKeyDown={move}
          >
            <g class="card-axis" aria-hidden="true">
              {ticks(ends, 4).map((tick) => (
                <g key={tick}>
                  <path class={tick === 0 ? "card-none" : "card-grid"} d={`M${across(tick)} 8V${size + 8}M${LEFT} ${up(tick)}H${LEFT + size}`} />
                  <text x={across(tick)} y={size + 22} text-anchor="middle">
                    {tickText(tick)}
                  </text>
                  <text x={LEFT - 6} y={up(tick) + 4} text-anchor="end">
                    {tickText(tick)}
                  </text>
                </g>
              ))}
              <text x={LEFT + size / 2} y={size + 38} text-anchor="middle">{`${x.title}, ${x.unit}`}</text>
              <text transform={`translate(11 ${8 + size / 2}) rotate(-90)`} text-anchor="middle">
                {y.title}
              </text>
            </g>
            <line class="card-equal" x1={across(ends[0])} y1={up(ends[0])} x2={across(ends[1])} y2={up(ends[1])} />
            {points.map((point) => (
              <circle
                key={point.pair}
                class={point.pair === at ? "card-prompt card-prompt-on" : "card-prompt"}
                cx={across(point.x)}
                cy={up(point.y)}
                r={point.pair === at ? 6 : 4.5}
                onPointerEnter={() => setAt(point.pair)}
              />
            ))}
          </svg>
        )}
      </div>
      <p class="card-readout" aria-live="polite">
        {said ?? "Point at a dot, or use the arrow keys, to see its pair."}
      </p>
    </Figure>
  );
}
