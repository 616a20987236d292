/**
 * Everything that the page gets: the contract between Python (mechheads/explorer) and the front end.
 *
 * Where it comes from
 * - The page: `<script type="application/json" id="mh-page">` is a `Page`. Blocks are
 *   `<script type="application/octet-stream;base64" id="...">`: JSON, deflated (zlib), in base64.
 *   Read one with `new DecompressionStream("deflate")`.
 *   - `mh-shared-M` is `Shared` of model M (its number in `Page.models`): texts that all heads of the model share.
 *   - `mh-heads-M-L` is `HeadBlock`: the heads of layer L of model M.
 *   - `mh-space-M` is `Space` of model M; missing if it was not analysed.
 * - The notebook widget: the traits `page` (the same JSON as text) and `blocks` (an object: id -> base64).
 *
 * Conventions
 * - A head has the number `layer * nHeads + head`; arrays over heads are in this order.
 * - `null` means not measured or not defined. NaN and infinity do not occur.
 * - All texts are plain text that may hold anything, such as markup, control characters and bidirectional marks:
 *   use textContent only, and show control characters visibly.
 * - Shares and probabilities lie between 0 and 1. `Byte` is a share in 255ths (0 to 255).
 * - Positions and layers are counted from 0.
 */

export type Num = number | null;
/** A share in 255ths. In examples of text, attention is rounded to 5 of them and sizes to 15; attention below 8 is left out. */
export type Byte = number;
/** Such as "L23H4". */
export type HeadName = string;

export interface Page {
  schema: 1;
  /** "run" has patterns, and what they say of each head as columns: one model whose `views` are empty. */
  kind: "atlas" | "run";
  /** Of mechheads. */
  version: string;
  title: string;
  models: Model[];
  /** Where an own text can be run; null in the offline page. */
  live: Live | null;
  start?: Start | null;
  /** What changed from the first model to others of the same sizes; empty or missing without such models. */
  changes?: Change[];
}

/** From model `of` to another: how many heads changed in each view that both have, and those that changed most. */
export interface Change {
  /** Numbers in `Page.models`. The columns of `model` have the differences, such as "patching_change". */
  model: number;
  of: number;
  views: {
    name: string;
    title: string;
    unit: string;
    /** Which intervals tell what is beyond chance, in a sentence. */
    how: string;
    /** How many heads were measured in both, are beyond their intervals, and have a small q besides. */
    known: number;
    beyond: number;
    surely: number;
  }[];
  /** What both have but cannot be compared, in a sentence; empty if there is nothing. */
  unlike?: string;
  /** The first by certainty, then by size. */
  rows: ChangedHead[];
  /** Of the largest changes those that are not among `rows`, because they lie within their intervals. */
  within: ChangedHead[];
}

export interface ChangedHead {
  head: HeadName;
  view: string;
  before: Num;
  after: Num;
  /** After minus before, with its interval and q if both models saw the same prompts. */
  difference: Num;
  low: Num;
  high: Num;
  q: Num;
  /** In standard deviations of the view over the heads of the model `of`. */
  size: Num;
  beyond: boolean;
}

/** What is open and chosen at first, unless the address says otherwise. */
export interface Start {
  model: number;
  /**
   * The head whose card is open. A page of kind "atlas" that has one (mh.head_card) has the cards of this head and of those
   * that it links to only: blocks of other layers are missing, and others lack heads.
   */
  head: HeadName | null;
  /** More of what can be chosen; names of columns, but for `versus`, the number of a model, and `together`. See state.ts. */
  chosen?: Partial<Record<"question" | "colour" | "by" | "x" | "y", string>> & { versus?: number; together?: boolean };
}

export interface Live {
  /**
   * "serve": POST `api/text` and DELETE `api/run/ID`, relative to the address of the page.
   * "widget": model.send({type: "text", ...TextRequest}) and {type: "cancel", id}; the answer is a custom message
   * {type: "text", ...TextAnswer} or {type: "error", id, error}. {type: "page", id} asks for the page as a file, which is
   * {type: "page", id, html}.
   */
  by: "serve" | "widget";
  /** The model's number in `Page.models`. */
  model: number;
  /** Longest text in characters, and in tokens. */
  maxCharacters: number;
  maxTokens: number;
}

