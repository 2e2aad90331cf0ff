/**
 * How one kernel stands towards its GPU, as a client sees it. Pure: `step` takes a state, an input and the time, and
 * returns the next state and what to tell. Who draws it (badge, line at the cell, panel) and who feeds it
 * (`watcher.ts`) is left to others.
 *
 * Two carriers tell the same. Until the kernel answers the announcement, `status` messages are heard, and the reply or
 * `idle` of the cell ends its wait. From the first notice on the comm on, only the comm is heard: it also tells about cells
 * that didn't wait, about lingering, and after a reload of the page.
 */
import type { Grant, Need, Notice, Standing } from "./notice.js";

/** Times are milliseconds since the epoch. */
export interface KernelState {
  readonly standing: Standing;
  /** When the standing began. */
  readonly since: number;
  /** When the newest notice came: the expected wait counts from here. */
  readonly heard: number;
  /** The msg_id of the request that the standing is about. */
  readonly cell?: string;
  readonly need?: Need;
  readonly account?: string;
  readonly pool?: string;
  /** Why there is no scheduler. */
  readonly away?: string;
  /** Notices come by the comm. */
  readonly announced: boolean;
  /** The notebook's cells of the requests in flight: msg_id to cell id. */
  readonly requests: ReadonlyMap<string, string>;
  /** What the cells of the notebook last ran on, by cell id. */
  readonly ran: ReadonlyMap<string, Ran>;
}

/** A cell that ran on a lease. */
export interface Ran {
  readonly grant: Grant;
  readonly waitedMs: number;
  /** From the start that the kernel reports to its reply; `null` for a kernel that reports none. */
  readonly ranMs: number | null;
}

export type Input =
  /** This client sent a cell. */
  | { readonly kind: "sent"; readonly msgId: string; readonly cellId?: string }
  /** The kernel told how it stands. */
  | { readonly kind: "notice"; readonly notice: Notice; readonly by: "status" | "comm"; readonly parent?: string }
  /** A cell was answered. */
  | { readonly kind: "reply"; readonly msgId: string; readonly grant: Grant | null; readonly ranMs: number | null }
  /** A request is done, whoever sent it. */
  | { readonly kind: "idle"; readonly msgId: string }
  /** The kernel restarted, ended or was exchanged. */
  | { readonly kind: "gone" };

export type Output =
  /** The kernel stands otherwise than before: worth saying aloud. */
  | { readonly kind: "changed"; readonly standing: Standing }
  /** This client sent a cell anew: what it last ran on says nothing of this run. */
  | { readonly kind: "sent"; readonly cellId: string }
  /** A cell ran on a lease. */
  | { readonly kind: "ran"; readonly cellId: string; readonly ran: Ran };

/** The most cells that are remembered of one notebook. */
const REMEMBERED = 2000;

export function fresh(now: number): KernelState {
  return {
    standing: { state: "cpu" },
    since: now,
    heard: now,
    announced: false,
    requests: new Map(),
    ran: new Map(),
  };
}

export function step(state: KernelState, input: Input, now: number): { state: KernelState; outputs: Output[] } {
  const outputs: Output[] = [];
  const next = apply(state, input, now, outputs);
  if (!sameStanding(state.standing, next.standing)) {
    outputs.unshift({ kind: "changed", standing: next.standing });
  }
  return { state: next, outputs };
}

/** The notebook's cell that the standing is about, if this client knows it. */
export function cellOf(state: KernelState): string | undefined {
  return state.cell === undefined ? undefined : state.requests.get(state.cell);
}

/** Whether a cell of this kernel waits. */
export function waits(state: KernelState): boolean {
  const standing = state.standing.state;
  return standing === "queued" || standing === "parked" || standing === "retry";
}

/** What a person is offered to end: the wait of that cell, or the keeping of that lease. */
export type Offer =
  | { readonly kind: "wait"; readonly cell: string | undefined }
  | { readonly kind: "lingering"; readonly lease: number | undefined };

export function offered(state: KernelState): Offer | null {
  if (state.standing.state === "lingering") {
    return { kind: "lingering", lease: state.standing.grant.lease };
  }
  return waits(state) ? { kind: "wait", cell: state.cell } : null;
}

