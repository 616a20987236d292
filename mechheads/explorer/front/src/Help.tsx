/** The help dialog: keys, and what the search line understands. */
import { useEffect, useRef } from "preact/hooks";

import { helpOpen } from "./actions";
import { idOf } from "./ids";
import { KEYS } from "./keys";
import { model } from "./page";
import { examplesOf } from "./search/examples";
import { scoresOf } from "./table";

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
      <Measured />
      <h3>Keys</h3>
      <dl>
        {KEYS.map(([key, what]) => (
          <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>
        ))}
      </dl>
      <h3>Search</h3>
      <dl>
        {examplesOf(model.value).map(({ line, what }) => (
          <div key={line}><dt><code>{line}</code></dt><dd>{what}</dd></div>
        ))}
      </dl>
      <p>
        A condition on a value that was not measured does not hold.
      </p>
    </dialog>
  );
}

/** What each analysis measures. */
function Measured() {
  const measured = scoresOf(model.value);
  if (!measured.length) return null;
  return (
    <>
      <h3>Measures</h3>
      <dl>
        {measured.map(({ name, label, meaning }) => (
          <div key={name}><dt><bdi>{label}</bdi></dt><dd>{meaning}</dd></div>
        ))}
      </dl>
    </>
  );
}
