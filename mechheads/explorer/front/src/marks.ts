/** Marks heads in a view by classes on its elements, so that pointing at a head draws nothing anew. */
import { effect } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";

import { hits } from "./hits";
import { hovered, state } from "./state";

/** The head whose element holds `target`; elements say which by data-head. */
export function headAt(target: EventTarget | null): number | null {
  const text = target instanceof Element ? target.closest("[data-head]")?.getAttribute("data-head") : null;
  return text === null || text === undefined ? null : Number(text);
}

/**
 * Keeps the classes of the elements with data-head in `box`: is-hovered, is-open, is-pinned, and is-dim if the search line
 * leaves the head out. `moved` is called with the element that is pointed at and the one whose card is open.
 */
export function useMarks(
  box: { readonly current: Element | null },
  drawn: readonly unknown[],
  moved?: (what: "hovered" | "open", element: Element | null) => void,
): void {
  useLayoutEffect(() => {
    const elements = new Map<number, Element>();
    box.current?.querySelectorAll("[data-head]").forEach((each: Element) => elements.set(Number(each.getAttribute("data-head")), each));
    const one = (head: number | null) => (head === null ? null : (elements.get(head) ?? null));
    const stops = [
      effect(() => follow("is-hovered", one(hovered.value), (element) => moved?.("hovered", element))),
      effect(() => {
        const element = one(state.head.value);
        element?.setAttribute("aria-selected", "true");
        const undo = follow("is-open", element, (now) => moved?.("open", now));
        return () => {
          element?.setAttribute("aria-selected", "false");
          undo();
        };
      }),
      effect(() => {
        const pinned = state.pins.value.map(one).filter((element) => element !== null);
        for (const element of pinned) element.classList.add("is-pinned");
        return () => {
          for (const element of pinned) element.classList.remove("is-pinned");
        };
      }),
      effect(() => {
        const { is } = hits.value;
        elements.forEach((element, head) => element.classList.toggle("is-dim", !is[head]));
      }),
    ];
    return () => stops.forEach((stop) => stop());
  }, drawn);
}

function follow(name: string, element: Element | null, moved: (element: Element | null) => void): () => void {
  element?.classList.add(name);
  moved(element);
  return () => element?.classList.remove(name);
}
