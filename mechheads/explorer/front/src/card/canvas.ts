/** What a canvas needs: painting when something changes, the wheel, and dragging. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { NOTEBOOK_THEME } from "../theme";
import type { Window } from "./heat";
import type { Look } from "./heatDrawing";

type CanvasRef = { current: HTMLCanvasElement | null };

export function lookOf(element: Element): Look {
  const style = getComputedStyle(element);
  const colour = (name: string, otherwise: string) => style.getPropertyValue(name).trim() || otherwise;
  return {
    ink: colour("--mh-muted", style.color),
    faint: colour("--mh-edge", "gray"),
    cell: colour("--mh-accent", "steelblue"),
    below: colour("--mh-positive", "firebrick"),
    mark: colour("--mh-key", "orangered"),
    font: `11px ${style.fontFamily}`,
  };
}

type Paint = (context: CanvasRenderingContext2D, look: Look) => void;

/**
 * Paints a canvas at the next frame, at the resolution of the screen, and again if the colours of the page change. What lies
 * below is kept, and painted anew only if one of its own inputs changes.
 */
export function usePaint(canvas: CanvasRef, below: Paint, inputs: readonly unknown[], above: Paint, more: readonly unknown[]): void {
  const kept = useRef<{ canvas: HTMLCanvasElement; inputs: readonly unknown[] } | null>(null);
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const again = () => setTheme((now) => now + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const watch = new MutationObserver(again);
    dark.addEventListener("change", again);
    watch.observe(document.documentElement, { attributes: true });
    watch.observe(document.body, { attributes: true, attributeFilter: [NOTEBOOK_THEME] });
    return () => (dark.removeEventListener("change", again), watch.disconnect());
  }, []);
  useLayoutEffect(() => {
    const next = requestAnimationFrame(() => {
      const element = canvas.current;
      const context = element?.getContext("2d");
      if (!element || !context) return;
      const ratio = devicePixelRatio || 1;
      const [width, height] = [element.clientWidth, element.clientHeight];
      const look = lookOf(element);
      const now = [...inputs, theme, ratio, width, height];
      if (!kept.current || kept.current.inputs.some((each, at) => each !== now[at])) {
        kept.current = { canvas: sized(kept.current?.canvas ?? document.createElement("canvas"), width, height, ratio), inputs: now };
        const under = kept.current.canvas.getContext("2d");
        if (under) below(under, look);
      }
      sized(element, width, height, ratio);
      context.drawImage(kept.current.canvas, 0, 0, width, height);
      above(context, look);
    });
    return () => cancelAnimationFrame(next);
  }, [...inputs, ...more, theme]);
}

/** Empties a canvas and gives it a size in CSS pixels. */
function sized(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): HTMLCanvasElement {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.getContext("2d")?.scale(ratio, ratio);
  return canvas;
}

type WheelOn = WheelEvent & { currentTarget: Element };

/**
 * A wheel listener that keeps the page from scrolling if `zoomAt` returns true. It is not called while the page is
 * being scrolled: the pointer must have moved over the canvas since.
 */
export function useWheel(canvas: CanvasRef, zoomAt: (event: WheelOn) => boolean): void {
  const latest = useRef(zoomAt);
  latest.current = zoomAt;
  useEffect(() => {
    const element = canvas.current;
    let pointed = false;
    const turn = (event: WheelEvent) => {
      if (pointed && latest.current(event as WheelOn)) event.preventDefault();
    };
    const move = ({ movementX, movementY }: PointerEvent) => (pointed ||= movementX !== 0 || movementY !== 0);
    const scroll = () => (pointed = false);
    element?.addEventListener("wheel", turn, { passive: false });
    element?.addEventListener("pointermove", move);
    document.addEventListener("scroll", scroll, { capture: true, passive: true });
    return () => {
      element?.removeEventListener("wheel", turn);
      element?.removeEventListener("pointermove", move);
      document.removeEventListener("scroll", scroll, { capture: true });
    };
  }, []);
}

interface Drag {
  start: (event: PointerEvent) => void;
  /** Whether a drag is under way. */
  move: (event: PointerEvent) => boolean;
  /** Whether the pointer has moved. */
  end: (event: PointerEvent) => boolean;
}

export function useDrag(size: number, window: Window, onMove: (moved: Window) => void): Drag {
  const from = useRef<{ x: number; y: number; window: Window } | null>(null);
  return {
    start: (event) => {
      from.current = { x: event.clientX, y: event.clientY, window };
      (event.currentTarget as Element).setPointerCapture(event.pointerId);
    },
    move: (event) => {
      if (!from.current) return false;
      const { x, y, window: start } = from.current;
      const cells = (pixels: number) => (pixels / size) * start.span;
      onMove({ query: start.query - cells(event.clientY - y), key: start.key - cells(event.clientX - x), span: start.span });
      return true;
    },
    end: (event) => {
      const start = from.current;
      from.current = null;
      return start !== null && Math.hypot(event.clientX - start.x, event.clientY - start.y) > 3;
    },
  };
}
