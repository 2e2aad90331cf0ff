/** When somebody is told that the server ends. */

/** So many minutes before the end somebody is told. The longest first. */
export const WARNINGS_MIN: readonly number[] = [30, 5];

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
