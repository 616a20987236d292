/** The pinned heads, and what can be done with them. */
import { asCsv, asPython, copy, download } from "./lists";
import { togglePin } from "./pointing";
import { titleOf } from "./page";
import { tell } from "./say";
import { choose, hovered, open, state } from "./state";

export function Tray() {
  const pins = state.pins.value;
  if (!pins.length) return null;
  return (
    <section class="mh-tray" aria-label="Pinned heads">
      <h2>Pins</h2>
      <ul>
        {pins.map((head) => (
          <li key={head} onPointerEnter={() => (hovered.value = head)} onPointerLeave={() => (hovered.value = null)}>
            <button type="button" class="mh-chip" onClick={() => open(head)}><bdi>{titleOf(head)}</bdi></button>
            <button type="button" class="mh-unpin" aria-label={`Unpin ${titleOf(head)}`} onClick={() => togglePin(head)}>{"\u00d7"}</button>
          </li>
        ))}
      </ul>
      <div class="mh-buttons">
        <button type="button" onClick={() => void copyPython()}>Copy for Python</button>
        <button type="button" onClick={() => download(asCsv(pins), "heads.csv", "text/csv")}>CSV</button>
        <button type="button" onClick={() => choose({ pins: [] })}>Unpin all</button>
      </div>
    </section>
  );
}

async function copyPython(): Promise<void> {
  const text = asPython(state.pins.peek());
  tell((await copy(text)) ? `Copied: ${text}` : "The browser does not allow copying");
}
