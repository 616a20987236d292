/** A list of the views that speak against each other, and for which heads. */
import { useState } from "preact/hooks";

import { nameOf } from "./card/heads";
import { plural } from "./card/numbers";
import { disagreementsOf, type Disagreement } from "./disagree";
import { model } from "./page";
import { Folded } from "./sections";
import { StateLink } from "./StateLink";
import { linked, state } from "./state";

/** How many kinds, and how many heads of each, are shown at first. */
const KINDS = 3;
const HEADS = 6;

export function Disagreements() {
  const [all, setAll] = useState(false);
  const found = disagreementsOf(model.value);
  if (!found.length) return null;
  const n = new Set(found.flatMap(({ heads }) => heads)).size;
  const shown = all ? found : found.slice(0, KINDS);
  return (
    <Folded id="disagreements" class="mh-disagreements" title={`Where views disagree: ${plural(n, "head")}, ${plural(found.length, "kind")}`}>
      <ul>{shown.map((each) => <Kind key={each.line} of={each} all={all} />)}</ul>
      {found.length > KINDS && (
        <button type="button" class="mh-small" aria-expanded={all} onClick={() => setAll(!all)}>{all ? "Show fewer" : `Show all ${found.length} kinds`}</button>
      )}
    </Folded>
  );
}

function Kind({ of, all }: { of: Disagreement; all: boolean }) {
  const { tension, a, b, heads, line } = of;
  const at = state.model.value;
  const to = linked({ filter: line, colour: a.value, by: a.value, x: a.value, y: b.value, section: "disagreements" }, at);
  const [every, setEvery] = useState(false);
  const shown = all || every ? heads : heads.slice(0, HEADS);
  return (
    <li>
      <StateLink to={to} title="Mark these heads in every view">{`${a.title}: ${tension.a.verdict}, ${b.title}: ${tension.b.verdict}`}</StateLink>
      {` (${plural(heads.length, "head")}). ${tension.text} `}
      <span class="mh-disagreeing">
        {shown.map((head) => (
          <StateLink key={head} to={{ ...to, head, section: "" }} class="mh-answer-head" marks>{nameOf(model.value, head)}</StateLink>
        ))}
        {shown.length < heads.length && <button type="button" class="mh-small" onClick={() => setEvery(true)}>{`and ${heads.length - shown.length} more`}</button>}
      </span>
    </li>
  );
}
