/** The table of heads: sortable, and only the rows in sight are in the document. An ARIA grid in which arrow keys move. */
import { effect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { nameOf } from "../card/heads";
import type { Column, Model } from "../data";
import { hits } from "../hits";
import { headAt, useMarks } from "../marks";
import { model } from "../page";
import { keyOn, pointAt, pressed } from "../pointing";
import { choose, state } from "../state";
import { columnOf, numbersOf, shortened, sortOf, titled } from "../table";
import { cellText, cellTitle, type Fitted } from "./fitting";

const ROW = 30;
const SHOWN = 14;
const SPARE = 6;

/** The heads that are marked, in the order of `sort`; missing values come last. */
function inOrder(model: Model, is: Uint8Array, sort: string): number[] {
  const heads = Array.from(is.keys()).filter((head) => is[head]);
  const down = sort.startsWith("-");
  const column = columnOf(model, sort.replace(/^-/, ""));
  if (!column) return down ? heads.reverse() : heads;
  const values = numbersOf(model, column.name)?.values ?? column.values;
  const missing = (value: unknown) => value === null || value === undefined || value === "" || Number.isNaN(value);
  return heads.sort((a, b) => {
    const [x, y] = [values[a], values[b]];
    if (missing(x) || missing(y)) return Number(missing(x)) - Number(missing(y)) || a - b;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x) < String(y) ? -1 : String(x) > String(y) ? 1 : 0;
    return (down ? -order : order) || a - b;
  });
}

/** The heads that the table shows, in its order. */
export function rowsOf(): number[] {
  return inOrder(model.value, hits.value.is, sortOf(model.value));
}

/** The sort that a click on a column's heading leads to: the largest first, then the smallest, then by head. */
function nextSort(sort: string, column: Column | null): string {
  if (!column) return sort === "" ? "-" : "";
  if (column.kind === "text") return sort === column.name ? `-${column.name}` : sort === `-${column.name}` ? "" : column.name;
  return sort === `-${column.name}` ? column.name : sort === column.name ? "" : `-${column.name}`;
}

/** Whether the page is being printed: then the table has all rows. */
function usePrinting(): boolean {
  const [printed, setPrinted] = useState(false);
  useEffect(() => {
    const media = matchMedia("print");
    const follow = (print: boolean) => () => setPrinted(print);
    const [start, end] = [follow(true), follow(false)];
    const change = ({ matches }: MediaQueryListEvent) => (matches ? start : end)();
    addEventListener("beforeprint", start);
    addEventListener("afterprint", end);
    media.addEventListener("change", change);
    return () => {
      removeEventListener("beforeprint", start);
      removeEventListener("afterprint", end);
      media.removeEventListener("change", change);
    };
  }, []);
  return printed;
}

