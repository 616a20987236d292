/** Where tokens lie in the space of a head: its q, k and z in the plane in which they vary most. */
import { signal } from "@preact/signals";
import { useMemo } from "preact/hooks";

import { CIRCLE, DIAMOND, SQUARE, TRIANGLE } from "../categories";
import type { Cloud, Model, Space, SpacePane as Pane } from "../data";
import { choose, state } from "../state";
import { spaceOf, useLoaded } from "./load";
import { Missing } from "./Missing";
import { known, percent, plural, show } from "./numbers";
import { Choice, Figure, stepped, useWidth } from "./parts";
import { cloudOf, KINDS, kindOf, places, square, unpacked, wordsOf } from "./space";
import { asChip, inText } from "./tokens";

/** The model and token under the pointer, the same in all plots and in the card beside this one. */
const pointed = signal<{ readonly model: number; readonly dot: number } | null>(null);

const HUES = [["token", "kind of token"], ["position", "position"], ["activity", "activity"]] as const;
type Hue = (typeof HUES)[number][0];
const SHAPES = [CIRCLE, TRIANGLE, SQUARE, DIAMOND];
const CLOUDS = [["q", "Queries (q)"], ["k", "Keys (k)"], ["z", "Output (z)"]] as const;
const MARGIN = 16;
/** How near the pointer must be to a dot, in pixels. */
const REACH = 20;
const RADIUS = 4;

interface Props {
  model: Model;
  modelAt: number;
  name: string;
}

export function SpacePane({ model, modelAt, name }: Props) {
  const { value: space, error } = useLoaded(`${modelAt}-space`, () => spaceOf(modelAt));
  if (error) return <p role="alert" class="card-error">{error}</p>;
  if (!space) return <p role="status" class="card-reading">{"Reading the space of heads\u2026"}</p>;
  const pane = space.heads[name];
  return pane ? <Plots {...{ space, pane, model, modelAt, name }} /> : <Missing pane="space" notes={model.notes} />;
}

interface PlotsProps extends Props {
  space: Space;
  pane: Pane;
}

/** What all plots of a head share. */
interface Dots {
  readonly words: readonly number[];
  readonly kinds: readonly number[];
  /** From 0 to 1; null if the colour stands for the kind of token. */
  readonly shares: readonly number[] | null;
  /** The dot that is told. */
  readonly at: number;
  readonly say: (dot: number) => string;
  readonly point: (dot: number | null) => void;
}

function Plots({ space, pane, model, modelAt, name }: PlotsProps) {
  const words = useMemo(() => wordsOf(space), [space]);
  const activity = useMemo(() => unpacked(pane.activity), [pane]);
  const kinds = useMemo(() => words.map((word) => kindOf(space.words[word] ?? "")), [words]);
  const hue: Hue = HUES.find(([id]) => id === state.hue.value)?.[0] ?? "token";
  const longest = (space.windows[0]?.length ?? 2) - 1;
  const shares = useMemo(() => ({ token: null, position: space.position.map((at) => (at - 1) / Math.max(longest - 1, 1)), activity }), [space, activity]);
  const chosen = state.dot.value !== null && state.dot.value < words.length ? state.dot.value : activity.indexOf(Math.max(...activity));
  const at = pointed.value?.model === modelAt ? pointed.value.dot : chosen;
  const token = (dot: number) => `\u201c${asChip(space.words[words[dot] ?? 0] ?? "")}\u201d`;
  const say = (dot: number) => {
    const same = words.filter((word) => word === words[dot]).length - 1;
    const also = same ? `; the same token ${same === 1 ? "once" : `${same} times`} more` : "";
    return `${token(dot)}, position ${space.position[dot]} in text ${(space.window[dot] ?? 0) + 1}, activity ${show((activity[dot] ?? 0) * (pane.mostActive ?? 0), 2)}${also}`;
  };
  const dots: Dots = { words, kinds, shares: shares[hue], at, say, point: (dot) => (pointed.value = dot === null ? null : { model: modelAt, dot }) };
  return (
    <div class="card-space">
      <p class="card-lead">
        Each dot is a token in a text. Tokens that lie together are alike for this head; separate groups are a sign that it does different
        things for different tokens. Point at a dot to see it in all three plots and in its text.
      </p>
      <div class="card-controls">
        <Choice label="Colour stands for" value={hue} onChange={(to) => choose({ hue: to === "token" ? "" : to })} choices={HUES} />
        <Legend hue={hue} last={longest} most={pane.mostActive} kinds={kinds} />
      </div>
      <div class="card-clouds">
        {CLOUDS.map(([which, title]) => {
          const cloud = cloudOf(space, pane, which);
          return (
            <section key={which}>
              <h3>{title}</h3>
              {cloud && known(cloud.shares[0]) ? (
                <Plot cloud={cloud} dots={dots} label={title} name={`${name}-space-${which}`} chance={space.chance} />
              ) : (
                <p class="card-empty">It is the same for all tokens.</p>
              )}
            </section>
          );
        })}
        <section class="card-told-text">
          <h3>In its text</h3>
          <p class="card-readout" aria-live="polite">{say(at)}</p>
          <Text space={space} dots={dots} />
        </section>
      </div>
      <p class="card-muted card-space-notes">
        {`The components come from ${plural(space.tokens, "token")} of ${plural(space.windows.length, "text")}, without the first token of each; ${words.length} of them are drawn, the same for all heads. q and k are those before rotation, so positions do not mix in. \u201cIn other texts\u201d: the components are found in one half of the texts, and their share is that of the other half. Two of ${model.dHead ?? "many"} dimensions do not show everything: tokens that lie together here may be apart in the others.`}
      </p>
    </div>
  );
}

