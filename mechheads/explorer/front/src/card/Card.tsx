/** Everything that is known of one head. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import type { Head, HeadBlock, Model, Page, Question, Shared } from "../data";
import { CopyPython } from "../CopyPython";
import { choose, state } from "../state";
import { questionOf } from "../table";
import { CausePane } from "./CausePane";
import { HeadLink } from "./HeadLink";
import { behavioursOf, categoriesOf, nameOf, sharedWith } from "./heads";
import { Lines } from "./Lines";
import { LivePane } from "./LivePane";
import { Missing } from "./Missing";
import { layerOf, sharedOf, useLoaded, type Loaded } from "./load";
import { Tabs, type Tab } from "./parts";
import { PathsPane } from "./PathsPane";
import { PatternPane } from "./PatternPane";
import { SafetyPane } from "./SafetyPane";
import { TextPane } from "./TextPane";
import { WeightsPane } from "./WeightsPane";

interface Props {
  /** layer * nHeads + head. */
  head: number;
  page: Page;
}

const TITLES: Record<string, string> = { text: "ordinary text", pattern: "patterns", cause: "effects", paths: "fed by / feeds" };
const PANES = ["text", "pattern", "weights", "cause", "paths", "safety"] as const;
type PaneName = (typeof PANES)[number];
const EVIDENCE: Record<Question["kind"], PaneName> = { pairs: "cause", own: "cause", requests: "safety", text: "text", weights: "weights" };

const SOURCES: Record<string, RegExp> = {
  text: /^(profile|examples)$/,
  pattern: /^patterns$/,
  weights: /^(relations|labels)$/,
  cause: /^(patching|direct)$/,
  paths: /^paths$/,
  safety: /^safety_/,
};

/** The pane that holds the evidence about a question. */
export function paneOf({ kind }: Question): string {
  return EVIDENCE[kind];
}

export function Card({ head, page }: Props) {
  const { model } = page;
  if (head < 0 || head >= model.nLayers * model.nHeads) return <p class="card-empty">There is no such head.</p>;
  return <Loading {...{ page, model, head }} />;
}

interface LoadingProps {
  page: Page;
  model: Model;
  head: number;
}

function Loading({ page, model, head }: LoadingProps) {
  const layer = Math.floor(head / model.nHeads);
  const block = useLoaded(String(layer), () => layerOf(layer));
  const shared = useLoaded("shared", sharedOf);
  const data = block.value?.heads.find(({ index }) => index === head % model.nHeads) ?? null;
  return (
    <article class="card" aria-label={`Head ${nameOf(model, head)}`}>
      <header class="card-header">
        <h3><bdi>{nameOf(model, head)}</bdi></h3>
        <Names model={model} head={head} />
        <Group model={model} head={head} />
      </header>
      {page.kind === "atlas" && <Lines {...{ model, data }} head={nameOf(model, head)} />}
      <Panes {...{ page, model, head, data, block }} shared={shared} />
    </article>
  );
}

function Names({ model, head }: { model: Model; head: number }) {
  const of = (names: readonly string[], none: string) => (names.length ? names.map((name) => <span key={name}>{name}</span>) : none);
  return (
    <>
      {model.behaviours && <p class="card-names">On ordinary text: {of(behavioursOf(model, head), "nothing that has a name")}</p>}
      {model.categories && <p class="card-names">By weights: {of(categoriesOf(model, head), "no category")}</p>}
    </>
  );
}

/** With grouped queries: the heads that use the same keys and values. */
function Group({ model, head }: { model: Model; head: number }) {
  const others = sharedWith(model, head);
  if (!others.length) return null;
  return (
    <p class="card-shared">
      shares keys and values with{" "}
      {others.map((other, at) => (
        <span key={other}>
          {at > 0 && ", "}
          <HeadLink head={other} name={nameOf(model, other)} />
        </span>
      ))}
    </p>
  );
}

interface PanesProps extends LoadingProps {
  data: Head | null;
  block: Loaded<HeadBlock>;
  shared: Loaded<Shared>;
}

