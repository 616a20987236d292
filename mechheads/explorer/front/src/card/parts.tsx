/** Small pieces that all panes share. */
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

import { savePng, saveSvg } from "./export";
import { asChip, pieces } from "./tokens";

/** Says what is missing, and the command that measures it. */
export function Empty({ what, command }: { what: string; command?: string }) {
  return (
    <p class="card-empty">
      {what}
      {command && (
        <>
          {" "}
          <code>{command}</code> measures it.
        </>
      )}
    </p>
  );
}

export interface Tab {
  readonly id: string;
  readonly name: string;
  /** Shown, but marked as empty. */
  readonly empty?: boolean;
}

interface TabsProps {
  label: string;
  tabs: readonly Tab[];
  chosen: string;
  onChoose: (id: string) => void;
  class?: string;
  children: ComponentChildren;
}

/** Tabs and the panel of the chosen one. Arrow keys, Home and End move between tabs. */
export function Tabs({ label, tabs, chosen, onChoose, class: look = "", children }: TabsProps) {
  const base = useId();
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.id === chosen);
    const next = stepped(event.key, at, tabs.length);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    const tab = tabs[next];
    if (tab) onChoose(tab.id);
    list.current?.querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
  };
  return (
    <div class={`card-tabs ${look}`}>
      <div class="card-tablist" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${base}-${tab.id}`}
            aria-selected={tab.id === chosen}
            aria-controls={`${base}-panel`}
            tabIndex={tab.id === chosen ? 0 : -1}
            class={tab.empty ? "card-tab card-tab-empty" : "card-tab"}
            data-name={tab.name}
            onClick={() => onChoose(tab.id)}
          >
            {tab.name}
            {tab.empty && <span class="card-hidden"> (nothing measured)</span>}
          </button>
        ))}
      </div>
      <div class="card-panel" role="tabpanel" id={`${base}-panel`} aria-labelledby={`${base}-${chosen}`} tabIndex={-1}>
        {children}
      </div>
    </div>
  );
}

/** The place that an arrow key leads to in a row of `n`, round the ends; null for other keys. */
export function stepped(key: string, at: number, n: number): number | null {
  if (key === "ArrowRight" || key === "ArrowDown") return (at + 1) % n;
  if (key === "ArrowLeft" || key === "ArrowUp") return (at - 1 + n) % n;
  if (key === "Home") return 0;
  if (key === "End") return n - 1;
  return null;
}

interface ChoiceProps<T extends string> {
  label: string;
  choices: readonly (readonly [T, string])[];
  value: T;
  onChange: (value: T) => void;
}

/** One of a few choices, as radio buttons in a row. */
export function Choice<T extends string>({ label, choices, value, onChange }: ChoiceProps<T>) {
  const name = useId();
  return (
    <fieldset class="card-choice">
      <legend class="card-hidden">{label}</legend>
      {choices.map(([id, text]) => (
        <label key={id} class={id === value ? "card-choice-on" : ""}>
          <input type="radio" name={name} value={id} checked={id === value} onChange={() => onChange(id)} />
          {text}
        </label>
      ))}
    </fieldset>
  );
}

/** A box to tick. */
export function Toggle({ on, onChange, children }: { on: boolean; onChange: (on: boolean) => void; children: string }) {
  return (
    <label class="card-toggle">
      <input type="checkbox" checked={on} onChange={(event) => onChange(event.currentTarget.checked)} />
      {children}
    </label>
  );
}

interface FigureProps {
  /** The name of the files that are saved. */
  name: string;
  caption: ComponentChildren;
  /** For canvas drawings: the same drawing as SVG. */
  asSvg?: () => SVGSVGElement | null;
  children: ComponentChildren;
}

/** A drawing with its caption, and buttons that save it. */
export function Figure({ name, caption, asSvg, children }: FigureProps) {
  const box = useRef<HTMLElement>(null);
  const svg = () => asSvg?.() ?? box.current?.querySelector<SVGSVGElement>("svg.card-drawing") ?? null;
  const save = (write: typeof saveSvg | typeof savePng) => {
    const drawing = svg();
    if (drawing && box.current) void write(drawing, box.current, name);
  };
  return (
    <figure class="card-figure" ref={box}>
      {children}
      <figcaption>
        <span>{caption}</span>
        <span class="card-save">
          <button type="button" class="card-small" aria-label={`Save ${name} as SVG`} onClick={() => save(saveSvg)}>
            SVG
          </button>
          <button type="button" class="card-small" aria-label={`Save ${name} as PNG`} onClick={() => save(savePng)}>
            PNG
          </button>
        </span>
      </figcaption>
    </figure>
  );
}

/** The width of an element in pixels, kept up to date. */
export function useWidth<T extends Element>(): [RefObject<T | null>, number] {
  const box = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (box.current) setWidth(Math.floor(box.current.getBoundingClientRect().width));
  }, []);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const watch = new ResizeObserver(([entry]) => entry && setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** A token, with bytes that are no character of their own set apart. */
export function Shown({ token, as }: { token: string; as: (text: string) => string }) {
  return (
    <>
      {pieces(token).map(({ text, byte }, at) =>
        byte === null ? as(text) : <span key={at} class="card-byte" title={`byte ${byte}: a part of a character that several tokens make up`}>{text}</span>,
      )}
    </>
  );
}

/** A token as a chip. */
export function Token({ text }: { text: string }) {
  return <code class="card-token"><Shown token={text} as={asChip} /></code>;
}

/** Several tokens as chips. */
export function Tokens({ texts }: { texts: readonly string[] }) {
  return (
    <span class="card-tokens">
      {texts.map((text, at) => (
        <Token key={at} text={text} />
      ))}
    </span>
  );
}
