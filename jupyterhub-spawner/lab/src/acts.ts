/**
 * What can be done to the kernels of the panel, and who does it. A kernel of this server is interrupted and ended by
 * Jupyter, with Jupyter's id; all else is done by `hop`, with its own. No wrong pair can be written.
 */
import type { Kernel } from "@jupyterlab/services";
import type { Action, Api, HopId, JupyterId, KernelRow } from "./api.js";

export type Act =
  | { readonly by: "jupyter"; readonly action: "interrupt" | "end"; readonly kernel: JupyterId }
  | { readonly by: "hop"; readonly action: Action; readonly kernel: HopId };

/** What is offered at the kernel's row, in the order of the buttons. */
export function offered(row: KernelRow): Act[] {
  const hop = (action: Action): Act => ({ by: "hop", action, kernel: row.id });
  const acts: Act[] = [];
  if (row.state === "LINGERING") {
    acts.push(hop("release"));
  }
  // `hop` interrupts no cell: who is at another server does it there.
  if (row.jupyter_id !== null && (row.state === "PENDING" || row.state === "RUNNING")) {
    acts.push({ by: "jupyter", action: "interrupt", kernel: row.jupyter_id });
  }
  if (row.kept && row.state === "IDLE") {
    acts.push(hop("hibernate"), hop("move"));
  }
  if (row.state === "ASLEEP") {
    acts.push(hop("wake"), hop("forget"));
  } else if (row.jupyter_id !== null) {
    acts.push({ by: "jupyter", action: "end", kernel: row.jupyter_id });
  } else {
    acts.push(hop("end"));
  }
  return acts;
}

/** Has it done. */
export async function carryOut(act: Act, api: Pick<Api, "act">, kernels: Kernel.IManager): Promise<void> {
  if (act.by === "hop") {
    await api.act(act.kernel, act.action);
  } else if (act.action === "end") {
    await kernels.shutdown(act.kernel);
  } else {
    const kernel = kernels.connectTo({ model: { id: act.kernel, name: "" } });
    try {
      await kernel.interrupt();
    } finally {
      kernel.dispose();
    }
  }
}
