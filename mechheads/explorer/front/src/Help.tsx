/** The help dialog: keys, and what the search line understands. */
import { useEffect, useRef } from "preact/hooks";

import { helpOpen } from "./actions";
import { idOf } from "./ids";
import { KEYS } from "./keys";

const SEARCHES: readonly (readonly [line: string, what: string])[] = [
  ["L23H4", "one head; L23 is its layer"],
  ["induction", "what heads are called on text"],
  ["Knowledge, Linguistic", "categories, which a click in the legend chooses too; a comma means or"],
  ["country_to_capital", "heads whose weights implement a relation"],
  ["country_to_capital > 0.3", "phi of a relation"],
  ["patching > 0.2 and ships < 0.1", "numbers of any column; the beginning of its name is enough"],
  ["0.1 < phi < 0.5", "between two numbers"],
  ["q < .05", "the smallest q of any view"],
  ["patching = unclear", "the verdict of a view: yes, no or unclear"],
  ["not (L0 or L1) and names = induction", "not, or, and, parentheses"],
];

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const shown = helpOpen.value;
  const close = () => (helpOpen.value = false);
  useEffect(() => {
    const element = dialog.current;
    if (shown && !element?.open) element?.showModal();
    if (!shown && element?.open) element.close();
  }, [shown]);
  return (
    <dialog ref={dialog} class="mh-help" aria-labelledby={idOf("help")} onCancel={close} onClose={close}>
      <header>
        <h2 id={idOf("help")}>Help</h2>
        <button type="button" onClick={close}>Close</button>
      </header>
      <h3>Keys</h3>
      <dl>
        {KEYS.map(([key, what]) => (
          <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>
        ))}
      </dl>
      <h3>Search</h3>
      <dl>
        {SEARCHES.map(([line, what]) => (
          <div key={line}><dt><code>{line}</code></dt><dd>{what}</dd></div>
        ))}
      </dl>
      <p>
        A condition on a value that was not measured does not hold.
      </p>
    </dialog>
  );
}
