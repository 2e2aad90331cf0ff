/**
 * The words for a kernel's standing: short for the badge, a sentence for the line at the cell and the screen reader.
 * Pure; strings go through JupyterLab's translator.
 */
import { type KernelState, type Ran, remaining } from "./kernel.js";
import type { Grant, Need, Standing } from "./notice.js";

/** The part of JupyterLab's `TranslationBundle` that is used here. */
export interface Translation {
  __(text: string, ...values: unknown[]): string;
  _n(one: string, many: string, n: number, ...values: unknown[]): string;
}

/** The badge's text. */
export function badge(state: KernelState, now: number, trans: Translation): string {
  const standing = state.standing;
  switch (standing.state) {
    case "cpu":
      return state.away ? trans.__("CPU, no GPU service") : trans.__("CPU");
    case "seat":
      return trans.__("kernel waits for a node");
    case "queued":
      return join(place(standing.wait.position, state.need, trans), about(state, now, trans));
    case "parked": {
      const left = remaining(state, now);
      return left === undefined || left < 1
        ? trans.__("parked for others")
        : trans.__("parked for others, on in %1", aboutText(left, trans));
    }
    case "granted":
      return where(standing.grant, trans);
    case "lingering": {
      const left = remaining(state, now);
      const kept = !left ? trans.__("kept a moment") : trans.__("kept %1 s more", Math.ceil(left));
      return join(where(standing.grant, trans), kept);
    }
    case "revoked":
      return trans.__("GPU taken away");
    case "retry":
      return trans.__("waits to run again");
    case "moving":
      return standing.to ? trans.__("moving to %1", standing.to) : trans.__("moving");
  }
}

/** One sentence about the standing, without figures that tick: for the screen reader. */
export function announcement(standing: Standing, need: Need | undefined, trans: Translation): string {
  switch (standing.state) {
    case "cpu":
      return trans.__("The kernel holds no GPU.");
    case "seat":
      return trans.__("The kernel waits for a node.");
    case "queued":
      return trans.__("The cell waits for %1.", needed(need, trans));
    case "parked":
      return trans.__("The cell is parked for others.");
    case "granted":
      return trans.__("The cell runs on %1.", where(standing.grant, trans));
    case "lingering":
      return trans.__("%1 is kept for the next cell.", where(standing.grant, trans));
    case "revoked":
      return trans.__("The GPU was taken away.");
    case "retry":
      return trans.__("The cell waits to run again.");
    case "moving":
      return trans.__("The kernel moves to another node.");
  }
}

/** The line at a cell that waits. */
export function waitLine(state: KernelState, now: number, trans: Translation): string {
  const standing = state.standing;
  if (standing.state === "seat") {
    const soon = about(state, now, trans);
    const head = join(trans.__("The kernel waits for a node"), soon && trans.__("expected in %1", soon));
    return [head, standing.reason ?? ""].filter(Boolean).map(sentence).join(" ");
  }
  if (standing.state === "revoked" || standing.state === "retry") {
    const said = announcement(standing, state.need, trans);
    return standing.reason ? `${said} ${sentence(standing.reason)}` : said;
  }
  if (standing.state !== "queued" && standing.state !== "parked") {
    return announcement(standing, state.need, trans);
  }
  const { wait } = standing;
  const what =
    standing.state === "parked"
      ? trans.__("Parked in its middle")
      : trans.__("Waits for %1", needed(state.need, trans));
  const order = wait.position === undefined ? "" : place(wait.position, state.need, trans);
  const head = join(what, order, about(state, now, trans), likely(state, now, trans));
  return [head, wait.because, wait.reason]
    .filter((part): part is string => !!part)
    .map((part) => sentence(part))
    .join(" ");
}

/** How long a wait has lasted, in whole seconds. */
export function waited(state: KernelState, now: number, trans: Translation): string {
  return trans.__("%1 so far", span(Math.floor((now - state.since) / 1000), trans));
}

/** What a cell ran on, after it ran. */
export function ranLine(ran: Ran, trans: Translation): string {
  const on = where(ran.grant, trans);
  const waited = span(ran.waitedMs / 1000, trans);
  return ran.ranMs === null
    ? trans.__("Waited %1, ran on %2.", waited, on)
    : trans.__("Ran %1, waited %2, on %3.", span(ran.ranMs / 1000, trans), waited, on);
}

/** What a cell has in place of its oldest outputs, where they were too many to keep. */
export function droppedLine(dropped: number, trans: Translation): string {
  return trans._n(
    "gresshopper: the oldest output of this cell was too large to keep while the page was away",
    "gresshopper: the oldest %1 outputs of this cell were too many to keep while the page was away",
    dropped,
  );
}

/** Node and GPUs of a grant, as "n3, GPU 1 (H200)". */
export function where(grant: Grant, trans: Translation): string {
  if (grant.gpus.length === 0) {
    return grant.cores ? trans.__("%1, cores %2", grant.node, grant.cores) : grant.node;
  }
  const indices = grant.gpus.join(", ");
  const gpus = trans._n("GPU %2", "GPUs %2", grant.gpus.length, indices);
  const models = [...new Set(grant.models.map(shortModel).filter(Boolean))].join(", ");
  return join(grant.node, models ? `${gpus} (${models})` : gpus);
}

