/** The attention of a head in one prompt, as a heat map that can be zoomed. */
import { useMemo } from "preact/hooks";

import type { PatternPane as Pane, Shared } from "../data";
import { choose, state } from "../state";
import { decode } from "./attention";
import { HeatMap } from "./HeatMap";
import { percent } from "./numbers";
import { Empty } from "./parts";
import { firstShare } from "./sparse";
import { inText } from "./tokens";

export function PatternPane({ pane, shared, name }: { pane: Pane; shared: Shared; name: string }) {
  const chosen = pane.prompts.findIndex(({ prompt }) => prompt === state.prompt.value);
  const found = pane.prompts[chosen] ?? pane.prompts[0];
  const tokens = found && shared.prompts[found.prompt]?.tokens;
  const attention = useMemo(() => (found && tokens ? decode(tokens, found.attention) : null), [found, tokens]);
  if (!found || !attention) return <Empty what="No pattern was kept for this head." command="mechheads atlas" />;
  return (
    <div>
      <div class="card-controls">
        <label class="card-select">
          Prompt{" "}
          <select value={String(found.prompt)} onChange={(event) => choose({ prompt: Number(event.currentTarget.value), token: null })}>
            {pane.prompts.map(({ prompt }) => (
              <option key={prompt} value={String(prompt)}>
                {`${inText(shared.prompts[prompt]?.name ?? `prompt ${prompt + 1}`)} (${shared.prompts[prompt]?.tokens.length ?? 0} tokens)`}
              </option>
            ))}
          </select>
        </label>
        <span>{`${percent(firstShare(attention))} of the attention goes to the first token.`}</span>
      </div>
      <HeatMap key={found.prompt} attention={attention} name={`${name}-pattern`} query={state.token.peek()} onQuery={(token) => choose({ token })} />
    </div>
  );
}
