/** What was asked and what was found: a block for each question, with its table of heads. A block's title opens its question. */
import { paneOf } from "./card/Card";
import { headEvents } from "./card/headEvents";
import { nameOf, numberOf } from "./card/heads";
import { extent, known, plural, show } from "./card/numbers";
import { shown, shownOf } from "./card/verdicts";
import type { Model, Question, Row } from "./data";
import { Explained } from "./Explained";
import { disagreementsOf, headsOf, type Disagreement } from "./disagree";
import { focusCard } from "./focus";
import { idOf } from "./ids";
import { model, page } from "./page";
import { Folded } from "./sections";
import { plainClick, StateLink } from "./StateLink";
import { hashOf, linked, open, state } from "./state";
import { questionOf } from "./table";
import { heading } from "./text";

export function Questions() {
  const its = model.value;
  const { questions } = its;
  if (page.value.start || !questions.length) return null;
  const shown = questionOf(its);
  return (
    <section class="mh-answer" aria-labelledby={idOf("answer")}>
      <header>
        <h2 id={idOf("answer")}>What was found</h2>
        <p class="mh-muted">Heads whose interval lies beyond the smallest effect worth naming, the largest first. In brackets: 95% intervals.</p>
      </header>
      <div class="mh-blocks">
        {questions.map((question) => <Block key={question.key} of={question} its={its} isOpen={question === shown} />)}
      </div>
      {shown && shown.rows.length > FIRST && <Folded id="rows" title={`All rows of ${shown.title}`}><Rows of={shown} its={its} /></Folded>}
      {shown && <Disagreements key={shown.key} of={shown} its={its} />}
    </section>
  );
}

/** How many rows of a question are drawn. */
const FIRST = 5;

function Block({ of, its, isOpen }: { of: Question; its: Model; isOpen: boolean }) {
  const { key, title, kind, varies, warnings, rows } = of;
  const n = headsOf(disagreementsOf(its, key)).length;
  return (
    <article class={`mh-block ${isOpen ? "is-shown" : ""}`} aria-labelledby={idOf(`question-${key}`)}>
      <h3 id={idOf(`question-${key}`)}>
        <StateLink to={linked({ question: key }, state.model.value)} title="Show this question in the map, the scatter and the table" current={isOpen}>{kind === "own" ? title : heading(title)}</StateLink>
        {varies && <span class="mh-muted">{` ${varies}`}</span>}
      </h3>
      {rows.length > 0 ? <Intervals of={of} its={its} /> : <p class="mh-muted">No head beyond the smallest effect worth naming.</p>}
      {warnings.map((text) => <p key={text} class="mh-muted">{text}</p>)}
      {n > 0 && <p><StateLink to={linked({ question: key, section: "disagreements" }, state.model.value)}>{`${plural(n, "head")} on which two analyses disagree`}</StateLink></p>}
    </article>
  );
}

/** The first rows of a question on one axis: values, their intervals, and where 0 is. */
function Intervals({ of, its }: { of: Question; its: Model }) {
  const { rows, title } = of;
  const { measured = title, unit = "" } = rows[0] ?? {};
  const first = rows.filter((row) => row.measured === measured).slice(0, FIRST);
  const [from, to] = extent(first.flatMap(({ value, low, high }) => [value, low, high]), 0);
  const place = (value: number) => `${(3 + (94 * (value - from)) / (to - from)).toFixed(2)}%`;
  const zero = { "--at": place(0) };
  return (
    <>
      <p class="mh-muted">{measured}</p>
      <ul class="mh-intervals" aria-label={`The first heads by ${measured}`}>
        {first.map(({ head, value, low, high }) => (
          <li key={head}>
            <Head name={head} its={its} pane={paneOf(of)} />
            <span class="mh-track" style={zero} aria-hidden="true">
              {known(low) && known(high) && <span class="mh-range" style={{ "--at": place(low), "--to": place(high) }} />}
              {known(value) && <span class="mh-value" style={{ "--at": place(value) }} />}
            </span>
            <span>{shown({ unit, range: false }, value, low, high)}</span>
          </li>
        ))}
        <li class="mh-muted" aria-hidden="true"><span /><span class="mh-track" style={zero}><span class="mh-nought">0</span></span><span>{unit}</span></li>
      </ul>
    </>
  );
}

/** Every row of a question, with its null, family p and number of prompts. */
function Rows({ of, its }: { of: Question; its: Model }) {
  const number = (value: Row["p"]) => (known(value) ? show(value, 2) : "");
  return (
    <div class="mh-scroll" tabIndex={0} role="region" aria-label={`Rows of ${of.title}`}>
      <table class="mh-table-of mh-rows">
        <thead><tr>{["Head", "Measured", "Value", "Null", "Family p", "n", ""].map((name) => <th key={name} scope="col">{name}</th>)}</tr></thead>
        <tbody>
          {of.rows.map(({ head, measured, value, low, high, unit, null: none, p, n, note }) => (
            <tr key={`${measured} ${head}`}>
              <th scope="row"><Head name={head} its={its} pane={paneOf(of)} /></th>
              <td>{measured}</td>
              <td>{`${known(value) ? shown({ unit, range: false }, value, low, high) : ""} ${unit}`}</td>
              <td>{number(none)}</td>
              <td>{number(p)}</td>
              <td>{n || ""}</td>
              <td>{note}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
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
