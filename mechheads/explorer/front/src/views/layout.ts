/** Where the cells of the map lie, with layers without a hit folded away. */

/** A layer, or a run of layers that is folded. */
export type Strip = { readonly layer: number } | { readonly from: number; readonly to: number };

export const FOLDED_WIDTH = 14;

/** Layers in order; runs of two or more layers without a hit are folded if `fold` is set and any layer has one. */
export function strips(nLayers: number, nHeads: number, is: Uint8Array, fold: boolean): Strip[] {
  const hit = Array.from({ length: nLayers }, (_, layer) => is.subarray(layer * nHeads, (layer + 1) * nHeads).includes(1));
  const folding = fold && hit.includes(true);
  const found: Strip[] = [];
  for (let layer = 0; layer < nLayers; layer++) {
    let to = layer;
    while (folding && !hit[to] && to < nLayers) to++;
    if (to - layer < 2) found.push({ layer });
    else {
      found.push({ from: layer, to: to - 1 });
      layer = to - 1;
    }
  }
  return found;
}

export interface Sizes {
  readonly cell: number;
  readonly row: number;
  /** Left end of each strip, then the right end of the last. */
  readonly lefts: readonly number[];
  readonly left: number;
  readonly width: number;
  readonly height: number;
}

/** Narrower than this, the page is on a phone, where a finger needs cells of so many pixels; the map is then panned. */
const PHONE = { width: 600, cell: 20 };

/** Cells as large as there is room for, 9 to 40 pixels wide and 9 to 34 high; on a phone at least 20. */
export function sizes(found: readonly Strip[], nHeads: number, width: number): Sizes {
  const left = 34;
  const folded = found.filter((strip) => "from" in strip).length;
  const room = width - left - 4 - folded * FOLDED_WIDTH;
  const least = width < PHONE.width ? PHONE.cell : 9;
  const cell = Math.max(least, Math.min(40, Math.floor(room / Math.max(1, found.length - folded))));
  const row = Math.max(least, Math.min(34, Math.round(cell * 1.5), Math.floor(400 / nHeads)));
  const lefts = [left];
  for (const strip of found) lefts.push((lefts.at(-1) ?? 0) + ("from" in strip ? FOLDED_WIDTH : cell));
  return { cell, row, lefts, left, width: (lefts.at(-1) ?? 0) + 4, height: row * nHeads + 38 };
}

/** Every how many labels there is room for one of `need` pixels. */
export function every(step: number, need: number): number {
  return [1, 2, 5, 10, 20, 50, 100].find((each) => each * step >= need) ?? 100;
}
