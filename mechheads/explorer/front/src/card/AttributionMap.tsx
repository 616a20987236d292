/** The part of every head in one logit, layer by head. */
import { useState } from "preact/hooks";

import type { Model, TextAnswer } from "../data";
import { open } from "../state";
import { headEvents } from "./headEvents";
import { nameOf } from "./heads";
import { rankOf, show } from "./numbers";
import { Figure, useWidth } from "./parts";
import { asChip } from "./tokens";

interface Props {
  model: Model;
  head: number;
  attribution: NonNullable<TextAnswer["attribution"]>;
}

const LEFT = 30;
const BELOW = 20;

export function AttributionMap({ model, head, attribution }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState(head);
  const { heads, mlp, embedding, bias, logit, token } = attribution;
  const cell = Math.max(Math.min((width - LEFT - 4) / model.nLayers, 18), 3);
  const [w, h] = [LEFT + cell * model.nLayers, cell * model.nHeads + BELOW];
  const most = Math.max(...heads.map(Math.abs), 1e-12);
  const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
  const rank = rankOf(heads.map(Math.abs), at);
  const layerOf = (index: number) => Math.floor(index / model.nHeads);
  const isOn = (index: number) => index >= 0 && index < heads.length;
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: model.nHeads, ArrowLeft: -model.nHeads, ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (event.key === "Enter") open(at);
    else if (step !== undefined) setAt((now) => (isOn(now + step) && (step % model.nHeads === 0 || layerOf(now) === layerOf(now + step)) ? now + step : now));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const every = Math.ceil(22 / cell);
  return (
    <>
      <p class="card-lead">
        {`Its logit is ${show(logit)}: heads ${show(sum(heads))}, MLPs ${show(sum(mlp))}, embedding ${show(embedding)}, the rest ${show(bias)}. Only direct effects are counted.`}
      </p>
      <Figure name={`attribution-${asChip(token)}`.replace(/[^\w-]/g, "")} caption="Layers across, heads up. Red raises the logit, blue lowers it">
        <div ref={box} class="card-wide">
          {width > 0 && (
            <svg
              class="card-drawing"
              width={w}
              height={h}
              viewBox={`0 0 ${w} ${h}`}
              role="application"
              aria-roledescription="heat map"
              tabindex={0}
              aria-label={`Parts of ${heads.length} heads. Arrow keys move, Enter opens the head.`}
              onKeyDown={move}
            >
              {heads.map((value, index) => (
                <rect
                  key={index}
                  class={`card-part ${value < 0 ? "card-part-minus" : "card-part-plus"}${index === at ? " card-part-on" : ""}`}
                  x={LEFT + Math.floor(index / model.nHeads) * cell}
                  y={(model.nHeads - 1 - (index % model.nHeads)) * cell}
                  width={cell - 0.5}
                  height={cell - 0.5}
                  fill-opacity={Math.abs(value) / most}
                  {...headEvents(index)}
                  onPointerEnter={() => setAt(index)}
                />
              ))}
              <g class="card-axis" aria-hidden="true">
                {Array.from({ length: model.nLayers }, (_, layer) => layer)
                  .filter((layer) => layer % every === 0)
                  .map((layer) => (
                    <text key={layer} x={LEFT + (layer + 0.5) * cell} y={h - 6} text-anchor="middle">
                      {layer}
                    </text>
                  ))}
                {[0, model.nHeads - 1].map((head) => (
                  <text key={head} x={LEFT - 6} y={(model.nHeads - 0.5 - head) * cell + 4} text-anchor="end">
                    {head}
                  </text>
                ))}
              </g>
            </svg>
          )}
        </div>
        <p class="card-readout" aria-live="polite">
          {`${nameOf(model, at)}: ${show(heads[at])} logits${rank ? `, rank ${rank.rank} of ${rank.of} by size` : ""}${at === head ? " (this head)" : ""}`}
        </p>
      </Figure>
    </>
  );
}
