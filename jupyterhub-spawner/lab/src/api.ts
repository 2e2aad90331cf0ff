/** The server extension's answers (`gresshopper_jupyter/server/`): what `hop` says of one's own kernels. */
import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";

const ROOT = "gresshopper/api/v1";

declare const whose: unique symbol;
/** `hop`'s id of a kernel, from its first start on. */
export type HopId = string & { readonly [whose]: "hop" };
/** Jupyter's id of a kernel of this server. A kernel that was saved gets a new one. */
export type JupyterId = string & { readonly [whose]: "Jupyter" };

/** A kernel of this user's, on whichever server it was started. */
export interface KernelRow {
  readonly id: HopId;
  /** `null` for a kernel of another server. */
  readonly jupyter_id: JupyterId | null;
  /** The notebook's file name. */
  readonly name: string;
  /** The notebook's path on this server; `null` for a kernel of another server, or without a notebook. */
  readonly path: string | null;
  /** `IDLE`, or the state that `hop queue` or `hop kernels` shows: `PENDING`, `RUNNING`, `LINGERING`, `ASLEEP` .. */
  readonly state: string;
  /** How long in this state, in seconds. */
  readonly time_s: number | null;
  readonly node: string | null;
  readonly gpus: string | null;
  readonly lease: number | null;
  readonly position: number | null;
  readonly estimate_s: number | null;
  readonly reason: string | null;
  /** Whether its state is saved, so that it can sleep and move. */
  readonly kept: boolean;
  /** What its processes use now, by its own word; `null` where it doesn't say. */
  readonly memory_mib: number | null;
  readonly cpu_percent: number | null;
  /** The memory that they may use. */
  readonly limit_mib: number | null;
  /** What its lent GPUs do now and the memory in use there, all together; `null` without any, or where they don't say. */
  readonly gpu_percent: number | null;
  readonly gpu_memory_mib: number | null;
  readonly gpu_total_mib: number | null;
  /** This week's use. */
  readonly week: { readonly gpu_s: number; readonly wait_s: number };
}

export interface Overview {
  readonly kernels: readonly KernelRow[];
  /** The end of this server's job in seconds since the epoch; `null` without a limit. */
  readonly server_ends: number | null;
  /** Why the scheduler doesn't answer; `null` while it does. */
  readonly away: string | null;
}

/** What `hop` does to a kernel, or to its lease. */
export type Action = "release" | "end" | "hibernate" | "wake" | "move" | "forget";

export class Api {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  overview(): Promise<Overview> {
    return this._ask<Overview>("kernels", "GET");
  }

  /** Why the kernel's cell waits, in sentences. */
  async explain(kernel: JupyterId): Promise<readonly string[]> {
    const path = URLExt.join("kernels", encodeURIComponent(kernel), "explanation");
    return (await this._ask<{ sentences: string[] }>(path, "GET")).sentences;
  }

  /** Asks Slurm for more time for the server's job. The new end; an error says why there is none. */
  async moreTime(): Promise<number | null> {
    return (await this._ask<{ server_ends: number | null }>("server/more-time", "POST")).server_ends;
  }

  async act(kernel: HopId, action: Action): Promise<void> {
    await this._send(URLExt.join("kernels", encodeURIComponent(kernel), action), "POST");
  }

  private async _ask<T>(path: string, method: string): Promise<T> {
    return (await (await this._send(path, method)).json()) as T;
  }

  private async _send(path: string, method: string): Promise<Response> {
    const url = URLExt.join(this._settings.baseUrl, ROOT, path);
    const response = await ServerConnection.makeRequest(url, { method }, this._settings);
    if (!response.ok) {
      throw await ServerConnection.ResponseError.create(response);
    }
    return response;
  }
}