export function HeadTable({ columns: fitted }: { columns: readonly Fitted[] }) {
  const its = model.value;
  const scroller = useRef<HTMLDivElement>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const [first, setFirst] = useState(0);
  const [place, setPlace] = useState<readonly [row: number, column: number]>([0, 0]);
  const moving = useRef(false);
  const sort = sortOf(its);
  const { is } = hits.value;
  const heads = useMemo(() => inOrder(its, is, sort), [its, is, sort]);
  const columns = fitted.flatMap(({ column }) => column ?? []);
  const wide = fitted.reduce((sum, { width }) => sum + width, 0);
  const printed = usePrinting();
  const from = printed ? 0 : Math.max(0, Math.min(first, heads.length - SHOWN) - SPARE);
  const shown = printed ? heads : heads.slice(from, from + SHOWN + 2 * SPARE);
  const row = Math.min(place[0], Math.max(0, heads.length - 1));
  useMarks(body, [heads, from, columns.length]);

  useLayoutEffect(() => {
    if (!moving.current) return;
    moving.current = false;
    body.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus();
  }, [place, from]);

  // Pointing at a head in another view brings its row into sight only when its card opens.
  useLayoutEffect(
    () =>
      effect(() => {
        const head = state.head.value;
        const at = head === null ? -1 : heads.indexOf(head);
        if (at >= 0) reveal(at);
      }),
    [heads],
  );

  function reveal(at: number): void {
    const box = scroller.current;
    if (!box) return;
    const height = box.clientHeight - ROW;
    if (at * ROW < box.scrollTop) box.scrollTop = at * ROW;
    else if ((at + 1) * ROW > box.scrollTop + height) box.scrollTop = (at + 1) * ROW - height;
    setFirst(Math.floor(box.scrollTop / ROW));
  }

  function onKeyDown(event: KeyboardEvent): void {
    keyOn(event);
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-SHOWN, 0], PageDown: [SHOWN, 0] }[event.key];
    let to: [number, number] | null = step ? [row + (step[0] ?? 0), place[1] + (step[1] ?? 0)] : null;
    if (event.key === "Home") to = event.ctrlKey ? [0, 0] : [row, 0];
    if (event.key === "End") to = event.ctrlKey ? [heads.length - 1, columns.length] : [row, columns.length];
    if (!to || event.altKey || event.metaKey) return;
    event.preventDefault();
    to = [Math.min(Math.max(to[0], 0), heads.length - 1), Math.min(Math.max(to[1], 0), columns.length)];
    moving.current = true;
    reveal(to[0]);
    setPlace(to);
  }

  return (
    <div class="mh-table" ref={scroller} onScroll={(event) => setFirst(Math.floor(event.currentTarget.scrollTop / ROW))}>
      <table role="grid" aria-label={`Heads of ${its.name}`} aria-rowcount={heads.length + 1} aria-colcount={columns.length + 1} style={{ minWidth: `${wide}px` }}>
        <colgroup>{fitted.map(({ column, width }) => <col key={column?.name ?? ""} style={{ width: `${width}px` }} />)}</colgroup>
        <thead>
          <tr aria-rowindex={1}>
            <Heading column={null} sort={sort} />
            {columns.map((column) => <Heading key={column.name} column={column} sort={sort} />)}
          </tr>
        </thead>
        <tbody
          ref={body}
          onPointerMove={(event) => pointAt(headAt(event.target))}
          onPointerLeave={() => pointAt(null)}
          onClick={(event) => pressed(headAt(event.target), event)}
          onFocusIn={(event) => pointAt(headAt(event.target))}
          onFocusOut={() => pointAt(null)}
          onKeyDown={onKeyDown}
        >
          <Space rows={from} />
          {shown.map((head, at) => (
            <tr key={head} class="mh-row" data-head={head} aria-rowindex={from + at + 2} aria-selected="false">
              <Cell at={[from + at, 0]} place={[row, place[1]]} heading>{nameOf(its, head)}</Cell>
              {columns.map((column, index) => (
                <Cell key={column.name} at={[from + at, index + 1]} place={[row, place[1]]} number={column.kind === "number"} title={cellTitle(its, column, head)}>
                  {cellText(its, column, head)}
                </Cell>
              ))}
            </tr>
          ))}
          <Space rows={heads.length - from - shown.length} />
        </tbody>
      </table>
      {!heads.length && <p class="mh-empty">No head is marked: change the search line or the slider.</p>}
    </div>
  );
}

function Space({ rows }: { rows: number }) {
  return rows > 0 ? <tr role="presentation" style={{ height: `${rows * ROW}px` }} /> : null;
}

interface CellProps {
  at: readonly [number, number];
  place: readonly [number, number];
  heading?: boolean;
  number?: boolean;
  title?: string;
  children: string;
}

function Cell({ at, place, heading, number, title, children }: CellProps) {
  const focusable = at[0] === place[0] && at[1] === place[1];
  const about = { tabIndex: focusable ? 0 : -1, class: number ? "is-number" : "", "aria-colindex": at[1] + 1 };
  if (heading) return <th scope="row" role="rowheader" {...about}>{children}</th>;
  return <td role="gridcell" title={title} {...about}><bdi>{children}</bdi></td>;
}

/** The label of a heading; if it is cut, the visible text comes first, for people who control the page by voice. */
function spoken(column: Column): string {
  const seen = shortened(column.label);
  return seen === column.label ? titled(column) : `${seen}: ${titled(column)}`;
}

function Heading({ column, sort }: { column: Column | null; sort: string }) {
  const name = column?.name ?? "";
  const direction = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
  return (
    <th scope="col" role="columnheader" aria-sort={direction} class={column?.kind === "number" ? "is-number" : ""} title={column ? aboutColumn(column) : undefined}>
      <button type="button" aria-label={column ? spoken(column) : undefined} onClick={() => choose({ sort: nextSort(sort, column) })}>
        <span class="mh-heading">{column ? shortened(column.label) : "Head"}</span>
        <span class="mh-sort" aria-hidden="true">{direction === "none" ? "" : direction === "ascending" ? "\u25b2" : "\u25bc"}</span>
      </button>
    </th>
  );
}

/** Label, unit and meaning of a column in a line. */
function aboutColumn(column: Column): string {
  return column.meaning ? `${titled(column)}: ${column.meaning}` : titled(column);
}
