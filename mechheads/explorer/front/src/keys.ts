/** Keys that work everywhere except in text fields. */
import { close, currentHead, goToSearch, helpOpen, step } from "./actions";
import { togglePin } from "./pointing";
import { tell } from "./say";

export const KEYS: readonly (readonly [key: string, what: string])[] = [
  ["Arrow keys", "move in the map, the scatter, the table and between tabs"],
  ["Enter", "open the card of the head"],
  ["[ and ]", "previous and next head that is marked"],
  ["/", "go to the search line"],
  ["p", "pin the head, or take its pin away (also Ctrl or Cmd and a click)"],
  ["Esc", "close the card"],
  ["?", "this help"],
];

function types(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=range], [type=button])");
}

/** Whether Ctrl, Cmd or Alt is held for a command of the browser; on many keyboards "[" needs AltGr or Alt. */
function isCommand(event: KeyboardEvent): boolean {
  if (event.metaKey) return true;
  const types = event.getModifierState("AltGraph") || (event.altKey && !event.ctrlKey);
  return (event.ctrlKey || event.altKey) && !(types && "[]/?".includes(event.key));
}

export function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || isCommand(event) || helpOpen.peek()) return;
  if (event.key === "Escape") {
    if (types(event.target) && (event.target as HTMLInputElement).value) return;
    close();
    return;
  }
  if (types(event.target)) return;
  const act = ACTIONS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

const ACTIONS: Record<string, () => void> = {
  "[": () => step(-1),
  "]": () => step(1),
  "/": goToSearch,
  "?": () => (helpOpen.value = true),
  p: () => {
    const head = currentHead();
    if (head !== null) togglePin(head);
    else tell("Point at a head or open its card first");
  },
};
