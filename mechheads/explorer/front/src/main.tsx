/**
 * Starts the explorer.
 *
 * - In its own page: the data is in `#mh-page` (see data.ts), and the page has an element `#mh-root` of class `mh`. What the
 *   element contains before, such as a line that says that the page is being opened, is replaced.
 * - In a notebook: anywidget calls `render`.
 */
import { render as draw } from "preact";

import { App } from "./App";
import { nameOf, numberOf } from "./card/heads";
import { sendThrough, type WidgetModel } from "./card/live";
import { readBlocksFrom } from "./card/load";
import type { Page } from "./data";
import { mend, page } from "./page";
import { beginWith, followAddress, nameHeads, startWith } from "./state";
import { keepKeys } from "./notebook";
import { visible } from "./text";
import { followFrame, followNotebook } from "./theme";
import { findUnknown } from "./Unknown";

function take(text: string): void {
  page.value = visible(JSON.parse(text)) as Page;
  const { model, start } = page.value;
  nameHeads({ name: (head) => nameOf(model, head), number: (name) => numberOf(model, name) });
  if (start) beginWith({ head: numberOf(model, start) });
}

function startPage(text: string, root: HTMLElement): void {
  take(text);
  document.title = page.value.title;
  followAddress((values) => {
    findUnknown(location.hash);
    return mend(values);
  }, root.dataset.view);
  root.replaceChildren();
  draw(<App everywhere />, root);
  followFrame();
}

interface Widget extends WidgetModel {
  get(name: "page"): string;
  get(name: "blocks"): Record<string, string>;
}

function render({ model, el }: { model: Widget; el: HTMLElement }): () => void {
  readBlocksFrom((id) => model.get("blocks")[id]);
  sendThrough(model);
  take(model.get("page"));
  startWith(mend);
  el.classList.add("mh");
  const forget = keepKeys(el);
  const unfollow = followNotebook(el);
  draw(<App everywhere={false} />, el);
  return () => {
    unfollow();
    forget();
    draw(null, el);
  };
}

const text = document.getElementById("mh-page")?.textContent;
const root = document.getElementById("mh-root");
if (text && root) startPage(text, root);

export default { render };
