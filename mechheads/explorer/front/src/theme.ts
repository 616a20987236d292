/** Light or dark as the notebook is, which has a theme of its own; elsewhere the page is as the system. */

/** What JupyterLab and Jupyter Notebook say of their theme, an attribute of the body. */
export const NOTEBOOK_THEME = "data-jp-theme-light";
const DARK = "(prefers-color-scheme: dark)";
const ALWAYS = `all, ${DARK}`;
const NEVER = `${DARK} and (max-width: 0px)`;

/** In a notebook: follow its theme until the returned function is called. */
export function followNotebook(element: HTMLElement): () => void {
  const apply = () => {
    const light = document.body.getAttribute(NOTEBOOK_THEME);
    paintAs(light === null ? null : light === "true", element);
  };
  const watch = new MutationObserver(apply);
  watch.observe(document.body, { attributes: true, attributeFilter: [NOTEBOOK_THEME] });
  apply();
  return () => watch.disconnect();
}

/** In a frame of a notebook, which cannot be seen from here: say that the page is there, and follow what the notebook says. */
export function followFrame(): void {
  if (parent === window) return;
  addEventListener("message", ({ source, data }: MessageEvent<{ mechheads?: unknown; light?: unknown } | null>) => {
    if (source === parent && data?.mechheads === "theme") paintAs(data.light === true, document.documentElement);
  });
  parent.postMessage({ mechheads: "drawn" }, "*");
}

/** Light, dark, or as the system is (null). */
function paintAs(light: boolean | null, element: HTMLElement): void {
  element.style.colorScheme = light === null ? "" : light ? "light" : "dark";
  const media = light === null ? DARK : light ? NEVER : ALWAYS;
  for (const rule of darkRules()) rule.media.mediaText = media;
}

/** The rules of our style sheets for dark systems. Whatever was made of their condition, it still names the scheme. */
function darkRules(): CSSMediaRule[] {
  return Array.from(document.styleSheets)
    .flatMap(rulesOf)
    .filter((rule): rule is CSSMediaRule => rule instanceof CSSMediaRule && rule.media.mediaText.includes(DARK) && rule.cssText.includes(".mh"));
}

/** None of a sheet from elsewhere, which may not be read. */
function rulesOf(sheet: CSSStyleSheet): CSSRule[] {
  try {
    return Array.from(sheet.cssRules);
  } catch {
    return [];
  }
}
