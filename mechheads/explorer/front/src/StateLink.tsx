/** A link to a state of the page: it can be copied and opened anew, and a plain click shows it here. */
import type { ComponentChildren } from "preact";

import { pointAt } from "./pointing";
import { focusCard } from "./focus";
import { showSection } from "./sections";
import { follow, hashOf, state, type Values } from "./state";

interface Props {
  to: Values;
  class?: string;
  title?: string;
  /** Mark the head that it opens while the link is pointed at or has the focus. */
  marks?: boolean;
  children: ComponentChildren;
}

export function StateLink({ to, marks = false, children, ...rest }: Props) {
  const go = (event: MouseEvent) => {
    if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    pointAt(to.model, null);
    const opens = to.section !== "" && to.section !== state.section.peek();
    follow(to);
    if (opens) showSection();
    else if (to.head !== null && event.detail === 0) focusCard();
  };
  const marking = marks && {
    onPointerEnter: (event: PointerEvent) => pointAt(to.model, to.head, event),
    onPointerLeave: () => pointAt(to.model, null),
    onFocus: (event: FocusEvent) => pointAt(to.model, to.head, event.currentTarget as Element),
    onBlur: () => pointAt(to.model, null),
  };
  return <a {...rest} {...marking} href={`#${hashOf(to)}`} onClick={go}>{children}</a>;
}
