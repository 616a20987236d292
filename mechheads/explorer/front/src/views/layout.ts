/** Where the cells of the map lie. */

export interface Sizes {
  readonly cell: number;
  readonly row: number;
  readonly left: number;
  readonly width: number;
  readonly height: number;
}

/** Narrower than this, the page is on a phone, where a finger needs cells of so many pixels; the map is then panned. */
const PHONE = { width: 600, cell: 20 };

/** Cells as large as there is room for, 9 to 40 pixels wide and 9 to 34 high; on a phone at least 20. */
export function sizes(nLayers: number, nHeads: number, width: number): Sizes {
  const left = 34;
  const least = width < PHONE.width ? PHONE.cell : 9;
  const cell = Math.max(least, Math.min(40, Math.floor((width - left - 4) / Math.max(1, nLayers))));
  const row = Math.max(least, Math.min(34, Math.round(cell * 1.5), Math.floor(400 / nHeads)));
  return { cell, row, left, width: left + nLayers * cell + 4, height: row * nHeads + 38 };
}

/** The interval of labels, in cells of `step` pixels, at which each label has `need` pixels. */
export function every(step: number, need: number): number {
  return [1, 2, 5, 10, 20, 50, 100].find((each) => each * step >= need) ?? 100;
}
