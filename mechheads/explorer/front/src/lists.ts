/** Heads as Python and CSV. */
import { nameOf } from "./card/heads";
import type { Column, Model } from "./data";
import { modelOf } from "./page";
import type { Ref } from "./state";

/** Heads of each model, in the order of the pins. */
function byModel(refs: readonly Ref[]): [name: string, heads: string[]][] {
  return [...new Set(refs.map((ref) => ref.model))].map((model) => {
    const its = modelOf(model);
    return [its.name, refs.filter((ref) => ref.model === model).map((ref) => nameOf(its, ref.head))];
  });
}

/** heads=["L3H2", ...], as an argument of mechheads' functions; of several models, one list for each. */
export function asPython(refs: readonly Ref[]): string {
  const list = (heads: string[]) => `[${heads.map((head) => `"${head}"`).join(", ")}]`;
  const lists = byModel(refs);
  const [only] = lists;
  if (!only) return "heads=[]";
  if (lists.length === 1) return `heads=${list(only[1])}`;
  return `heads = {${lists.map(([name, heads]) => `${JSON.stringify(name)}: ${list(heads)}`).join(", ")}}`;
}

/** Python that gives the numbers of some results again; "" if none is known. */
export function asCalls({ name, sources }: Model, wanted: readonly (string | null | undefined)[]): string {
  const calls = sources.filter((source) => source.call && wanted.includes(source.name));
  if (!calls.length) return "";
  const texts = calls.map((source) => `${source.name.replace(/\W+/g, "_").replace(/^(?=\d)/, "_")} = ${source.call}`);
  return `import mechheads as mh\n\nmodel = mh.load(${JSON.stringify(name)})\n${texts.join("\n")}\n`;
}

function cell(value: string | number | null | undefined): string {
  let text = String(value ?? "");
  // A spreadsheet would run what looks like a formula.
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Every column of the pinned heads. */
export function asCsv(refs: readonly Ref[]): string {
  const columns = new Map<string, Column>();
  for (const { model } of refs) for (const column of modelOf(model).columns) columns.set(column.name, column);
  const names = [...columns.keys()];
  const rows = refs.map(({ model, head }) => {
    const its = modelOf(model);
    const values = names.map((name) => its.columns.find((column) => column.name === name)?.values[head]);
    return [its.name, nameOf(its, head), ...values].map(cell).join(",");
  });
  return [["model", "name", ...names].map(cell).join(","), ...rows, ""].join("\r\n");
}

/** Give the reader a file. */
export function download(text: string, name: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Put a text on the clipboard; false if the browser does not let us. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyOld(text);
  }
}

/** Pages opened from a file may not have the clipboard of `navigator`. */
function copyOld(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "mh-hidden";
  document.body.append(area);
  const before = document.activeElement;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return done;
}
