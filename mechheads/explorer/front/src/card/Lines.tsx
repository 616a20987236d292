/** One line for each view: value, interval, q, rank, verdict, and what they mean. */
import type { Head, Model, Verdict } from "../data";
import { hasValues } from "../table";
import { IntervalPlot } from "./IntervalPlot";
import { agreementOf, linesOf, type Line } from "./verdicts";
import { CLUSTERS, exact, interval, known, measured, showQ } from "./numbers";
import { Empty } from "./parts";

export function Lines({ model, head, data }: { model: Model; head: number; data: Head | null }) {
  const lines = linesOf(model, head, data);
  if (!lines.length && hasValues(model)) return null;
  if (!lines.length) return <Empty what="No analysis has scored this head." command="mechheads atlas" />;
  const agreement = agreementOf(model, lines);
  return (
    <section class="card-lines" aria-label="What each analysis says">
      <p class={agreement.disagree ? "card-agreement card-disagreement" : "card-agreement"}>{agreement.text}</p>
      <ul>
        {lines.map((line) => (
          <OneLine key={line.view.name} line={line} />
        ))}
      </ul>
    </section>
  );
}

function OneLine({ line }: { line: Line }) {
  const { view, value, low, high, rank, verdict } = line;
  return (
    <li class={`card-line card-line-${verdict ?? "none"}`}>
      <h3>{view.title}</h3>
      <VerdictMark verdict={verdict} text={verdict ? view.verdict.texts[verdict] : "not measured"} />
      {value !== null && (
        <>
          <IntervalPlot value={value} low={low} high={high} all={line.all} />
          <p class="card-numbers">
            <span class="card-value" title={exact(value, low, high)}>
              <b>{measured(value, low, high)}</b>
              {known(low) && known(high) && ` ${interval(low, high, view.range ? CLUSTERS : "")}`} {view.unit}
            </span>
            {view.q && <span>{showQ(line.q)}</span>}
            {rank && <span>{`rank ${rank.rank} of ${rank.of}${view.rankBy === "absolute" ? " by size" : ""}`}</span>}
            {line.measuredOn && <span>{line.measuredOn}</span>}
          </p>
        </>
      )}
      <p class="card-sentence">{line.sentence}</p>
      {verdict && (
        <details class="card-why">
          <summary>Why, and what would change it</summary>
          <p>{view.verdict.rule}</p>
          <p>{view.verdict.change[verdict]}</p>
        </details>
      )}
    </li>
  );
}

const SIGNS: Record<Verdict, string> = { yes: "\u25cf", unclear: "\u25d0", no: "\u25cb" };

function VerdictMark({ verdict, text }: { verdict: Verdict | null; text: string }) {
  return (
    <span class={`card-verdict card-verdict-${verdict ?? "none"}`}>
      <span aria-hidden="true">{verdict ? SIGNS[verdict] : "\u2013"}</span> {text}
    </span>
  );
}
