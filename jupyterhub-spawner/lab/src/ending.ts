/** When somebody is told that the server ends, and until when that notice holds. Pure. */

/** So many minutes before the end somebody is told. The longest first. */
export const WARNINGS_MIN: readonly number[] = [30, 5];

/** What was told of which end. */
export interface Told {
  /** Seconds since the epoch; `null` for a server without a limit. */
  readonly endsS: number | null;
  /** The warnings that came, in minutes before the end. */
  readonly warnings: ReadonlySet<number>;
}

export type Output =
  /** The notice that stands in the page, if any, holds no more. */
  | { readonly kind: "dismiss" }
  /** A notice of that end. */
  | { readonly kind: "warn"; readonly endsS: number };

export const NOTHING_TOLD: Told = { endsS: null, warnings: new Set() };

/** The end of the server, as Slurm has it now. An administrator may have given more time, or less. */
export function look(before: Told, endsS: number | null, nowS: number): { told: Told; outputs: Output[] } {
  const known = endsS === before.endsS ? before.warnings : NOTHING_TOLD.warnings;
  const warning = due(endsS, nowS, known);
  const warns = endsS !== null && warning !== null;
  const outputs: Output[] = [];
  if (before.warnings.size > 0 && (endsS !== before.endsS || warns)) {
    outputs.push({ kind: "dismiss" });
  }
  if (warns) {
    outputs.push({ kind: "warn", endsS });
  }
  return { told: { endsS, warnings: warns ? new Set([...known, warning]) : known }, outputs };
}

/** The warning that is due, in minutes before the end; `null` for none. What was told is not told again. */
export function due(endsS: number | null, nowS: number, told: ReadonlySet<number>): number | null {
  if (endsS === null || endsS <= nowS) {
    return null;
  }
  const leftMin = (endsS - nowS) / 60;
  // A server with ten minutes in all is told once, by the warning that is next.
  const closest = WARNINGS_MIN.filter((minutes) => leftMin <= minutes).pop();
  return closest === undefined || told.has(closest) ? null : closest;
}
