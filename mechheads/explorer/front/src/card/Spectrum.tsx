/** The singular values of a circuit: how many directions carry it. */
import { percent, plural, scale, show } from "./numbers";
import { Figure, useWidth } from "./parts";

const HEIGHT = 110;
const AXIS = 22;

/** How many of the strongest directions hold this share of the sum of squares. */
export function directionsFor(singular: readonly number[], share: number): number {
  const total = singular.reduce((sum, value) => sum + value * value, 0);
  let sum = 0;
  for (const [at, value] of singular.entries()) {
    sum += value * value;
    if (sum >= share * total) return at + 1;
  }
  return singular.length;
}

export function SpectrumPlot({ name, title, singular }: { name: string; title: string; singular: readonly number[] }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const largest = singular[0] ?? 1;
  const total = singular.reduce((sum, value) => sum + value * value, 0) || 1;
  const x = scale([0, singular.length], 4, Math.max(width - 4, 20));
  const y = scale([0, largest], HEIGHT - AXIS, 6);
  const half = directionsFor(singular, 0.5);
  const most = directionsFor(singular, 0.9);
  const said = `${plural(half, "direction")} of ${singular.length} ${half === 1 ? "holds" : "hold"} half of ${title}; ${most} hold 90%.`;
  return (
    <Figure name={name} caption={said}>
      <div ref={box} class="card-wide">
        {width > 0 && (
          <svg class="card-drawing" width={width} height={HEIGHT} viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-label={said}>
            {singular.map((value, at) => (
              <rect
                key={at}
                class={at < half ? "card-bar" : "card-bar card-bar-faint"}
                x={x(at)}
                width={Math.max(x(at + 1) - x(at) - 1, 0.75)}
                y={y(value)}
                height={HEIGHT - AXIS - y(value)}
              >
                <title>{`direction ${at + 1}: singular value ${show(value)}, ${percent((value * value) / total)} of the sum of squares`}</title>
              </rect>
            ))}
            <g class="card-axis">
              <text x={4} y={HEIGHT - 7}>
                1
              </text>
              <text x={width / 2} y={HEIGHT - 7} text-anchor="middle">
                {`singular values of ${title}, largest ${show(largest)}`}
              </text>
              <text x={width - 4} y={HEIGHT - 7} text-anchor="end">
                {singular.length}
              </text>
            </g>
          </svg>
        )}
      </div>
    </Figure>
  );
}
