/** What was asked and what was found: a block for each question, with its first heads. A block's title opens its question. */
import { paneOf } from "./card/Card";
import { headEvents } from "./card/headEvents";
import { nameOf, numberOf } from "./card/heads";
import { extent, known, plural } from "./card/numbers";
import { shown, shownOf } from "./card/verdicts";
import type { Finding, Model, Question } from "./data";
import { Explained } from "./Explained";
import { disagreementsOf, headsOf, type Disagreement } from "./disagree";
import { focusCard } from "./focus";
import { idOf } from "./ids";
import { model, page } from "./page";
import { Folded } from "./sections";
import { plainClick, StateLink } from "./StateLink";
import { hashOf, linked, open, state } from "./state";
import { columnOf, questionOf } from "./table";
import { heading } from "./text";

export function Questions() {
  const its = model.value;
  const { questions, answer } = its;
  if (page.value.start || (!questions.length && !answer.length)) return null;
  const told = new Set(questions.flatMap(({ sentence, more }) => [sentence, ...more]).map(({ text }) => text));
  const rest = answer.filter(({ text }) => !told.has(text));
  const shown = questionOf(its);
  return (
    <section class="mh-answer" aria-labelledby={idOf("answer")}>
      <header>
        <h2 id={idOf("answer")}>What was found</h2>
        <p class="mh-muted">In brackets: 95% intervals, unless another level is named.</p>
      </header>
      <div class="mh-blocks">
        {questions.map((question) => <Block key={question.key} of={question} its={its} isOpen={question === shown} />)}
      </div>
      <ul class="mh-rest">{rest.map((finding) => <li key={finding.text}><Sentence finding={finding} its={its} pane="" /></li>)}</ul>
      {shown && <Disagreements key={shown.key} of={shown} its={its} />}
    </section>
  );
}

function Block({ of, its, isOpen }: { of: Question; its: Model; isOpen: boolean }) {
  const { key, title, kind, counted, settles, sentence, more } = of;
  const n = headsOf(disagreementsOf(its, key)).length;
  return (
    <article class={`mh-block ${isOpen ? "is-shown" : ""}`} aria-labelledby={idOf(`question-${key}`)}>
      <h3 id={idOf(`question-${key}`)}>
        <StateLink to={linked({ question: key }, state.model.value)} title="Show this question in the map, the scatter and the table" current={isOpen}>{kind === "own" ? title : heading(title)}</StateLink>
        {counted && <span class="mh-muted">{` ${counted}`}</span>}
      </h3>
      <p><Sentence finding={sentence} its={its} question={key} pane={paneOf(of)} /></p>
      <Intervals of={of} its={its} />
      {settles && <p class="mh-muted">{settles}</p>}
      {more.length > 0 && (
        <details>
          <summary>{plural(more.length, "further finding")}</summary>
          <ul>{more.map((finding) => <li key={finding.text}><Sentence finding={finding} its={its} question={key} pane={paneOf(of)} /></li>)}</ul>
        </details>
      )}
      {n > 0 && <p><StateLink to={linked({ question: key, section: "disagreements" }, state.model.value)}>{`${plural(n, "head")} on which two analyses disagree`}</StateLink></p>}
    </article>
  );
}

/** The first heads of a question on one axis: values, their intervals, and where 0 is. */
function Intervals({ of, its }: { of: Question; its: Model }) {
  const { heads, view, title } = of;
  if (!heads.length) return null;
  const [from, to] = extent(heads.flatMap(({ value, low, high }) => [value, low, high]), 0);
  const place = (value: number) => `${(3 + (94 * (value - from)) / (to - from)).toFixed(2)}%`;
  const zero = { "--at": place(0) };
  const ranking = its.views.find(({ name }) => name === view);
  const { unit = "", range = false } = ranking ?? columnOf(its, view ?? "") ?? {};
  return (
    <ul class="mh-intervals" aria-label={`The first heads by ${ranking?.title ?? columnOf(its, view ?? "")?.label ?? title}`}>
      {heads.map(({ head, value, low, high, shown: said }) => (
        <li key={head}>
          <Head name={head} its={its} pane={paneOf(of)} />
          <span class="mh-track" style={zero} aria-hidden="true">
            {known(low) && known(high) && <span class="mh-range" style={{ "--at": place(low), "--to": place(high) }} />}
            {known(value) && <span class="mh-value" style={{ "--at": place(value) }} />}
          </span>
          <span title={minus(said)}>{shown({ unit, range }, value, low, high)}</span>
        </li>
      ))}
      <li class="mh-muted" aria-hidden="true"><span /><span class="mh-track" style={zero}><span class="mh-nought">0</span></span><span>{unit}</span></li>
    </ul>
  );
}

