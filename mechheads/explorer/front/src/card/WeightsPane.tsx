/** What a head can read and write, from its weights alone. */
import type { Direction, Operation, RelationEvidence, Spectrum, WeightsPane as Pane } from "../data";
import { IntervalPlot } from "./IntervalPlot";
import { exact, extent, interval, known, measured, percent, plural, show, showQ } from "./numbers";
import { Empty, Tokens } from "./parts";
import { SpectrumPlot } from "./Spectrum";
import { inText } from "./tokens";

export function WeightsPane({ pane, name }: { pane: Pane; name: string }) {
  return (
    <div class="card-sections">
      <Relations relations={pane.relations} />
      {pane.operations && <Operations operations={pane.operations} />}
      <section>
        <h3>Does it copy?</h3>
        {pane.copying ? <Copying {...pane.copying} /> : <Empty what="There is no copying score." command="mechheads atlas" />}
      </section>
      <Circuit
        spectrum={pane.ov}
        title="OV"
        name={`${name}-ov`}
        lead="If the head attends to a token with what it reads, it adds what it writes."
        reads="reads"
        writes="writes"
      />
      <Circuit
        spectrum={pane.qk}
        title="QK"
        name={`${name}-qk`}
        lead="A token of the first kind attends to tokens of the second kind."
        reads="at the query"
        writes="looks for"
      />
    </div>
  );
}

function Copying({ value, q, null: none, meaning }: NonNullable<Pane["copying"]>) {
  return (
    <>
      <IntervalPlot value={value} low={null} high={null} all={[-1, 1]} none={none ?? 0} width={220} />
      <p class="card-numbers">
        <b>{show(value)}</b> <span>from {"\u2212"}1 (suppresses) to 1 (copies)</span>
        <span>{showQ(q)}</span>
        <span>{`random weights: ${show(none)}`}</span>
      </p>
      <p>{inText(meaning)}</p>
    </>
  );
}

interface CircuitProps {
  spectrum: Spectrum | null;
  title: string;
  name: string;
  lead: string;
  reads: string;
  writes: string;
}

function Circuit({ spectrum, title, name, lead, reads, writes }: CircuitProps) {
  return (
    <section>
      <h3>{title === "OV" ? "What it reads and writes (OV)" : "What attends to what (QK)"}</h3>
      {spectrum ? (
        <>
          <p class="card-lead">{lead} Embeddings are a rough guide for later layers, which read what earlier layers wrote.</p>
          <SpectrumPlot name={name} title={title} singular={spectrum.singular} />
          <ol class="card-directions">
            {spectrum.directions.map((direction, at) => (
              <OneDirection key={at} {...{ direction, reads, writes }} />
            ))}
          </ol>
        </>
      ) : (
        <Empty what={`The ${title} circuit was not taken apart.`} command="mechheads atlas" />
      )}
    </section>
  );
}

function OneDirection({ direction, reads, writes }: { direction: Direction; reads: string; writes: string }) {
  return (
    <li>
      <b>{percent(direction.share)}</b> <span class="card-muted">of the sum of squares</span>
      {(["positive", "negative"] as const).map((end) => (
        <div key={end} class="card-direction">
          <span>
            <span class="card-muted">{reads}</span> <Tokens texts={direction[end].reads} />
          </span>
          <span class="card-arrow" aria-hidden="true">
            {"\u2192"}
          </span>
          <span>
            <span class="card-muted">{writes}</span> <Tokens texts={direction[end].writes} />
          </span>
        </div>
      ))}
    </li>
  );
}

function Relations({ relations }: { relations: readonly RelationEvidence[] }) {
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
        <span class={`card-verdict card-verdict-${each.evidence ? "yes" : each.below ? "unclear" : "no"}`}>{standing}</span>
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

function Operations({ operations }: { operations: readonly Operation[] }) {
  return (
    <section>
      <h3>Tokens that it amplifies most</h3>
      <div class="card-scroll">
        <table class="card-table">
          <thead>
            <tr>
              <th scope="col">reads</th>
              <th scope="col">made longer by</th>
              <th scope="col">raises</th>
              <th scope="col">lowers</th>
            </tr>
          </thead>
          <tbody>
            {operations.map(({ token, sigma, mapsTo, suppresses }, at) => (
              <tr key={at}>
                <th scope="row">
                  <Tokens texts={[token]} />
                </th>
                <td>{show(sigma)}</td>
                <td>
                  <Tokens texts={mapsTo} />
                </td>
                <td>
                  <Tokens texts={suppresses} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
