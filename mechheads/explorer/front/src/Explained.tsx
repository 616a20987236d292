/** A text in which the first use of each word of the glossary says what it means. */
import { TERMS } from "./terms";

const WORDS = Object.keys(TERMS).sort((a, b) => b.length - a.length);
const ANY = new RegExp(`\\b(${WORDS.map((word) => word.replace(" ", "\\s")).join("|")})(s?)\\b`, "gi");
const MEANINGS = new Map(WORDS.map((word) => [word.toLowerCase(), TERMS[word] ?? ""]));

export function Explained({ text }: { text: string }) {
  const told = new Set<string>();
  const parts: (string | preact.JSX.Element)[] = [];
  let from = 0;
  for (const found of text.matchAll(ANY)) {
    const word = (found[1] ?? "").toLowerCase();
    if (told.has(word)) continue;
    told.add(word);
    parts.push(text.slice(from, found.index), <abbr key={word} title={MEANINGS.get(word)}>{found[0]}</abbr>);
    from = found.index + found[0].length;
  }
  return <>{parts}{text.slice(from)}</>;
}