/** Whether an offer that was made before is the one of now. Its cell may run meanwhile, and another one wait. */
export function stillOffered(offer: Offer, state: KernelState): boolean {
  return JSON.stringify(offer) === JSON.stringify(offered(state));
}

/** Tells one wait from all others of the kernel, the same cell's too; `undefined` where no cell waits. */
export function waitOf(state: KernelState): string | undefined {
  return waits(state) ? JSON.stringify([state.standing.state, state.cell, state.since]) : undefined;
}

/** The seconds until the wait is expected to end, or `undefined` while nobody knows. */
export function remaining(state: KernelState, now: number): number | undefined {
  const standing = state.standing;
  if (standing.state === "queued" || standing.state === "parked") {
    const eta = standing.wait.etaS;
    return eta === undefined ? undefined : Math.max(0, eta - (now - state.heard) / 1000);
  }
  const end =
    standing.state === "seat" ? standing.start : standing.state === "lingering" ? standing.until : undefined;
  return end === undefined ? undefined : Math.max(0, end - now / 1000);
}

function apply(state: KernelState, input: Input, now: number, outputs: Output[]): KernelState {
  switch (input.kind) {
    case "sent":
      return input.cellId ? sent(state, input.msgId, input.cellId, outputs) : state;
    case "notice":
      return heard(state, input, now);
    case "reply":
      return replied(state, input, now, outputs);
    case "idle":
      return over(state, input.msgId, now);
    case "gone":
      return { ...fresh(now), ran: state.ran };
  }
}

function sent(state: KernelState, msgId: string, cellId: string, outputs: Output[]): KernelState {
  const ran = new Map(state.ran);
  if (ran.delete(cellId)) {
    outputs.push({ kind: "sent", cellId });
  }
  return { ...state, ran, requests: remember(state.requests, msgId, cellId) };
}

function heard(state: KernelState, input: Input & { kind: "notice" }, now: number): KernelState {
  if (input.by === "status" && state.announced) {
    return state;
  }
  const { notice } = input;
  const cell = notice.cell ?? input.parent;
  const began = notice.since === undefined ? undefined : notice.since * 1000;
  const same = notice.standing.state === state.standing.state && cell === state.cell;
  return {
    ...state,
    standing: notice.standing,
    since: began ?? (same ? state.since : now),
    heard: now,
    cell,
    need: notice.need ?? (same ? state.need : undefined),
    account: notice.account ?? state.account,
    pool: notice.pool ?? state.pool,
    away: notice.away,
    announced: state.announced || input.by === "comm",
    requests: cell && notice.cellId ? remember(state.requests, cell, notice.cellId) : state.requests,
  };
}

function replied(state: KernelState, input: Input & { kind: "reply" }, now: number, outputs: Output[]): KernelState {
  const cellId = state.requests.get(input.msgId);
  let next = over(state, input.msgId, now);
  if (cellId && input.grant) {
    const ran = { grant: input.grant, waitedMs: input.grant.waitedMs ?? 0, ranMs: input.ranMs };
    next = { ...next, ran: remember(next.ran, cellId, ran) };
    outputs.push({ kind: "ran", cellId, ran });
  }
  return next;
}

/** The request is answered. Where only `status` messages tell, its wait or grant is over with it. */
function over(state: KernelState, msgId: string, now: number): KernelState {
  if (state.announced || state.cell !== msgId || state.standing.state === "cpu") {
    return state;
  }
  return { ...state, standing: { state: "cpu" }, since: now, heard: now, cell: undefined, need: undefined };
}

function remember<T>(map: ReadonlyMap<string, T>, key: string, value: T): ReadonlyMap<string, T> {
  const copy = new Map(map);
  copy.delete(key);
  copy.set(key, value);
  if (copy.size > REMEMBERED) {
    copy.delete(copy.keys().next().value as string);
  }
  return copy;
}

/** Equal but for what changes from notice to notice: place, estimate and reason. */
function sameStanding(one: Standing, other: Standing): boolean {
  if (one.state !== other.state) {
    return false;
  }
  if ("grant" in one && "grant" in other) {
    return one.grant.node === other.grant.node && one.grant.gpus.join() === other.grant.gpus.join();
  }
  if (one.state === "moving" && other.state === "moving") {
    return one.to === other.to;
  }
  return true;
}
