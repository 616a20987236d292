/** Texts from elsewhere, with control characters and marks of direction made visible. */
import { inText } from "./card/tokens";

/** Line ends stay. */
function inLines(text: string): string {
  return text.split(/\r?\n/).map(inText).join("\n");
}

/** Parsed JSON with all of its texts, and the names in it, made visible. */
export function visible(value: unknown): unknown {
  if (typeof value === "string") return inLines(value);
  if (Array.isArray(value)) return value.map(visible);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [inLines(name), visible(each)]));
}
