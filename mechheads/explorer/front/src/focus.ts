/** Where the focus goes when a card opens and closes. */

let root: HTMLElement | null = null;
let before: Element | null = null;

export function setRoot(element: HTMLElement): void {
  root = element;
}

/** The element that holds the whole explorer. */
export function rootOf(): HTMLElement | null {
  return root;
}

/** Moves the focus to the heading of the card that has just opened, once it is drawn; `back` returns it. */
export function focusCard(): void {
  before = document.activeElement;
  requestAnimationFrame(() => root?.querySelector<HTMLElement>(".mh-detail-title")?.focus());
}

export function back(): void {
  const to = before instanceof HTMLElement || before instanceof SVGElement ? before : null;
  before = null;
  if (to?.isConnected) to.focus();
}
