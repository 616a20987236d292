/** Reads the blocks of the page, each when it is first needed. */
import { useEffect, useState } from "preact/hooks";

import type { HeadBlock, Shared } from "../data";

/** The base64 text of a block; undefined if the page has none of this name. */
export type FindBlock = (id: string) => string | undefined;

let find: FindBlock = (id) => document.getElementById(id)?.textContent ?? undefined;
const asked = new Map<string, Promise<unknown>>();

/** Take blocks from elsewhere than the page, as a notebook widget does. */
export function readBlocksFrom(source: FindBlock): void {
  find = source;
  asked.clear();
}

/** Decodes base64 of deflated JSON. */
export async function inflate<T>(base64: string): Promise<T> {
  const packed = Uint8Array.from(atob(base64.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).json()) as T;
}

function read<T>(id: string, what: string): Promise<T> {
  const before = asked.get(id);
  if (before) return before as Promise<T>;
  const text = find(id);
  const found: Promise<T> =
    text === undefined
      ? Promise.reject(new Error(`This page holds no data of ${what}.`))
      : inflate<T>(text).catch(() => {
          throw new Error(`The data of ${what} is damaged and cannot be read.`);
        });
  asked.set(id, found);
  return found;
}

export function sharedOf(): Promise<Shared> {
  return read("mh-shared", "the texts that all heads share");
}

export function layerOf(layer: number): Promise<HeadBlock> {
  return read(`mh-heads-${layer}`, `layer ${layer}`);
}

export interface Loaded<T> {
  readonly value: T | null;
  readonly error: string | null;
}

/** The value of a promise, null while it is pending; it is loaded again if `key` changes. */
export function useLoaded<T>(key: string, load: () => Promise<T>): Loaded<T> {
  const [state, setState] = useState<Loaded<T> & { key: string }>({ key: "", value: null, error: null });
  useEffect(() => {
    let wanted = true;
    load().then(
      (value) => wanted && setState({ key, value, error: null }),
      (reason: unknown) => wanted && setState({ key, value: null, error: messageOf(reason) }),
    );
    return () => {
      wanted = false;
    };
  }, [key]);
  return state.key === key ? state : { value: null, error: null };
}

export function messageOf(reason: unknown): string {
  return reason instanceof Error ? reason.message : String(reason);
}
