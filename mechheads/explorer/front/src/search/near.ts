/** Names that are like a word. */

/** How many letters must change, come or go; two neighbours that change places count once. */
export function distance(a: string, b: string): number {
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = a[i - 1] === b[j - 1] ? 0 : 1;
      let least = Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + change);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) least = Math.min(least, (before[j - 2] ?? 0) + 1);
      next.push(least);
    }
    before = row;
    row = next;
  }
  return row[b.length] ?? 0;
}

/** The names that are most like a word, the most alike first. */
export function near(word: string, names: readonly string[], most = 4): string[] {
  const typed = word.toLowerCase();
  const scored = names.map((name) => {
    const known = name.toLowerCase();
    const inside = typed.length > 2 && (known.includes(typed) || typed.includes(known));
    return { name, off: inside ? 0.5 : distance(typed, known) / Math.max(typed.length, known.length) };
  });
  return scored
    .filter(({ off }) => off <= 0.5)
    .sort((a, b) => a.off - b.off || a.name.length - b.name.length || (a.name < b.name ? -1 : 1))
    .slice(0, most)
    .map(({ name }) => name);
}
