/** The card of one head: what every view says of it, and the panes. */
import type { Page } from "../data";
import { nameOf } from "./heads";

interface CardProps {
  /** Number of the model in `page.models`. */
  model: number;
  /** Number of the head: layer * nHeads + head. */
  head: number;
  page: Page;
}

export function Card({ model, head, page }: CardProps) {
  const its = page.models[model];
  return <div class="card">{its && nameOf(its, head)}</div>;
}
