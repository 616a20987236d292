/** Senders to the left, the head in the middle, receivers to the right; the larger the effect, the wider the line. */
import { headEvents, keyEvents } from "./headEvents";
import { show, withInterval } from "./numbers";
import { Figure, useWidth } from "./parts";
import type { Link, Links, Way } from "./paths";

interface Props {
  name: string;
  centre: string;
  links: Links;
  unit: string;
  /** The text in place of a side without links. */
  none: string;
}

const ROW = 26;
const GAP = 10;
const WIDEST = 14;
const BOX = 20;
const TOP = 24;

interface Placed {
  readonly link: Link;
  readonly y: number;
}

/** The links one below the other, with gaps between their ways. */
export function placed(links: readonly Link[]): { rows: Placed[]; height: number } {
  let y = ROW / 2;
  const rows = links.map((link, at) => {
    if (at > 0) y += link.way === links[at - 1]?.way ? ROW : ROW + GAP;
    return { link, y };
  });
  return { rows, height: links.length ? y + ROW / 2 : 0 };
}

export function PathsPlot({ name, centre, links, unit, none }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const drawn = Math.min(width, 860);
  const wide = drawn >= 560;
  const side = wide ? 118 : 62;
  const left = placed(links.senders);
  const right = placed(links.receivers);
  const height = Math.max(left.height, right.height, 130) + TOP + 4;
  const most = Math.max(...[...links.senders, ...links.receivers].map(({ value }) => Math.abs(value)), 1e-12);
  const middle = drawn / 2;
  const half = wide ? 46 : 40;
  const y0 = TOP + (height - TOP) / 2;
  const ports: Record<Way, number> = { Q: y0 - 34, K: y0, V: y0 + 34, logits: y0 };
  const offset = (rows: { height: number }) => TOP + (height - TOP - rows.height) / 2;
  const summary = `${links.senders.length} senders and ${links.receivers.length} receivers of ${centre}`;
  return (
    <Figure name={name} caption={`Widths by ${unit || "value"}; dashed lines are negative. A click opens the head.`}>
      <div ref={box} class="card-wide">
        {width > 0 && (
          <svg class="card-drawing card-paths" width={drawn} height={height} viewBox={`0 0 ${drawn} ${height}`} role="group" aria-label={summary}>
            <text class="card-axis-name" x={0} y={12}>
              {wide ? "senders: they feed this head" : "senders"}
            </text>
            <text class="card-axis-name" x={drawn} y={12} text-anchor="end">
              {wide ? "receivers: it feeds them" : "receivers"}
            </text>
            {left.rows.map(({ link, y }, at) => (
              <Curve key={at} {...{ link, most }} from={[side, y + offset(left)]} to={[middle - half, ports[link.way]]} />
            ))}
            {right.rows.map(({ link, y }, at) => (
              <Curve key={at} {...{ link, most }} from={[middle + half, y0]} to={[drawn - side, y + offset(right)]} />
            ))}
            <rect class="card-centre" x={middle - half} y={y0 - 52} width={2 * half} height={104} rx={6} />
            <text class="card-centre-name" x={middle + 7} y={y0 + 5} text-anchor="middle">
              {centre}
            </text>
            {(["Q", "K", "V"] as const).map((way) => (
              <text key={way} class={`card-port card-way-${way}`} x={middle - half + 5} y={ports[way] + 4}>
                {way}
              </text>
            ))}
            {left.rows.map(({ link, y }, at) => (
              <Node key={at} {...{ link, wide, unit }} x={0} y={y + offset(left)} width={side} end="sends to" />
            ))}
            {right.rows.map(({ link, y }, at) => (
              <Node key={at} {...{ link, wide, unit }} x={drawn - side} y={y + offset(right)} width={side} end="receives by" />
            ))}
            {!left.rows.length && <None x={0} y={y0} text={none} />}
            {!right.rows.length && <None x={drawn} y={y0} text={none} anchor="end" />}
          </svg>
        )}
      </div>
    </Figure>
  );
}

function None({ x, y, text, anchor = "start" }: { x: number; y: number; text: string; anchor?: "start" | "end" }) {
  return (
    <text class="card-missing" x={x} y={y} text-anchor={anchor}>
      {text}
    </text>
  );
}

interface CurveProps {
  link: Link;
  most: number;
  from: readonly [number, number];
  to: readonly [number, number];
}

function Curve({ link, most, from: [x, y], to: [u, v] }: CurveProps) {
  const bend = (u - x) / 2;
  return (
    <path
      class={`card-flow card-way-${link.way}${link.value < 0 ? " card-flow-negative" : ""}`}
      stroke-width={Math.max((Math.abs(link.value) / most) * WIDEST, 1)}
      d={`M${x} ${y}C${x + bend} ${y} ${u - bend} ${v} ${u} ${v}`}
    />
  );
}

interface NodeProps {
  link: Link;
  x: number;
  y: number;
  width: number;
  wide: boolean;
  unit: string;
  end: string;
}

function Node({ link, x, y, width, wide, unit, end }: NodeProps) {
  const { head } = link;
  const value = `${withInterval(link.value, link.low, link.high)} ${unit}`;
  const label = `${link.name} ${link.way === "logits" ? "" : `${link.way} `}${show(link.value, 2)}: ${end} ${link.way}, ${value}`;
  const role = head === null ? { role: "img" as const } : { role: "link" as const, tabindex: 0, ...headEvents(head), ...keyEvents(head) };
  return (
    <g class={`card-node card-way-${link.way}`} {...role}>
      <title>{label}</title>
      <rect x={x + 0.5} y={y - BOX / 2} width={width - 1} height={BOX} rx={4} />
      <text x={x + 6} y={y + 4}>
        {link.name}
      </text>
      {wide && (
        <text class="card-node-value" x={x + width - 6} y={y + 4} text-anchor="end">
          {`${link.way === "logits" ? "" : `${link.way} `}${show(link.value, 2)}`}
        </text>
      )}
    </g>
  );
}
