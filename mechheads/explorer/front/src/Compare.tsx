/** Two heads, their cards side by side. */
import { Card } from "./card/Card";
import { numberOf } from "./card/heads";
import { modelOf, page } from "./page";
import { choose, type Ref } from "./state";

export function CompareHeads({ pair }: { pair: readonly [Ref, Ref] }) {
  const [left, right] = pair;
  return (
    <div class="mh-compare">
      <div class="mh-sides">
        <Choose label="Left" now={left} onPick={(ref) => choose({ compared: [ref, right] })} />
        <button type="button" onClick={() => choose({ compared: [right, left] })}>Swap</button>
        <Choose label="Right" now={right} onPick={(ref) => choose({ compared: [left, ref] })} />
      </div>
      <div class="mh-cards">
        {pair.map((ref, at) => (
          <Card key={`${at}-${ref.model}`} model={ref.model} head={ref.head} page={page.value} />
        ))}
      </div>
    </div>
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
