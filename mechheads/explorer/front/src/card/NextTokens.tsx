/** The most likely next tokens, before and after an ablation. */
import type { Next } from "../data";
import { percent, show } from "./numbers";
import { Token } from "./parts";

interface Props {
  before: readonly Next[];
  after: readonly Next[] | null;
  head: string;
}

/** Tokens of both lists, by the first and then by the second. */
export function joined(before: readonly Next[], after: readonly Next[]): { token: string; before: number | null; after: number | null }[] {
  const [one, other] = [before, after].map((each) => new Map(each.map(({ token, probability }) => [token, probability])));
  const names = [...new Set([...before, ...after].map(({ token }) => token))];
  return names.map((token) => ({ token, before: one?.get(token) ?? null, after: other?.get(token) ?? null }));
}

export function NextTokens({ before, after, head }: Props) {
  const rows = joined(before, after ?? []);
  const most = Math.max(...rows.flatMap((row) => [row.before ?? 0, row.after ?? 0]), 1e-9);
  return (
    <div class="card-scroll">
      <table class="card-table card-next">
        <thead>
          <tr>
            <th scope="col">token</th>
            <th scope="col">intact</th>
            {after && <th scope="col">{`without ${head}`}</th>}
            {after && (
              <th scope="col" class="card-number">
                change
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.token}>
              <th scope="row">
                <Token text={row.token} />
              </th>
              <Bar value={row.before} most={most} />
              {after && <Bar value={row.after} most={most} />}
              {after && (
                <td class="card-number">
                  {row.before === null || row.after === null ? "" : `${row.after > row.before ? "+" : ""}${show((row.after - row.before) * 100, 2)} points`}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Bar({ value, most }: { value: number | null; most: number }) {
  return (
    <td>
      {value === null ? (
        <span class="card-muted">not among the first</span>
      ) : (
        <span class="card-bar-cell">
          <span class="card-bar-fill" style={{ width: `${(value / most) * 70}%` }} />
          <span>{percent(value)}</span>
        </span>
      )}
    </td>
  );
}
