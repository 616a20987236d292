/** Tokens as text that can be seen: texts may hold control characters and marks that turn the direction of writing. */

/** Marks that change how other characters are shown, and spaces of no width. */
const UNSEEN = /[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/gu;
const CONTROL = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/gu;

function code(character: string): string {
  return `\u27e8U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

function seen(text: string): string {
  return text.replace(/\t/g, "\u21e5").replace(CONTROL, code).replace(UNSEEN, code);
}

/** In running text: spaces stay, a line end is marked and kept. */
export function inText(token: string): string {
  return seen(token).replace(/\n/g, "\u21b5\n");
}

/** On its own: spaces and line ends are marked. */
export function asChip(token: string): string {
  return seen(token).replace(/\n/g, "\u21b5").replace(/ /g, "\u00b7") || "\u2205";
}

/** How some vocabularies name the bytes of a character that several tokens make up: `<0xE2>`. */
const BYTE = /<0x([0-9A-F]{2})>/g;

export interface Piece {
  readonly text: string;
  /** "E2" if it is a byte, else null. */
  readonly byte: string | null;
}

/** A token as pieces of text and bytes. */
export function pieces(token: string): Piece[] {
  const found: Piece[] = [];
  let at = 0;
  for (const { 0: whole, 1: byte = "", index } of token.matchAll(BYTE)) {
    if (index > at) found.push({ text: token.slice(at, index), byte: null });
    found.push({ text: `<${byte}>`, byte });
    at = index + whole.length;
  }
  return at < token.length || !found.length ? [...found, { text: token.slice(at), byte: null }] : found;
}

/** As a label with room for a few characters. */
export function asLabel(token: string, most = 9): string {
  const text = [...asChip(token.replace(BYTE, "<$1>"))];
  return text.length > most ? `${text.slice(0, most - 1).join("")}\u2026` : text.join("");
}
