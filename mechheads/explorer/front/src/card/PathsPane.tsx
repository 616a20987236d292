/** Which heads feed this one, and which ones it feeds. */
import { useEffect, useState } from "preact/hooks";

import type { Model, PathsPane as Pane } from "../data";
import { choose, state } from "../state";
import { HeadLink } from "./HeadLink";
import { nameOf } from "./heads";
import { layerOf, messageOf } from "./load";
import { exact, interval, measured, show, showQ } from "./numbers";
import { Choice, Empty } from "./parts";
import { linksOf, sendersOf, trace, type Link, type Source, type Step } from "./paths";
import { PathsPlot } from "./PathsPlot";
import { inText } from "./tokens";

interface Props {
  pane: Pane;
  model: Model;
  modelAt: number;
  head: number;
}

export function PathsPane({ pane, model, modelAt, head }: Props) {
  const measured = pane.senders.length + pane.receivers.length > 0;
  const source: Source = measured && state.paths.value !== "weights" ? "measured" : "weights";
  const links = linksOf(model, pane, source);
  const unit = source === "measured" ? pane.unit : "share of the norms";
  return (
    <div>
      <div class="card-controls">
        {measured && pane.composition.length > 0 && (
          <Choice
            label="Widths by"
            value={source}
            onChange={(paths) => choose({ paths })}
            choices={[
              ["measured", "measured by path patching"],
              ["weights", "by weights"],
            ]}
          />
        )}
        <Trace {...{ model, modelAt, head }} />
      </div>
      {!measured && (
        <Empty
          what="Paths of this head were not patched: the atlas does this for the heads with the largest patching effect."
          command={`mh.path_patch(model, pairs, receivers=["${nameOf(model, head)}.q"])`}
        />
      )}
      <p class="card-lead">
        {source === "measured"
          ? inText(pane.meaning)
          : "Composition: how much of what one head writes the other reads, by weights alone."}
      </p>
      {source === "measured" && pane.composition.length > 0 && (
        <Unpatched name={nameOf(model, head)} senders={links.senders.length > 0} receivers={links.receivers.length > 0} />
      )}
      <PathsPlot name={`${nameOf(model, head)}-paths-${source}`} centre={nameOf(model, head)} links={links} unit={unit} none={source === "measured" ? "none measured" : "none"} model={modelAt} />
      <details>
        <summary>The same as a table</summary>
        <LinkTable title="Senders: they feed this head" links={links.senders} unit={unit} model={modelAt} />
        <LinkTable title="Receivers: this head feeds them" links={links.receivers} unit={unit} model={modelAt} />
      </details>
    </div>
  );
}

/** One side was not patched: its paths are known by weights alone. */
function Unpatched({ name, senders, receivers }: { name: string; senders: boolean; receivers: boolean }) {
  if (senders && receivers) return null;
  return (
    <p class="card-empty">
      {senders ? `No path from ${name} was patched. ` : `No path into ${name} was patched. `}
      <button type="button" class="card-button" onClick={() => choose({ paths: "weights" })}>
        {senders ? "show what it feeds by weights" : "show what feeds it by weights"}
      </button>
    </p>
  );
}

function Trace({ model, modelAt, head }: { model: Model; modelAt: number; head: number }) {
  const [steps, setSteps] = useState<Step[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [asked, setAsked] = useState(false);
  useEffect(() => {
    if (!asked) return;
    let wanted = true;
    const before = async (at: number): Promise<readonly Link[]> => {
      const block = await layerOf(modelAt, Math.floor(at / model.nHeads));
      const pane = block.heads.find(({ index }) => index === at % model.nHeads)?.paths;
      return pane ? sendersOf(model, pane) : [];
    };
    trace(head, before).then(
      (found) => wanted && setSteps(found),
      (reason: unknown) => wanted && setError(messageOf(reason)),
    );
    return () => {
      wanted = false;
    };
  }, [asked]);
  if (!asked) {
    return (
      <button type="button" class="card-button" onClick={() => setAsked(true)}>
        trace upstream: what feeds the heads that feed it
      </button>
    );
  }
  if (error) return <p role="alert">{error}</p>;
  if (!steps) return <p role="status">Following the strongest senders{"\u2026"}</p>;
  return (
    <p class="card-trace" role="status">
      {steps.length ? "Strongest way back: " : "There is no sender to follow. "}
      {steps.length > 0 && <b>{nameOf(model, head)}</b>}
      {steps.map(({ head: at, link }) => (
        <span key={at}>
          {` \u2190 ${link.way} ${show(link.value, 2)}${link.z === null ? "" : " by weights"} \u2190 `}
          <HeadLink model={modelAt} head={at} name={link.name} />
        </span>
      ))}
    </p>
  );
}

interface TableProps {
  title: string;
  links: readonly Link[];
  unit: string;
  model: number;
}

function LinkTable({ title, links, unit, model }: TableProps) {
  if (!links.length) return <p class="card-empty">{`${title}: none.`}</p>;
  return (
    <div class="card-scroll">
      <table class="card-table">
        <caption>{title}</caption>
        <thead>
          <tr>
            <th scope="col">head</th>
            <th scope="col">reads by</th>
            <th scope="col" class="card-number">{unit || "value"}</th>
            <th scope="col">{links.some(({ z }) => z !== null) ? "above chance" : "interval"}</th>
            <th scope="col">q</th>
          </tr>
        </thead>
        <tbody>
          {links.map(({ head, name, way, value, low, high, q, z }, at) => (
            <tr key={at}>
              <th scope="row">
                {head === null ? (
                  name
                ) : (
                  <HeadLink model={model} head={head} name={name} />
                )}
              </th>
              <td>{way}</td>
              <td class="card-number" title={exact(value, low, high)}>{measured(value, low, high)}</td>
              <td>{z === null ? interval(low, high) : `${show(z, 2)} standard deviations`}</td>
              <td>{showQ(q)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
