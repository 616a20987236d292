/** Moves dots apart: heights for dots at places `x`, so that none overlap, as long as there is room. */
export function spread(x: readonly number[], apart: number, room: number): number[] {
  const order = [...x.keys()].sort((a, b) => (x[a] ?? 0) - (x[b] ?? 0));
  const heights = new Array<number>(x.length).fill(0);
  const placed: number[] = [];
  const lanes = Math.max(0, Math.floor(room / apart));
  for (const at of order) {
    const near = placed.filter((other) => (x[at] ?? 0) - (x[other] ?? 0) < apart).map((other) => heights[other]);
    for (let lane = 0; lane <= 2 * lanes; lane++) {
      const height = (lane % 2 ? 1 : -1) * Math.ceil(lane / 2) * apart || 0;
      if (!near.includes(height)) {
        heights[at] = height;
        break;
      }
    }
    placed.push(at);
  }
  return heights;
}
