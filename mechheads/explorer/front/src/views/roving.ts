/** Arrow keys in the map: one cell is in the tab order at a time. */

/** The cell that a key leads to; null for other keys. Layers are those that are shown, in order. */
export function nextCell(key: string, ctrl: boolean, at: number, layers: readonly number[], nHeads: number): number | null {
  const column = layers.indexOf(Math.floor(at / nHeads));
  const head = at % nHeads;
  const last = layers.length - 1;
  const to = (col: number, row: number) => (layers[Math.min(Math.max(col, 0), last)] ?? 0) * nHeads + Math.min(Math.max(row, 0), nHeads - 1);
  switch (key) {
    case "ArrowLeft":
      return to(column - 1, head);
    case "ArrowRight":
      return to(column + 1, head);
    case "ArrowUp":
      return to(column, head + 1);
    case "ArrowDown":
      return to(column, head - 1);
    case "Home":
      return ctrl ? to(0, nHeads - 1) : to(0, head);
    case "End":
      return ctrl ? to(last, 0) : to(last, head);
    case "PageUp":
      return to(column, head + 5);
    case "PageDown":
      return to(column, head - 5);
    default:
      return null;
  }
}

export function moveIn(event: KeyboardEvent, grid: Element | null, layers: readonly number[], nHeads: number): void {
  const from = event.target instanceof Element ? event.target.closest("[data-head]") : null;
  if (!from || !grid || event.altKey || event.metaKey) return;
  const to = nextCell(event.key, event.ctrlKey, Number(from.getAttribute("data-head")), layers, nHeads);
  if (to === null) return;
  event.preventDefault();
  focusMark(grid, to);
}

/** Move the focus, and the place in the tab order, to a head's element. */
export function focusMark(box: Element, head: number): void {
  const element = box.querySelector<SVGElement | HTMLElement>(`[data-head="${head}"]`);
  if (!element) return;
  box.querySelectorAll('[data-head][tabindex="0"]').forEach((each: Element) => each.setAttribute("tabindex", "-1"));
  element.setAttribute("tabindex", "0");
  element.focus();
}

/** After drawing, puts exactly one mark into the tab order, even if the previous one is gone. */
export function keepOneStop(box: Element | null, preferred: number | undefined): void {
  const stops = box?.querySelectorAll('[data-head][tabindex="0"]');
  if (!box || stops?.length === 1) return;
  stops?.forEach((each: Element) => each.setAttribute("tabindex", "-1"));
  (box.querySelector(`[data-head="${preferred}"]`) ?? box.querySelector("[data-head]"))?.setAttribute("tabindex", "0");
}