interface SentenceProps {
  finding: Finding;
  its: Model;
  question?: string;
  pane: string;
}

/** Its first words are the link to what it says; the heads in it are links to their cards. */
function Sentence({ finding: { text, link }, its, question, pane }: SentenceProps) {
  const lead = leadOf(text);
  const { head: _head, pane: _pane, ...shows } = link;
  return (
    <>
      <StateLink to={linked({ ...(question && { question }), ...shows }, state.model.value)} title="Show this on the page">{lead}</StateLink>
      {minus(text.slice(lead.length)).split(/\b(L\d+H\d+)\b/).map((part, at) => (at % 2 ? <Head key={at} name={part} its={its} pane={pane} /> : <Explained key={at} text={part} />))}
    </>
  );
}

/** A link to the card of a head, which it opens and changes nothing else. */
function Head({ name, its, pane }: { name: string; its: Model; pane: string }) {
  const head = numberOf(its, name);
  if (head === null) return <>{name}</>;
  const at = state.model.value;
  const { onClick: _, ...marks } = headEvents(at, head);
  const go = (event: MouseEvent) => {
    if (!plainClick(event)) return;
    marks.onPointerLeave();
    open(head, at, pane || undefined);
    if (event.detail === 0) focusCard();
  };
  return <a class="mh-answer-head" href={`#${hashOf(linked({ head: name, pane }, at))}`} {...marks} onClick={go}>{name}</a>;
}

/** The words before the first mark of punctuation outside of quotes, or before the first head. */
function leadOf(text: string): string {
  const found = /^(?:"[^"]*"|[^"])*?(?=[,;:.](?:\s|$)|\bL\d+H\d)/.exec(text)?.[0].trimEnd();
  return found || text;
}

/** A true minus before numbers. */
function minus(text: string): string {
  return text.replace(/(?<=^|[\s[(])-(?=\d)/g, "\u2212");
}

/** How many heads of each kind are shown at first. */
const HEADS = 6;

function Disagreements({ of, its }: { of: Question; its: Model }) {
  const found = disagreementsOf(its, of.key);
  if (!found.length) return null;
  return (
    <Folded id="disagreements" title={`Where analyses of ${of.title} disagree: ${plural(headsOf(found).length, "head")}`}>
      {found.map((each) => <Kind key={each.line} of={each} its={its} question={of} />)}
    </Folded>
  );
}

function Kind({ of: { tension, a, b, heads, line }, its, question }: { of: Disagreement; its: Model; question: Question }) {
  const shows = { question: question.key, filter: line, colour: a.value, by: a.value, x: a.value, y: b.value, section: "disagreements" };
  return (
    <section>
      <p>
        <StateLink to={linked(shows, state.model.value)} title="Mark these heads in every view">{`${a.title}: ${tension.a.verdict}, ${b.title}: ${tension.b.verdict}`}</StateLink>
        <Explained text={` (${plural(heads.length, "head")}). ${tension.text}`} />
      </p>
      <ul>
        {heads.slice(0, HEADS).map((head) => (
          <li key={head}>
            <Head name={nameOf(its, head)} its={its} pane={paneOf(question)} />
            {` ${a.title} ${shownOf(its, a, head)}, ${b.title} ${shownOf(its, b, head)}`}
          </li>
        ))}
      </ul>
      {heads.length > HEADS && <p class="mh-muted">{`The other ${heads.length === HEADS + 1 ? "one is" : `${heads.length - HEADS} are`} marked by the link above.`}</p>}
    </section>
  );
}
