/** What changed most from one model to another, beyond the intervals. Each row opens the two heads side by side. */
import { Fragment } from "preact";

import { numberOf } from "../card/heads";
import { interval, known, measured, show, showQ, type Maybe } from "../card/numbers";
import type { Change } from "../data";
import { focusCard } from "../focus";
import { modelOf, page } from "../page";
import { choose, state } from "../state";

/** What the page says of the two models that are compared; undefined if they are of different sizes, or neither is the first. */
export function changeShown(): Change | undefined {
  return page.value.changes.find(({ model, of }) => model === state.model.value && of === state.versus.value);
}

export function Changes({ change }: { change: Change }) {
  const [after, before] = [modelOf(change.model), modelOf(change.of)];
  const views = new Map(change.views.map((view) => [view.name, view]));
  return (
    <section class="mh-changes" aria-label="What changed most">
      <h3>What changed most</h3>
      <p>{sentence(change)}</p>
      {change.unlike && <p class="mh-unlike">{change.unlike}</p>}
      {change.rows.length > 0 && (
        <div class="mh-scroll" tabIndex={0} role="region" aria-label="Heads that changed most">
          <table class="mh-differences mh-changed">
            <thead>
              <tr>
                <th scope="col">Head</th>
                <th scope="col">View</th>
                <th scope="col"><bdi>{before.name}</bdi></th>
                <th scope="col"><bdi>{after.name}</bdi></th>
                <th scope="col">{change.rows.some(({ low }) => known(low)) ? "Change, with its interval" : "Change"}</th>
                <th scope="col">Beyond its interval</th>
              </tr>
            </thead>
            <tbody>
              {change.rows.map((row) => {
                const view = views.get(row.view);
                return (
                  <tr key={`${row.head} ${row.view}`}>
                    <th scope="row">
                      <Head change={change} name={row.head} />
                    </th>
                    <td>{view?.title ?? row.view}{view?.unit ? ` (${view.unit})` : ""}</td>
                    <td>{show(row.before)}</td>
                    <td>{show(row.after)}</td>
                    <td>{signed(row.difference, row.low, row.high)}{known(row.low) ? ` ${interval(row.low, row.high)}` : ""}</td>
                    <td>{row.beyond ? "yes" : "no"}{known(row.q) ? `, ${showQ(row.q)}` : ""}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
      {change.within.length > 0 && (
        <p class="mh-within">
          Larger, but within their intervals; more prompts would tell:{" "}
          {change.within.map((row, at) => (
            <Fragment key={`${row.head} ${row.view}`}>
              {at > 0 && "; "}
              <Head change={change} name={row.head} /> {views.get(row.view)?.title ?? row.view} {signed(row.difference)}
            </Fragment>
          ))}
        </p>
      )}
      <details>
        <summary>How many heads changed in each view, and by which intervals</summary>
        <ul>
          {change.views.map(({ name, title, beyond, known: of, how }) => (
            <li key={name}><strong>{title}:</strong> {beyond} of {of} heads beyond their intervals. {how}</li>
          ))}
        </ul>
      </details>
    </section>
  );
}

function Head({ change, name }: { change: Change; name: string }) {
  return (
    <button type="button" class="mh-small" aria-label={`${name} of both models, side by side`} onClick={() => beside(change, name)}>{name}</button>
  );
}

/** A difference with its sign, to the digits that its interval earns, if it has one. */
function signed(value: Maybe, low: Maybe = null, high: Maybe = null): string {
  return `${known(value) && value > 0 ? "+" : ""}${measured(value, low, high)}`;
}

function sentence({ views, rows }: Change): string {
  const [beyond, surely] = [views.some((view) => view.beyond > 0), views.some((view) => view.surely > 0)];
  if (!rows.length) return "No head changed at all.";
  if (!beyond) return `Nothing changed beyond the intervals. These are the ${rows.length} largest differences.`;
  const order = "in standard deviations of the view";
  if (surely) return `First the heads whose change is beyond its interval with a family p of at most 0.05, then those beyond it, the largest first (${order}).`;
  return `First the heads whose change is beyond its interval, the largest first (${order}). No family p is that small: some of so many heads are beyond theirs by chance.`;
}

function beside(change: Change, name: string): void {
  const head = numberOf(modelOf(change.model), name);
  if (head === null) return;
  choose({ compared: [{ model: change.model, head }, { model: change.of, head }] });
  focusCard();
}
