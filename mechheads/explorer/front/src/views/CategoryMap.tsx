/** The map of all heads: layers across, heads up. An ARIA grid in which arrow keys move. */
import { useLayoutEffect, useRef } from "preact/hooks";

import { useWidth } from "../card/parts";
import { headAt, useMarks } from "../marks";
import { model } from "../page";
import { keyOn, pointAt, pressed } from "../pointing";
import { headText } from "../say";
import { state } from "../state";
import { chosen, colourOf, usual } from "../table";
import { every, sizes } from "./layout";
import { CellMark, drawnAs, paint } from "./Mark";
import { keepOneStop, moveIn } from "./roving";

export function CategoryMap() {
  const its = model.value;
  const { nLayers, nHeads } = its;
  const [box, width] = useWidth<HTMLDivElement>();
  const grid = useRef<SVGSVGElement>(null);
  const rings = { hovered: useRef<SVGRectElement>(null), open: useRef<SVGRectElement>(null) };
  const { cell, row, left, width: total, height } = sizes(nLayers, nHeads, width);
  const colour = colourOf(its);
  const by = chosen(its, state.by.value, usual(its).by);
  const said = [...new Set([colour, by])].filter(Boolean);
  useMarks(grid, [its, width, colour, by], (what, element) => {
    const ring = rings[what].current;
    const transform = element?.getAttribute("transform");
    ring?.classList.toggle("is-away", !transform);
    if (transform) ring?.setAttribute("transform", transform);
  });
  const layers = Array.from({ length: nLayers }, (_, layer) => ({ layer, x: left + layer * cell }));
  const heads = Array.from({ length: nHeads }, (_, at) => nHeads - 1 - at);
  const current = state.head.peek();
  const here = current !== null && layers.some(({ layer }) => layer === Math.floor(current / nHeads));
  const focusable = here ? current : (layers[0]?.layer ?? 0) * nHeads + nHeads - 1;
  useLayoutEffect(() => keepOneStop(grid.current, focusable));
  const [labelX, labelY] = [every(cell, 20), every(row, 13)];
  return (
    <div class={`mh-map ${width > 0 && total > width ? "is-panned" : ""}`} ref={box}>
      {width > 0 && (
        <svg
          ref={grid}
          class="mh-drawing"
          width={total}
          height={height}
          viewBox={`0 0 ${total} ${height}`}
          role="grid"
          aria-label={`Heads of ${its.name}: layers across, heads up`}
          aria-rowcount={nHeads}
          aria-colcount={nLayers}
          onPointerMove={(event) => pointAt(headAt(event.target), event)}
          onPointerLeave={() => pointAt(null)}
          onClick={(event) => pressed(headAt(event.target), event)}
          onFocusIn={(event) => pointAt(headAt(event.target), event.target as Element)}
          onFocusOut={() => pointAt(null)}
          onKeyDown={(event) => {
            keyOn(event);
            moveIn(event, grid.current, layers.map(({ layer }) => layer), nHeads);
          }}
        >
          {heads.map((head, at) => (
            <g role="row" key={head} aria-rowindex={at + 1}>
              {layers.map(({ layer, x }) => {
                const mine = layer * nHeads + head;
                const drawn = drawnAs(its, mine, colour);
                return (
                  <g
                    key={layer}
                    role="gridcell"
                    class={`mh-cell ${drawn.look}`}
                    data-head={mine}
                    tabindex={mine === focusable ? 0 : -1}
                    aria-colindex={layer + 1}
                    aria-selected="false"
                    aria-label={headText(its, mine, said)}
                    transform={`translate(${x} ${at * row})`}
                    style={paint(drawn)}
                  >
                    <CellMark drawn={drawn} width={cell} height={row} rounded={row > 14} />
                  </g>
                );
              })}
            </g>
          ))}
          <g class="mh-axis" aria-hidden="true">
            {layers.filter(({ layer }) => layer % labelX === 0).map(({ layer, x }) => (
              <text key={layer} x={x + cell / 2} y={nHeads * row + 14} text-anchor="middle">{layer}</text>
            ))}
            {heads.map((head, at) => head % labelY === 0 && (
              <text key={head} x={left - 5} y={at * row + row / 2 + 4} text-anchor="end">{head}</text>
            ))}
            <text x={(left + total) / 2} y={height - 3} text-anchor="middle">layer</text>
            <text transform={`translate(9 ${(nHeads * row) / 2}) rotate(-90)`} text-anchor="middle">head</text>
          </g>
          <rect class="mh-ring is-open-ring is-away" ref={rings.open} aria-hidden="true" width={cell} height={row} />
          <rect class="mh-ring is-away" ref={rings.hovered} aria-hidden="true" width={cell} height={row} />
        </svg>
      )}
    </div>
  );
}
