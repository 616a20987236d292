/** Starts the explorer: in its own page, or in a notebook's cell. */
import { render } from "preact";
import { Card } from "./card/Card";
import type { Page } from "./data";
const text = document.getElementById("mh-page")?.textContent;
if (text) render(<Card model={0} head={0} page={JSON.parse(text) as Page} />, document.body);
