/** All heads: the map, the scatter and the table, with what they have in common above them. */
import { useRef } from "preact/hooks";

import { savePng, saveSvg } from "./card/export";
import { useWidth } from "./card/parts";
import { CopyPython } from "./CopyPython";
import { idOf } from "./ids";
import { asCsv, download } from "./lists";
import { countOf, model } from "./page";
import { choose, state } from "./state";
import { chosen, colourOf, columnOf, hasValues, measures, questionOf, usual, usualColumns } from "./table";
import { Pick, SaveFigure } from "./controls";
import { CategoryMap } from "./views/CategoryMap";
import { ColumnMenu } from "./views/ColumnMenu";
import { fitted, fitting } from "./views/fitting";
import { HeadTable, rowsOf } from "./views/Table";
import { Legend } from "./views/Legend";
import { Scatter } from "./views/Scatter";

export function Overview() {
  const hasTable = hasValues(model.value);
  return (
    <div class="mh-overview">
      <MapView />
      {hasTable && <ScatterView />}
      {hasTable && <TableView />}
    </div>
  );
}

function MapView() {
  const box = useRef<HTMLElement>(null);
  const its = model.value;
  const question = questionOf(its);
  const colour = colourOf(its);
  const none = its.categories ? "Categories" : "None";
  return (
    <section class="mh-view mh-view-map" aria-labelledby={idOf("map")} ref={box}>
      <header>
        <h2 id={idOf("map")}>Map</h2>
        <Save box={box} what="map" />
      </header>
      <div class="mh-picks">
        {hasValues(its) && (
          <>
            <Pick label="Colour" columns={measures(its)} value={colour} onPick={(name) => choose(columnOf(its, name)?.question === question?.key ? { colour: name } : { colour: name, question: question?.key ?? "" })} none={none} />
            <Top />
          </>
        )}
      </div>
      <div class="mh-maps">
        <div class="mh-one-map">
          <CategoryMap />
          <Legend />
        </div>
      </div>
    </section>
  );
}

/** The stops of the slider for n heads; one more stands for all. */
function stops(n: number): number[] {
  const all = [1, 2, 3, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 256];
  return all.filter((stop) => stop < n);
}

function Top() {
  const its = model.value;
  const at = stops(countOf(its));
  const top = state.top.value;
  const place = top === null ? at.length : at.findIndex((stop) => stop >= top);
  const by = chosen(its, state.by.value, usual(its).by);
  const text = top === null ? "all heads" : `the first ${top}`;
  return (
    <div class="mh-group">
      <label class="mh-top">
        <span>Show {text}</span>
        <input
          type="range"
          min="0"
          max={at.length}
          step="1"
          value={place < 0 ? at.length : place}
          aria-valuetext={text}
          aria-label="How many heads to mark"
          onInput={(event) => choose({ top: at[Number(event.currentTarget.value)] ?? null })}
        />
      </label>
      <Pick label="by" says="Rank heads by" columns={measures(its)} value={by} onPick={(by) => choose({ by })} />
    </div>
  );
}

function ScatterView() {
  const box = useRef<HTMLElement>(null);
  const its = model.value;
  const usually = usual(its);
  const [x, y] = [chosen(its, state.x.value, usually.x), chosen(its, state.y.value, usually.y)];
  return (
    <section class="mh-view mh-view-scatter" aria-labelledby={idOf("scatter")} ref={box}>
      <header>
        <h2 id={idOf("scatter")}>Scatter</h2>
        <Save box={box} what="scatter" />
      </header>
      <div class="mh-picks">
        <Pick label="Across" columns={measures(its)} value={x} onPick={(name) => choose({ x: name })} />
        <Pick label="Up" columns={measures(its)} value={y} onPick={(name) => choose({ y: name })} />
      </div>
      <Scatter />
    </section>
  );
}

function TableView() {
  const its = model.value;
  const [box, width] = useWidth<HTMLElement>();
  const room = { width: width - 2, font: fontIn(box.current) };
  const wanted = state.columns.value.filter((name) => columnOf(its, name));
  const names = wanted.length ? wanted : width ? fitting(its, room) : [];
  const left = wanted.length ? 0 : usualColumns(its).length - names.length;
  return (
    <section class="mh-view mh-view-table" aria-labelledby={idOf("table")} ref={box}>
      <header>
        <h2 id={idOf("table")}>Table</h2>
        <div class="mh-buttons">
          {width > 0 && left > 0 && <button type="button" class="mh-small" onClick={() => choose({ columns: usualColumns(its) })}>{`${left} more ${left === 1 ? "column" : "columns"}`}</button>}
          <button type="button" class="mh-small" title="Every column of the heads in the table, in its order" onClick={() => download(asCsv(rowsOf()), "heads.csv", "text/csv")}>CSV</button>
          <CopyPython model={its} sources={names.map((name) => columnOf(its, name)?.source)} what="the table" />
          <ColumnMenu shown={names} />
        </div>
      </header>
      {width > 0 && <HeadTable columns={fitted(its, names, room)} />}
    </section>
  );
}

/** The font of the table, as a canvas takes it. */
function fontIn(box: Element | null): string {
  if (!box) return "13px sans-serif";
  const { fontSize, fontFamily } = getComputedStyle(box);
  return `${(parseFloat(fontSize) * 13) / 15}px ${fontFamily}`;
}

function Save({ box, what }: { box: { readonly current: HTMLElement | null }; what: string }) {
  const each = (save: (drawing: SVGSVGElement, behind: Element, name: string) => unknown) => () => {
    const drawings = Array.from(box.current?.querySelectorAll<SVGSVGElement>("svg.mh-drawing") ?? []);
    drawings.forEach((drawing, at) => save(drawing, drawing, `mechheads-${what}${drawings.length > 1 ? `-${at + 1}` : ""}`));
  };
  return <SaveFigure what={what} onSvg={each(saveSvg)} onPng={each(savePng)} />;
}
