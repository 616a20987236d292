/** Heads as Python and CSV. */
import type { Model } from "./data";
import { model, titleOf } from "./page";

/** heads=["L3H2", ...], as an argument of mechheads' functions. */
export function asPython(heads: readonly number[]): string {
  return `heads=[${heads.map((head) => `"${titleOf(head)}"`).join(", ")}]`;
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

/** Every column of some heads. */
export function asCsv(heads: readonly number[]): string {
  const { name, columns } = model.value;
  const rows = heads.map((head) => [name, titleOf(head), ...columns.map(({ values }) => values[head])].map(cell).join(","));
  return [["model", "name", ...columns.map((column) => column.name)].map(cell).join(","), ...rows, ""].join("\r\n");
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
