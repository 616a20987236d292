/** The page's theme, light or dark: in a notebook, the notebook's; elsewhere, the system's. */

/** The attribute of the body in which JupyterLab and Jupyter Notebook store their theme. */
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

/** In a frame of a notebook, which cannot be read from here: report that the page is drawn, and follow the theme that the notebook sends. */
export function followFrame(): void {
  if (parent === window) return;
  addEventListener("message", ({ source, data }: MessageEvent<{ mechheads?: unknown; light?: unknown } | null>) => {
    if (source === parent && data?.mechheads === "theme") paintAs(data.light === true, document.documentElement);
  });
  parent.postMessage({ mechheads: "drawn" }, "*");
}

/** Light, dark, or the system's theme (null). */
function paintAs(light: boolean | null, element: HTMLElement): void {
  element.style.colorScheme = light === null ? "" : light ? "light" : "dark";
  const media = light === null ? DARK : light ? NEVER : ALWAYS;
  for (const rule of darkRules()) rule.media.mediaText = media;
}

/** The rules of our style sheets for dark systems. Their condition still names the scheme after `paintAs` has changed it. */
function darkRules(): CSSMediaRule[] {
  return Array.from(document.styleSheets)
    .flatMap(rulesOf)
    .filter((rule): rule is CSSMediaRule => rule instanceof CSSMediaRule && rule.media.mediaText.includes(DARK) && rule.cssText.includes(".mh"));
}

/** The rules of a style sheet; none if it is of another origin, which may not be read. */
function rulesOf(sheet: CSSStyleSheet): CSSRule[] {
  try {
    return Array.from(sheet.cssRules);
  } catch {
    return [];
  }
}
