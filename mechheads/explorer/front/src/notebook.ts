/** What a widget needs beside the keys of the notebook. */

const NOT_FOR_LAB = "data-lm-suppress-shortcuts";

/**
 * Keys pressed inside are ours, such as the arrow keys and "c", until the returned function is called.
 *
 * JupyterLab would take "x" for "cut this cell". It listens before any element of the page, and leaves a key alone if the element
 * that has the focus says so. Commands with Ctrl or Cmd, such as saving, stay those of the notebook.
 */
export function keepKeys(inside: HTMLElement): () => void {
  const listen = ({ target, ctrlKey, metaKey }: KeyboardEvent) => {
    if (target instanceof Element && inside.contains(target)) target.toggleAttribute(NOT_FOR_LAB, !ctrlKey && !metaKey);
  };
  addEventListener("keydown", listen, true);
  return () => removeEventListener("keydown", listen, true);
}
