/** Controls that several views share. */
import { useId } from "preact/hooks";

import type { Column } from "./data";

interface PickProps {
  label: string;
  columns: readonly Column[];
  value: string;
  onPick: (name: string) => void;
  /** The text of the choice of no column. */
  none?: string;
  /** The label for screen readers, where `label` says too little. */
  says?: string;
}

/** A column, from a menu with the analyses as headings. */
export function Pick({ label, columns, value, onPick, none, says }: PickProps) {
  const groups = [...new Set(columns.map((column) => column.group))];
  const meaning = columns.find((column) => column.name === value)?.meaning;
  return (
    <label class="mh-pick" title={meaning}>
      <span>{label}</span>
      <select aria-label={says ?? label} value={value} onChange={(event) => onPick(event.currentTarget.value)}>
        {none !== undefined && <option value="">{none}</option>}
        {groups.map((group) => (
          <optgroup key={group} label={group}>
            {columns.filter((column) => column.group === group).map((column) => (
              <option key={column.name} value={column.name}>{column.label}</option>
            ))}
          </optgroup>
        ))}
      </select>
    </label>
  );
}

interface TickProps {
  on: boolean;
  onChange: (on: boolean) => void;
  children: string;
  /** What it means, in a second line. */
  about?: string;
}

export function Tick({ on, onChange, children, about }: TickProps) {
  const id = useId();
  return (
    <label class="mh-tick">
      <input type="checkbox" checked={on} onChange={(event) => onChange(event.currentTarget.checked)} aria-labelledby={about && id} aria-describedby={about && `${id}-about`} />
      {about ? (
        <span>
          <span id={id}>{children}</span>
          <small id={`${id}-about`}>{about}</small>
        </span>
      ) : (
        children
      )}
    </label>
  );
}

/** Buttons that save a view's drawing. */
export function SaveFigure({ what, onSvg, onPng }: { what: string; onSvg: () => void; onPng: () => void }) {
  return (
    <span class="mh-save">
      <button type="button" class="mh-small" aria-label={`Save the ${what} as SVG`} onClick={onSvg}>SVG</button>
      <button type="button" class="mh-small" aria-label={`Save the ${what} as PNG`} onClick={onPng}>PNG</button>
    </span>
  );
}
