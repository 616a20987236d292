/** Parts of the page that are folded until the reader opens them; the address names the last one opened. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { rootOf } from "./focus";
import { choose, state } from "./state";

/** Bring the open section into the window, once it is drawn. */
export function showSection(): void {
  requestAnimationFrame(() => {
    const element = rootOf()?.querySelector<HTMLElement>(".is-section");
    element?.scrollIntoView({ block: element.closest(".mh-end") ? "start" : "nearest" });
    element?.querySelector<HTMLElement>("summary, h2")?.focus({ preventScroll: true });
  });
}

interface FoldedProps {
  id: string;
  title: string;
  class?: string;
  /** Open from the start. */
  opened?: boolean;
  children: ComponentChildren;
}

/** A heading that opens what stands below it. */
export function Folded({ id, title, class: name = "", opened = false, children }: FoldedProps) {
  const named = state.section.value === id;
  const [open, setOpen] = useState(named || opened);
  useEffect(() => {
    if (named) setOpen(true);
  }, [named]);
  const toggled = (event: Event) => {
    const is = (event.currentTarget as HTMLDetailsElement).open;
    setOpen(is);
    if (is !== open) choose({ section: is ? id : named ? "" : state.section.peek() });
  };
  return (
    <details class={`${name} ${named ? "is-section" : ""}`} open={open} onToggle={toggled}>
      <summary><h2>{title}</h2></summary>
      {children}
    </details>
  );
}

/** Shows the section that the address names when the page opens, or when the address changes. */
export function useSectionOfAddress(): void {
  const shown = useRef("");
  useEffect(() => {
    const arrive = () => {
      const name = state.section.peek();
      if (name && name !== shown.current) showSection();
      shown.current = name;
    };
    arrive();
    addEventListener("hashchange", arrive);
    return () => removeEventListener("hashchange", arrive);
  }, []);
}
