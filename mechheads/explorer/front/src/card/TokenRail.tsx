/** The text along a heat map: the tokens around the marked query, darker the more attention they get. */
import type { Place } from "./heatDrawing";
import { Shown } from "./parts";
import { row, type Sparse } from "./sparse";
import { inText } from "./tokens";

const AROUND = 40;

interface Props {
  attention: Sparse;
  at: Place | null;
  onChoose: (place: Place) => void;
}

export function TokenRail({ attention, at, onChoose }: Props) {
  const n = attention.tokens.length;
  const { query, key } = at ?? { query: n - 1, key: n - 1 };
  const from = Math.max(0, Math.min(query - AROUND, n - 2 * AROUND));
  const to = Math.min(n - 1, from + 2 * AROUND);
  const weights = new Map(row(attention, query).map((entry) => [entry.key, entry.weight]));
  const words = Array.from({ length: to - from + 1 }, (_, index) => from + index);
  return (
    <div class="card-rail" aria-label="Text around the marked query" role="group">
      <span class="card-rail-place">{`tokens ${from} to ${to} of ${n}`}</span>
      {words.map((place) => (
        <span
          key={place}
          class={`card-word${place === query ? " card-word-query" : ""}${place === key ? " card-word-at" : ""}${weights.has(place) ? " card-word-key" : ""}`}
          style={{ "--weight": String(weights.get(place) ?? 0) }}
          onClick={() => onChoose(place <= query ? { query, key: place } : { query: place, key: place })}
        >
          <Shown token={attention.tokens[place] ?? ""} as={inText} />
        </span>
      ))}
    </div>
  );
}
