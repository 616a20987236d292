/** Why a head attends from one token of the reader's text to another; the model computes it when two tokens are chosen. */
import { useEffect, useState } from "preact/hooks";

import type { Model, Why } from "../data";
import { messageOf } from "./load";
import { runWhy } from "./live";
import { percent } from "./numbers";
import { row, weightAt, type Sparse } from "./sparse";
import { asChip, inText } from "./tokens";
import { WhyParts } from "./WhyParts";

export interface Pair {
  readonly query: number;
  readonly key: number;
}

/** The key that a query attends to most, besides the first token unless there is no other. */
export function strongest(attention: Sparse, query: number): Pair {
  const [best] = row(attention, query).filter(({ key }) => key > 0).sort((a, b) => b.weight - a.weight);
  return { query, key: best?.key ?? 0 };
}

interface Props {
  text: string;
  /** The name of the head. */
  name: string;
  attention: Sparse;
  pair: Pair;
  onPair: (pair: Pair) => void;
  model: Model;
}

/** The model runs if a choice stays so long, in milliseconds: arrow keys pass over many tokens. */
const WAIT = 250;

export function WhyLive({ text, name, attention, pair, onPair, model }: Props) {
  const [why, setWhy] = useState<Why | null>(null);
  const [error, setError] = useState<string | null>(null);
  const { query, key } = pair;
  useEffect(() => {
    let wanted = true;
    let cancel = () => {};
    const ask = () => {
      const running = runWhy(text, name, query, key);
      cancel = running.cancel;
      running.answer.then(
        (found) => wanted && (setError(null), setWhy(found.why)),
        (reason: unknown) => wanted && (setWhy(null), setError(messageOf(reason))),
      ).finally(() => (cancel = () => {}));
    };
    const timer = setTimeout(ask, WAIT);
    return () => {
      wanted = false;
      clearTimeout(timer);
      cancel();
    };
  }, [text, name, query, key]);
  const { tokens } = attention;
  const shown = why?.query === query && why.key === key ? why : null;
  const of = (place: number) => {
    const weight = weightAt(attention, query, place);
    return `\u201c${asChip(tokens[place] ?? "")}\u201d (${place})${weight === null ? "" : `, ${percent(weight)}`}`;
  };
  return (
    <section>
      <h3>{`Why ${name} looks there`}</h3>
      <div class="card-controls">
        <label class="card-select">
          <span>Query</span>{" "}
          <select value={String(query)} onChange={({ currentTarget }) => onPair(strongest(attention, Number(currentTarget.value)))}>
            {tokens.map((token, at) => <option key={at} value={String(at)}>{`\u201c${asChip(token)}\u201d (${at})`}</option>)}
          </select>
        </label>
        <label class="card-select">
          <span>Key</span>{" "}
          <select value={String(key)} onChange={({ currentTarget }) => onPair({ query, key: Number(currentTarget.value) })}>
            {tokens.slice(0, query + 1).map((_, at) => <option key={at} value={String(at)}>{of(at)}</option>)}
          </select>
        </label>
        <span class="card-muted">or click a token or a cell above</span>
      </div>
      {error && <p role="alert" class="card-error">{inText(error)}</p>}
      {!error && !shown && <p role="status" class="card-reading">{"Splitting the score\u2026"}</p>}
      {!error && shown && <WhyParts why={shown} {...{ tokens, model }} />}
    </section>
  );
}
