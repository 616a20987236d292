/** The effects of a head on two pairs of prompts: left, right and the difference. */
import type { Effect, Shared } from "../data";
import { choose, state } from "../state";
import { known, show } from "./numbers";
import { inText } from "./tokens";

export function PairsBeside({ effects, pairs }: { effects: readonly Effect[]; pairs: Shared["pairs"] }) {
  const n = Math.min(pairs.length, Math.max(...effects.map(({ values }) => values.length)));
  if (n < 2) return null;
  const order = inOrder(effects[0], n);
  const valid = (pair: number | null, otherwise: number) => (pair !== null && pair < n ? pair : otherwise);
  const left = valid(state.pair.value, order[0] ?? 0);
  const right = valid(state.pairBeside.value, order.at(-1) ?? 1);
  const text = (at: number) => inText(`${pairs[at]?.clean}${pairs[at]?.answer}`);
  const pick = (label: string, value: number, onPick: (pair: number) => void) => (
    <label class="card-select">
      <span>{label}</span>{" "}
      <select value={String(value)} onChange={(event) => onPick(Number(event.currentTarget.value))}>
        {Array.from({ length: n }, (_, at) => <option key={at} value={String(at)}>{text(at)}</option>)}
      </select>
    </label>
  );
  return (
    <section>
      <h3>Two pairs of prompts side by side</h3>
      <div class="card-controls">
        {pick("Left", left, (pair) => choose({ pair }))}
        {pick("Right", right, (pairBeside) => choose({ pairBeside }))}
      </div>
      <div class="card-scroll">
        <table class="card-table">
          <thead>
            <tr>
              <th scope="col">effect</th>
              <th scope="col" class="card-number">left</th>
              <th scope="col" class="card-number">right</th>
              <th scope="col" class="card-number">left minus right</th>
              <th scope="col">unit</th>
            </tr>
          </thead>
          <tbody>
            {effects.map(({ name, title, unit, values }) => {
              const [one, other] = [values[left], values[right]];
              return (
                <tr key={name}>
                  <th scope="row">{inText(title)}</th>
                  <td class="card-number">{show(one)}</td>
                  <td class="card-number">{show(other)}</td>
                  <td class="card-number">{known(one) && known(other) ? show(one - other) : "\u2013"}</td>
                  <td>{unit}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** Pairs by the size of an effect, the largest first: at first, the extremes stand side by side. */
function inOrder(effect: Effect | undefined, n: number): number[] {
  return Array.from({ length: n }, (_, at) => at).sort((a, b) => (effect?.values[b] ?? 0) - (effect?.values[a] ?? 0));
}
