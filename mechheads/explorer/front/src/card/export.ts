/** Saves a drawing as SVG or PNG, with the colours that it has on the screen. */

const SVG = "http://www.w3.org/2000/svg";

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "visibility",
  "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline",
];

/** The drawing as a text that stands alone: its styles become attributes. One that is not in the page has them already. */
export function standalone(svg: SVGSVGElement, behind: Element): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  if (svg.isConnected) inlineStyles(svg, copy);
  const back = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: backgroundOf(behind) })) {
    back.setAttribute(name, value);
  }
  copy.prepend(back);
  return new XMLSerializer().serializeToString(copy);
}

function inlineStyles(svg: SVGSVGElement, copy: SVGSVGElement): void {
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, at) => {
    const original = originals[at];
    if (!original) return;
    const style = getComputedStyle(original);
    for (const name of STYLES) element.setAttribute(name, plainColour(style.getPropertyValue(name)));
    element.removeAttribute("class");
    element.removeAttribute("style");
  });
}

/** Mixed colours are computed as color(srgb 0.1 0.2 0.3), which few programs that draw SVG know. */
function plainColour(value: string): string {
  const found = /^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)\)$/.exec(value);
  return found ? `rgb(${found.slice(1).map((part) => Math.round(Number(part) * 255)).join(", ")})` : value;
}

/** The first colour behind an element that is not transparent. */
export function backgroundOf(element: Element): string {
  for (let at: Element | null = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour && colour !== "transparent" && !/^rgba\(.*, 0\)$/.test(colour)) return colour;
  }
  return "white";
}

export function saveSvg(svg: SVGSVGElement, behind: Element, name: string): void {
  save(new Blob([standalone(svg, behind)], { type: "image/svg+xml" }), `${name}.svg`);
}

/** Twice the size on the screen. */
export async function savePng(drawing: SVGSVGElement, behind: Element, name: string): Promise<void> {
  const canvas = await painted(drawing, standalone(drawing, behind));
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
  if (blob) save(blob, `${name}.png`);
}

async function painted(svg: SVGSVGElement, text: string): Promise<HTMLCanvasElement> {
  const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * 2);
  canvas.height = Math.round(height * 2);
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
