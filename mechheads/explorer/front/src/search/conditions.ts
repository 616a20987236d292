/** What can stand in the search line, as a menu. */
import type { Model } from "../data";
import { quoted } from "./names";

interface Condition {
  readonly text: string;
  /** As it stands in the line. */
  readonly line: string;
}

interface Group {
  readonly label: string;
  readonly conditions: readonly Condition[];
}

export function conditionsOf({ behaviours, categories, views }: Model): Group[] {
  const named = (names: readonly string[]) => names.map((name) => ({ text: name, line: quoted(name) }));
  const groups = [
    { label: "Does this on ordinary text", conditions: named(behaviours?.names.map(({ name }) => name) ?? []) },
    { label: "Category by weights", conditions: named(categories?.names ?? []) },
    { label: "Relation by weights", conditions: named(categories?.relations.map(({ name }) => name) ?? []) },
    {
      label: "A view says yes",
      conditions: views.map(({ name, title, verdict }) => ({ text: `${title}: ${verdict.texts.yes}`, line: `${quoted(name)} = yes` })),
    },
  ];
  return groups.filter(({ conditions }) => conditions.length > 0);
}

/** What the line shows before anything is typed. */
export function exampleFor({ behaviours, views }: Model): string {
  if (behaviours && views.some(({ name }) => name.startsWith("ships"))) return "L23H4, induction and ships = yes, patching > 0.2";
  const [first] = views;
  if (!first && behaviours) return "L1H0, induction";
  return first ? `L1H0, ${quoted(first.name)} > 0.2, ${quoted(first.name)} = yes` : "L1H0, L1";
}

/** The line with one more condition, which must hold too. */
export function withCondition(line: string, condition: string): string {
  const before = line.trim();
  if (!before) return condition;
  return `${/,|\||\bor\b/i.test(before) ? `(${before})` : before} and ${condition}`;
}
