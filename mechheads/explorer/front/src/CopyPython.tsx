/** A button that copies the Python calls that give some numbers again. */
import type { Model, Row } from "./data";
import { asCalls, copy } from "./lists";
import { tell } from "./say";
import { columnOf } from "./table";

export function CopyPython({ model, sources, what }: { model: Model; sources: readonly (string | null | undefined)[]; what: string }) {
  const text = asCalls(model, sources);
  if (!text) return null;
  const press = async () => tell((await copy(text)) ? `Copied: the Python calls of ${what}` : "The browser does not allow copying");
  return <button type="button" class="mh-small" title={text} aria-label={`Copy as Python: ${what}`} onClick={() => void press()}>Copy as Python</button>;
}

/** The results behind some rows. */
export function sourcesOf(model: Model, rows: readonly Row[]): (string | null | undefined)[] {
  return [...new Set(rows.map(({ column }) => column))].map((name) => columnOf(model, name)?.source);
}
