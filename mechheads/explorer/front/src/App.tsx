/** The whole page. */
import { useEffect, useRef } from "preact/hooks";

import { close, copyLink, helpOpen, isServed, saveView, step } from "./actions";
import { Card } from "./card/Card";
import { End } from "./End";
import { setRoot } from "./focus";
import { Help } from "./Help";
import { idOf } from "./ids";
import { onKey } from "./keys";
import { Overview } from "./Overview";
import { Questions } from "./Questions";
import { page, titleOf } from "./page";
import { togglePin } from "./pointing";
import { announced, told } from "./say";
import { SearchLine } from "./search/SearchLine";
import { useSectionOfAddress } from "./sections";
import { hasAddress, state } from "./state";
import { Tray } from "./Tray";
import { Unknown } from "./Unknown";
import { Hint } from "./views/Hint";

/** `everywhere`: keys work wherever the focus is; otherwise only inside, as in a notebook. */
export function App({ everywhere }: { everywhere: boolean }) {
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const inside = root.current;
    if (!inside) return;
    setRoot(inside);
    isDrawn = true;
    const target: HTMLElement | Document = everywhere ? document : inside;
    const listen = onKey as EventListener;
    target.addEventListener("keydown", listen);
    return () => target.removeEventListener("keydown", listen);
  }, []);
  useSectionOfAddress();
  const above = page.value.kind === "run" && state.head.value !== null;
  return (
    <div class="mh-app" ref={root}>
      {everywhere && <SkipLink />}
      <Top />
      <Unknown />
      <Questions />
      <main class="mh-main" id={idOf("main")} tabIndex={-1}>
        {above && <Detail />}
        <Overview />
        {!above && state.head.value !== null && <Detail />}
      </main>
      <Tray />
      <End />
      <Help />
      <Hint />
      <div class="mh-hidden" role="status" aria-live="polite">{announced.value}</div>
      {told.value && <div class="mh-told" aria-hidden="true"><bdi>{told.value}</bdi></div>}
    </div>
  );
}

/** Whether the page is drawn. Until then, nothing scrolls to the patterns that the page of a run begins with. */
let isDrawn = false;

/** Goes to the heads without touching the address, which holds what is chosen. */
function SkipLink() {
  const skip = (event: Event) => {
    event.preventDefault();
    document.getElementById(idOf("main"))?.focus();
  };
  return <a class="mh-skip" href={`#${idOf("main")}`} onClick={skip}>Skip to the heads</a>;
}

function Top() {
  const { title } = page.value;
  return (
    <header class="mh-header">
      <h1><bdi>{title}</bdi></h1>
      <div class="mh-buttons">
        {hasAddress() && <button type="button" onClick={() => void copyLink()}>Copy link</button>}
        {!isServed() && <button type="button" onClick={() => void saveView()}>Save as a file</button>}
        <button type="button" onClick={() => (helpOpen.value = true)} aria-keyshortcuts="?">Help</button>
      </div>
      <SearchLine />
    </header>
  );
}

/** The card of a head. Where it stands below the rest, closing it leads back to what opened it. */
function Detail() {
  const box = useRef<HTMLElement>(null);
  const opener = useRef<Element | null>(null);
  const head = state.head.value;
  useEffect(() => {
    const element = box.current;
    if (!isDrawn && page.value.kind === "run") return;
    if (element && getComputedStyle(element).position === "static") {
      const { activeElement } = document;
      if (!element.contains(activeElement) && activeElement !== document.body) opener.current = activeElement;
      element.scrollIntoView({ block: "start" });
    } else if (element) {
      element.scrollTo({ top: 0 });
      // Beside the map: its evidence is in sight if it stands near the top.
      if (element.getBoundingClientRect().top > innerHeight / 4) element.parentElement?.scrollIntoView({ block: "start" });
    }
  }, [head]);
  useEffect(() => () => opener.current?.scrollIntoView({ block: "center" }), []);
  if (head === null) return null;
  return (
    <section class={`mh-detail ${page.value.kind === "run" ? "is-wide" : ""}`} aria-labelledby={idOf("detail")} ref={box}>
      <header>
        <h2 class="mh-detail-title" id={idOf("detail")} tabIndex={-1}><bdi>{titleOf(head)}</bdi></h2>
        <div class="mh-buttons">
          <HeadButtons head={head} />
          <button type="button" onClick={close} aria-keyshortcuts="Escape">Close</button>
        </div>
      </header>
      <Card head={head} page={page.value} />
    </section>
  );
}

function HeadButtons({ head }: { head: number }) {
  const pinned = state.pins.value.includes(head);
  return (
    <>
      <button type="button" onClick={() => step(-1)} aria-label="Previous head" aria-keyshortcuts="[">{"\u2190"}</button>
      <button type="button" onClick={() => step(1)} aria-label="Next head" aria-keyshortcuts="]">{"\u2192"}</button>
      <button type="button" onClick={() => togglePin(head)} aria-pressed={pinned} aria-keyshortcuts="p">{pinned ? "Unpin" : "Pin"}</button>
    </>
  );
}
