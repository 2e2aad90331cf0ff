/** The last figures of each kernel, and the line that is drawn from them. Pure. */
import type { KernelRow } from "./api.js";

/** How many figures are kept: five minutes of them. */
const KEPT = 60;

export type History = ReadonlyMap<string, readonly number[]>;

/** Figures of the panel that are drawn. */
export type Figure = "memory_mib" | "gpu_percent";

/** A figure of each kernel so far, with that of now. A kernel that is gone, or says nothing, is forgotten. */
export function noted(history: History, rows: readonly KernelRow[], figure: Figure): History {
  const next = new Map<string, readonly number[]>();
  for (const row of rows) {
    const now = row[figure];
    if (now !== null) {
      next.set(row.id, [...(history.get(row.id) ?? []), now].slice(-KEPT));
    }
  }
  return next;
}

/** Points of an SVG polyline in a field of this size: the newest figure is on the right, `most` at the top. */
export function points(values: readonly number[], most: number, width: number, height: number): string {
  const step = width / (KEPT - 1);
  const from = width - step * (values.length - 1);
  const y = (value: number) => height - (Math.min(value, most) / most) * height;
  return values.map((value, at) => `${(from + at * step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
}
