/** The end of the page: what may not be concluded, what was left out, and where the numbers come from. */
import { Circuits } from "./Circuits";
import { CopyPython } from "./CopyPython";
import type { Source, Table } from "./data";
import { model, page } from "./page";
import { Folded } from "./sections";
import { hasValues } from "./table";

export function End() {
  const { notes, interrupted, sources, citation, cautions, circuits, tables } = model.value;
  const alone = !hasValues(model.value);
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
      {circuits.length > 0 && <Folded id="circuits" title="Circuits" opened={alone}><Circuits of={circuits} /></Folded>}
      {tables.length > 0 && <Folded id="tables" title="Tables" opened={alone}>{tables.map((table) => <OneTable key={table.name} table={table} />)}</Folded>}
      {sources.length > 0 && <Folded id="sources" title="Where the numbers come from"><Sources of={sources} /></Folded>}
      {citation && <Folded id="citation" title="Citation"><pre tabIndex={0}>{citation}</pre></Folded>}
      <p class="mh-muted">{`mechheads ${page.value.version}. This page is one file and needs no network.`}</p>
    </footer>
  );
}

/** A text in which code stands between backticks. */
function WithCode({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}</>;
}

function OneTable({ table: { name, unit, columns, rows, of } }: { table: Table }) {
  const title = `${name}${unit ? ` (${unit})` : ""}${rows.length < of ? `, the first ${rows.length} of ${of} rows` : ""}`;
  return (
    <section>
      <h3><bdi>{title}</bdi></h3>
      <div class="mh-scroll" tabIndex={0} role="region" aria-label={title}>
        <table class="mh-table-of">
          <thead><tr>{columns.map((column) => <th key={column} scope="col"><bdi>{column}</bdi></th>)}</tr></thead>
          <tbody>
            {rows.map((row, at) => <tr key={at}>{row.map((cell, column) => <td key={column}><bdi>{cell}</bdi></td>)}</tr>)}
          </tbody>
        </table>
      </div>
      <CopyPython model={model.value} sources={[name]} what={name} />
    </section>
  );
}

/** Each result with its prompts, its file, and the call that gives it again. */
function Sources({ of }: { of: readonly Source[] }) {
  return (
    <dl>
      {of.map(({ name, call, prompts, file }) => (
        <div key={name}>
          <dt>{name} {file && <a href={file}>{file}</a>}</dt>
          <dd>
            {prompts && <p class="mh-muted">{prompts}</p>}
            {call && <pre tabIndex={0}>{call}</pre>}
            <CopyPython model={model.value} sources={[name]} what={name} />
          </dd>
        </div>
      ))}
    </dl>
  );
}
