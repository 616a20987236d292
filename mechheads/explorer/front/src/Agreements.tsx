/** Whether views agree. */
import { interval, known, show } from "./card/numbers";
import type { Agreement } from "./data";
import { model } from "./page";

export function Agreements({ of }: { of: readonly Agreement[] }) {
  const names = [...new Set(of.flatMap(({ view, other }) => [view, other]))];
  const found = (a: string, b: string) => of.find(({ view, other }) => (view === a && other === b) || (view === b && other === a));
  const title = (name: string) => model.value.views.find((view) => view.name === name)?.title ?? name;
  return (
    <>
      <p>
        Rank correlations over heads: 1 if two views put the heads in the same order, {"\u2212"}1 if in the opposite order. Pale: the interval over layers
        contains 0.
      </p>
      <div class="mh-scroll" tabIndex={0} role="region" aria-label="Rank correlations of views">
        <table class="mh-agreement">
          <thead>
            <tr><td />{names.slice(0, -1).map((name) => <th key={name} scope="col">{title(name)}</th>)}</tr>
          </thead>
          <tbody>
            {names.slice(1).map((name, row) => (
              <tr key={name}>
                <th scope="row">{title(name)}</th>
                {names.slice(0, -1).map((other, column) => (column <= row ? <Correlation key={other} of={found(name, other)} /> : <td key={other} />))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Correlation({ of }: { of: Agreement | undefined }) {
  if (!of || !known(of.spearman)) return <td class="mh-muted">{"\u2013"}</td>;
  const unclear = known(of.low) && known(of.high) && of.low <= 0 && of.high >= 0;
  return <td class={unclear ? "mh-muted" : "is-clear"} title={`${interval(of.low, of.high)}, ${of.n} heads`}>{show(of.spearman, 2)}</td>;
}
