/** Pointing at heads and pressing them: the same in every view. */
import { signal } from "@preact/signals";

import { hovered, open, pin, state } from "./state";
import { focusCard } from "./focus";
import { headAt } from "./marks";
import { announce } from "./say";
import { titleOf } from "./page";

/** Where the hint stands: beside this point of the window. */
export const hintAt = signal<{ readonly x: number; readonly y: number } | null>(null);

/** A head is under the pointer, or its element has the focus; null takes the mark away. */
export function pointAt(head: number | null, where?: PointerEvent | Element): void {
  if (head === null) {
    hovered.value = null;
    hintAt.value = null;
    return;
  }
  if (where instanceof Element) {
    const { right, bottom } = where.getBoundingClientRect();
    hintAt.value = { x: right, y: bottom };
  } else if (where) hintAt.value = { x: where.clientX, y: where.clientY };
  hovered.value = head;
}

/** A click or a key on a head: open its card, or with Ctrl or Cmd pin it. */
export function pressed(head: number | null, event: MouseEvent | KeyboardEvent): void {
  if (head === null) return;
  if (event.ctrlKey || event.metaKey) togglePin(head);
  else open(head);
}

export function togglePin(head: number): void {
  const had = state.pins.peek().includes(head);
  pin(head);
  announce(`${titleOf(head)} ${had ? "is no longer pinned" : "is pinned"}`);
}

/** Enter or Space on a head's element: as a click, and the focus goes to the card. */
export function keyOn(event: KeyboardEvent): void {
  const head = headAt(event.target);
  if (head === null || (event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  pressed(head, event);
  if (!event.ctrlKey && !event.metaKey) focusCard();
}
