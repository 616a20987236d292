/** The gates of a head, by role, by fit and by start. */
import type { Num, Role, Shared } from "../data";
import { known, mean, plural, withInterval } from "./numbers";
import { Strip, type StripRow } from "./Strip";

const MEANINGS: Record<string, string> = {
  facilitation: "the gate stays open although gates are pulled shut: the task needs the head",
  interference: "the gate shuts although gates are pulled open: the task does better without the head",
  irrelevance: "the gate follows the pull: the task does not depend on the head",
};

/** The gates of both fits, from the roles: facilitation is the gate of "drop", interference 1 minus the gate of "keep". */
export function gatesOf(roles: readonly Role[]): StripRow[] {
  const values = (name: string) => roles.find(({ role }) => role === name)?.values;
  const row = (name: string, gates: readonly Num[] | undefined): StripRow[] =>
    gates ? [{ name, values: gates, mean: mean(gates), low: null, high: null }] : [];
  const keep = values("interference")?.map((value) => (known(value) ? 1 - value : null));
  return [...row("pulled open (keep)", keep), ...row("pulled shut (drop)", values("facilitation"))];
}

export function RolesPane({ pane, shared, name }: { pane: Role[]; shared: Shared; name: string }) {
  const starts = Math.max(...pane.map(({ values }) => values.length));
  const dots = (at: number) => `start ${shared.seeds[at] ?? at + 1}`;
  return (
    <div class="card-sections">
      <section>
        <p class="card-lead">{`Gates of all heads were fitted together, from ${plural(starts, "start")}. A role is 1 if it holds fully, 0 if not at all.`}</p>
        <dl class="card-meanings">
          {pane.map((role) => (
            <div key={role.role}>
              <dt>{role.role}</dt>
              <dd>{[said(role), MEANINGS[role.role]].filter(Boolean).join(": ")}</dd>
            </div>
          ))}
        </dl>
        <Strip
          name={`${name}-roles`}
          caption="One dot for each start; line: mean, band: its interval, or the two starts if there are no more"
          unit="role"
          of="start"
          domain={[0, 1]}
          dots={dots}
          rows={pane.map(({ role, values, score, low, high, range }) => ({ name: role, values, mean: score, low, high, range }))}
        />
      </section>
      <section>
        <h3>Gates of both fits</h3>
        <Strip
          name={`${name}-gates`}
          caption="0 is shut, 1 is open. One dot for each start; line: mean"
          unit="gate"
          of="start"
          domain={[0, 1]}
          dots={dots}
          rows={gatesOf(pane)}
        />
      </section>
    </div>
  );
}

function said({ score, low, high, range }: Role): string {
  return known(score) ? withInterval(score, low, high, range ? "starts" : "") : "not measured";
}
