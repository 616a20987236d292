/** What hues, shapes and shades mean. */
import { classOf, lookOf, MISSING, UNCLASSIFIED } from "../categories";
import { show } from "../card/numbers";
import { countOf, modelOf } from "../page";
import { endsOf } from "../shade";
import { chosen, numbersOf, titled } from "../table";
import { state } from "../state";

export function Legend({ model: number }: { model: number }) {
  const model = modelOf(number);
  const numbers = numbersOf(model, chosen(model, state.colour.value, ""));
  if (numbers) {
    const [low, high] = endsOf(numbers);
    return (
      <div class="mh-legend">
        <span>{titled(numbers.column)}</span>
        <span>{show(low)}</span>
        <span class={`mh-ramp ${numbers.column.signed ? "is-signed" : ""}`} aria-hidden="true" />
        <span>{show(high)}</span>
      </div>
    );
  }
  if (!model.categories) return null;
  const counts = new Map<string, number>();
  for (let head = 0; head < countOf(model); head++) {
    const name = classOf(model, head);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const found = [...counts.keys()].filter((name) => !model.categories?.names.includes(name) && name !== UNCLASSIFIED && name !== MISSING);
  const names = [...model.categories.names, ...found.sort(), UNCLASSIFIED, ...(counts.has(MISSING) ? [MISSING] : [])];
  return (
    <ul class="mh-legend" aria-label="Categories and how many heads have each">
      {names.map((name) => {
        const look = lookOf(name);
        return (
          <li key={name}>
            <svg class="mh-key" width="18" height="18" viewBox="-9 -9 18 18" aria-hidden="true">
              <g class={`mh-cell ${look ? "is-category" : name === MISSING ? "is-missing" : "is-none"}`} style={look ? { "--hue": look.hue } : {}}>
                <rect x="-8" y="-8" width="16" height="16" rx="2" />
                {look && <path d={look.shape} transform="scale(4.4)" />}
              </g>
            </svg>
            {name} <span class="mh-count">{counts.get(name) ?? 0}</span>
          </li>
        );
      })}
    </ul>
  );
}
