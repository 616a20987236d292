/** The heads before and after a head, and the way back through the strongest of them. */
import type { Model, Num, PathsPane } from "../data";
import { numberOf } from "./heads";
import { known } from "./numbers";

export type Way = "Q" | "K" | "V" | "logits";

export interface Link {
  /** The head at the other end; null for the logits. */
  readonly head: number | null;
  readonly name: string;
  /** The input that is read: the head's if the other end sends, else the other end's. */
  readonly way: Way;
  readonly value: number;
  readonly low: Num;
  readonly high: Num;
  readonly q: Num;
}

export interface Links {
  readonly senders: readonly Link[];
  readonly receivers: readonly Link[];
}

/** How many links of each way are drawn on each side. */
const MOST = 5;
const WAYS: readonly Way[] = ["Q", "K", "V", "logits"];

export function linksOf(model: Model, pane: PathsPane): Links {
  const made = (paths: PathsPane["senders"]) =>
    paths.flatMap(({ head, way, score, low, high, q }): Link[] => {
      const to = way === "final" ? "logits" : (way.toUpperCase() as Way);
      return known(score) ? [{ head: head === null ? null : numberOf(model, head), name: head ?? "logits", way: to, value: score, low, high, q }] : [];
    });
  return { senders: strongest(made(pane.senders)), receivers: strongest(made(pane.receivers)) };
}

/** The strongest of each way, by size; Q before K before V before the logits. */
export function strongest(links: readonly Link[], most = MOST): Link[] {
  const sorted = [...links].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  return WAYS.flatMap((way) => sorted.filter((link) => link.way === way).slice(0, most));
}

export interface Step {
  readonly head: number;
  /** The link from this head to the one before in the list. */
  readonly link: Link;
}

/** From a head to its strongest sender, from there to that head's, and so on. Stops where there is none. */
export async function trace(start: number, sendersOf: (head: number) => Promise<readonly Link[]>, most = 8): Promise<Step[]> {
  const steps: Step[] = [];
  const seen = new Set([start]);
  for (let head = start; steps.length < most; ) {
    const senders = (await sendersOf(head)).filter((link) => link.head !== null && !seen.has(link.head));
    const link = senders.reduce<Link | null>((best, each) => (best && Math.abs(best.value) >= Math.abs(each.value) ? best : each), null);
    if (!link || link.head === null) break;
    steps.push({ head: link.head, link });
    seen.add(link.head);
    head = link.head;
  }
  return steps;
}
