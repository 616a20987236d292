/** Texts from every part of a head's activity. */
import { useMemo, useState } from "preact/hooks";

import type { Example, Shared, TextPane as Pane } from "../data";
import { choose, state } from "../state";
import { decode, moved, tokensOf } from "./attention";
import { percent, show } from "./numbers";
import { Choice, Empty, Tabs, Toggle } from "./parts";
import { firstShare } from "./sparse";
import { inText } from "./tokens";
import { TokenLines, type Direction } from "./TokenLines";

type Weighting = "attention" | "moved";

const AROUND = 32;

interface Props {
  pane: Pane;
  shared: Shared;
}

export function TextPane({ pane, shared }: Props) {
  const [by, setBy] = useState<Weighting>("attention");
  const [direction, setDirection] = useState<Direction>("both");
  const [withFirst, setWithFirst] = useState(false);
  const found = pane.parts.find(({ name }) => name === state.part.value) ?? pane.parts[0];
  if (!found) return <Empty what="No texts were kept for this head." command="mh.behaviour.head_examples(model)" />;
  return (
    <div>
      <h3>Texts, by how much the head does in them</h3>
      <p class="card-lead">{inText(pane.activity)}</p>
      <div class="card-controls">
        <Choice label="Weight lines by" value={by} onChange={setBy} choices={[["attention", "by attention"], ["moved", "by what is moved"]]} />
        <Choice
          label="Draw lines to"
          value={direction}
          onChange={setDirection}
          choices={[["keys", "keys"], ["queries", "queries"], ["both", "both"]]}
        />
        <Toggle on={withFirst} onChange={setWithFirst}>
          show the first token
        </Toggle>
      </div>
      <Tabs
        label="Part of the head's activity"
        class="card-tabs-small"
        tabs={pane.parts.map(({ name, examples }) => ({ id: name, name: name.replace("-", "\u2013"), empty: !examples.length }))}
        chosen={found.name}
        onChoose={(part) => choose({ part })}
      >
        {found.examples.length === 0 && <Empty what="No window of the text falls into this part of the activity; read more text." />}
        {found.examples.map((example, index) => (
          <OneExample key={`${found.name}-${index}`} {...{ example, shared, by, direction, withFirst }} number={index + 1} of={found.examples.length} />
        ))}
      </Tabs>
      <p class="card-legend">
        <span class="card-key-line">takes from a key</span> <span class="card-query-line">is read by a query</span>{" "}
        <span class="card-query-box">the query with most activity</span>
        <span>Of each query, the first token and its strongest keys were kept.</span>
      </p>
    </div>
  );
}

interface ExampleProps {
  example: Example;
  shared: Shared;
  by: Weighting;
  direction: Direction;
  withFirst: boolean;
  number: number;
  of: number;
}

function OneExample({ example, shared, by, direction, withFirst, number, of }: ExampleProps) {
  const [whole, setWhole] = useState(false);
  const tokens = useMemo(() => tokensOf(shared, example), [shared, example]);
  const plain = useMemo(() => decode(tokens, example.attention), [tokens, example]);
  const attention = useMemo(() => (by === "moved" ? moved(tokens, example.attention, example.sizes) : plain), [plain, by]);
  const [from, to] = whole ? [0, tokens.length - 1] : around(example, tokens.length);
  const all = from === 0 && to === tokens.length - 1 && !whole;
  const share = percent(firstShare(attention));
  return (
    <section class="card-example" aria-label={`Example ${number} of ${of}`}>
      <header>
        <span>
          activity <b>{show(example.activity)}</b>, text {example.text + 1}
        </span>
        <span>
          {by === "moved" ? `${share} of what is moved comes from` : `${share} of the attention goes to`} the first token
          {withFirst ? "" : " (hidden)"}
        </span>
        {!all && (
          <button type="button" class="card-small" aria-expanded={whole} onClick={() => setWhole(!whole)}>
            {whole ? "show less" : `show all ${tokens.length} tokens`}
          </button>
        )}
      </header>
      <TokenLines
        key={`${example.window}-${example.query}`}
        {...{ attention, direction, withFirst, from, to }}
        query={example.query}
        label={`Tokens of example ${number}; arrow keys move`}
      />
    </section>
  );
}

/** The tokens near the query, and near the key if that is not much further away. */
export function around({ query, key }: Pick<Example, "query" | "key">, n: number): [number, number] {
  const from = query - key <= 3 * AROUND ? Math.min(key - 6, query - AROUND) : query - AROUND;
  return [Math.max(0, from), Math.min(n - 1, query + AROUND / 2)];
}
