/** Names in the address that this page does not have. */
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

import { panesOf } from "./card/Card";
import { numberOf } from "./card/heads";
import { inText } from "./card/tokens";
import type { Model } from "./data";
import { page } from "./page";
import { near } from "./search/near";
import { fromHash } from "./state";
import { columnOf, measures, numbersOf } from "./table";
import { listed } from "./text";

/** One sentence for each thing that is unknown. */
export const unknown = signal<readonly string[]>([]);

const LONGEST = 40;

/** Look through the part of an address after "#". */
export function findUnknown(hash: string): void {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const its = page.value.model;
  const given = (name: string) => parts.get(name) ?? "";
  const found: string[] = [];
  const say = (what: string, name: string, others: string) => found.push(`The address names a ${what} \u201c${short(name)}\u201d that this page does not have${others && `; ${others}`}.`);
  for (const name of heads(parts)) if (numberOf(its, name) === null) say("head", name, `heads are L0H0 to L${its.nLayers - 1}H${its.nHeads - 1}`);
  if (given("question") && !its.questions.some(({ key }) => key === given("question"))) say("question", given("question"), its.questions.length ? `the questions are ${listed(its.questions.map(({ key }) => key))}` : "");
  const panes = panesOf(page.value);
  if (given("pane") && !panes.some(({ id }) => id === given("pane"))) say("pane", given("pane"), `the panes are ${listed(panes.map(({ name }) => name))}`);
  for (const name of shown(parts)) if (!columnOf(its, name)) say("column", name, like(its, name));
  for (const name of drawn(parts)) if (!numbersOf(its, name)) say("column of numbers", name, like(its, name));
  unknown.value = found;
}

function heads(parts: URLSearchParams): string[] {
  return ["head", "pins"].flatMap((name) => (parts.get(name) ?? "").split(",").filter(Boolean));
}

/** The columns of the table. */
function shown(parts: URLSearchParams): Set<string> {
  const { columns, sort } = fromHash(`#${parts}`);
  return new Set([...columns, (sort ?? "").replace(/^-/, "")].filter(Boolean));
}

/** The columns of the axes, the colour and the slider. */
function drawn(parts: URLSearchParams): Set<string> {
  return new Set(["x", "y", "colour", "by"].flatMap((name) => parts.get(name) || []));
}

function like(model: Model, name: string): string {
  const alike = near(name.slice(0, LONGEST), measures(model).map((column) => column.name));
  return alike.length ? `most like it: ${alike.join(", ")}` : "";
}

function short(text: string): string {
  const letters = [...text];
  return inText(letters.length > LONGEST ? `${letters.slice(0, LONGEST).join("")}\u2026` : text).replace(/\s+/g, " ");
}

export function Unknown() {
  // A status is read out if it changes, not if the page has it from the start.
  const [drawn, setDrawn] = useState(false);
  useEffect(() => setDrawn(true), []);
  const lines = drawn ? unknown.value : [];
  return (
    <div role="status" class="mh-unknown" hidden={!lines.length}>
      {lines.length > 0 && (
        <>
          <div>{lines.map((line) => <p key={line}><bdi>{line}</bdi></p>)}</div>
          <button type="button" class="mh-small" onClick={() => (unknown.value = [])}>Dismiss</button>
        </>
      )}
    </div>
  );
}