export interface Model {
  name: string;
  nLayers: number;
  nHeads: number;
  /** Heads that share one key and value have consecutive numbers: head h has the key and value h / (nHeads / nKvHeads). Null if unknown. */
  nKvHeads: number | null;
  dHead: number | null;
  /** What was asked, each with what was found: the blocks at the top of the page. */
  questions: Question[];
  /** What the results carry, a sentence each: those that are of no question stand below the blocks. */
  answer: Finding[];
  /** The atlas' summary: some lines of text. */
  summary: string;
  /** What was left out, and why. */
  notes: string[];
  /** Whether the work was interrupted, so that a part is missing. */
  interrupted: boolean;
  /** Seconds of each stage. */
  seconds: Record<string, number>;
  /** Of each result, by its name: what is needed to repeat it. Any JSON. */
  provenance: Record<string, unknown>;
  /** BibTeX of each result, by its name. */
  citations: Record<string, string>;
  /** What each analysis measures and how: shown at the end of the page. */
  methods: Method[];
  /** What may not be concluded; one sentence or two each. */
  cautions: string[];
  columns: Column[];
  views: View[];
  /** Rank correlations of every two views. */
  agreement: Agreement[];
  /** Two verdicts of one question that speak against each other; shown in the card of a head for which both hold. */
  tensions: Tension[];
  categories: Categories | null;
  behaviours: Behaviours | null;
  /** Sets of heads with their stored faithfulness. Often empty. */
  circuits: Circuit[];
  /** Results that are about no single head, each with its first rows. */
  tables?: Table[];
  /** The panes of a card that have something for some head, or that say why they have not; all if it is not there. */
  panes?: string[];
}

export interface Table {
  name: string;
  unit: string;
  columns: string[];
  rows: string[][];
  /** How many rows the whole table has. */
  of: number;
}

/** What a part of the results is about, and what they say of it. */
export interface Question {
  key: string;
  /** Such as "naming the capital". */
  title: string;
  kind: "pairs" | "requests" | "task" | "text" | "weights" | "own";
  sentence: Finding;
  /** Further sentences. */
  more: Finding[];
  /** Names of its views. */
  views: string[];
  /** How many prompts there were, such as "16 pairs". */
  counted: string;
  /** What would settle what is open; empty if nothing is. */
  settles: string;
  /** Its first heads by `view`; `shown` is the value with its unit and interval. */
  heads: { head: HeadName; value: Num; low: Num; high: Num; shown: string }[];
  /** Name of the view, or of the column, that ranks its heads. */
  view: string | null;
}

export interface Finding {
  text: string;
  /** What is chosen on the page that shows it: keys and values of the address, such as `{filter: "induction"}`. */
  link: Record<string, string>;
}

export interface Method {
  name: string;
  text: string;
  /** Names of the columns that come from it. */
  columns: string[];
}

/** One column of the table of heads. Every number of the atlas' table, to the last digit. */
export interface Column {
  /** Its name in heads.csv, for filters, such as `patching>0.2`. */
  name: string;
  /** For people. */
  label: string;
  /** "" if it has none. */
  unit: string;
  /** One sentence. */
  meaning: string;
  kind: "number" | "text";
  /** Heading in menus: "Where", "On text", "By weights", "In tasks", "In refusals", "Roles", "Your own". */
  group: string;
  /** The role of the column. Menus and the table show "value" unless asked for more. */
  role: "place" | "value" | "low" | "high" | "p" | "q";
  /** For "low", "high", "p", "q": the value that it belongs to. */
  of: string | null;
  /** For "value": names of its columns, if it has them. `range`: low and high are the two clusters' means, no interval. */
  low: string | null;
  high: string | null;
  range: boolean;
  p: string | null;
  q: string | null;
  /** The key of its question. */
  question: string | null;
  /** Which end is the better known one: colour scales are centred on 0 if true. */
  signed: boolean;
  /** One for each head. Texts: several values are separated by "; ". */
  values: (number | string | null)[];
}

