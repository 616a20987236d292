/** Texts of several lines, with control characters visible. */
import { inText } from "./card/tokens";

export function inLines(text: string): string {
  return text.split(/\r?\n/).map(inText).join("\n");
}
