/** The attention of a head in one prompt, as a heat map that can be zoomed, or in two prompts side by side. */
import { useMemo } from "preact/hooks";

import type { Pattern, Shared } from "../data";
import { choose, state } from "../state";
import { decode } from "./attention";
import { HeatMap } from "./HeatMap";
import { percent } from "./numbers";
import { Empty } from "./parts";
import { TokenLines } from "./TokenLines";
import { difference, firstShare, shareBack, type Sparse } from "./sparse";
import { inText } from "./tokens";

interface Props {
  pane: Pattern[];
  shared: Shared;
  name: string;
}

const LONGEST = 60;

/** The name of a prompt and its number of tokens; if the name is a number, its words too. */
function titleOf(prompt: Shared["prompts"][number] | undefined, number: number): string {
  const { name, tokens } = prompt ?? { name: `prompt ${number + 1}`, tokens: [] };
  const words = /\bprompt \d+$/.test(name) ? tokens.join("").trim() : "";
  const cut = words.length > LONGEST ? `${words.slice(0, LONGEST - 1)}\u2026` : words;
  return `${inText(words ? `${name}: ${cut}` : name)} (${tokens.length} tokens)`;
}

export function PatternPane({ pane, shared, name }: Props) {
  const at = (prompt: number | null) => pane.find((each) => each.prompt === prompt);
  const found = at(state.prompt.value) ?? pane[0];
  const beside = state.beside.value === found?.prompt ? undefined : at(state.beside.value);
  const [left, right] = [found, beside].map((each) => {
    const tokens = each && shared.prompts[each.prompt]?.tokens;
    return useMemo(() => (each && tokens ? decode(tokens, each.attention) : null), [each, tokens]);
  });
  if (!found || !left) return <Empty what="No pattern was kept for this head." command="mechheads atlas" />;
  const text = (prompt: number) => titleOf(shared.prompts[prompt], prompt);
  const others = pane.filter(({ prompt }) => prompt !== found.prompt);
  return (
    <div>
      <div class="card-controls">
        <Prompts label="Prompt" value={found.prompt} of={pane} text={text} onPick={(prompt) => choose({ prompt, token: null })} />
        {others.length > 0 && <Prompts label="Beside it" value={beside?.prompt ?? null} none="no other prompt" of={others} text={text} onPick={(prompt) => choose({ beside: prompt })} />}
        {!right && <span>{`${percent(firstShare(left))} of the attention goes to the first token.`}</span>}
      </div>
      {beside && right ? (
        <Beside {...{ left, right, name }} titles={[text(found.prompt), text(beside.prompt)]} />
      ) : (
        <>
          <TokenLines key={`${found.prompt} ${state.token.value}`} attention={left} query={state.token.value ?? left.tokens.length - 1} direction="keys" withFirst={false} label="Tokens of the prompt; arrow keys move" onChoose={(token) => choose({ token })} />
          <HeatMap key={found.prompt} attention={left} name={`${name}-pattern`} query={state.token.peek()} onCell={({ query }) => choose({ token: query })} />
        </>
      )}
    </div>
  );
}

interface PromptsProps {
  label: string;
  value: number | null;
  of: Pattern[];
  text: (prompt: number) => string;
  /** The choice of no prompt. */
  none?: string;
  onPick: (prompt: number | null) => void;
}

function Prompts({ label, value, of, text, none, onPick }: PromptsProps) {
  return (
    <label class="card-select">
      <span>{label}</span>{" "}
      <select value={String(value ?? "")} onChange={({ currentTarget }) => onPick(currentTarget.value === "" ? null : Number(currentTarget.value))}>
        {none && <option value="">{none}</option>}
        {of.map(({ prompt }) => <option key={prompt} value={String(prompt)}>{text(prompt)}</option>)}
      </select>
    </label>
  );
}

const SHARES: readonly (readonly [what: string, share: (from: Sparse) => number])[] = [
  ["to the first token", firstShare],
  ["to the token itself", (from) => shareBack(from, 0)],
  ["to the previous token", (from) => shareBack(from, 1)],
];

interface BesideProps {
  left: Sparse;
  right: Sparse;
  name: string;
  titles: readonly [string, string];
}

function Beside({ left, right, name, titles }: BesideProps) {
  const alike = left.tokens.length === right.tokens.length;
  const between = useMemo(() => (alike ? difference(left, right) : null), [left, right]);
  return (
    <div>
      <div class="card-scroll">
        <table class="card-table">
          <thead>
            <tr>
              <th scope="col">share of the attention</th>
              {titles.map((title, at) => <th key={at} scope="col" class="card-number">{title}</th>)}
              <th scope="col" class="card-number">left minus right</th>
            </tr>
          </thead>
          <tbody>
            {SHARES.map(([what, share]) => {
              const [one, other] = [share(left), share(right)];
              return (
                <tr key={what}>
                  <th scope="row">{what}</th>
                  <td class="card-number">{percent(one)}</td>
                  <td class="card-number">{percent(other)}</td>
                  <td class="card-number">{percent(one - other)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <div class="card-beside">
        {[left, right].map((attention, at) => (
          <section key={titles[at]}>
            <h3>{`${at ? "Right" : "Left"}: ${titles[at]}`}</h3>
            <HeatMap attention={attention} name={`${name}-pattern-${at ? "right" : "left"}`} />
          </section>
        ))}
      </div>
      <h3>Difference: left minus right</h3>
      {between ? (
        <HeatMap key={titles.join()} attention={between} name={`${name}-pattern-difference`} signed />
      ) : (
        <p class="card-empty">{`The prompts have ${left.tokens.length} and ${right.tokens.length} tokens, so their positions do not match: there is no difference pair by pair.`}</p>
      )}
    </div>
  );
}
