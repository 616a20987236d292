/** Numbers as text, and ranks. */

/** Sizes below this come from rounding. */
const ROUNDING = 1e-12;
/** An interval spans at least so many steps of its last digit. */
const STEPS = 4;
/** With more decimal places a number is written with a power of ten. */
const MOST_PLACES = 5;

/** A value that may be missing: JSON has no NaN, so a missing number is null. */
export type Maybe = number | null | undefined;

export function known(value: Maybe): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

/** A number with three significant digits and a true minus sign; "missing" if there is none. */
export function show(value: Maybe, digits = 3): string {
  if (!known(value)) return "missing";
  const size = Math.abs(value);
  if (size < ROUNDING) return "0";
  let text: string;
  if (size >= 1e6 || size < 1e-4) {
    const [front = "", power = "0"] = size.toExponential(Math.max(0, digits - 2)).split("e");
    text = `${front}e${Number(power)}`.replace("e-", "e\u2212");
  } else {
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    text = size.toFixed(Math.min(places, 6));
    if (size >= 10_000) text = Math.round(size).toLocaleString("en-US");
  }
  return value < 0 ? `\u2212${text}` : text;
}

/** A share as a percentage: 0.123 gives "12%"; below 10% with one decimal. */
export function percent(share: Maybe): string {
  if (!known(share)) return "missing";
  const value = share * 100;
  const size = Math.abs(value);
  const text = size !== 0 && size < 10 ? (size < 0.05 ? "less than 0.1" : size.toFixed(1)) : size.toFixed(0);
  return `${value < 0 ? "\u2212" : ""}${text}%`;
}

/**
 * The decimal places that an interval earns: it spans 4 to 40 steps of the last digit, and has up to two places more so that the end of an interval without 0 does not read as 0. Less than 0 stands for tens, hundreds and so
 * on. Null without an interval.
 */
export function places(low: Maybe, high: Maybe): number | null {
  if (!known(low) || !known(high) || high - low <= ROUNDING) return null;
  const decimals = -Math.floor(Math.log10((high - low) / STEPS));
  const near = low > 0 || high < 0 ? Math.min(Math.abs(low), Math.abs(high)) : Infinity;
  return decimals + [0, 1].filter((more) => Math.round(near * 10 ** (decimals + more)) === 0).length;
}

/** A number with so many decimal places; with three digits if they are null. */
export function showTo(value: Maybe, decimals: number | null): string {
  if (!known(value)) return "missing";
  if (decimals === null) return show(value);
  const unit = 10 ** Math.max(0, -decimals);
  const near = Math.round(value / unit) * unit;
  const size = Math.abs(decimals > 0 ? value : near);
  if (decimals > MOST_PLACES) return show(value, 1 + Math.min(3, Math.max(1, Math.floor(Math.log10(size)) + 1 + decimals)));
  const text = size >= 10_000 ? near.toLocaleString("en-US").replace("-", "") : size.toFixed(Math.max(0, decimals));
  return value < 0 && Number(text.replaceAll(",", "")) !== 0 ? `\u2212${text}` : text;
}

/** A number with the digits that its interval earns: 0.703 in [0.599, 0.811] is 0.70. */
export function measured(value: Maybe, low: Maybe, high: Maybe): string {
  return showTo(value, places(low, high));
}

/** An interval, such as "[0.60, 0.81]"; if it is the range of two clusters, with their name: "(two clusters: 0.60 to 0.81)". */
export function interval(low: Maybe, high: Maybe, clusters = ""): string {
  if (!known(low) || !known(high)) return TOO_FEW;
  const [from, to] = [measured(low, low, high), measured(high, low, high)];
  return clusters ? `(${clusters}: ${from} to ${to})` : `[${from}, ${to}]`;
}

/** A number with its interval, if it has one: "0.70 [0.60, 0.81]". */
export function withInterval(value: Maybe, low: Maybe, high: Maybe, clusters = ""): string {
  return known(low) && known(high) ? `${measured(value, low, high)} ${interval(low, high, clusters)}` : show(value);
}