export type Verdict = "yes" | "no" | "unclear";

/** What one analysis says of every head. */
export interface View {
  name: string;
  title: string;
  unit: string;
  /** Names of columns. */
  value: string;
  low: string | null;
  high: string | null;
  /** low and high are the means of two clusters, no interval. */
  range: boolean;
  /** The chance that any head is so far from 0 if none is. */
  p: string | null;
  q: string | null;
  /** The key of its question. */
  question: string | null;
  /** Rank 1 is the largest value, or the largest absolute value. Computed in the page. */
  rankBy: "value" | "absolute";
  /** What the number means; {value}, {low}, {high}, {unit}, {relation} are replaced. */
  sentence: string;
  verdict: {
    /** The rule, in one sentence. */
    rule: string;
    /** What each verdict says. */
    texts: Record<Verdict, string>;
    /** What would change it. */
    change: Record<Verdict, string>;
    /** One for each head; null if it was not measured. */
    values: (Verdict | null)[];
  };
  /** Whether these are scores of the reader's own; the title is the name that they gave. */
  own?: boolean;
}

export interface Tension {
  /** Name and verdict of one view, and of another. */
  a: { view: string; verdict: Verdict };
  b: { view: string; verdict: Verdict };
  /** The key of the question that both are about. */
  question: string;
  text: string;
}

export interface Agreement {
  view: string;
  other: string;
  /** Spearman's rank correlation, with its interval over layers. */
  spearman: Num;
  low: Num;
  high: Num;
  n: number;
}

export interface Categories {
  names: string[];
  /** Of each head: numbers of its categories in `names`; null if it was not reached. */
  of: (number[] | null)[];
  /** Of each head: numbers of categories with evidence below the floor. */
  below: number[][];
  relations: { name: string; /** Number in `names`. */ category: number }[];
  /** Of each head: phi of each relation. */
  phi: Num[][];
  /** Phi exceeds that of shuffled targets by at least this, for a label. */
  floor: Num;
}

export interface Behaviours {
  /** `name` is what a head is called, such as "induction"; `column` the name of its column. */
  names: { name: string; column: string; meaning: string; /** Its excess over the null needs at least this. */ least: number }[];
  /** Of each head: numbers of its names. */
  of: number[][];
}

export interface Circuit {
  name: string;
  heads: HeadName[];
  /** What faithfulness measures. */
  metric: string;
  faithfulness: Num;
  low: Num;
  high: Num;
  /** Faithfulness of the first k heads; heads are in the order of the curve. */
  curve: { k: number; value: Num; low: Num; high: Num }[];
}

// ---------------------------------------------------------------------------------------------- blocks

/** Block `mh-shared-M`. */
export interface Shared {
  /** Texts of tokens. */
  words: string[];
  /** Windows of ordinary text, as numbers of `words`. */
  windows: number[][];
  /** Prompts whose patterns are kept: the atlas' clean prompts and one longer text; tokens as they are. */
  prompts: { name: string; tokens: string[] }[];
  /** Pairs of prompts of the patching, in the order of `Effect.values`. */
  pairs: { clean: string; corrupted: string; answer: string; wrong: string }[];
  /** Requests of the safety heads, in the order of `Ships.values`. Harmful: show them folded. */
  requests: string[];
  /** Starts of the roles, in the order of `Role.values`. */
  seeds: string[];
  /** By the names of effects of the reader's own: labels of their prompts, in the order of `Effect.values`. */
  labels?: Record<string, string[]>;
}

/** Block `mh-heads-M-L`. */
export interface HeadBlock {
  layer: number;
  heads: Head[];
}

