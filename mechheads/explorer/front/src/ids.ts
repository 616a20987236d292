/** Ids of elements: a notebook may show several explorers in one page, each with its own copy of this module. */
const own = Math.random().toString(36).slice(2, 8);

export function idOf(name: string): string {
  return `mh-${own}-${name}`;
}
