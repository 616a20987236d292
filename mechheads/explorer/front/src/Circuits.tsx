/** Stored sets of heads: how faithful their first heads are. */
import { useState } from "preact/hooks";

import { numberOf } from "./card/heads";
import { extent, known, scale, tickText, ticks, withInterval } from "./card/numbers";
import { useWidth } from "./card/parts";
import { CopyPython } from "./CopyPython";
import type { Circuit } from "./data";
import { model } from "./page";
import { choose, state } from "./state";

/** The faithfulness that the heads shown at first reach. */
const FAITHFUL = 0.9;

export function Circuits({ of }: { of: readonly Circuit[] }) {
  return <>{of.map((circuit) => <One key={circuit.name} circuit={circuit} />)}</>;
}

function One({ circuit }: { circuit: Circuit }) {
  const { name, heads, metric, curve, source } = circuit;
  const [at, setAt] = useState(() => firstFaithful(curve));
  const point = curve[at];
  const n = point?.k ?? heads.length;
  const first = heads.slice(0, n);
  const said = point ? `the first ${n}: ${withInterval(point.value, point.low, point.high)}` : `${heads.length} heads`;
  return (
    <section class="mh-circuit">
      <h3>{name}</h3>
      <p class="mh-muted">{metric}</p>
      {curve.length > 1 && (
        <>
          <Curve curve={curve} at={at} name={name} />
          <label class="mh-pick">
            <span>Heads</span>
            <input type="range" min="0" max={curve.length - 1} value={at} aria-label={`How many heads of ${name}`} aria-valuetext={said} onInput={(event) => setAt(Number(event.currentTarget.value))} />
          </label>
        </>
      )}
      <p>{said}</p>
      <p class="mh-names">{first.join(" ")}</p>
      <button type="button" class="mh-small" onClick={() => pinAll(first)}>Pin these heads</button>
      <CopyPython model={model.value} sources={[source]} what={name} />
    </section>
  );
}

/** The smallest set that keeps enough, or else the largest. */
function firstFaithful(curve: Circuit["curve"]): number {
  const first = curve.findIndex(({ value }) => known(value) && value >= FAITHFUL);
  return first < 0 ? curve.length - 1 : first;
}

const [LEFT, RIGHT, TOP, HEIGHT] = [44, 12, 8, 170];

function Curve({ curve, at, name }: { curve: Circuit["curve"]; at: number; name: string }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const last = curve.at(-1)?.k ?? 1;
  const ends = extent(curve.flatMap(({ value, low, high }) => [value, low, high]), 0, 1);
  const [x, y] = [scale([0, last], LEFT, Math.min(width, 560) - RIGHT), scale(ends, HEIGHT - 34, TOP)];
  const drawn = curve.filter(({ value }) => known(value));
  const banded = drawn.filter(({ low, high }) => known(low) && known(high));
  const line = drawn.map(({ k, value }) => `${x(k)} ${y(value ?? 0)}`).join("L");
  const band = [...banded.map(({ k, high }) => `${x(k)} ${y(high ?? 0)}`), ...banded.toReversed().map(({ k, low }) => `${x(k)} ${y(low ?? 0)}`)].join("L");
  const here = curve[at];
  return (
    <div ref={box}>
      {width > 0 && (
        <svg class="mh-drawing mh-curve" width={Math.min(width, 560)} height={HEIGHT} role="img" aria-label={`Faithfulness of the first heads of ${name}`}>
          <g class="mh-axis">
            {ticks(ends, 4).map((tick) => (
              <g key={tick}>
                <path class="mh-gridline" d={`M${LEFT} ${y(tick)}H${Math.min(width, 560) - RIGHT}`} />
                <text x={LEFT - 6} y={y(tick) + 4} text-anchor="end">{tickText(tick)}</text>
              </g>
            ))}
            {ticks([0, last], 5).filter(Number.isInteger).map((tick) => (
              <text key={tick} x={x(tick)} y={HEIGHT - 19} text-anchor="middle">{tick}</text>
            ))}
            <text class="mh-axis-title" x={x(last / 2)} y={HEIGHT - 3} text-anchor="middle">heads</text>
          </g>
          {band && <path class="mh-curve-band" d={`M${band}Z`} />}
          {line && <path class="mh-curve-line" d={`M${line}`} />}
          {here && known(here.value) && <circle class="mh-curve-dot" cx={x(here.k)} cy={y(here.value)} r="5" />}
        </svg>
      )}
    </div>
  );
}

function pinAll(names: readonly string[]): void {
  const heads = names.flatMap((name) => numberOf(model.peek(), name) ?? []);
  choose({ pins: [...new Set([...state.pins.peek(), ...heads])] });
}
