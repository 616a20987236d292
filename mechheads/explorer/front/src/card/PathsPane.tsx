/** Which heads feed this one, and which ones it feeds. */
import { useEffect, useState } from "preact/hooks";

import type { Model, PathsPane as Pane } from "../data";
import { HeadLink } from "./HeadLink";
import { nameOf } from "./heads";
import { layerOf, messageOf } from "./load";
import { exact, interval, measured, show, showQ } from "./numbers";
import { Empty } from "./parts";
import { linksOf, trace, type Link, type Step } from "./paths";
import { PathsPlot } from "./PathsPlot";
import { inText } from "./tokens";

interface Props {
  pane: Pane;
  model: Model;
  head: number;
}

export function PathsPane({ pane, model, head }: Props) {
  const measured = pane.senders.length + pane.receivers.length > 0;
  const links = linksOf(model, pane);
  const { unit } = pane;
  return (
    <div>
      <div class="card-controls">
        <Trace {...{ model, head }} />
      </div>
      {!measured && (
        <Empty
          what="Paths of this head were not patched: the atlas does this for the heads with the largest patching effect."
          command={`mh.path_patch(model, pairs, receivers=["${nameOf(model, head)}.q"])`}
        />
      )}
      <p class="card-lead">{inText(pane.meaning)}</p>
      <PathsPlot name={`${nameOf(model, head)}-paths`} centre={nameOf(model, head)} links={links} unit={unit} none="none measured" />
      <details>
        <summary>The same as a table</summary>
        <LinkTable title="Senders: they feed this head" links={links.senders} unit={unit} />
        <LinkTable title="Receivers: this head feeds them" links={links.receivers} unit={unit} />
      </details>
    </div>
  );
}

function Trace({ model, head }: { model: Model; head: number }) {
  const [steps, setSteps] = useState<Step[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [asked, setAsked] = useState(false);
  useEffect(() => {
    if (!asked) return;
    let wanted = true;
    const before = async (at: number): Promise<readonly Link[]> => {
      const block = await layerOf(Math.floor(at / model.nHeads));
      const pane = block.heads.find(({ index }) => index === at % model.nHeads)?.paths;
      return pane ? linksOf(model, pane).senders : [];
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
          {` \u2190 ${link.way} ${show(link.value, 2)} \u2190 `}
          <HeadLink head={at} name={link.name} />
        </span>
      ))}
    </p>
  );
}

interface TableProps {
  title: string;
  links: readonly Link[];
  unit: string;
}

function LinkTable({ title, links, unit }: TableProps) {
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
            <th scope="col">interval</th>
            <th scope="col">q</th>
          </tr>
        </thead>
        <tbody>
          {links.map(({ head, name, way, value, low, high, q }, at) => (
            <tr key={at}>
              <th scope="row">
                {head === null ? (
                  name
                ) : (
                  <HeadLink head={head} name={name} />
                )}
              </th>
              <td>{way}</td>
              <td class="card-number" title={exact(value, low, high)}>{measured(value, low, high)}</td>
              <td>{interval(low, high)}</td>
              <td>{showQ(q)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
