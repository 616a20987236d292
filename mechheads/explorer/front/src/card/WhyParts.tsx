/** What a head's score for a key is made of, at the query and at the key. */
import { useMemo } from "preact/hooks";

import type { Model, Why, WhySide } from "../data";
import { HeadLink } from "./HeadLink";
import { numberOf } from "./heads";
import { percent, plural, show } from "./numbers";
import { asChip } from "./tokens";

/** What the numbers of the pane measure, against what, and what they do not show. */
function Notes() {
  return (
    <p class="card-muted card-why-notes">
      {"Scores are those before softmax, in nats: 1 more makes e = 2.7 times the odds. Softmax compares keys, so what is split is the score for this key minus the mean of the scores for the other keys, each weighted by its attention. The parts sum to it exactly, with all norms held as they are in this run. They are not causes: what would change without a part, "}
      <code>mh.path_patch</code>
      {" measures. More in the docs of "}
      <code>mh.behaviour.attention_attribution</code>
      {", which does this for prompts of your own, with intervals."}
    </p>
  );
}

interface PartsProps {
  why: Why;
  tokens: readonly string[];
  model: Model;
}

/** The score for a key, and its parts at both ends. */
export function WhyParts({ why, tokens, model }: PartsProps) {
  const token = (place: number) => `\u201c${asChip(tokens[place] ?? "")}\u201d (${place})`;
  const most = useMemo(() => Math.max(...[why.atQuery, why.atKey].flatMap(({ parts, rest }) => [...parts.map(({ value }) => value), rest]).map(Math.abs), 1e-9), [why]);
  const about = { total: why.total, most, model };
  return (
    <>
      <p class="card-readout" aria-live="polite">
        {`From ${token(why.query)}, ${percent(why.weight)} of the attention goes to ${token(why.key)}: its score is ${show(Math.abs(why.total))} ${why.total < 0 ? "below" : "above"} the mean of the other keys. Both tables split this number, by what the residual stream consists of.`}
      </p>
      <div class="card-beside">
        <section>
          <h3>{`At the query ${token(why.query)}`}</h3>
          <p class="card-lead">What each part there adds, with the keys as they are.</p>
          <Side side={why.atQuery} {...about} />
        </section>
        <section>
          <h3>{`At the key ${token(why.key)}`}</h3>
          <p class="card-lead">What each part adds there minus what it adds at the other keys, with the query as it is.</p>
          <Side side={why.atKey} {...about} />
        </section>
      </div>
      <Notes />
    </>
  );
}

interface SideProps {
  side: WhySide;
  total: number;
  /** The size of the longest bar. */
  most: number;
  model: Model;
}

function Side({ side, total, most, model }: SideProps) {
  return (
    <table class="card-table card-why-parts">
      <thead>
        <tr>
          <th scope="col">part</th>
          <th scope="col" class="card-number">score</th>
          <th aria-hidden="true" />
        </tr>
      </thead>
      <tbody>
        {side.parts.map(({ name, value }) => {
          const head = numberOf(model, name);
          return (
            <tr key={name}>
              <th scope="row">{head === null ? name : <HeadLink head={head} name={name} />}</th>
              <Value {...{ value, most }} />
            </tr>
          );
        })}
        {side.others > 0 && (
          <tr>
            <th scope="row" class="card-muted">{`the ${side.others > 1 ? plural(side.others, "other part") : "other part"}`}</th>
            <Value value={side.rest} most={most} />
          </tr>
        )}
        <tr class="card-row-strong">
          <th scope="row">sum</th>
          <td class="card-number">{signed(total)}</td>
          <td />
        </tr>
      </tbody>
    </table>
  );
}

/** A number, and its bar to the left or the right of 0. */
function Value({ value, most }: { value: number; most: number }) {
  const size = `${(Math.abs(value) / most) * 50}%`;
  return (
    <>
      <td class="card-number" title={String(value)}>{signed(value)}</td>
      <td class="card-signed-cell" aria-hidden="true">
        <span class="card-signed">
          <span class={value < 0 ? "card-signed-minus" : "card-signed-plus"} style={{ width: size }} />
        </span>
      </td>
    </>
  );
}

function signed(value: number): string {
  return `${value > 0 ? "+" : ""}${show(value)}`;
}
