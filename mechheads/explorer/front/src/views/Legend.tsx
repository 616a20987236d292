/** What hues, shapes and shades mean. A click on a category marks its heads. */
import { lookOf, MISSING, severalName, severals, UNCLASSIFIED } from "../categories";
import { show } from "../card/numbers";
import { Tick } from "../controls";
import type { Model } from "../data";
import { hits } from "../hits";
import { countOf, model } from "../page";
import { announce } from "../say";
import { namedIn, toggled } from "../search/conditions";
import { endsOf } from "../shade";
import { colourOf, numbersOf, titled } from "../table";
import { choose, state } from "../state";
import { categorical, CellMark, paint } from "./Mark";

export function Legend() {
  const its = model.value;
  const numbers = numbersOf(its, colourOf(its));
  if (numbers) {
    const [low, high] = endsOf(numbers);
    const { count, narrowed } = hits.value;
    const others = countOf(its) - count;
    return (
      <div class="mh-legend">
        <span>{titled(numbers.column)}</span>
        <span class="mh-ends">
          <span>{show(low, 2)}</span>
          <span class={`mh-ramp ${numbers.column.signed ? "is-signed" : ""}`} aria-hidden="true" />
          <span>{show(high, 2)}</span>
        </span>
        {narrowed && others > 0 && <span class="mh-muted">{`faded: the other ${others.toLocaleString("en-US")}`}</span>}
      </div>
    );
  }
  return its.categories && <Categories model={its} categories={its.categories} />;
}

function Categories({ model, categories }: { model: Model; categories: NonNullable<Model["categories"]> }) {
  const of = Array.from({ length: countOf(model) }, (_, head) => categories.of[head] ?? null);
  const count = (holds: (of: number[] | null) => boolean) => of.filter(holds).length;
  const several = severals(model);
  const oneColour = state.oneColour.value;
  const missing = count((each) => each === null);
  const keys: [name: string, n: number][] = [
    ...categories.names.map((name, at): [string, number] => [name, count((each) => each?.includes(at) ?? false)]),
    ...(oneColour ? [...several].map(([n, heads]): [string, number] => [severalName(n), heads]) : []),
    [UNCLASSIFIED, count((each) => each?.length === 0)],
  ];
  const names = keys.map(([name]) => name);
  const pressed = namedIn(state.filter.value, names);
  const isMore = (event: MouseEvent | KeyboardEvent) => event.ctrlKey || event.metaKey || event.shiftKey;
  const press = (name: string, event: MouseEvent | KeyboardEvent) => {
    const filter = toggled(state.filter.peek(), names, name, isMore(event));
    choose({ filter });
    announce(filter ? `Only ${filter}` : "All heads");
  };
  // Browsers make no click of Ctrl and Enter.
  const pressMore = (name: string, event: KeyboardEvent) => {
    if (!isMore(event) || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    press(name, event);
  };
  const heads = [...several.values()].reduce((sum, each) => sum + each, 0);
  return (
    <div class="mh-legend">
      <ul aria-label="Categories and how many heads have each: click one to mark its heads, with Ctrl or Cmd to add it">
        {keys.map(([name, n]) => (
          <li key={name}>
            <button type="button" class="mh-key-button" aria-pressed={pressed.includes(name)} title="Only these heads; with Ctrl or Cmd, these too" onClick={(event) => press(name, event)} onKeyDown={(event) => pressMore(name, event)}>
              <Key name={name} />
              {name} <span class="mh-count">{n}</span>
            </button>
          </li>
        ))}
        {missing > 0 && <li class="mh-key-text"><Key name={MISSING} />{MISSING} <span class="mh-count">{missing}</span></li>}
      </ul>
      {heads > 0 && <Tick on={oneColour} onChange={(on) => choose({ oneColour: on })}>{`One colour for the ${heads} ${heads === 1 ? "head" : "heads"} with several`}</Tick>}
    </div>
  );
}

function Key({ name }: { name: string }) {
  const look = lookOf(name);
  const drawn = look ? categorical([look]) : { look: name === MISSING ? "is-missing" : "is-none", looks: [], share: null };
  return (
    <svg class="mh-key" width="18" height="18" aria-hidden="true">
      <g class={`mh-cell ${drawn.look}`} style={paint(drawn)}>
        <CellMark drawn={drawn} width={18} height={18} rounded />
      </g>
    </svg>
  );
}
