/** The hint beside the head under the pointer. */
import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { labelsOf } from "../card/heads";
import { model, titleOf } from "../page";
import { hintAt } from "../pointing";
import { valueText } from "../say";
import { hovered, state } from "../state";
import { chosen, colourOf, numbersOf, usual } from "../table";

/** Drawn by hand, because it follows the pointer. */
export function Hint() {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const stops = [effect(() => fill(box.current)), effect(() => move(box.current))];
    return () => stops.forEach((stop) => stop());
  }, []);
  return <div class="mh-hint is-away" ref={box} aria-hidden="true" />;
}

function fill(box: HTMLElement | null): void {
  const head = hovered.value;
  if (!box) return;
  if (head === null) {
    box.replaceChildren();
    return;
  }
  const its = model.value;
  const usually = usual(its);
  const names = [
    colourOf(its),
    chosen(its, state.x.peek(), usually.x),
    chosen(its, state.y.peek(), usually.y),
  ];
  const title = document.createElement("strong");
  title.textContent = titleOf(head);
  const labels = document.createElement("span");
  labels.textContent = labelsOf(its, head).join(", ");
  const lines = [...new Set(names)].filter(Boolean).map((name) => {
    const line = document.createElement("div");
    const label = document.createElement("span");
    label.textContent = `${numbersOf(its, name)?.column.label ?? name} `;
    line.append(label, valueText(its, name, head));
    return line;
  });
  box.replaceChildren(title, " ", labels, ...lines);
}

function move(box: HTMLElement | null): void {
  const at = hintAt.value;
  const shown = hovered.value !== null && at !== null;
  box?.classList.toggle("is-away", !shown);
  if (!box || !at) return;
  const { width, height } = box.getBoundingClientRect();
  const x = at.x + 16 + width > innerWidth ? Math.max(4, at.x - width - 16) : at.x + 16;
  const y = at.y + 16 + height > innerHeight ? Math.max(4, at.y - height - 16) : at.y + 16;
  box.style.transform = `translate(${x}px, ${y}px)`;
}
