/**
 * Reads notices: what a kernel's supervisor tells its clients (docs/wiring.md, "Notices"). Pure.
 *
 * Messages come from another program, perhaps of another release. Keys of a wrong type are left out, and a notice with
 * an unknown state is no notice. What a notice means for the kernel is `kernel.ts`'s matter.
 */
import { isObject, type JsonObject } from "./json.js";

/** What a cell asks for. Zero and absent mean that the cell doesn't say. */
export interface Need {
  readonly gpus: number;
  readonly cpus: number;
  /** Slurm's type of the GPU. */
  readonly gpuType?: string;
  readonly gpuMemMib?: number;
}

/** GPUs and cores that are lent. */
export interface Grant {
  readonly node: string;
  /** Slurm's indices of the GPUs on that node. */
  readonly gpus: readonly number[];
  /** The GPUs' names by NVML, in the order of `gpus`. */
  readonly models: readonly string[];
  readonly cores: string;
  readonly lease?: number;
  readonly waitedMs?: number;
}

/** A cell's wait for its lease. */
export interface Wait {
  /** The place in the queue; 1 is next. */
  readonly position?: number;
  readonly reason?: string;
  /** The expected wait in seconds, from the notice on. */
  readonly etaS?: number;
  /** The likely range of the expected wait in seconds. */
  readonly etaRangeS?: readonly [number, number];
  /** Why a parked cell was parked. */
  readonly because?: string;
}

/** How a kernel stands towards its GPU. Times are seconds since the epoch. */
export type Standing =
  | { readonly state: "cpu" }
  | { readonly state: "seat"; readonly reason?: string; readonly start?: number }
  | { readonly state: "queued" | "parked"; readonly wait: Wait }
  | { readonly state: "granted" | "lingering"; readonly grant: Grant; readonly until?: number }
  | { readonly state: "revoked" | "retry"; readonly reason?: string }
  | { readonly state: "moving"; readonly to?: string; readonly reason?: string };

export type State = Standing["state"];

export interface Notice {
  readonly standing: Standing;
  /** The msg_id of the execute_request that the notice is about. */
  readonly cell?: string;
  /** The notebook's id of that cell. */
  readonly cellId?: string;
  readonly need?: Need;
  readonly since?: number;
  readonly account?: string;
  readonly pool?: string;
  /** Why there is no scheduler; absent while it answers. */
  readonly away?: string;
}

/** The notice in a message's `metadata`, or `null` when there is none. */
export function ofMetadata(metadata: unknown): Notice | null {
  return isObject(metadata) ? parse(metadata.gresshopper) : null;
}

/** The notice in a JSON value, or `null` when the value is none. */
export function parse(value: unknown): Notice | null {
  if (!isObject(value)) {
    return null;
  }
  const standing = standingOf(value);
  return (
    standing && {
      standing,
      cell: text(value.cell),
      cellId: text(value.cell_id),
      need: needOf(value.need),
      since: number(value.since),
      account: text(value.account),
      pool: text(value.pool),
      away: text(value.away),
    }
  );
}

/** The grant in an execute_reply's `metadata`, or `null` for a cell without a lease. */
export function grantOfReply(metadata: unknown): Grant | null {
  const ours = isObject(metadata) ? metadata.gresshopper : null;
  return isObject(ours) && ours.lease !== undefined ? grantOf(ours) : null;
}

/** What a need asks for, read from metadata. */
export function needOf(value: unknown): Need | undefined {
  if (!isObject(value)) {
    return undefined;
  }
  return {
    gpus: number(value.gpus) ?? 0,
    cpus: number(value.cpus) ?? 0,
    gpuType: text(value.gpu_type),
    gpuMemMib: number(value.gpu_mem_mib) || undefined,
  };
}

function standingOf(wire: JsonObject): Standing | null {
  const reason = text(wire.reason);
  switch (wire.state) {
    case "cpu":
      return { state: "cpu" };
    case "seat":
      return { state: "seat", reason, start: number(wire.start) };
    case "queued":
    case "parked":
      return { state: wire.state, wait: waitOf(wire) };
    case "granted":
    case "lingering":
      return { state: wire.state, grant: grantOf(wire), until: number(wire.until) };
    case "revoked":
    case "retry":
      return { state: wire.state, reason };
    case "moving":
      return { state: "moving", to: text(wire.to), reason };
    default:
      return null;
  }
}

function waitOf(wire: JsonObject): Wait {
  return {
    position: number(wire.position),
    reason: text(wire.reason),
    etaS: number(wire.eta_s),
    etaRangeS: range(wire.eta_range_s),
    because: text(wire.because),
  };
}

function grantOf(wire: JsonObject): Grant {
  return {
    node: text(wire.node) ?? "",
    gpus: list(wire.gpus, number),
    models: list(wire.models, (name) => text(name) ?? ""),
    cores: text(wire.cores) ?? "",
    lease: number(wire.lease),
    waitedMs: number(wire.waited_ms),
  };
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function number(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : undefined;
}

function list<T>(value: unknown, read: (item: unknown) => T | undefined): T[] {
  return Array.isArray(value) ? value.map(read).filter((item): item is T & {} => item !== undefined) : [];
}

function range(value: unknown): readonly [number, number] | undefined {
  const [low, high] = list(value, number);
  return low !== undefined && high !== undefined && low <= high ? [low, high] : undefined;
}
