/** What is known of one head as a table: of each question its evidence, effect, rank and verdict. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";

import type { Head, Model, Verdict } from "../data";
import { Explained } from "../Explained";
import { hasValues, shortened } from "../table";
import { IntervalPlot } from "./IntervalPlot";
import { exact, show, type Maybe } from "./numbers";
import { Empty, useWidth } from "./parts";
import { linesOf, shown, shownOf, tensionsOf, type Line } from "./verdicts";

/** In pixels; in a narrower card questions are rows, and p and q are shown on demand. */
const WIDE = 520;

export function Lines({ model, head, data }: { model: Model; head: number; data: Head | null }) {
  const [box, width] = useWidth<HTMLElement>();
  const [open, setOpen] = useState("");
  const groups = linesOf(model, head, data);
  if (!groups.length) return hasValues(model) ? null : <Empty what="No analysis has scored this head." command="mechheads atlas" />;
  const wide = width >= WIDE;
  const [hasP, hasQ] = (["p", "q"] as const).map((what) => wide && groups.some(({ lines }) => lines.some(({ view }) => view[what])));
  const columns = 4 + Number(wide) + Number(hasP) + Number(hasQ);
  return (
    <section class="card-lines" aria-label="What each analysis says" ref={box}>
      <table class="card-table">
        <thead>
          <tr>
            {wide && <th scope="col">question</th>}
            <th scope="col">evidence</th>
            <th scope="col">effect [interval]</th>
            {hasP && <th scope="col" class="card-whole">family p</th>}
            {hasQ && <th scope="col">q</th>}
            <th scope="col">rank</th>
            <th scope="col">verdict</th>
          </tr>
        </thead>
        {groups.map(({ question, lines }) => {
          const title = question?.title ?? "of no question";
          const rows = lines.length + Number(lines.some(({ view }) => view.name === open));
          return (
            <tbody key={question?.key ?? ""}>
              {!wide && <tr><th scope="rowgroup" colSpan={columns} class="card-muted">{title}</th></tr>}
              {lines.map((line, at) => (
                <Fragment key={line.view.name}>
                  <tr>
                    {wide && at === 0 && <th scope="rowgroup" rowSpan={rows} class="card-muted">{title}</th>}
                    <th scope="row" title={line.view.title}>{wide ? line.view.title : shortened(line.view.title)}</th>
                    <td class="card-whole" title={exact(line.value, line.low, line.high)}><Effect line={line} /></td>
                    {hasP && <td>{chance(line.p)}</td>}
                    {hasQ && <td>{chance(line.q)}</td>}
                    <td class="card-whole">{line.rank ? `${line.rank.rank}${wide ? " of " : "/"}${line.rank.of}` : "\u2013"}</td>
                    <td><Answer line={line} isOpen={open === line.view.name} onOpen={setOpen} /></td>
                  </tr>
                  {open === line.view.name && <tr><td colSpan={columns - Number(wide)}><Why line={line} /></td></tr>}
                </Fragment>
              ))}
            </tbody>
          );
        })}
      </table>
      {tensionsOf(model, head).map(({ a, b, text }) => (
        <p key={text} class="card-disagreement">{`${a.title} ${shownOf(model, a, head)}, ${b.title} ${shownOf(model, b, head)}: ${text}`}</p>
      ))}
    </section>
  );
}

function Effect({ line: { view, value, low, high } }: { line: Line }) {
  if (value === null) return <span class="card-muted">not measured</span>;
  const [number = "", ...rest] = shown(view, value, low, high).split(" ");
  return (
    <>
      <b>{number}</b>
      {rest.length > 0 && ` ${rest.join(" ")}`}
      {!view.unit.startsWith("share") && <span class="card-aside">{` ${view.unit}`}</span>}
    </>
  );
}

/** A p or q value in a cell. */
function chance(value: Maybe): string {
  return value === null || value === undefined ? "\u2013" : value < 0.001 ? "< 0.001" : show(value, 2);
}

const SIGNS: Record<Verdict, string> = { yes: "\u25cf", unclear: "\u25d0", no: "\u25cb" };

/** The verdict, which opens what it means. */
function Answer({ line: { view, verdict }, isOpen, onOpen }: { line: Line; isOpen: boolean; onOpen: (name: string) => void }) {
  if (!verdict) return <>{"\u2013"}</>;
  return (
    <button type="button" class={`card-verdict card-verdict-${verdict}`} title={view.verdict.texts[verdict]} aria-expanded={isOpen} onClick={() => onOpen(isOpen ? "" : view.name)}>
      <span aria-hidden="true">{SIGNS[verdict]}</span> {verdict}
    </button>
  );
}

function Why({ line: { view, value, low, high, p, q, all, verdict, sentence, measuredOn } }: { line: Line }) {
  const facts = [measuredOn, p === null ? "" : `family p ${chance(p)}`, q === null ? "" : `q ${chance(q)}`].filter(Boolean);
  return (
    <div class="card-why">
      {verdict && <p><b><Explained text={view.verdict.texts[verdict]} /></b></p>}
      <p><Explained text={`${sentence}${facts.length > 0 ? ` (${facts.join(", ")})` : ""}`} /></p>
      <IntervalPlot {...{ value, low, high, all }} />
      <p><Explained text={view.verdict.rule} /></p>
      {verdict && <p><Explained text={view.verdict.change[verdict]} /></p>}
    </div>
  );
}
