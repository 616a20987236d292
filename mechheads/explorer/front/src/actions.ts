/** What keys and buttons do. */
import { signal } from "@preact/signals";

import { isWidget, pageOfKernel } from "./card/live";
import { messageOf } from "./card/load";
import { back, rootOf } from "./focus";
import { hits } from "./hits";
import { copy, download } from "./lists";
import { countOf, model, titleOf } from "./page";
import { announce, tell } from "./say";
import { choose, hasAddress, hovered, open, state, toHash } from "./state";

export const helpOpen = signal(false);

/** The open head, or the one that is pointed at. */
export function currentHead(): number | null {
  return hovered.peek() ?? state.head.peek();
}

/** The next or previous head that is marked, round the ends. */
export function step(by: 1 | -1): void {
  const n = countOf(model.peek());
  const { is, count } = hits.peek();
  if (!count) return tell("No head is marked");
  let head = state.head.peek() ?? (by === 1 ? -1 : n);
  do head = (head + by + n) % n;
  while (!is[head]);
  open(head);
  announce(titleOf(head));
}

/** Close the card that is open. */
export function close(): void {
  if (hovered.peek() !== null) hovered.value = null;
  if (state.head.peek() === null) return;
  choose({ head: null, token: null });
  back();
}

export async function copyLink(): Promise<void> {
  if (!(await copy(location.href))) return tell("The browser does not allow copying");
  tell(location.protocol === "file:" ? "The link is copied. It leads to a file of this computer: send the file too. What stands after # shows in any copy of it what you see now." : "The link is copied. It shows exactly what you see now.");
}

/** Whether a link is enough for others: a page in a notebook has no address, and the address of a file is of no use elsewhere. */
export function isServed(): boolean {
  return hasAddress() && location.protocol !== "file:";
}

/** Saves the page as a file that opens as it is now. */
export async function saveView(): Promise<void> {
  const view = toHash();
  let page: string;
  try {
    page = isWidget() ? (await pageOfKernel()).replace('id="mh-root"', (root) => `${root} data-view="${view}"`) : pageOfFrame(view);
  } catch (reason) {
    return tell(messageOf(reason));
  }
  download(page, "mechheads-view.html", "text/html");
  tell(`The page is saved as a file that opens as you see it now.${hasAddress() ? "" : " It needs no notebook."}`);
}

function pageOfFrame(view: string): string {
  const page = document.documentElement.cloneNode(true) as HTMLElement;
  page.removeAttribute("style"); // the colours of this notebook
  const root = page.querySelector<HTMLElement>("#mh-root");
  if (!root) throw new Error("This page cannot be saved.");
  root.textContent = "The page is being opened.";
  root.dataset.view = view;
  return `<!doctype html>\n${page.outerHTML}`;
}

export function goToSearch(): void {
  rootOf()?.querySelector<HTMLInputElement>(".mh-search-line")?.focus();
}