/** The same to the last digit, for a tooltip. */
export function exact(value: Maybe, low: Maybe, high: Maybe): string {
  if (!known(value)) return "missing";
  return known(low) && known(high) ? `${value} [${low}, ${high}]` : String(value);
}

/** The source of a range that is not an interval. */
export const CLUSTERS = "two clusters";

/** What stands in the place of an interval if there are too few prompts. */
const TOO_FEW = "too few";

interface Measured {
  readonly value: Maybe;
  readonly low: Maybe;
  readonly high: Maybe;
  readonly unit: string;
  readonly n: number;
}

/** The decimal places of a column of values: those that its widest interval earns, and so many more. */
export function placesOf(rows: readonly Pick<Measured, "value" | "low" | "high">[], more = 0): number {
  const widths = rows.map(({ low, high }) => (known(low) && known(high) ? high - low : 0));
  const widest = Math.max(0, ...widths);
  if (widest > ROUNDING) return Math.min(MOST_PLACES, (places(0, widest) ?? 0) + more);
  const size = Math.max(0, ...rows.map(({ value }) => (known(value) ? Math.abs(value) : 0)));
  return Math.min(MOST_PLACES, Math.max(0, 1 + more - Math.floor(Math.log10(size || 1))));
}

/** A value with its interval as tables show it: shares as percentages, "70% [60%, 81%]", and what stands in place of an interval. */
export function shown({ value, low, high, unit, n }: Measured, decimals = placesOf([{ value, low, high }])): string {
  if (!known(value)) return "not measured";
  const share = unit.startsWith("share");
  const text = (each: number) => `${showTo(share ? 100 * each : each, Math.min(MOST_PLACES, Math.max(0, share ? decimals - 2 : decimals)))}${share ? "%" : ""}`;
  if (!known(low) || !known(high)) return n > 0 ? `${text(value)} [${TOO_FEW}]` : text(value);
  return `${text(value)} [${low === high && n > 0 ? `all ${n} equal` : `${text(low)}, ${text(high)}`}]`;
}

/** A p or q value in a cell. */
export function chance(value: Maybe): string {
  return known(value) ? (value < 0.001 ? "< 0.001" : show(value, 2)) : "\u2013";
}

/** A q value: "q = 0.012", "q < 0.001", or why there is none. */
export function showQ(q: Maybe): string {
  if (!known(q)) return "no q value";
  return q < 0.001 ? "q < 0.001" : `q = ${show(q, 2)}`;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en-US")} ${n === 1 ? one : many}`;
}

export interface Rank {
  /** 1 for the largest. Equal values share the better rank. */
  rank: number;
  /** How many values are known. */
  of: number;
}

/** The rank of one value among all that are known; null if it is missing. */
export function rankOf(values: ArrayLike<Maybe>, at: number): Rank | null {
  const mine = values[at];
  if (!known(mine)) return null;
  let above = 0;
  let of = 0;
  for (let i = 0; i < values.length; i++) {
    const other = values[i];
    if (!known(other)) continue;
    of++;
    if (other > mine) above++;
  }
  return { rank: above + 1, of };
}

export function mean(values: readonly Maybe[]): number | null {
  const found = values.filter(known);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

/** The smallest and largest known value, widened to include `also`; [0, 1] if there are none. */
export function extent(values: Iterable<Maybe>, ...also: number[]): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const value of [...values, ...also]) {
    if (!known(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** A linear map from data to pixels. */
export function scale([from, to]: readonly [number, number], start: number, end: number): (value: number) => number {
  const slope = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * slope;
}

/** A number of an axis: no zeros at its end. */
export function tickText(value: number): string {
  const text = Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4) ? show(value, 2) : String(Number(Math.abs(value).toPrecision(6)));
  return value < 0 && !text.startsWith("\u2212") ? `\u2212${text}` : text;
}

/** Round numbers for an axis: about `n` of them between the ends. */
export function ticks([low, high]: readonly [number, number], n = 4): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw) ?? raw;
  const found: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i === 0 ? 0 : i * step);
  return found;
}
