/** The answer at the top: what the results carry, in a few sentences, each with a link to where the page shows it. */
import { numberOf } from "./card/heads";
import type { Finding, Model } from "./data";
import { Disagreements } from "./Disagreements";
import { idOf } from "./ids";
import { model, page } from "./page";
import { StateLink } from "./StateLink";
import { choose, linked, state } from "./state";

/** How many sentences a window of one column shows at first; layout in answer.css. */
const FIRST = 3;

export function Answer() {
  const { answer } = model.value;
  if (!answer.length || page.value.start) return null;
  const folded = state.answer.value === "none";
  const all = state.answer.value === "all";
  const list = idOf("answer-list");
  return (
    <section class={`mh-answer ${all ? "is-all" : ""}`} aria-labelledby={idOf("answer")}>
      <header>
        <h2 id={idOf("answer")}>Answer</h2>
        {!folded && answer.some(({ text }) => text.includes("[")) && <p class="mh-muted">In brackets: 95% intervals, unless another level is named.</p>}
        <button type="button" class="mh-small" aria-expanded={!folded} aria-controls={folded ? undefined : list} onClick={() => choose({ answer: folded ? "" : "none" })}>
          {folded ? `Show ${answer.length === 1 ? "the sentence" : `the ${answer.length} sentences`}` : "Hide"}
        </button>
      </header>
      {!folded && (
        <>
          <ul id={list}>{answer.map((finding) => <Sentence key={finding.text} finding={finding} its={model.value} at={state.model.value} />)}</ul>
          {answer.length > FIRST && !all && (
            <button type="button" class="mh-small mh-answer-more" onClick={() => choose({ answer: "all" })}>{`Show all ${answer.length} sentences`}</button>
          )}
          <Disagreements />
        </>
      )}
    </section>
  );
}

/** Its first words are the link to what it says; the heads in it are links to their cards there. */
function Sentence({ finding, its, at }: { finding: Finding; its: Model; at: number }) {
  const { text, link } = finding;
  const to = linked(link, at);
  const lead = leadOf(text);
  return (
    <li>
      <StateLink to={to} title="Show this on the page">{lead}</StateLink>
      {pieces(text.slice(lead.length), its).map((piece, n) =>
        piece.head === null ? piece.text : <StateLink key={n} to={{ ...to, head: piece.head, section: "" }} class="mh-answer-head" marks>{piece.text}</StateLink>,
      )}
    </li>
  );
}

/** The words before the first mark of punctuation outside of quotes, or before the first head. */
function leadOf(text: string): string {
  const found = /^(?:"[^"]*"|[^"])*?(?=[,;:.](?:\s|$)|\bL\d+H\d)/.exec(text)?.[0].trimEnd();
  return found || text;
}

/** The text with a true minus before numbers, and its heads. */
function pieces(text: string, its: Model): { text: string; head: number | null }[] {
  return text.replace(/(?<=[\s[(])-(?=\d)/g, "\u2212").split(/\b(L\d+H\d+)\b/).map((part, at) => ({ text: part, head: at % 2 ? numberOf(its, part) : null }));
}
