/** Splits what was typed into the search line into words, numbers and signs. */

export type Kind = "word" | "number" | "compare" | "and" | "or" | "not" | "(" | ")" | "end";

export interface Token {
  readonly kind: Kind;
  readonly text: string;
  readonly start: number;
  readonly end: number;
}

/** Something in the line was not understood. */
export class NotUnderstood extends Error {
  constructor(
    message: string,
    readonly start: number,
    readonly end: number,
    /** Names that were perhaps meant. */
    readonly near: readonly string[] = [],
  ) {
    super(message);
  }
}

const COMPARE: Record<string, string> = { "≤": "<=", "≥": ">=", "==": "=", "≠": "!=" };
const PARTS: readonly [RegExp, Kind][] = [
  [/<=|>=|==|!=|[<>=≤≥≠]/y, "compare"],
  [/&&?/y, "and"],
  [/\|\|?|,/y, "or"],
  [/!/y, "not"],
  [/\(/y, "("],
  [/\)/y, ")"],
  [/[-\u2212+]?(?:\d+\.?\d*|\.\d+)(?:e[-\u2212+]?\d+)?%?(?![\p{L}\p{N}_])/iuy, "number"],
  [/"[^"]*"/y, "word"],
  [/[\p{L}\p{N}_.'-]+/uy, "word"],
];

export function split(line: string): Token[] {
  const tokens: Token[] = [];
  let at = 0;
  while (at < line.length) {
    const space = /\s+/y;
    space.lastIndex = at;
    if (space.test(line)) {
      at = space.lastIndex;
      continue;
    }
    const token = next(line, at);
    tokens.push(token);
    at = token.end;
  }
  return [...tokens, { kind: "end", text: "", start: line.length, end: line.length }];
}

function next(line: string, at: number): Token {
  for (const [pattern, kind] of PARTS) {
    pattern.lastIndex = at;
    const text = pattern.exec(line)?.[0];
    if (text === undefined) continue;
    const end = at + text.length;
    if (kind === "word" && !text.startsWith('"')) {
      const word = text.toLowerCase();
      if (word === "and" || word === "or" || word === "not") return { kind: word, text, start: at, end };
    }
    if (kind === "compare") return { kind, text: COMPARE[text] ?? text, start: at, end };
    return { kind, text: kind === "word" ? text.replaceAll('"', "") : text, start: at, end };
  }
  const [sign = ""] = line.slice(at);
  throw new NotUnderstood(`${sign} has no meaning here`, at, at + sign.length);
}

/** ".05", "5%", "1e-3" -> a number. */
export function numberIn(text: string): number {
  const value = Number(text.replace("\u2212", "-").replace("%", ""));
  return text.endsWith("%") ? value / 100 : value;
}
