/** What every element that stands for a head does: it marks the head in all views, and opens its card. */
import { focusCard } from "../focus";
import { pointAt, pressed } from "../pointing";

export function headEvents(head: number) {
  return {
    onPointerEnter: (event: PointerEvent) => pointAt(head, event),
    onPointerLeave: () => pointAt(null),
    onFocus: (event: FocusEvent) => pointAt(head, event.currentTarget as Element),
    onBlur: () => pointAt(null),
    /** A click opens the card, with Ctrl or Cmd it pins the head; after a key the focus goes to the card. */
    onClick: (event: MouseEvent) => act(head, event, event.detail === 0),
  };
}

/** Enter and Space, for elements that are no buttons. */
export function keyEvents(head: number) {
  return {
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      act(head, event, true);
    },
  };
}

function act(head: number, event: MouseEvent | KeyboardEvent, byKey: boolean): void {
  pointAt(null);
  pressed(head, event);
  if (byKey && !event.ctrlKey && !event.metaKey) focusCard();
}
