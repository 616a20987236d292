/** Texts from elsewhere, with control characters and marks of direction made visible. */
import { inText } from "./card/tokens";

/** Line ends stay. */
function inLines(text: string): string {
  return text.split(/\r?\n/).map(inText).join("\n");
}

/** When two measures of a question differ on a head, in words. */
export const OPPOSED = "two measures in opposite directions, or one beyond its smallest effect and the other within";

/** "a, b and c". */
export function listed(names: readonly string[]): string {
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}` : (names[0] ?? "");
}

/** The text as a heading, with a capital letter. */
export function heading(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** Parsed JSON with all of its texts, and the names in it, made visible. */
export function visible(value: unknown): unknown {
  if (typeof value === "string") return inLines(value);
  if (Array.isArray(value)) return value.map(visible);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [inLines(name), visible(each)]));
}