function Panes({ page, model, head, data, block, shared }: PanesProps) {
  const { live } = page;
  const tabs = useMemo(() => panesOf(page, data), [page, data]);
  const question = questionOf(model);
  const asked = question && tabs.find(({ id, empty }) => id === paneOf(question) && !empty);
  const chosen = (tabs.find(({ id }) => id === state.pane.value) ?? asked ?? tabs.find(({ empty }) => !empty))?.id ?? "text";
  const error = chosen === "live" ? null : (block.error ?? shared.error);
  let content: ComponentChildren;
  if (live && chosen === "live") content = <LivePane key={head} {...{ live, model, head }} />;
  else if (page.start && page.kind === "atlas" && ((block.error && !shared.error) || (block.value && !data))) content = <Failed message={`This page is about ${page.start} and holds the cards of the heads that its card links to, not that of ${nameOf(model, head)}. mh.explore(atlas) shows all heads.`} />;
  else if (error) content = <Failed message={error} />;
  else if (!block.value || !shared.value) content = <Reading what={nameOf(model, head)} />;
  else if (!data) content = <Failed message={`The page holds no data of ${nameOf(model, head)}.`} />;
  else content = <Pane key={head} {...{ chosen, data, model, head }} shared={shared.value} />;
  return (
    <div>
      {tabs.length > 0 && (
        <Tabs label="What to see of this head" tabs={tabs} chosen={chosen} onChoose={(pane) => choose({ pane })}>
          {content}
          {data && <CopyPython model={model} sources={sourcesFor(model, chosen)} what={`${TITLES[chosen] ?? chosen} of ${data.head}`} />}
        </Tabs>
      )}
      {page.kind === "atlas" && <More model={model} />}
    </div>
  );
}

/** The results behind a pane, by name. */
function sourcesFor({ sources }: Model, pane: string): string[] {
  return sources.map(({ name }) => name).filter((name) => SOURCES[pane]?.test(name));
}

/** The panes that cards of a model have; `data` says which of them are empty. */
export function panesOf(page: Page, data: Head | null = null): Tab[] {
  const shown: readonly PaneName[] = page.kind === "run" ? ["pattern"] : PANES.filter((name) => hasPane(page.model, name));
  const tabs: Tab[] = shown.map((name) => ({ id: name, name: TITLES[name] ?? name, empty: data !== null && !data[name] }));
  return page.live ? [...tabs, { id: "live", name: "own text" }] : tabs;
}

function hasPane(model: Model, name: PaneName): boolean {
  return model.panes.includes(name);
}

/** The panes that were not measured for this model, and the call that measures them. */
function More({ model }: { model: Model }) {
  const missing = PANES.filter((name) => !hasPane(model, name)).map((name) => TITLES[name] ?? name);
  if (!missing.length) return null;
  return (
    <p class="card-muted card-more">
      {`Not measured here: ${missing.join(", ")}. `}
      <code>mh.build_atlas(model)</code> measures them.
    </p>
  );
}

function Failed({ message }: { message: string }) {
  return (
    <p role="alert" class="card-error">
      {message}
    </p>
  );
}

function Reading({ what }: { what: string }) {
  return (
    <p role="status" class="card-reading">
      {`Reading ${what}\u2026`} <progress aria-label={`Reading ${what}`} />
    </p>
  );
}

interface PaneProps {
  chosen: string;
  data: Head;
  shared: Shared;
  model: Model;
  head: number;
}

function Pane({ chosen, data, shared, model, head }: PaneProps) {
  const name = data.head;
  const about = { model, head };
  if (chosen === "text" && data.text) return <TextPane pane={data.text} shared={shared} />;
  if (chosen === "pattern" && data.pattern) return <PatternPane pane={data.pattern} {...{ shared, name }} />;
  if (chosen === "weights" && data.weights) return <WeightsPane relations={data.weights} />;
  if (chosen === "cause" && (data.cause || data.safety)) return <CausePane pane={data.cause} safety={data.safety} {...{ shared, name }} />;
  if (chosen === "paths" && data.paths) return <PathsPane pane={data.paths} {...about} />;
  if (chosen === "safety" && data.safety?.length) return <SafetyPane pane={data.safety} {...{ shared, name }} />;
  return <Missing pane={chosen} notes={model.notes} />;
}
