/** What stands in the place of a pane without data: what is missing, why, and how to get it. */
import { Empty } from "./parts";

interface Lack {
  readonly what: string;
  readonly command: string;
  /** The name of the stage in the notes of the atlas. */
  readonly stage: string;
}

const LACKS: Record<string, Lack> = {
  text: { what: "No texts were kept for this head.", command: "mechheads atlas", stage: "text" },
  pattern: { what: "No pattern was kept for this head.", command: "mechheads atlas", stage: "pattern" },
  weights: { what: "The weights of this head were not read.", command: "mechheads atlas", stage: "labels" },
  cause: { what: "No effect of this head was measured.", command: "mechheads atlas", stage: "patching" },
  paths: { what: "Nothing is known of the paths of this head.", command: "mechheads atlas", stage: "path" },
  safety: { what: "Ships of this head was not measured.", command: "mechheads atlas", stage: "safety" },
};

/** Why a stage was left out, by the notes of the atlas. */
export function reasons(notes: readonly string[], stage: string): string[] {
  return notes.filter((note) => note.startsWith(stage) && note.includes("left out"));
}

export function Missing({ pane, notes }: { pane: string; notes: readonly string[] }) {
  const lack = LACKS[pane];
  if (!lack) return null;
  return (
    <>
      <Empty what={lack.what} command={lack.command} />
      {reasons(notes, lack.stage).map((note) => (
        <p key={note} class="card-lead">
          {note}
        </p>
      ))}
    </>
  );
}
