/** The relations that a head maps by its weights. */
import type { RelationEvidence } from "../data";
import { IntervalPlot } from "./IntervalPlot";
import { exact, extent, interval, known, measured, plural, showQ } from "./numbers";
import { Tokens } from "./parts";
import { inText } from "./tokens";

export function WeightsPane({ relations }: { relations: readonly RelationEvidence[] }) {
  const all = extent(relations.flatMap(({ low, high, phi }) => [low, high, phi]), 0, 0.1);
  return (
    <section>
      <h3>Relations in its weights</h3>
      {!relations.length && <p class="card-empty">Its weights implement none of the relations better than chance.</p>}
      <ul class="card-relations">
        {relations.map((each) => (
          <OneRelation key={`${each.category}-${each.relation}-${each.reading}`} evidence={each} all={all} />
        ))}
      </ul>
    </section>
  );
}

const READINGS: Record<string, string> = {
  embedding: "reading tokens as embeddings",
  first_mlp: "reading what the first MLP makes of tokens",
  carried: "reading tokens as earlier layers carry them",
};

function OneRelation({ evidence: each, all }: { evidence: RelationEvidence; all: readonly [number, number] }) {
  const standing = each.evidence ? "evidence" : each.below ? "significant, but below the floor" : "no evidence";
  const hits = each.pairs?.filter(({ hit }) => hit).length ?? 0;
  return (
    <li>
      <p>
        <b>{inText(each.relation.replace(/_/g, " "))}</b> <span class="card-muted">{inText(each.category)}</span>{" "}
        <span class={`card-standing card-standing-${each.evidence ? "yes" : each.below ? "unclear" : "no"}`}>{standing}</span>
      </p>
      <IntervalPlot value={each.phi} low={each.low} high={each.high} all={all} none={each.null ?? 0} />
      <p class="card-numbers">
        <span class="card-value" title={exact(each.phi, each.low, each.high)}>
          <b>{measured(each.phi, each.low, each.high)}</b>
          {known(each.low) && ` ${interval(each.low, each.high)}`} of pairs
        </span>
        <span>{showQ(each.q)}</span>
        {known(each.null) && <span>{`shuffled targets: ${measured(each.null, each.low, each.high)}`}</span>}
        {each.reading && <span>{READINGS[each.reading] ?? each.reading}</span>}
      </p>
      {each.pairs && (
        <details>
          <summary>{`${hits} of ${plural(each.pairs.length, "pair")}: the target is among the strongest outputs`}</summary>
          <ul class="card-pairs">
            {each.pairs.map(({ source, target, hit }, at) => (
              <li key={at} class={hit ? "card-hit" : "card-miss"}>
                <span class="card-hidden">{hit ? "hit: " : "missed: "}</span>
                <Tokens texts={[source]} /> {"\u2192"} <Tokens texts={[target]} />
              </li>
            ))}
          </ul>
        </details>
      )}
    </li>
  );
}
