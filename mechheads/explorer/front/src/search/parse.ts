/**
 * Understands the search line:
 *
 *     either   = both ("or" both)*
 *     both     = one ("and"? one)*
 *     one      = "not" one | "(" either ")" | side (sign side)+ | name
 *     side     = number | name
 *
 * A name may have several words; "layer 23" and "head 4" are names, too. Heads that stand next to each other are alternatives: L1H2 L3H4.
 */
import type { Model } from "../data";
import { near } from "./near";
import { about, columnNamed, conditionNamed, conditionWith, equals, isText, namesIn, outside, quoted, valueNamed, type Found, type Test, type Value } from "./names";
import { NotUnderstood, numberIn, split, type Kind, type Token } from "./tokens";

export interface Understood {
  readonly test: Test;
  /** What some names stand for. */
  readonly notes: readonly string[];
  readonly error: NotUnderstood | null;
}

const ALL: Test = () => true;
const MOST_WORDS = 6;

export function understand(line: string, model: Model): Understood {
  if (!line.trim()) return { test: ALL, notes: [], error: null };
  try {
    const parser = new Parser(line, model);
    return { test: parser.whole(), notes: [...new Set(parser.notes)], error: null };
  } catch (reason) {
    if (reason instanceof NotUnderstood) return { test: ALL, notes: [], error: reason };
    throw reason;
  }
}

interface Side {
  readonly value: Found<Value> | null;
  readonly text: string;
  readonly start: number;
  readonly end: number;
}

const SIGNS: Record<string, (a: number, b: number) => boolean> = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b && !Number.isNaN(a) && !Number.isNaN(b),
};

class Parser {
  readonly notes: string[] = [];
  private readonly tokens: Token[];
  private at = 0;

  constructor(
    private readonly line: string,
    private readonly model: Model,
  ) {
    this.tokens = split(line);
  }

  whole(): Test {
    const test = this.either();
    const rest = this.peek();
    if (rest.kind === ")") throw new NotUnderstood("this ) has no ( before it", rest.start, rest.end);
    if (rest.kind !== "end") throw this.unexpected(rest);
    return test;
  }

  private peek(ahead = 0): Token {
    const token = this.tokens[Math.min(this.at + ahead, this.tokens.length - 1)];
    if (!token) throw new NotUnderstood("nothing was typed", 0, 0);
    return token;
  }

  private take(kind: Kind): boolean {
    if (this.peek().kind !== kind) return false;
    this.at++;
    return true;
  }

  private either(): Test {
    const tests = [this.both()];
    while (this.take("or")) tests.push(this.both());
    return tests.length === 1 ? (tests[0] ?? ALL) : (head) => tests.some((test) => test(head));
  }

  private both(): Test {
    const tests = [this.one()];
    while (this.take("and") || !["or", ")", "end", "compare"].includes(this.peek().kind)) tests.push(this.one());
    return tests.length === 1 ? (tests[0] ?? ALL) : (head) => tests.every((test) => test(head));
  }

  private one(): Test {
    const token = this.peek();
    if (this.take("not")) {
      const test = this.one();
      return (head) => !test(head);
    }
    if (this.take("(")) {
      const test = this.either();
      if (!this.take(")")) throw new NotUnderstood("this ( is never closed", token.start, token.end);
      return test;
    }
    if (token.kind === "number") return this.compared(this.side());
    if (token.kind === "word") return this.named();
    throw this.unexpected(token);
  }

  private unexpected(token: Token): NotUnderstood {
    const wants = "a name, a head or a condition such as patching > 0.2";
    if (token.kind === "end") return new NotUnderstood(`the line ends where ${wants} should stand`, token.start, token.end);
    return new NotUnderstood(`${token.text} stands where ${wants} should stand`, token.start, token.end);
  }

