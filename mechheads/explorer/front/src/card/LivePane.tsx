/** An own text: the head's pattern, the parts of the next token's logit, and the next tokens without the head. */
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Live, Model, TextAnswer } from "../data";
import { decode } from "./attention";
import { AttributionMap } from "./AttributionMap";
import { HeatMap } from "./HeatMap";
import { nameOf } from "./heads";
import { fault, run, type Running } from "./live";
import { messageOf } from "./load";
import { NextTokens } from "./NextTokens";
import { percent, plural, show } from "./numbers";
import { Toggle } from "./parts";
import { firstShare } from "./sparse";
import { TokenLines } from "./TokenLines";
import { asChip, inText } from "./tokens";
import { strongest, WhyLive, type Pair } from "./WhyLive";

interface Props {
  live: Live;
  model: Model;
  head: number;
}

/** What was typed last, for every head. */
const typed = signal("The capital of France is");

export function LivePane({ live, model, head }: Props) {
  const text = typed.value;
  const [answer, setAnswer] = useState<TextAnswer | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const running = useRef<Running | null>(null);
  useEffect(() => () => running.current?.cancel(), []);
  const start = () => {
    if (busy) return;
    const wrong = fault(live, text);
    setError(wrong);
    if (wrong) return;
    const mine = run(text, nameOf(model, head));
    running.current = mine;
    setBusy(true);
    mine.answer
      .then(setAnswer, (reason: unknown) => setError(messageOf(reason)))
      .finally(() => {
        if (running.current !== mine) return;
        running.current = null;
        setBusy(false);
      });
  };
  const onKey = (event: KeyboardEvent) => {
    event.stopPropagation();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  };
  return (
    <div class="card-sections">
      <form class="card-live" onSubmit={(event) => (event.preventDefault(), start())}>
        <label>
          Text for the model
          <textarea rows={3} value={text} onInput={(event) => (typed.value = event.currentTarget.value)} onKeyDown={onKey} dir="auto" />
        </label>
        <div class="card-controls">
          <button type="submit" class="card-button" disabled={busy}>
            run
          </button>
          <button type="button" class="card-button" disabled={!busy} onClick={() => running.current?.cancel()}>
            cancel
          </button>
          <span class="card-muted">{`at most ${live.maxTokens.toLocaleString("en-US")} tokens; Ctrl+Enter runs`}</span>
        </div>
      </form>
      <p role="status" class="card-status">
        {busy ? "The model reads the text\u2026" : answer ? `${plural(answer.tokens.length, "token")} in ${show(answer.seconds, 2)} s` : ""}
      </p>
      {busy && <progress aria-label="The model reads the text" />}
      {error && (
        <p role="alert" class="card-error">
          {inText(error)}
        </p>
      )}
      {answer && <Answer key={answer.id} {...{ answer, model, head }} />}
    </div>
  );
}

function Answer({ answer, model, head }: Omit<Props, "live"> & { answer: TextAnswer }) {
  const [withFirst, setWithFirst] = useState(false);
  const attention = useMemo(() => (answer.attention ? decode(answer.tokens, answer.attention) : null), [answer]);
  const [pair, setPair] = useState<Pair | null>(() => attention && strongest(attention, answer.tokens.length - 1));
  const name = answer.head ?? nameOf(model, head);
  return (
    <>
      {answer.notes.map((note) => (
        <p key={note} class="card-lead">
          {inText(note)}
        </p>
      ))}
      <section>
        <h3>{answer.ablation ? `Next token, with and without ${name}` : "Next token"}</h3>
        {answer.ablation && <p class="card-lead">{moved(answer, name)}</p>}
        <NextTokens before={answer.next} after={answer.ablation?.after ?? null} head={name} />
      </section>
      {answer.attribution && (
        <section>
          <h3>{`Who adds to \u201c${asChip(answer.attribution.token)}\u201d`}</h3>
          <AttributionMap {...{ model, head }} attribution={answer.attribution} />
        </section>
      )}
      {attention && (
        <section>
          <h3>{`What ${name} attends to`}</h3>
          <div class="card-controls">
            <Toggle on={withFirst} onChange={setWithFirst}>
              show the first token
            </Toggle>
            <span>{`${percent(firstShare(attention))} of the attention goes to the first token.`}</span>
          </div>
          <TokenLines
            attention={attention}
            query={answer.tokens.length - 1}
            direction="both"
            withFirst={withFirst}
            label="Tokens of your text; arrow keys move"
            onChoose={(query) => setPair(strongest(attention, query))}
          />
          <HeatMap attention={attention} name={`${name}-own-text`} onCell={setPair} />
        </section>
      )}
      {attention && pair && <WhyLive text={answer.text} onPair={setPair} {...{ name, attention, pair, model }} />}
    </>
  );
}

function moved({ ablation, next }: TextAnswer, name: string): string {
  if (!ablation) return "";
  const [before, after] = [next[0]?.token, ablation.after[0]?.token];
  const first = before === after ? "the most likely token stays the same" : `\u201c${asChip(after ?? "")}\u201d takes the place of \u201c${asChip(before ?? "")}\u201d`;
  return `Without ${name} (its output is zero at every token) the distribution moves by ${show(ablation.kl)} nats, and ${first}. One text says nothing of others.`;
}
