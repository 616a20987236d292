/** Heads with a like profile. */
import { useMemo, useState } from "preact/hooks";

import type { AlikePane as Pane, Model } from "../data";
import { columnOf } from "../table";
import { HeadLink } from "./HeadLink";
import { labelsOf, nameOf, numberOf } from "./heads";
import { known, percent, show } from "./numbers";
import { Empty } from "./parts";
import { ProfilePlot, type ProfileRow } from "./ProfilePlot";
import { shareBelow } from "./profile";

interface Props {
  pane: Pane;
  model: Model;
  modelAt: number;
  head: number;
}

export function AlikePane({ pane, model, modelAt, head }: Props) {
  const found = useMemo(
    () =>
      pane.heads.flatMap(({ head: name, similarity }) => {
        const at = numberOf(model, name);
        return at === null ? [] : [{ at, name, similarity }];
      }),
    [pane, model],
  );
  const [chosen, setChosen] = useState(0);
  const other = found[chosen] ?? found[0];
  const rows = useMemo(() => (other ? rowsOf(model, pane, head, other.at) : []), [model, pane, head, other]);
  if (!other) return <Empty what="No heads were compared with this one." command="mechheads atlas" />;
  return (
    <div class="card-beside">
      <section>
        <h3>Nearest heads</h3>
        <p class="card-lead">{`Distance: 1 \u2212 the correlation of ranks over ${pane.columns.length} columns; 0 is the same profile.`}</p>
        <ol class="card-alike">
          {found.map(({ at, name, similarity }, index) => (
            <li key={name} class={index === chosen ? "card-alike-on" : ""}>
              <HeadLink model={modelAt} head={at} name={name} onShow={() => setChosen(index)} />
              <span class="card-bar-cell" aria-hidden="true">
                <span class="card-bar-fill" style={{ width: `${Math.max(similarity, 0) * 100}%` }} />
              </span>
              <span class="card-number">{show(1 - similarity, 2)}</span>
              <span class="card-muted">{labelsOf(model, at).join(", ")}</span>
            </li>
          ))}
        </ol>
      </section>
      <section>
        <h3>{`${nameOf(model, head)} and ${other.name}`}</h3>
        <ProfilePlot name={`${nameOf(model, head)}-and-${other.name}`} rows={rows} one={nameOf(model, head)} other={other.name} />
      </section>
    </div>
  );
}

function rowsOf(model: Model, { columns }: Pane, head: number, other: number): ProfileRow[] {
  return columns.flatMap((name) => {
    const column = columnOf(model, name);
    if (!column) return [];
    const values = column.values.map((value) => (typeof value === "number" && known(value) ? value : null));
    const [a, b] = [shareBelow(values, head), shareBelow(values, other)];
    const text = (at: number, share: number | null) => `${show(values[at])} ${column.unit} (above ${percent(share)} of heads)`;
    return [{ label: column.label, one: a, other: b, texts: [text(head, a), text(other, b)] as const }];
  });
}
