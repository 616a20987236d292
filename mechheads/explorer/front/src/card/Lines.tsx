/** What was measured of one head: rows of numbers, by question. */
import { CopyPython, sourcesOf } from "../CopyPython";
import type { CardRow, Contradiction, Head, Model, Question } from "../data";
import { columnOf, hasValues, questionOf, shortened } from "../table";
import { heading, OPPOSED } from "../text";
import { IntervalPlot } from "./IntervalPlot";
import { chance, exact, known, shown } from "./numbers";
import { Empty, useWidth } from "./parts";
import { inText } from "./tokens";

/** In pixels; in a narrower card each row has two lines, and the questions that are not open are folded. */
const WIDE = 600;

export function Lines({ model, head, data }: { model: Model; head: string; data: Head | null }) {
  const [box, width] = useWidth<HTMLElement>();
  const wide = width >= WIDE;
  const open = questionOf(model);
  const mine = data?.rows ?? [];
  const groups = model.questions.map((question) => ({ question, rows: mine.filter((row) => row.question === question.key) })).filter(({ rows }) => rows.length);
  const first = groups.filter(({ question }) => wide || question === open);
  const rest = groups.filter((group) => !first.includes(group));
  const contradictions = model.questions.flatMap((question) => question.contradictions).filter(({ a }) => a.head === head);
  return (
    <section class="card-lines" aria-label="What was measured" ref={box}>
      {data && !mine.length && !hasValues(model) && <Empty what="No analysis has scored this head." command="mechheads atlas" />}
      {first.length > 0 && <Rows {...{ model, wide }} groups={first} />}
      {contradictions.map((each) => <Contradicts key={`${each.a.column} ${each.b.column}`} of={each} />)}
      {rest.length > 0 && (
        <details open={!first.length}>
          <summary>{first.length ? `Other questions: ${rest.map(({ question }) => inText(question.title)).join(", ")}` : "All questions"}</summary>
          <Rows {...{ model, wide }} groups={rest} />
        </details>
      )}
      <CopyPython model={model} sources={sourcesOf(model, mine)} what={head} />
    </section>
  );
}

interface RowsProps {
  model: Model;
  wide: boolean;
  groups: readonly { question: Question; rows: readonly CardRow[] }[];
}

function Rows({ model, wide, groups }: RowsProps) {
  return (
    <table class="card-table">
      <thead>
        <tr>
          <th scope="col">measured</th>
          <th scope="col">value [interval]</th>
          {wide && ["", "null", "family p", "n"].map((name) => <th key={name} scope="col" class="card-number card-whole">{name}</th>)}
          <th scope="col" class="card-number">rank</th>
        </tr>
      </thead>
      {groups.map(({ question, rows }) => (
        <tbody key={question.key}>
          <tr><th scope="rowgroup" colSpan={wide ? 7 : 3} class="card-muted">{inText(heading(question.title))}{question.varies && ` (${inText(question.varies)})`}</th></tr>
          {rows.map((row) => <OneRow key={row.measured} {...{ model, row, wide }} />)}
        </tbody>
      ))}
    </table>
  );
}

function OneRow({ model, row, wide }: { model: Model; row: CardRow; wide: boolean }) {
  const { measured, column, value, low, high, unit, p, n, rank, of, note } = row;
  const none = known(row.null) ? shown({ value: row.null, low: null, high: null, unit, n: 0 }) : "\u2013";
  const [number = "", ...rest] = shown(row).split(" ");
  const all = columnOf(model, column)?.values.map((each) => (typeof each === "number" ? each : null)) ?? [];
  return (
    <tr>
      <th scope="row" title={inText(measured)}>{inText(wide ? measured : shortened(measured))}</th>
      <td title={exact(value, low, high)}>
        <span class="card-whole"><b>{number}</b>{` ${rest.join(" ")}`}{!unit.startsWith("share") && <span class="card-aside">{` ${inText(unit)}`}</span>}</span>
        {!wide && <small>{`null ${none}, p ${chance(p)}, n ${n || "\u2013"}`}</small>}
        {note && <small>{inText(note)}</small>}
      </td>
      {wide && (
        <>
          <td><IntervalPlot {...{ value, low, high, all }} none={row.null ?? 0} width={84} height={18} /></td>
          <td class="card-number">{none}</td>
          <td class="card-number card-whole">{chance(p)}</td>
          <td class="card-number">{n || "\u2013"}</td>
        </>
      )}
      <td class="card-number card-whole" title="Equal heads share a rank">{`${rank}/${of}`}</td>
    </tr>
  );
}

function Contradicts({ of: { a, b } }: { of: Contradiction }) {
  return <p class="card-disagreement">{`${heading(OPPOSED)}: ${inText(a.measured)} ${shown(a)}, ${inText(b.measured)} ${shown(b)}`}</p>;
}
