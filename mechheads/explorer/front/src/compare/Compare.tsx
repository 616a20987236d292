/** Two heads, or two models: left, right and the difference. */
import { Fragment } from "preact";

import { Card } from "../card/Card";
import { numberOf } from "../card/heads";
import type { Model } from "../data";
import { modelOf, page, titleOf } from "../page";
import { choose, state, type Ref } from "../state";
import { Changes, changeShown } from "./Changes";
import { ofHeads, ofModels, verdicts, type Row } from "./differences";

export function CompareHeads({ pair }: { pair: readonly [Ref, Ref] }) {
  const [left, right] = pair;
  const sides = [left, right].map((ref) => ({ model: modelOf(ref.model), head: ref.head }));
  const [a, b] = sides;
  if (!a || !b) return null;
  const titles = [titleOf(left), titleOf(right)] as const;
  return (
    <div class="mh-compare">
      <div class="mh-sides">
        <Choose label="Left" now={left} onPick={(ref) => choose({ compared: [ref, right] })} />
        <button type="button" onClick={() => choose({ compared: [right, left] })}>Swap</button>
        <Choose label="Right" now={right} onPick={(ref) => choose({ compared: [left, ref] })} />
      </div>
      <h3>What the views say</h3>
      <div class="mh-scroll" tabIndex={0} role="region" aria-label="Verdicts">
        <table class="mh-differences mh-verdicts">
          <thead><tr><th scope="col">View</th><th scope="col">{titles[0]}</th><th scope="col">{titles[1]}</th></tr></thead>
          <tbody>
            {verdicts(a, b).map(({ title, left, right }) => (
              <tr key={title} class={left && right && left !== right ? "is-different" : ""}>
                <th scope="row">{title}</th>
                <td>{left ?? "not measured"}</td>
                <td>{right ?? "not measured"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Differences rows={ofHeads(a, b)} titles={titles} />
      <h3>Side by side</h3>
      <div class="mh-cards">
        {pair.map((ref, at) => (
          <Card key={`${at}-${ref.model}`} model={ref.model} head={ref.head} page={page.value} />
        ))}
      </div>
    </div>
  );
}

export function CompareModels({ left, right }: { left: Model; right: Model }) {
  const change = changeShown();
  const numbers = <Differences rows={ofModels(left, right)} titles={[left.name, right.name]} />;
  if (!change) return <div class="mh-compare">{numbers}</div>;
  return (
    <div class="mh-compare">
      <Changes change={change} />
      <details>
        <summary>The two models in numbers</summary>
        {numbers}
      </details>
    </div>
  );
}

function Differences({ rows, titles }: { rows: readonly Row[]; titles: readonly [string, string] }) {
  const groups = [...new Set(rows.map((row) => row.group))];
  return (
    <>
      <h3>Numbers</h3>
      <div class="mh-scroll" tabIndex={0} role="region" aria-label="Numbers and their differences">
        <table class="mh-differences">
          <thead>
            <tr><th scope="col">Measure</th><th scope="col">{titles[0]}</th><th scope="col">{titles[1]}</th><th scope="col">Left minus right</th></tr>
          </thead>
          {groups.map((group) => (
            <tbody key={group}>
              <tr><th scope="rowgroup" colSpan={4} class="mh-rowgroup">{group}</th></tr>
              {rows.filter((row) => row.group === group).map((row) => (
                <tr key={row.label}>
                  <th scope="row">{row.label}</th>
                  <td><bdi>{row.left}</bdi></td>
                  <td><bdi>{row.right}</bdi></td>
                  <td><Bar row={row} /></td>
                </tr>
              ))}
            </tbody>
          ))}
        </table>
      </div>
    </>
  );
}

function Bar({ row }: { row: Row }) {
  return (
    <Fragment>
      <span class="mh-difference">{row.difference}</span>
      {row.share !== 0 && (
        <svg class="mh-delta" width="96" height="10" viewBox="-48 0 96 10" aria-hidden="true">
          <path class="mh-zero" d="M0 0V10" />
          <rect class={row.share < 0 ? "is-low" : "is-high"} x={Math.min(0, row.share * 47)} y="2" width={Math.abs(row.share * 47)} height="6" />
        </svg>
      )}
    </Fragment>
  );
}

/** The head of one side: its model, and its name typed into a field. */
function Choose({ label, now, onPick }: { label: string; now: Ref; onPick: (ref: Ref) => void }) {
  const { models } = page.value;
  const model = modelOf(now.model);
  const take = (at: number, name: string) => {
    const its = modelOf(at);
    const head = numberOf(its, name.trim().toUpperCase());
    onPick({ model: at, head: head ?? Math.min(now.head, its.nLayers * its.nHeads - 1) });
  };
  const name = `L${Math.floor(now.head / model.nHeads)}H${now.head % model.nHeads}`;
  return (
    <fieldset class="mh-side">
      <legend>{label}</legend>
      {models.length > 1 && (
        <select aria-label={`Model on the ${label.toLowerCase()}`} value={now.model} onChange={(event) => take(Number(event.currentTarget.value), name)}>
          {models.map((each, at) => <option key={at} value={at}>{each.name}</option>)}
        </select>
      )}
      <input
        type="text"
        aria-label={`Head on the ${label.toLowerCase()}`}
        value={name}
        size={8}
        onChange={(event) => {
          const typed = event.currentTarget;
          const known = numberOf(model, typed.value.trim().toUpperCase()) !== null;
          typed.setCustomValidity(known ? "" : `Heads of ${model.name} are L0H0 to L${model.nLayers - 1}H${model.nHeads - 1}`);
          if (typed.reportValidity()) take(now.model, typed.value);
        }}
      />
    </fieldset>
  );
}

/** Whether the page compares two models. */
export function versusOf(): { left: Model; right: Model } | null {
  const other = state.versus.value;
  return other === null ? null : { left: modelOf(state.model.value), right: modelOf(other) };
}