/** The card of one head. A pane is null if its analysis was not run; `Model.notes` says why. */
export interface Head {
  head: HeadName;
  layer: number;
  index: number;
  text: TextPane | null;
  pattern: PatternPane | null;
  /** True if `Space.heads` has it. */
  space: true | null;
  weights: WeightsPane | null;
  cause: CausePane | null;
  paths: PathsPane | null;
  safety: SafetyPane | null;
  roles: RolesPane | null;
  alike: AlikePane | null;
}

/**
 * Sparse attention of one head in one text. For query q: `first[q]` goes to token 0, `weights[q][i]` to `keys[q][i]`
 * (the largest first, keys other than 0; what is left goes to keys that were not kept).
 */
export interface Attention {
  first: Byte[];
  keys: number[][];
  weights: Byte[][];
}

export interface TextPane {
  /** "highest", then ten quantiles from "90-100%" to "0-10%", "lowest", "random"; by activity. */
  parts: { name: string; examples: Example[] }[];
  /** What activity is, in one sentence. */
  activity: string;
}

export interface Example {
  /** Number in `Shared.windows`. */
  window: number;
  /** Number of the text that the window comes from. */
  text: number;
  /** The largest one in the window, at `query`: what is moved there from all tokens but the first, as a share of the residual stream. */
  activity: number;
  query: number;
  /** From where most is moved, and its attention (a share). */
  key: number;
  weight: number;
  attention: Attention;
  /** The norm of what each token offers, relative to the largest in the window: attention times this is what is moved. */
  sizes: Byte[];
}

export interface PatternPane {
  /** `prompt`: number in `Shared.prompts`. At most 2,000 tokens. */
  prompts: { prompt: number; attention: Attention }[];
}

/** Block `mh-space-M`: where the same tokens lie in the space of every head. */
export interface Space {
  /** Texts of tokens. */
  words: string[];
  /** Windows of ordinary text, as numbers of `words`. */
  windows: number[][];
  /** One for each token that is shown: its window, and its position there. */
  window: number[];
  position: number[];
  /** How many tokens the components and shares come from. */
  tokens: number;
  /** The share of the variance that two directions hold on average if they are drawn at random. */
  chance: number;
  heads: Record<HeadName, SpacePane>;
}

export interface SpacePane {
  q: Cloud;
  /** With grouped queries: the head with the same one. */
  k: Cloud | HeadName;
  z: Cloud;
  /** Of the head at each token, in 63rds of `mostActive`: a sign of base64 for each. */
  activity: string;
  mostActive: Num;
}

/** Tokens in the plane of the first two principal components; 0 is the mean of all tokens. */
export interface Cloud {
  /** The first coordinate of every token and then the second, in 63rds between `ends`: a sign of base64 for each. */
  points: string;
  /** The lowest and the highest of each coordinate. */
  ends: [[number, number], [number, number]];
  /** Of the variance of all tokens; null if there is none. */
  shares: [Num, Num];
  /** The share that two components hold in the half of the texts that they were not found in. */
  held: Num;
}

export interface WeightsPane {
  ov: Spectrum | null;
  qk: Spectrum | null;
  copying: { value: Num; q: Num; null: Num; meaning: string } | null;
  /** Evidence for categories, the largest phi first. */
  relations: RelationEvidence[];
  /** Tokens that the head amplifies most and what it maps them to. Null for heads without a label. */
  operations: Operation[] | null;
}

export interface Spectrum {
  /** All singular values, the largest first. */
  singular: number[];
  /** The strongest directions. */
  directions: Direction[];
}

/** A direction has two ends; what is read at one end is written at the same end. Of QK: `reads` is the query, `writes` the key. */
export interface Direction {
  singular: number;
  /** Of the sum of squares. */
  share: number;
  positive: { reads: string[]; writes: string[] };
  negative: { reads: string[]; writes: string[] };
}

