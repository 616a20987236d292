/** The search line, and under it what was found or what was not understood. */
import { useRef } from "preact/hooks";

import { inText } from "../card/tokens";
import { focusCard } from "../focus";
import { hits, understood } from "../hits";
import { idOf } from "../ids";
import { countOf, model } from "../page";
import { choose, open, state } from "../state";
import { conditionsOf, withCondition } from "./conditions";
import { placeholderOf } from "./examples";
import type { NotUnderstood } from "./tokens";

export function SearchLine() {
  const input = useRef<HTMLInputElement>(null);
  const { error, notes } = understood.value;
  const { count, is } = hits.value;
  const line = state.filter.value;
  const submit = (event: Event) => {
    event.preventDefault();
    if (error || count !== 1 || !line.trim()) return;
    open(is.indexOf(1));
    focusCard();
  };
  const replace = (name: string) => {
    if (!error) return;
    choose({ filter: line.slice(0, error.start) + name + line.slice(error.end) });
    input.current?.focus();
  };
  return (
    <form role="search" class="mh-search" onSubmit={submit}>
      <input
        ref={input}
        aria-label="Search heads"
        class="mh-search-line"
        type="search"
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        maxLength={2000}
        placeholder={placeholderOf(model.value)}
        value={line}
        aria-invalid={error !== null}
        aria-describedby={idOf("search-note")}
        onInput={(event) => choose({ filter: event.currentTarget.value })}
      />
      <AddCondition />
      <div id={idOf("search-note")} class="mh-search-note" role="status">
        {error ? (
          <Wrong error={error} onPick={replace} />
        ) : (
          <>
            <span>{found(count, countOf(model.value), line.trim() !== "")}</span>
            {notes.map((note) => <span key={note} class="mh-muted">{note}.</span>)}
          </>
        )}
      </div>
    </form>
  );
}

/** A menu of what can stand in the line, for those who do not know the names. */
function AddCondition() {
  const groups = conditionsOf(model.value);
  if (!groups.length) return null;
  return (
    <select
      class="mh-add"
      aria-label="Add a condition"
      value=""
      onChange={(event) => {
        choose({ filter: withCondition(state.filter.value, event.currentTarget.value) });
        event.currentTarget.value = "";
      }}
    >
      <option value="">Add a condition{"\u2026"}</option>
      {groups.map(({ label, conditions }) => (
        <optgroup key={label} label={label}>
          {conditions.map(({ text, line }) => <option key={line} value={line}>{text}</option>)}
        </optgroup>
      ))}
    </select>
  );
}

function found(count: number, of: number, typed: boolean): string {
  const heads = `${of.toLocaleString("en-US")} ${of === 1 ? "head" : "heads"}`;
  if (count === of) return `All ${heads}`;
  return `${count.toLocaleString("en-US")} of ${heads}${typed && count === 1 ? ": Enter opens its card" : ""}`;
}

function Wrong({ error, onPick }: { error: NotUnderstood; onPick: (name: string) => void }) {
  return (
    <>
      <span class="mh-error">Not understood: <bdi>{inText(error.message)}</bdi>.</span>
      {error.near.length > 0 && (
        <span>
          {"Did you mean "}
          {error.near.map((name) => (
            <button key={name} type="button" class="mh-small" onClick={() => onPick(name)}>{name}</button>
          ))}
        </span>
      )}
    </>
  );
}
