/** A text whose tokens show, when pointed at, what they attend to and what attends to them. */
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { percent } from "./numbers";
import { Shown, useWidth } from "./parts";
import { column, row, type Entry, type Sparse } from "./sparse";
import { asChip, inText } from "./tokens";

export type Direction = "keys" | "queries" | "both";

interface Props {
  attention: Sparse;
  /** The token that is chosen at first, and marked. */
  query: number;
  direction: Direction;
  /** Whether to draw the attention to the first token. */
  withFirst: boolean;
  /** The first and the last token to show. */
  from?: number;
  to?: number;
  label: string;
  /** Called when the reader chooses a token by a click or a key. */
  onChoose?: (token: number) => void;
}

/** Lines thinner than this share are not drawn. */
const LEAST = 0.02;
const NAMED = 5;

export function TokenLines({ attention, query, direction, withFirst, from = 0, to, label, onChoose }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [hovered, setHovered] = useState<number | null>(null);
  const [chosen, setChosen] = useState(query);
  const at = hovered ?? chosen;
  const last = Math.min(to ?? Infinity, attention.tokens.length - 1);
  const keys = useMemo(() => (direction === "queries" ? [] : parts(row(attention, at), withFirst)), [attention, at, direction, withFirst]);
  const queries = useMemo(() => {
    const found = direction === "keys" || (at === 0 && !withFirst) ? [] : column(attention, at).filter((entry) => entry.query !== at);
    return found.filter(({ weight }) => weight >= LEAST);
  }, [attention, at, direction, withFirst]);
  const weights = new Map([...queries.map(({ query: to, weight }) => [to, weight] as const), ...keys.map(({ key, weight }) => [key, weight] as const)]);
  const reached = new Set(keys.map(({ key }) => key));
  const take = (place: number) => {
    setChosen(place);
    onChoose?.(place);
  };
  const point = (event: PointerEvent) => setHovered(tokenAt(event.target));
  const move = (event: KeyboardEvent) => {
    const next = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: from, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const place = Math.min(Math.max(next, from), last);
    setHovered(null);
    take(place);
    box.current?.querySelector<HTMLElement>(`[data-at="${place}"]`)?.focus();
  };
  const shown = Array.from({ length: Math.max(last - from + 1, 0) }, (_, index) => from + index);
  return (
    <div>
      <div
        ref={box}
        class="card-tokens-box"
        role="listbox"
        aria-label={label}
        aria-orientation="horizontal"
        onPointerOver={point}
        onPointerLeave={() => setHovered(null)}
        onKeyDown={move}
      >
        {from > 0 && <span aria-hidden="true">{"\u2026"}</span>}
        {shown.map((place) => (
          <span
            key={place}
            data-at={place}
            role="option"
            aria-selected={place === chosen}
            aria-label={attention.tokens[place]?.trim() ? undefined : asChip(attention.tokens[place] ?? "")}
            tabIndex={place === chosen || (place === from && (chosen < from || chosen > last)) ? 0 : -1}
            class={tokenClass(place, at, query, weights.has(place), reached.has(place))}
            style={{ "--weight": String(weights.get(place) ?? 0) }}
            onClick={() => take(place)}
          >
            <Shown token={attention.tokens[place] ?? ""} as={inText} />
          </span>
        ))}
        {last < attention.tokens.length - 1 && <span aria-hidden="true">{"\u2026"}</span>}
        <Overlay box={box} width={width} at={at} keys={keys} queries={queries} shown={`${from}-${last}`} />
      </div>
      <p class="card-readout" aria-live="polite">
        {said(attention, at, keys, queries, direction)}
      </p>
    </div>
  );
}

function parts(entries: readonly Entry[], withFirst: boolean): Entry[] {
  return entries.filter(({ key, weight }) => weight >= LEAST && (withFirst || key !== 0));
}

function tokenAt(target: EventTarget | null): number | null {
  const token = target instanceof Element ? target.closest<HTMLElement>("[data-at]") : null;
  return token ? Number(token.dataset.at) : null;
}

function tokenClass(place: number, at: number, query: number, hit: boolean, asKey: boolean): string {
  const names = ["card-word"];
  if (place === query) names.push("card-word-query");
  if (place === at) names.push("card-word-at");
  if (hit) names.push(asKey ? "card-word-key" : "card-word-reader");
  return names.join(" ");
}

/** The drawing in words. */
function said(from: Sparse, at: number, keys: readonly Entry[], queries: readonly Entry[], direction: Direction): string {
  const token = (place: number) => `\u201c${asChip(from.tokens[place] ?? "")}\u201d`;
  const named = (entries: readonly Entry[], end: "key" | "query") =>
    [...entries]
      .sort((a, b) => b.weight - a.weight)
      .slice(0, NAMED)
      .map((entry) => `${token(entry[end])} ${percent(entry.weight)}`)
      .join(", ");
  const texts = [];
  if (direction !== "queries") texts.push(keys.length ? `takes from ${named(keys, "key")}` : "takes nothing that is drawn");
  if (direction !== "keys") texts.push(queries.length ? `is read by ${named(queries, "query")}` : "is read by no later token that is drawn");
  return `${token(at)} (token ${at}) ${texts.join("; ")}.`;
}

interface OverlayProps {
  box: { current: HTMLDivElement | null };
  width: number;
  at: number;
  keys: readonly Entry[];
  queries: readonly Entry[];
  /** The tokens that are shown; lines to others are left out. */
  shown: string;
}

interface Curve {
  readonly path: string;
  readonly weight: number;
  readonly kind: "key" | "query";
}

function Overlay({ box, width, at, keys, queries, shown }: OverlayProps) {
  const [curves, setCurves] = useState<Curve[]>([]);
  const height = useRef(0);
  useLayoutEffect(() => {
    const parent = box.current;
    if (!parent) return;
    const frame = parent.getBoundingClientRect();
    height.current = frame.height;
    const middle = (place: number): [number, number, number] | null => {
      const rect = parent.querySelector(`[data-at="${place}"]`)?.getClientRects()[0];
      return rect ? [rect.left + rect.width / 2 - frame.left, rect.top - frame.top, rect.bottom - frame.top] : null;
    };
    const start = middle(at);
    const curve = (place: number, weight: number, kind: Curve["kind"]): Curve[] => {
      const end = middle(place);
      return start && end && place !== at ? [{ path: arc(start, end), weight, kind }] : [];
    };
    setCurves([
      ...keys.flatMap(({ key, weight }) => curve(key, weight, "key")),
      ...queries.flatMap(({ query, weight }) => curve(query, weight, "query")),
    ]);
  }, [at, keys, queries, width, shown]);
  return (
    <svg class="card-overlay" aria-hidden="true" width={width} height={height.current}>
      {curves.map(({ path, weight, kind }, index) => (
        <path key={index} class={`card-line-${kind}`} d={path} stroke-width={1 + 5 * weight} />
      ))}
    </svg>
  );
}

/** A curve over the text: above the line if both ends are on one line, else from the edge of one to that of the other. */
function arc([x, top, bottom]: readonly [number, number, number], [u, above, below]: readonly [number, number, number]): string {
  if (Math.abs(top - above) < 4) {
    const lift = Math.min(18, 6 + Math.abs(x - u) / 14);
    return `M${x} ${top + 2}C${x} ${top - lift} ${u} ${above - lift} ${u} ${above + 2}`;
  }
  const [from, to] = above < top ? [top + 2, below - 2] : [bottom - 2, above + 2];
  const bend = (to - from) / 2;
  return `M${x} ${from}C${x} ${from + bend} ${u} ${to - bend} ${u} ${to}`;
}
