/** The end of the page: how everything was measured, what may not be concluded, what was left out, and how to repeat it. */
import { Circuits } from "./Circuits";
import type { Table } from "./data";
import { model, page } from "./page";
import { Folded } from "./sections";
import { columnOf } from "./table";

export function End() {
  const { notes, interrupted, provenance, citations, methods, cautions, circuits, views, tables } = model.value;
  return (
    <footer class="mh-end" aria-label="About this page">
      <div class="mh-end-lists">
        {cautions.length > 0 && (
          <section>
            <h2>What may not be concluded</h2>
            <ul>{cautions.map((text) => <li key={text}>{text}</li>)}</ul>
          </section>
        )}
        {(notes.length > 0 || interrupted) && (
          <section>
            <h2 tabIndex={-1}>What was left out</h2>
            {interrupted && <p class="mh-error">The work was interrupted, so a part of it is missing.</p>}
            <ul>{notes.map((text) => <li key={text}><WithCode text={text} /></li>)}</ul>
          </section>
        )}
      </div>
      {circuits.length > 0 && <Folded id="circuits" title="Circuits" opened={!views.length}><Circuits of={circuits} /></Folded>}
      {tables.length > 0 && <Folded id="tables" title="Tables" opened={!views.length}>{tables.map((table) => <OneTable key={table.name} table={table} />)}</Folded>}
      {methods.length > 0 && (
        <Folded id="methods" title="Methods">
          <dl>
            {methods.map(({ name, text, columns }) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>
                  {text}
                  <Columns of={columns} />
                </dd>
              </div>
            ))}
          </dl>
        </Folded>
      )}
      {Object.keys(provenance).length > 0 && (
        <Folded id="provenance" title="Provenance">
          {Object.entries(provenance).map(([name, value]) => (
            <div key={name}>
              <h3>{name}</h3>
              <pre tabIndex={0}>{JSON.stringify(value, null, 1)}</pre>
            </div>
          ))}
        </Folded>
      )}
      {Object.keys(citations).length > 0 && (
        <Folded id="citation" title="Citation">
          <pre tabIndex={0}>{eachOnce(Object.values(citations))}</pre>
        </Folded>
      )}
      <p class="mh-muted">{`mechheads ${page.value.version}. This page is one file and needs no network.`}</p>
    </footer>
  );
}

/** A text in which what is typed stands between backticks. */
function WithCode({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}</>;
}

function OneTable({ table: { name, unit, columns, rows, of, folded } }: { table: Table }) {
  const title = `${name}${unit ? ` (${unit})` : ""}${rows.length < of ? `, the first ${rows.length} of ${of} rows` : ""}`;
  const shown = (
    <div class="mh-scroll" tabIndex={0} role="region" aria-label={title}>
      <table class="mh-table-of">
        <thead><tr>{columns.map((column) => <th key={column} scope="col"><bdi>{column}</bdi></th>)}</tr></thead>
        <tbody>
          {rows.map((row, at) => <tr key={at}>{row.map((cell, column) => <td key={column}><bdi>{cell}</bdi></td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
  if (folded) return <details><summary>{title}</summary>{shown}</details>;
  return (
    <section>
      <h3><bdi>{title}</bdi></h3>
      {shown}
    </section>
  );
}

/** Every entry of some bibliographies once; what they say of versions comes last. */
function eachOnce(bibliographies: readonly string[]): string {
  const entries = [...new Set(bibliographies.flatMap((text) => text.split("\n\n")))];
  return [...entries.filter((entry) => entry.startsWith("@")), ...entries.filter((entry) => !entry.startsWith("@"))].join("\n\n");
}

/** The columns that have a value of their own. */
function Columns({ of }: { of: readonly string[] }) {
  const labels = of.flatMap((name) => {
    const column = columnOf(model.value, name);
    return column?.role === "value" ? column.label : [];
  });
  return labels.length > 0 ? <p class="mh-muted">Columns: {labels.join(", ")}</p> : null;
}
