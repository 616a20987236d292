/** Where a head attends in ordinary text, in numbers, and what it is called for it. */
import type { Model } from "../data";
import { numbersOf, titled } from "../table";
import { exact, interval, measured } from "./numbers";

export function Behaviour({ model, head }: { model: Model; head: number }) {
  const { behaviours } = model;
  const rows = behaviours?.names.flatMap((each, at) => {
    const numbers = numbersOf(model, each.column);
    return numbers ? [{ ...each, ...numbers, is: behaviours.of[head]?.includes(at) ?? false }] : [];
  });
  if (!rows?.length) return null;
  return (
    <section>
      <h3>What it does on ordinary text</h3>
      <div class="card-scroll">
        <table class="card-table">
          <thead>
            <tr>
              <th scope="col">measure</th>
              <th scope="col" class="card-number">value</th>
              <th scope="col">interval</th>
              <th scope="col">rank</th>
              <th scope="col">called so</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ name, column, meaning, values, low, high, ranks, known, is }) => (
              <tr key={name} class={is ? "card-row-strong" : ""}>
                <th scope="row" title={`${titled(column)}: ${meaning}`}>{column.label}{column.unit && <span class="card-aside">{` (${column.unit})`}</span>}</th>
                <td class="card-number" title={exact(values[head], low?.[head], high?.[head])}>{measured(values[head], low?.[head], high?.[head])}</td>
                <td class="card-whole">{interval(low?.[head], high?.[head])}</td>
                <td class="card-whole">{ranks[head] ? <>{ranks[head]}<span class="card-aside">{` of ${known}`}</span></> : "\u2013"}</td>
                <td>{is ? name : "\u2013"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