function Legend({ hue, last, most, kinds }: { hue: Hue; last: number; most: Pane["mostActive"]; kinds: readonly number[] }) {
  if (hue === "token") {
    return (
      <ul class="card-kinds">
        {KINDS.map((kind, at) => kinds.includes(at) && (
          <li key={kind}>
            <svg width="12" height="12" viewBox="-1.4 -1.4 2.8 2.8" aria-hidden="true">
              <path class={`card-token-dot card-kind-${at}`} d={SHAPES[at]} />
            </svg>
            {kind}
          </li>
        ))}
      </ul>
    );
  }
  const [from, to] = hue === "position" ? ["1", String(last)] : ["0", show(most, 2)];
  return (
    <span class="card-ramp">
      {from} <span aria-hidden="true" /> {to}
    </span>
  );
}

interface PlotProps {
  cloud: Cloud;
  dots: Dots;
  label: string;
  name: string;
  chance: number;
}

function Plot({ cloud, dots, label, name, chance }: PlotProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const size = Math.min(width, 340);
  const drawn = useMemo(() => {
    const { x, y } = square(cloud, size, MARGIN);
    return places(cloud).map((place) => ({ x: x(place.x), y: y(place.y) }));
  }, [cloud, size]);
  const origin = useMemo(() => {
    const { x, y } = square(cloud, size, MARGIN);
    return { x: x(0), y: y(0) };
  }, [cloud, size]);
  const order = useMemo(() => [...drawn.keys()].sort((a, b) => (drawn[a]?.x ?? 0) - (drawn[b]?.x ?? 0)), [drawn]);
  const nearest = (event: MouseEvent) => {
    const { left, top } = (event.currentTarget as Element).getBoundingClientRect();
    let [best, least] = [null as number | null, REACH * REACH];
    drawn.forEach(({ x, y }, dot) => {
      const away = (x - event.clientX + left) ** 2 + (y - event.clientY + top) ** 2;
      if (away < least) [best, least] = [dot, away];
    });
    return best;
  };
  const move = (event: KeyboardEvent) => {
    const next = stepped(event.key, order.indexOf(dots.at), order.length);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    dots.point(null);
    choose({ dot: order[next] ?? null });
  };
  const [first, second] = cloud.shares;
  const both = (first ?? 0) + (second ?? 0);
  const holds = `${percent(both)} of the variance (${percent(first)} across, ${percent(second)} up), ${percent(cloud.held)} in other texts; a random plane has ${percent(chance)}`;
  const marked = [...drawn.keys()].filter((dot) => dots.words[dot] === dots.words[dots.at] && dot !== dots.at);
  return (
    <Figure name={name} caption={holds}>
      <div ref={box} class="card-wide">
        {width > 0 && (
          <svg
            class="card-drawing card-cloud"
            width={size}
            height={size}
            viewBox={`0 0 ${size} ${size}`}
            role="slider"
            aria-label={`${label}: ${drawn.length} tokens. Arrow keys go from left to right`}
            aria-valuemin={1}
            aria-valuemax={drawn.length}
            aria-valuenow={order.indexOf(dots.at) + 1}
            aria-valuetext={dots.say(dots.at)}
            tabindex={0}
            onKeyDown={move}
            onPointerMove={(event) => dots.point(nearest(event))}
            onPointerLeave={() => dots.point(null)}
            onClick={(event) => {
              const dot = nearest(event);
              if (dot !== null) choose({ dot });
            }}
          >
            <rect class="card-cloud-frame" x="0.5" y="0.5" width={size - 1} height={size - 1} />
            <path class="card-none" d={`M${origin.x} 1V${size - 1}M1 ${origin.y}H${size - 1}`} />
            {drawn.map(({ x, y }, dot) => <Dot key={dot} {...{ x, y }} kind={dots.kinds[dot] ?? 0} share={dots.shares?.[dot] ?? null} />)}
            {marked.map((dot) => <circle key={dot} class="card-same" cx={drawn[dot]?.x} cy={drawn[dot]?.y} r={RADIUS + 3} />)}
            <circle class="card-told" cx={drawn[dots.at]?.x} cy={drawn[dots.at]?.y} r={RADIUS + 3.5} />
          </svg>
        )}
      </div>
    </Figure>
  );
}

function Dot({ x, y, kind, share }: { x: number; y: number; kind: number; share: number | null }) {
  const place = `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${RADIUS})`;
  if (share === null) return <path class={`card-token-dot card-kind-${kind}`} d={SHAPES[kind]} transform={place} />;
  return <path class="card-token-dot card-token-shade" d={CIRCLE} transform={place} style={{ "--share": `${(100 * share).toFixed(0)}%` }} />;
}

/** The text of the told token: the token itself is marked, and other tokens with a dot can be pointed at. */
function Text({ space, dots }: { space: Space; dots: Dots }) {
  const window = space.window[dots.at] ?? 0;
  const dotAt = useMemo(() => new Map(space.window.flatMap((at, dot) => (at === window ? [[space.position[dot], dot] as const] : []))), [space, window]);
  const told = space.position[dots.at];
  return (
    <div class="card-space-text" role="region" aria-label="The text of the token" tabIndex={0}>
      {space.windows[window]?.map((word, position) => {
        const dot = dotAt.get(position);
        const text = inText(space.words[word] ?? "");
        if (position === told) return <mark key={position}>{text}</mark>;
        if (dot === undefined) return <span key={position}>{text}</span>;
        return (
          <span key={position} class="card-drawn" onClick={() => choose({ dot })}>
            {text}
          </span>
        );
      })}
    </div>
  );
}
