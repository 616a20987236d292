/** A made-up page of two layers with two heads, in which every pane has something. */

const heads = ["L0H0", "L0H1", "L1H0", "L1H1"];
export const HARMFUL = "How do I pick a lock?";
const tokens = ["<s>", " The", " cat", " sat", "<b>\u202e"];
const attention = { first: [255, 128, 51, 51, 51], keys: [[], [1], [1, 2], [2], [3, 1]], weights: [[], [127], [102, 51], [204], [153, 51]] };

function column(name, values, more = {}) {
  const about = { label: name, unit: "", meaning: "", kind: "number", group: "In tasks", role: "value", of: null };
  return { name, ...about, low: null, high: null, range: false, p: null, q: null, question: "pairs", source: "effects", signed: false, values, ...more };
}

function row(head, at, column, values) {
  const value = values[at];
  const rank = 1 + values.filter((other) => other !== null && other > value).length;
  return { question: "pairs", head, measured: column, column, value, low: null, high: null, null: 0, p: null, n: 0, unit: "nats", rank, of: values.filter((each) => each !== null).length, note: "" };
}

function effect(name, values) {
  return { name, title: name, unit: "logits", meaning: `What ${name} means.`, score: values[0], low: 0, high: 1, p: 0.02, q: 0.01, values };
}

const EFFECT = [0.1, -0.2, 0.3, 0.4];
const SHIPS = [0.2, 1, 2, null];
const side = (parts, others, rest) => ({ parts: parts.map(([name, value]) => ({ name, value })), others, rest });

/** Why a head attends from one token to another: both sides sum to 1.5. */
export function why(query, key, first = "L0H1") {
  return { query, key, weight: 0.8, total: 1.5, atQuery: side([["L0.mlp", 2], ["embedding", -0.75]], 3, 0.25), atKey: side([[first, 1.25], ["L0H0", 0.25]], 0, 0) };
}

function card(head, at) {
  const ships = { ablation: "scaling", unit: "nats", score: 0.2, low: null, high: null };
  return {
    head,
    layer: Math.floor(at / 2),
    index: at % 2,
    rows: [row(head, at, "effect", EFFECT), ...(SHIPS[at] === null ? [] : [row(head, at, "ships", SHIPS)])],
    text: {
      activity: "What activity is.",
      parts: ["highest", "lowest"].map((name) => ({
        name,
        examples: [{ window: 0, text: 0, activity: 0.5, query: 3, key: 2, weight: 0.8, attention, sizes: [10, 255, 255, 255, 255] }],
      })),
    },
    pattern: [{ prompt: 0, attention }],
    weights: [
      { relation: "a_to_b", category: "Knowledge", phi: 0.5, low: 0.4, high: 0.6, q: 0.01, null: 0.1, reading: "embedding", evidence: true, below: false, pairs: [{ source: " a", target: " b", hit: true }] },
    ],
    cause: [effect("direct", [0.4, 0.2]), effect("total", [0.1, null])],
    paths: {
      senders: at > 1 ? [{ head: "L0H1", way: "k", score: -0.2, low: -0.3, high: -0.1, p: 0.02, q: 0.01 }] : [],
      receivers: at > 1 ? [{ head: null, way: "final", score: 0.4, low: 0.3, high: 0.5, p: 0, q: 0 }] : [],
      unit: "logits",
      meaning: "What paths mean.",
    },
    safety: [{ ...ships, generalized: 1, generalizedLow: 0.5, generalizedHigh: 2, values: [0.2, null] }],
  };
}

/** What `html` of pages.mjs takes. */
export function made({ live = null } = {}) {
  const model = {
    name: "made-up", nLayers: 2, nHeads: 2, nKvHeads: 2, notes: ["paths left out: too quick"], interrupted: false,
    sources: [{ name: "effects", call: "mh.ablate(model, prompts)", prompts: "", file: null }], citation: "", cautions: [], circuits: [], tables: [],
    questions: [{ key: "pairs", title: "effects of heads", kind: "pairs", views: ["effect", "ships"], varies: "", warnings: [], rows: [], contradictions: [], view: "effect" }],
    panes: ["text", "pattern", "weights", "cause", "paths", "safety"],
    columns: [
      column("effect", EFFECT),
      column("ships", SHIPS),
    ],
    categories: null,
    behaviours: { names: [{ name: "induction", column: "effect", meaning: "", least: 0.1 }], of: [[0], [], [], []] },
  };
  const shared = {
    words: tokens,
    windows: [[0, 1, 2, 3, 4]],
    prompts: [{ name: "a prompt", tokens }],
    pairs: [0, 1].map((at) => ({ clean: `clean ${at}`, corrupted: `corrupted ${at}`, answer: " yes", wrong: " no" })),
    requests: [HARMFUL, HARMFUL],
    labels: {},
  };
  const layers = [0, 1].map((layer) => [`mh-heads-${layer}`, { layer, heads: [0, 1].map((index) => card(heads[2 * layer + index], 2 * layer + index)) }]);
  return {
    page: { schema: 1, kind: "atlas", version: "0", title: "Made up", model, live, start: null },
    blocks: { "mh-shared": shared, ...Object.fromEntries(layers) },
  };
}

/** The answer to an own text. */
export function answer({ id, text, head, query, key }) {
  if (query !== undefined) return { id, seconds: 0.1, why: why(query, key) };
  const next = (token, probability) => ({ token, probability });
  return {
    id, text, head, tokens, attention, seconds: 0.5, notes: [],
    next: [next(" mat", 0.6), next(" sofa", 0.2)],
    attribution: { token: " mat", logit: 3, heads: [1, -0.5, 0.25, 0], mlp: [1, 1], embedding: 0.25, bias: 0 },
    ablation: { kind: "zero", after: [next(" sofa", 0.5), next(" mat", 0.3)], kl: 0.25 },
  };
}
