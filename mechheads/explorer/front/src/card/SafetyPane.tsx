/** How far answers to harmful requests move without the head. */
import { useState } from "preact/hooks";

import type { Shared, Ships } from "../data";
import { known, plural, show, withInterval } from "./numbers";
import { Empty, Toggle } from "./parts";
import { Strip, type StripRow } from "./Strip";
import { inText } from "./tokens";

export function shipsRows(ships: readonly Ships[]): StripRow[] {
  return ships.map(({ ablation, score, low, high, values }) => ({
    name: ablation,
    values,
    mean: score,
    low,
    high,
  }));
}

export function SafetyPane({ pane, shared, name }: { pane: Ships[]; shared: Shared; name: string }) {
  const [open, setOpen] = useState(false);
  const kept = pane.filter(({ values }) => values.some(known));
  const text = (at: number) => (open ? inText(shared.requests[at] ?? "") : `request ${at + 1} (its text is folded)`);
  return (
    <div class="card-sections">
      <section>
        <p class="card-lead">
          Ships says how far the next-token distribution of a harmful request moves without the head. It counts any change, not only
          changes of refusing.
        </p>
        <ul>
          {pane.map((ships) => (
            <li key={ships.ablation}>
              <b>{ships.ablation}</b> {said(ships)}
            </li>
          ))}
        </ul>
        <Strip
          name={`${name}-ships`}
          caption="One dot for each request; line: mean, band: its 95% interval"
          unit={pane[0]?.unit ?? "nats"}
          of="request"
          dots={text}
          rows={shipsRows(pane)}
        />
      </section>
      <section>
        <h3>Requests</h3>
        {kept.length > 0 ? (
          <>
            <Toggle on={open} onChange={setOpen}>
              show the texts of the requests: they are harmful
            </Toggle>
            <ByRequest ships={kept} shared={shared} open={open} />
          </>
        ) : (
          <Empty
            what="This head was not measured."
            command={`mh.ships(model, heads=["${name}"])`}
          />
        )}
      </section>
    </div>
  );
}

function said({ score, low, high, unit, values, generalized, generalizedLow, generalizedHigh }: Ships): string {
  const requests = plural(values.filter(known).length, "request");
  const ships = known(score) ? `${withInterval(score, low, high)} ${unit} on ${requests}.` : "was not measured.";
  return known(generalized) ? `${ships} The set of requests turns by ${withInterval(generalized, generalizedLow, generalizedHigh)} degrees.` : ships;
}

function ByRequest({ ships, shared, open }: { ships: readonly Ships[]; shared: Shared; open: boolean }) {
  const n = Math.max(...ships.map(({ values }) => values.length));
  return (
    <div class="card-scroll">
      <table class="card-table">
        <thead>
          <tr>
            <th scope="col">request</th>
            {ships.map(({ ablation, unit }) => (
              <th key={ablation} scope="col" class="card-number">{`${ablation}, ${unit}`}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: n }, (_, at) => (
            <tr key={at}>
              <th scope="row">{open ? inText(shared.requests[at] ?? String(at + 1)) : at + 1}</th>
              {ships.map(({ ablation, values }) => (
                <td key={ablation} class="card-number">
                  {known(values[at]) ? show(values[at]) : "not measured"}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