/** What a need asks for, as "2 GPUs (a100)". */
export function needed(need: Need | undefined, trans: Translation): string {
  if (!need || (!need.gpus && !need.cpus)) {
    return trans.__("a GPU");
  }
  if (!need.gpus) {
    return trans._n("%1 core", "%1 cores", need.cpus);
  }
  const gpus = trans._n("%1 GPU", "%1 GPUs", need.gpus);
  return need.gpuType ? `${gpus} (${need.gpuType})` : gpus;
}

/** What lent GPUs do: the share of their time in percent, and their memory in MiB. */
export function gpuText(
  percent: number | null,
  used: number | null,
  total: number | null,
  trans: Translation,
): string {
  const gib = (mib: number) => (mib / 1024).toFixed(1);
  const memory =
    used === null
      ? undefined
      : total === null
        ? trans.__("%1 GiB", gib(used))
        : trans.__("%1 of %2 GiB", gib(used), gib(total));
  const busy = percent === null ? trans.__("GPU") : trans.__("GPU %1 %", Math.round(percent));
  return memory === undefined ? busy : join(busy, memory);
}

/** A length of time as a person says it: "8 s", "1 min 20 s", "2 h 5 min". */
export function span(seconds: number, trans: Translation): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) {
    return seconds < 10 && seconds >= 0.05 && !Number.isInteger(seconds)
      ? trans.__("%1 s", seconds.toFixed(1))
      : trans.__("%1 s", s);
  }
  const minutes = Math.floor(s / 60);
  if (minutes < 60) {
    return s % 60 ? trans.__("%1 min %2 s", minutes, s % 60) : trans.__("%1 min", minutes);
  }
  return trans.__("%1 h %2 min", Math.floor(minutes / 60), minutes % 60);
}

/** A time in seconds since the epoch as a clock has it, with its day where that isn't today. */
export function clock(atS: number, now: number): string {
  const at = new Date(atS * 1000);
  const isToday = at.toDateString() === new Date(now).toDateString();
  return at.toLocaleString([], isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

/** JupyterLab shows no more characters of a notice. */
export const NOTICE = 140;

/** The text as far as a notice has room for it. */
export function fitted(text: string): string {
  if (text.length <= NOTICE) {
    return text;
  }
  // Not the first half of a character of two.
  return `${text.slice(0, NOTICE - 1).replace(/[\uD800-\uDBFF]$/, "")}…`;
}

/** A rough length: nobody needs the seconds of a wait of minutes. */
export function aboutText(seconds: number, trans: Translation): string {
  if (seconds < 1.5) {
    return trans.__("a moment");
  }
  return trans.__("about %1", span(Math.max(1, rounded(seconds)), trans));
}

/** Seconds in steps that a waiting person cares about. */
function rounded(seconds: number): number {
  const coarse = seconds < 10 ? 1 : seconds < 60 ? 5 : seconds < 600 ? 30 : seconds < 3600 ? 60 : 300;
  return Math.round(seconds / coarse) * coarse;
}

/** The rest of the wait; nothing where nobody knows, or where the estimate has run out. */
function about(state: KernelState, now: number, trans: Translation): string {
  const left = remaining(state, now);
  return left === undefined || left < 1 ? "" : aboutText(left, trans);
}

/** The likely range of the rest of the wait; nothing where it says no more than the estimate. */
function likely(state: KernelState, now: number, trans: Translation): string {
  const { standing } = state;
  const range = "wait" in standing ? standing.wait.etaRangeS : undefined;
  if (!range) {
    return "";
  }
  const passed = (now - state.heard) / 1000;
  const [low, high] = range.map((end) => end - passed) as [number, number];
  const [from, to] = [rounded(Math.max(0, low)), rounded(high)];
  if (high < 1 || from === to) {
    return "";
  }
  return from < 1
    ? trans.__("likely at most %1", span(to, trans))
    : trans.__("likely %1 to %2", span(from, trans), span(to, trans));
}

/** How long the cell on this lease may run before it can be parked for others; nothing where it never is. */
export function undisturbed(standing: Standing, now: number, trans: Translation): string | undefined {
  if (standing.state !== "granted" || standing.until === undefined) {
    return undefined;
  }
  const left = standing.until - now / 1000;
  return left < 1
    ? trans.__("no longer: it may be parked while others wait")
    : trans.__("%1 more, then it may be parked while others wait", span(rounded(left), trans));
}

function place(position: number | undefined, need: Need | undefined, trans: Translation): string {
  if (position === undefined) {
    return trans.__("waits for %1", needed(need, trans));
  }
  return position <= 1 ? trans.__("next in the queue") : trans.__("place %1 in the queue", position);
}

/** NVML's "NVIDIA H200 NVL" without the maker. */
function shortModel(model: string): string {
  return model.replace(/^(NVIDIA|Tesla|AMD|Quadro)\s+/i, "");
}

/** The text with a capital letter and a full stop. */
export function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

function join(...parts: string[]): string {
  return parts.filter(Boolean).join(", ");
}
