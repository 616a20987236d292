/** Whether the views of a question agree. */
import { interval, known, show } from "./card/numbers";
import type { Agreement } from "./data";
import { model } from "./page";

export function Agreements({ of }: { of: readonly Agreement[] }) {
  const title = (name: string) => model.value.views.find((view) => view.name === name)?.title ?? name;
  return (
    <>
      <p>
        Rank correlations over heads: 1 if two views put the heads in the same order, {"\u2212"}1 if in the opposite order. Pale: the interval over layers
        contains 0.
      </p>
      <div class="mh-scroll" tabIndex={0} role="region" aria-label="Rank correlations of views">
        <table class="mh-agreement">
          <thead><tr><th scope="col">Views</th><th scope="col">Rank correlation</th><th scope="col">Interval</th><th scope="col">Heads</th></tr></thead>
          <tbody>
            {of.map(({ view, other, spearman, low, high, n }) => (
              <tr key={`${view} ${other}`}>
                <th scope="row">{`${title(view)} and ${title(other)}`}</th>
                <td class={known(low) && known(high) && low <= 0 && high >= 0 ? "mh-muted" : "is-clear"}>{known(spearman) ? show(spearman, 2) : "\u2013"}</td>
                <td>{interval(low, high)}</td>
                <td>{n}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
