/** The page's requests to a notebook's widget: run a text of the reader's own, or send the page as a file. */
import type { HeadName, Live, TextAnswer, WhyAnswer } from "../data";
import { messageOf } from "./load";

interface TextRequest {
  id: string;
  text: string;
  head: HeadName | null;
  query?: number;
  key?: number;
}

/** anywidget's model, through which a widget and the notebook exchange messages. */
export interface WidgetModel {
  send(message: unknown): void;
  on(event: "msg:custom", receive: (message: unknown) => void): void;
  off(event: "msg:custom", receive: (message: unknown) => void): void;
}

let widget: WidgetModel | null = null;

/** Send messages through this widget. */
export function sendThrough(model: WidgetModel): void {
  widget = model;
}

export function isWidget(): boolean {
  return widget !== null;
}

export interface Running<Answer = TextAnswer> {
  readonly answer: Promise<Answer>;
  cancel(): void;
}

/** The whole page as a file, from the notebook's kernel. */
export async function pageOfKernel(): Promise<string> {
  const { html } = await throughWidget<{ html: string }>({ type: "page", id: newId() }).answer;
  return html;
}

/** The promise is rejected with an `Error` whose message can be shown. */
export function run(text: string, head: string | null): Running {
  return sent({ id: newId(), text, head });
}

/** Why a head attends from one token of a text to another; as `run`. */
export function runWhy(text: string, head: string, query: number, key: number): Running<WhyAnswer> {
  return sent({ id: newId(), text, head, query, key });
}

function sent<Answer>(request: TextRequest): Running<Answer> {
  return throughWidget({ type: "text", ...request });
}

/** What is wrong with a text before it is sent; null if nothing is. */
export function fault(live: Live, text: string): string | null {
  if (!text.trim()) return "Type a text first.";
  const n = [...text].length;
  return n > live.maxCharacters
    ? `The text has ${n.toLocaleString("en-US")} characters; at most ${live.maxCharacters.toLocaleString("en-US")} are allowed.`
    : null;
}

function newId(): string {
  return `t${Date.now().toString(36)}-${Math.floor(Math.random() * 36 ** 6).toString(36)}`;
}

function throughWidget<Answer>(request: { type: string; id: string }): Running<Answer> {
  const model = widget;
  if (!model) return { answer: Promise.reject(new Error("The notebook is not connected; run the cell again.")), cancel: () => undefined };
  let cancel: () => void = () => undefined;
  const answer = new Promise<Answer>((done, failed) => {
    const receive = (message: unknown) => {
      const it = message as { type?: string; id?: string; error?: string };
      if (it.id !== request.id) return;
      model.off("msg:custom", receive);
      if (it.type === "error") failed(new Error(it.error ?? "The notebook could not do it."));
      else done(message as Answer);
    };
    cancel = () => {
      model.send({ type: "cancel", id: request.id });
      model.off("msg:custom", receive);
      failed(new Error("Cancelled."));
    };
    model.on("msg:custom", receive);
    try {
      model.send(request);
    } catch (reason) {
      failed(new Error(`The notebook is not connected: ${messageOf(reason)}`));
    }
  });
  return { answer, cancel };
}
