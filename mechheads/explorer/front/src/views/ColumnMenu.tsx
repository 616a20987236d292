/** Which columns the table shows. */
import { useRef, useState } from "preact/hooks";

import { Tick } from "../controls";
import { model } from "../page";
import { choose } from "../state";
import { titled } from "../table";

/** `shown`: names of the columns that the table has now. */
export function ColumnMenu({ shown }: { shown: readonly string[] }) {
  const [all, setAll] = useState(false);
  const its = model.value;
  const offered = its.columns.filter((column) => shown.includes(column.name) || all || column.role === "value" || column.role === "place");
  const change = (name: string, on: boolean) => {
    const next = its.columns.map((column) => column.name).filter((each) => (each === name ? on : shown.includes(each)));
    choose({ columns: next });
  };
  const box = useRef<HTMLDetailsElement>(null);
  const closeOn = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !box.current?.open) return;
    event.preventDefault();
    box.current.open = false;
    box.current.querySelector("summary")?.focus();
  };
  return (
    <details class="mh-menu" ref={box} onKeyDown={closeOn}>
      <summary>Columns</summary>
      <div class="mh-menu-body">
        <Tick on={all} onChange={setAll}>with intervals, p and q</Tick>
        <button type="button" class="mh-small" onClick={() => choose({ columns: [] })}>Usual columns</button>
        {[...new Set(offered.map((column) => column.group))].map((group) => (
          <fieldset key={group}>
            <legend>{group}</legend>
            {offered.filter((column) => column.group === group).map((column) => (
              <Tick key={column.name} on={shown.includes(column.name)} onChange={(on) => change(column.name, on)} about={column.meaning}>{titled(column)}</Tick>
            ))}
          </fieldset>
        ))}
      </div>
    </details>
  );
}
