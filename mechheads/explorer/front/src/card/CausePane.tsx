/** The effect of changing the head: one dot for each prompt. */
import type { Effect, Shared, Ships } from "../data";
import { known } from "./numbers";
import { shipsRows } from "./SafetyPane";
import { Strip } from "./Strip";
import { inText } from "./tokens";

interface Props {
  pane: Effect[] | null;
  safety: Ships[] | null;
  shared: Shared;
  name: string;
}

export function CausePane({ pane, safety, shared, name }: Props) {
  const pair = (at: number) => {
    const found = shared.pairs[at];
    return found ? inText(`${found.clean}${found.answer} (instead of${found.wrong}; corrupted: ${found.corrupted})`) : `pair ${at + 1}`;
  };
  const own = (effect: Effect) => shared.labels[effect.name] !== undefined;
  const [study, mine] = [(pane ?? []).filter((effect) => !own(effect)), (pane ?? []).filter(own)];
  return (
    <div class="card-sections">
      {mine.map((effect) => <Own key={effect.name} effect={effect} name={name} labels={shared.labels[effect.name] ?? []} />)}
      {byUnit(study).map(([unit, effects]) => (
        <section key={unit}>
          <h3>{`Effects on pairs of prompts, in ${unit || "units of the metric"}`}</h3>
          <dl class="card-meanings">
            {effects.map(({ name: each, title, meaning }) => (
              <div key={each}>
                <dt>{inText(title)}</dt>
                <dd>{inText(meaning)}</dd>
              </div>
            ))}
          </dl>
          <Strip
            name={`${name}-effects-${unit || "metric"}`}
            caption={`One dot for each of ${Math.max(...effects.map(({ values }) => values.length))} pairs; line: mean, band: its 95% interval`}
            unit={unit}
            of="pair of prompts"
            dots={pair}
            rows={effects.map((effect) => ({ name: effect.title, values: effect.values, mean: effect.score, low: effect.low, high: effect.high }))}
          />
        </section>
      ))}
      {!!safety?.length && (
        <section>
          <h3>Ablations side by side, on requests</h3>
          <Strip
            name={`${name}-ablations`}
            caption="Ships: how far the next-token distribution moves. One dot for each request"
            unit={safety[0]?.unit ?? "nats"}
            of="request"
            dots={(at) => `request ${at + 1} (see safety)`}
            rows={shipsRows(safety)}
          />
        </section>
      )}
    </div>
  );
}

interface OwnProps {
  effect: Effect;
  name: string;
  labels: readonly string[];
}

/** Scores of the reader's own, prompt by prompt. */
function Own({ effect, name, labels }: OwnProps) {
  const { title, meaning, unit, values, score: mean, low, high } = effect;
  const counted = labels.every((label) => /^\d+$/.test(label));
  const prompt = (at: number) => (counted || labels[at] === undefined ? `prompt ${at + 1}` : `prompt ${at + 1}, ${inText(labels[at])}`);
  return (
    <section>
      <h3>{inText(title)}</h3>
      <p class="card-lead">{inText(meaning)}</p>
      <Strip
        name={`${name}-${effect.name}`}
        caption={`One dot for each of ${values.filter(known).length} prompts; line: mean${known(low) ? ", band: its 95% interval" : ""}`}
        unit={unit}
        of="prompt"
        dots={prompt}
        rows={[{ name: inText(title), values, mean, low, high }]}
      />
    </section>
  );
}

function byUnit(effects: readonly Effect[]): [string, Effect[]][] {
  const groups = new Map<string, Effect[]>();
  for (const effect of effects) groups.set(effect.unit, [...(groups.get(effect.unit) ?? []), effect]);
  return [...groups];
}
