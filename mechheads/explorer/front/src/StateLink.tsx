/** A link to a state of the page: it can be copied and opened anew, and a plain click shows it here. */
import { showSection } from "./sections";
import { follow, hashOf, state, type Values } from "./state";

interface Props {
  to: Values;
  title?: string;
  /** Whether it is what the page shows. */
  current?: boolean;
  children: string;
}

export function StateLink({ to, title, current, children }: Props) {
  const go = (event: MouseEvent) => {
    if (!plainClick(event)) return;
    const opens = to.section !== "" && to.section !== state.section.peek();
    follow(to);
    if (opens) showSection();
  };
  return <a title={title} aria-current={current || undefined} href={`#${hashOf(to)}`} onClick={go}>{children}</a>;
}

/** Whether a link is to be followed on this page; then the browser does not follow it. */
export function plainClick(event: MouseEvent): boolean {
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (plain) event.preventDefault();
  return plain;
}
