/** The questions and their answers: a block for each question, with its table of heads. A block's title opens its question. */
import { paneOf } from "./card/Card";
import { headEvents } from "./card/headEvents";
import { numberOf } from "./card/heads";
import { chance, extent, known, placesOf, plural, shown } from "./card/numbers";
import { CopyPython, sourcesOf } from "./CopyPython";
import type { Contradiction, Model, Question, Row } from "./data";
import { focusCard } from "./focus";
import { idOf } from "./ids";
import { model, page } from "./page";
import { Folded } from "./sections";
import { plainClick, StateLink } from "./StateLink";
import { hashOf, linked, open } from "./state";
import { questionOf, shortened } from "./table";
import { heading, OPPOSED } from "./text";

export function Questions() {
  const its = model.value;
  const { questions } = its;
  if (page.value.start || !questions.length) return null;
  const open = questionOf(its);
  return (
    <section class="mh-answer" aria-labelledby={idOf("answer")}>
      <header>
        <h2 id={idOf("answer")}>What was found</h2>
        <p class="mh-muted">Heads whose interval lies beyond the smallest effect worth naming, the largest first. In brackets: 95% intervals.</p>
      </header>
      <div class="mh-blocks">
        {questions.map((question) => <Block key={question.key} of={question} its={its} isOpen={question === open} />)}
      </div>
      {open && open.rows.length > FIRST && <Folded id="rows" title={`All ${plural(open.rows.length, "row")} of ${open.title}`}><Rows of={open} rows={open.rows} its={its} /></Folded>}
      {open && <Contradictions key={open.key} of={open} its={its} />}
    </section>
  );
}

/** How many rows of a question are drawn: of one measure, and of several. */
const FIRST = 5;
const MEASURES = 7;

function Block({ of, its, isOpen }: { of: Question; its: Model; isOpen: boolean }) {
  const { key, title, kind, varies, warnings, rows } = of;
  const n = headsOf(of.contradictions).length;
  return (
    <article class={`mh-block ${isOpen ? "is-shown" : ""}`} aria-labelledby={idOf(`question-${key}`)}>
      <h3 id={idOf(`question-${key}`)}>
        <StateLink to={linked({ question: key })} title="Show this question in the map, the scatter and the table" current={isOpen}>{kind === "own" ? title : heading(title)}</StateLink>
        {varies && <span class="mh-muted">{` ${varies}`}</span>}
      </h3>
      {rows.length > 0 && <Intervals of={of} its={its} />}
      {warnings.map((text) => <p key={text} class="mh-muted">{text}</p>)}
      {n > 0 && <p><StateLink to={linked({ question: key, section: "contradictions" })}>{`${plural(n, "head")}: ${OPPOSED}`}</StateLink></p>}
      <p><CopyPython model={its} sources={sourcesOf(its, rows)} what={title} /></p>
    </article>
  );
}

/** The rows that a block draws: the first of its first measure, or of a question with many measures the first of each. */
function drawn({ rows, kind }: Question): readonly Row[] {
  const each = [...new Map(rows.toReversed().map((row) => [row.measured, row])).values()];
  if (kind === "text" || kind === "weights") return each.sort((a, b) => (b.value ?? 0) - (a.value ?? 0)).slice(0, MEASURES);
  return rows.filter(({ measured }) => measured === rows[0]?.measured).slice(0, FIRST);
}

/** Rows of a question on one axis: values, their intervals, and where 0 is. */
function Intervals({ of, its }: { of: Question; its: Model }) {
  const first = drawn(of);
  const { measured = of.title, unit = "" } = first[0] ?? {};
  const several = first.some((row) => row.measured !== measured);
  const same = first.every((row) => row.unit === unit);
  const [from, to] = extent(first.flatMap(({ value, low, high }) => [value, low, high]), 0);
  const place = (value: number) => `${(3 + (94 * (value - from)) / (to - from)).toFixed(2)}%`;
  const zero = { "--at": place(0) };
  const decimals = placesOf(first);
  return (
    <>
      <p class="mh-muted">{several ? "The first head by each measure" : measured}</p>
      <ul class={`mh-intervals ${several ? "is-several" : ""}`} aria-label={`The first heads by ${several ? "each measure" : measured}`}>
        {first.map(({ head, measured, value, low, high, n }) => (
          <li key={`${head} ${measured}`}>
            <Head name={head} its={its} pane={paneOf(of)} />
            {several && <span title={measured}>{shortened(measured.replace(/^phi of /, "").replaceAll("_", " "))}</span>}
            <span class="mh-track" style={zero} aria-hidden="true">
              {known(low) && known(high) && <span class="mh-range" style={{ "--at": place(low), "--to": place(high) }} />}
              {known(value) && <span class="mh-value" style={{ "--at": place(value) }} />}
            </span>
            <span>{shown({ value, low, high, unit, n }, decimals)}</span>
          </li>
        ))}
        <li class="mh-muted" aria-hidden="true"><span />{several && <span />}<span class="mh-track" style={zero}><span class="mh-nought">0</span></span><span>{same ? unit : "share"}</span></li>
      </ul>
    </>
  );
}