  /** A comparison that begins with a name, or a name alone: the longest run of words that is one. */
  private named(): Test {
    const first = this.peek();
    const place = this.place();
    if (place) return place;
    let words = 1;
    while (this.peek(words).kind === "word" && words < MOST_WORDS) words++;
    if (this.peek(words).kind === "compare" && words === 1) return this.compared(this.side());
    for (let n = words; n > 0; n--) {
      const last = this.peek(n - 1);
      const name = this.line.slice(first.start, last.end).replaceAll('"', "");
      if (this.peek(n).kind === "compare" && (valueNamed(this.model, name) || isText(this.model, name))) {
        return this.compared(this.side(n));
      }
      const found = conditionNamed(this.model, name);
      if (!found) continue;
      this.at += n;
      return n === 1 ? this.withNeighbours(this.noted(found), first) : this.noted(found);
    }
    const part = this.peek(1).kind === "compare" ? null : conditionWith(this.model, first.text);
    if (part) {
      this.at++;
      return this.noted(part);
    }
    for (let n = words; n > 0; n--) {
      const { end } = this.peek(n - 1);
      const name = this.line.slice(first.start, end).replaceAll('"', "");
      if (!valueNamed(this.model, name)) continue;
      const column = columnNamed(this.model, name);
      const typed = n > 1 && column ? quoted(column.name) : first.text;
      throw new NotUnderstood(`${name} needs a condition, such as ${typed} > 0.2`, first.start, end);
    }
    throw this.unknown(first);
  }

  /** `layer 23` is L23, `head 4` is H4. */
  private place(): Test | null {
    const [word, number] = [this.peek(), this.peek(1)];
    const letter = { layer: "L", head: "H" }[word.text.toLowerCase()];
    if (!letter || number.kind !== "number" || this.peek(2).kind === "compare") return null;
    const found = conditionNamed(this.model, `${letter}${number.text}`);
    if (!found) throw this.unknown({ ...number, text: `${word.text} ${number.text}`, start: word.start });
    this.at += 2;
    return this.noted(found);
  }

  private withNeighbours(test: Test, first: Token): Test {
    if (!/^L\d+H\d+$/i.test(first.text)) return test;
    const tests = [test];
    while (/^L\d+H\d+$/i.test(this.peek().text)) {
      const token = this.peek();
      const found = conditionNamed(this.model, token.text);
      if (!found) throw this.unknown(token);
      tests.push(found.is);
      this.at++;
    }
    return (head) => tests.some((each) => each(head));
  }

  private noted<T>({ is, note }: Found<T>): T {
    if (note) this.notes.push(note);
    return is;
  }

  private unknown({ text, start, end }: { text: string; start: number; end: number }): NotUnderstood {
    const message = outside(this.model, text) ?? `${text} is not the name of a question, column, category, relation or head`;
    return new NotUnderstood(message, start, end, [...new Set([...near(text, namesIn(this.model)).map(quoted), ...about(this.model, text)])]);
  }

  private side(words = 1): Side {
    const first = this.peek();
    const last = this.peek(words - 1);
    if (first.kind !== "word" && first.kind !== "number") throw this.unexpected(first);
    this.at += words;
    const { start } = first;
    const text = this.line.slice(start, last.end).replaceAll('"', "");
    if (first.kind === "number") {
      const number = numberIn(text);
      return { value: { is: () => number }, text, start, end: last.end };
    }
    return { value: valueNamed(this.model, text), text, start, end: last.end };
  }

  /** `a < b` or `a < b < c`; `names = induction`. */
  private compared(first: Side): Test {
    const tests: Test[] = [];
    let left = first;
    while (this.peek().kind === "compare") {
      const sign = this.peek();
      this.at++;
      const right = this.side();
      tests.push(this.word(left, sign.text, right) ?? this.numbers(left, sign.text, right));
      left = right;
    }
    if (!tests.length) {
      throw new NotUnderstood(`${first.text} needs a name beside it, such as patching > ${first.text}`, first.start, first.end);
    }
    return (head) => tests.every((test) => test(head));
  }

  private word(left: Side, sign: string, right: Side): Test | null {
    if (sign !== "=" && sign !== "!=") return null;
    const found = equals(this.model, left.text, right.text);
    if (!found) return null;
    const is = this.noted(found);
    return sign === "=" ? is : (head) => !is(head);
  }

  private numbers(left: Side, sign: string, right: Side): Test {
    for (const side of [left, right]) {
      if (side.value) continue;
      if (isText(this.model, side.text)) {
        throw new NotUnderstood(`${side.text} holds texts: write ${side.text} = NAME`, side.start, side.end);
      }
      throw this.unknown(side);
    }
    const holds = SIGNS[sign];
    const [a, b] = [left, right].map(({ value }) => value && this.noted(value));
    return (head) => (a && b && holds ? holds(a(head), b(head)) : false);
  }
}
