/** Written by `python -m docs.contract`; contract.py and live.py say what each part is. */

export type Num = number | null;

export type Byte = number;

export type HeadName = string;

export type ColumnRole = "place" | "value" | "low" | "high" | "p" | "q";

export type Way = "q" | "k" | "v" | "final";

export interface Page {
  schema: 1;
  kind: "atlas" | "run";
  version: string;
  title: string;
  model: Model;
  live: Live | null;
  start: HeadName | null;
}

export interface Live {
  maxCharacters: number;
  maxTokens: number;
}

export interface Model {
  name: string;
  nLayers: number;
  nHeads: number;
  nKvHeads: number | null;
  questions: Question[];
  notes: string[];
  interrupted: boolean;
  sources: Source[];
  citation: string;
  cautions: string[];
  columns: Column[];
  categories: Categories | null;
  behaviours: Behaviours | null;
  circuits: Circuit[];
  tables: Table[];
  panes: string[];
}

export interface Question {
  key: string;
  title: string;
  kind: "pairs" | "requests" | "text" | "weights" | "own";
  views: string[];
  varies: string;
  warnings: string[];
  rows: Row[];
  contradictions: Contradiction[];
  view: string | null;
}

export interface Interval {
  low: Num;
  high: Num;
}

export interface Row extends Interval {
  head: HeadName;
  measured: string;
  column: string;
  value: Num;
  null: Num;
  p: Num;
  n: number;
  unit: string;
  rank: number;
  of: number;
  note: string;
}

export interface CardRow extends Row {
  question: string;
}

export interface Contradiction {
  a: Row;
  b: Row;
}

export interface Source {
  name: string;
  call: string;
  prompts: string;
  file: string | null;
}

export interface Column {
  name: string;
  label: string;
  unit: string;
  meaning: string;
  kind: "number" | "text";
  group: string;
  role: ColumnRole;
  of: string | null;
  low: string | null;
  high: string | null;
  range: boolean;
  p: string | null;
  q: string | null;
  question: string | null;
  signed: boolean;
  source: string | null;
  values: (number | string | null)[];
}

export interface Categories {
  names: string[];
  of: (number[] | null)[];
  below: number[][];
  relations: Relation[];
  phi: Num[][];
  floor: Num;
}

export interface Relation {
  name: string;
  category: number;
}

export interface Behaviours {
  names: Behaviour[];
  of: number[][];
}

export interface Behaviour {
  name: string;
  column: string;
  meaning: string;
  least: number;
}

export interface Circuit {
  name: string;
  heads: HeadName[];
  metric: string;
  curve: CircuitPoint[];
  source: string;
}

export interface CircuitPoint extends Interval {
  k: number;
  value: Num;
}

export interface Table {
  name: string;
  unit: string;
  columns: string[];
  rows: string[][];
  of: number;
}

export interface Shared {
  words: string[];
  windows: number[][];
  prompts: Prompt[];
  pairs: Pair[];
  requests: string[];
  labels: Record<string, string[]>;
}

export interface Prompt {
  name: string;
  tokens: string[];
}

export interface Pair {
  clean: string;
  corrupted: string;
  answer: string;
  wrong: string;
}

export interface HeadBlock {
  layer: number;
  heads: Head[];
}

export interface Head {
  head: HeadName;
  layer: number;
  index: number;
  rows: CardRow[];
  text: TextPane | null;
  pattern: Pattern[] | null;
  weights: RelationEvidence[] | null;
  cause: Effect[] | null;
  paths: PathsPane | null;
  safety: Ships[] | null;
}

export interface Attention {
  first: Byte[];
  keys: number[][];
  weights: Byte[][];
}

export interface TextPane {
  parts: Part[];
  activity: string;
}

export interface Part {
  name: string;
  examples: Example[];
}

export interface Example {
  window: number;
  text: number;
  activity: number;
  query: number;
  key: number;
  weight: number;
  attention: Attention;
  sizes: Byte[];
}

export interface Pattern {
  prompt: number;
  attention: Attention;
}

export interface RelationEvidence extends Interval {
  relation: string;
  category: string;
  phi: Num;
  q: Num;
  null: Num;
  reading: string;
  evidence: boolean;
  below: boolean;
  pairs: RelationPair[] | null;
}

export interface RelationPair {
  source: string;
  target: string;
  hit: boolean;
}

export interface Score extends Interval {
  score: Num;
}

export interface TestedScore extends Score {
  p: Num;
  q: Num;
}

export interface Effect extends TestedScore {
  name: string;
  title: string;
  unit: string;
  meaning: string;
  values: Num[];
}

export interface PathsPane {
  senders: Path[];
  receivers: Path[];
  unit: string;
  meaning: string;
}

export interface Path extends TestedScore {
  head: HeadName | null;
  way: Way;
}

export interface Ships extends Score {
  ablation: string;
  unit: string;
  generalized: Num;
  generalizedLow: Num;
  generalizedHigh: Num;
  values: Num[];
}

export interface TextAnswer {
  id: string;
  text: string;
  tokens: string[];
  next: Next[];
  head: HeadName | null;
  attention: Attention | null;
  attribution: Attribution | null;
  ablation: Ablation | null;
  notes: string[];
  seconds: number;
}

export interface Why {
  query: number;
  key: number;
  weight: number;
  total: number;
  atQuery: WhySide;
  atKey: WhySide;
}

export interface WhySide {
  parts: WhyPart[];
  others: number;
  rest: number;
}

export interface WhyPart {
  name: string;
  value: number;
}

export interface WhyAnswer {
  id: string;
  why: Why;
  seconds: number;
}

export interface Attribution {
  token: string;
  logit: number;
  heads: number[];
  mlp: number[];
  embedding: number;
  bias: number;
}

export interface Ablation {
  kind: "zero";
  after: Next[];
  kl: number;
}

export interface Next {
  token: string;
  probability: number;
}

export interface Live {
}