/** Rows with their null, family p, number of prompts and rank; the values of each measure have one number of decimals. */
function Rows({ of, rows, its }: { of: Question; rows: readonly Row[]; its: Model }) {
  const places = new Map([...new Set(rows.map(({ measured }) => measured))].map((name) => [name, placesOf(rows.filter(({ measured }) => measured === name), 1)]));
  return (
    <div class="mh-scroll" tabIndex={0} role="region" aria-label={`Rows of ${of.title}`}>
      <table class="mh-table-of mh-rows">
        <thead><tr>{["Head", "Measured", "Value", "Unit", "Null", "Family p", "n", "Rank", ""].map((name) => <th key={name} scope="col">{name}</th>)}</tr></thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.measured} ${row.head}`}>
              <th scope="row"><Head name={row.head} its={its} pane={paneOf(of)} /></th>
              <td>{row.measured}</td>
              <td>{shown(row, places.get(row.measured))}</td>
              <td>{row.unit}</td>
              <td>{known(row.null) ? shown({ ...row, value: row.null, low: null, high: null, n: 0 }, places.get(row.measured)) : "\u2013"}</td>
              <td>{chance(row.p)}</td>
              <td>{row.n || "\u2013"}</td>
              <td>{`${row.rank} of ${row.of}`}</td>
              <td>{row.note}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <CopyPython model={its} sources={sourcesOf(its, rows)} what={`the rows of ${of.title}`} />
    </div>
  );
}

/** A link to the card of a head, which it opens and changes nothing else. */
function Head({ name, its, pane }: { name: string; its: Model; pane: string }) {
  const head = numberOf(its, name);
  if (head === null) return <>{name}</>;
  const { onClick: _, ...marks } = headEvents(head);
  const go = (event: MouseEvent) => {
    if (!plainClick(event)) return;
    marks.onPointerLeave();
    open(head, pane || undefined);
    if (event.detail === 0) focusCard();
  };
  return <a class="mh-answer-head" href={`#${hashOf(linked({ head: name, pane }))}`} {...marks} onClick={go}>{name}</a>;
}

function headsOf(contradictions: readonly Contradiction[]): string[] {
  return [...new Set(contradictions.map(({ a }) => a.head))];
}

/** The rows of each head in both measures, one pair of measures after the other. */
function Contradictions({ of, its }: { of: Question; its: Model }) {
  const { contradictions, key, title } = of;
  if (!contradictions.length) return null;
  const pairs = new Map<string, Contradiction[]>();
  for (const each of contradictions) pairs.set(`${each.a.column} ${each.b.column}`, [...(pairs.get(`${each.a.column} ${each.b.column}`) ?? []), each]);
  return (
    <Folded id="contradictions" title={`${heading(title)}, ${plural(headsOf(contradictions).length, "head")}: ${OPPOSED}`}>
      <p class="mh-muted">Intervals that both lie beyond the smallest effect, in opposite directions; or one beyond it, and the other within it.</p>
      {[...pairs].map(([name, some]) => {
        const [{ a, b }] = some as [Contradiction];
        const shows = { question: key, filter: headsOf(some).join(" "), colour: a.column, by: a.column, x: a.column, y: b.column, section: "contradictions" };
        return (
          <section key={name}>
            <p><StateLink to={linked(shows)} title="Mark these heads in every view">{`${a.measured} and ${b.measured}: ${plural(some.length, "head")}`}</StateLink></p>
            <Rows of={of} rows={some.flatMap((each) => [each.a, each.b])} its={its} />
          </section>
        );
      })}
    </Folded>
  );
}