export interface RelationEvidence {
  relation: string;
  category: string;
  phi: Num;
  low: Num;
  high: Num;
  q: Num;
  /** Mean phi of shuffled targets. */
  null: Num;
  /** How the head reads tokens: "embedding", "first_mlp", "carried". */
  reading: string;
  /** Whether it is evidence for a label. */
  evidence: boolean;
  /** As significant, but below the floor. */
  below: boolean;
  /** The relation's pairs; `hit`: the target is among the strongest outputs of the head for the source. Only for evidence. */
  pairs: { source: string; target: string; hit: boolean }[] | null;
}

export interface Operation {
  token: string;
  /** How much longer the head makes what it reads. */
  sigma: number;
  mapsTo: string[];
  suppresses: string[];
}

export interface CausePane {
  /** In the order to show: "patching", then "direct", "total", "repair", "attribution", then those of the reader's own. */
  effects: Effect[];
}

export interface Effect {
  name: string;
  title: string;
  unit: string;
  /** One sentence. */
  meaning: string;
  score: Num;
  low: Num;
  high: Num;
  q: Num;
  /** One for each of `Shared.pairs`, or of `Shared.labels[name]` if that is there. */
  values: Num[];
}

export interface PathsPane {
  /** By weights, against random matrices: the strongest earlier heads and later heads. */
  composition: {
    way: "Q" | "K" | "V";
    senders: Composed[];
    receivers: Composed[];
  }[];
  /** By path patching: senders -> this head's q, k or v; empty unless it is one of the strongest heads. */
  senders: Path[];
  /** This head -> a strongest head's q, k or v, or "final" (the logits). */
  receivers: Path[];
  unit: string;
  meaning: string;
}

export interface Composed {
  head: HeadName;
  score: number;
  /** Standard deviations above random matrices of the same spectra. */
  z: number;
  p: number;
}

export interface Path {
  /** The head at the other end, or null for "final". */
  head: HeadName | null;
  /** "q", "k", "v" of the receiver, or "final". */
  way: "q" | "k" | "v" | "final";
  score: Num;
  low: Num;
  high: Num;
  q: Num;
}

export interface SafetyPane {
  /** Side by side: one for each ablation. */
  ships: Ships[];
}

export interface Ships {
  ablation: string;
  unit: string;
  score: Num;
  low: Num;
  high: Num;
  /** Degrees. */
  generalized: Num;
  generalizedLow: Num;
  generalizedHigh: Num;
  /** One for each of `Shared.requests`; nats. */
  values: Num[];
}

export interface RolesPane {
  roles: Role[];
}

export interface Role {
  role: string;
  score: Num;
  low: Num;
  high: Num;
  /** low and high are the means of two clusters. */
  range: boolean;
  /** One for each of `Shared.seeds`: the gate, 0 to 1. */
  values: Num[];
}

export interface AlikePane {
  /** The nearest heads of the same model, the nearest first. */
  heads: { head: HeadName; /** 1 is the same; Pearson correlation of ranks over `columns`. */ similarity: number }[];
  /** The columns that were compared. */
  columns: string[];
}

// ---------------------------------------------------------------------------------------------- live

export interface TextRequest {
  /** Chosen by the client: 1 to 40 of a-z, 0-9 and "-". For cancelling. */
  id: string;
  text: string;
  head: HeadName | null;
}

export interface TextAnswer {
  id: string;
  text: string;
  tokens: string[];
  /** The most likely next tokens, ten at most. */
  next: Next[];
  /** Of the head; null without a head. */
  attention: Attention | null;
  head: HeadName | null;
  /** The part of every head in the logit of the most likely next token. Null with a note if the architecture forbids it. */
  attribution: {
    token: string;
    logit: number;
    heads: number[];
    mlp: number[];
    embedding: number;
    /** Everything else: biases. */
    bias: number;
  } | null;
  /** The head's output set to zero at every token; null without a head. */
  ablation: { kind: "zero"; after: Next[]; /** Nats, from the intact to the ablated distribution. */ kl: number } | null;
  notes: string[];
  seconds: number;
}

export interface Next {
  token: string;
  probability: number;
}

/** The body of every 4xx and 5xx answer. */
export interface Failure {
  id: string | null;
  error: string;
}
