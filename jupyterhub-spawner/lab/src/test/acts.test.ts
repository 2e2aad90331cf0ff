import assert from "node:assert/strict";
import { it } from "node:test";
import type { Kernel } from "@jupyterlab/services";
import { type Act, carryOut, offered } from "../acts.js";
import type { HopId, JupyterId, KernelRow } from "../api.js";

/** A kernel that came back: its ids differ. */
const HOPS = "hops" as HopId;
const JUPYTERS = "jupyters" as JupyterId;

function row(state: string, here: boolean, kept = false): KernelRow {
  return { id: HOPS, jupyter_id: here ? JUPYTERS : null, path: null, state, kept } as KernelRow;
}

/** Whom the acts of the row ask, with which id. */
async function asked(of: KernelRow): Promise<string[]> {
  const done: string[] = [];
  const manager = {
    shutdown: async (id: string) => void done.push(`DELETE ${id}`),
    connectTo: ({ model }: { model: { id: string } }) => ({
      interrupt: async () => void done.push(`interrupt ${model.id}`),
      dispose: () => void done.push("left"),
    }),
  } as unknown as Kernel.IManager;
  for (const act of offered(of)) {
    await carryOut(act, { act: async (kernel, action) => void done.push(`hop, ${action} ${kernel}`) }, manager);
  }
  return done;
}

it("asks Jupyter by Jupyter's id and hop by its own", async () => {
  for (const state of ["PENDING", "RUNNING"]) {
    assert.deepEqual(await asked(row(state, true)), ["interrupt jupyters", "left", "DELETE jupyters"]);
  }
  assert.deepEqual(await asked(row("LINGERING", true)), ["hop, release hops", "DELETE jupyters"]);
  assert.deepEqual(await asked(row("IDLE", true)), ["DELETE jupyters"]);
  assert.deepEqual(await asked(row("IDLE", true, true)), [
    "hop, hibernate hops",
    "hop, move hops",
    "DELETE jupyters",
  ]);
  assert.deepEqual(await asked(row("ASLEEP", true, true)), ["hop, wake hops", "hop, forget hops"]);
});

it("has hop end a kernel of another server, and offers no interrupt there", async () => {
  for (const state of ["PENDING", "RUNNING", "IDLE", "MOVING"]) {
    assert.deepEqual(await asked(row(state, false)), ["hop, end hops"]);
  }
  assert.deepEqual(await asked(row("LINGERING", false)), ["hop, release hops", "hop, end hops"]);
  assert.deepEqual(await asked(row("ASLEEP", false, true)), ["hop, wake hops", "hop, forget hops"]);
});

it("leaves the connection of an interrupt that failed, and tells why", async () => {
  let left = 0;
  const kernel = { interrupt: () => Promise.reject(new Error("no such kernel")), dispose: () => left++ };
  const manager = { connectTo: () => kernel } as unknown as Kernel.IManager;
  const act: Act = { by: "jupyter", action: "interrupt", kernel: JUPYTERS };
  await assert.rejects(carryOut(act, { act: async () => assert.fail() }, manager), /no such kernel/);
  assert.equal(left, 1);
});
