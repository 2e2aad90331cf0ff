import assert from "node:assert/strict";
import { it } from "node:test";
import type { KernelRow } from "../api.js";
import { noted, points } from "../sparkline.js";

const row = (id: string, memory_mib: number | null, gpu_percent: number | null = null) =>
  ({ id, memory_mib, gpu_percent }) as KernelRow;

it("keeps the last figures of the kernels that say some", () => {
  let history = noted(new Map(), [row("a", 1), row("b", 2), row("c", null)], "memory_mib");
  history = noted(history, [row("a", 3), row("b", null)], "memory_mib");
  assert.deepEqual([...history], [["a", [1, 3]]]);
  for (let n = 0; n < 100; n++) {
    history = noted(history, [row("a", n)], "memory_mib");
  }
  assert.equal(history.get("a")?.length, 60);
  assert.equal(history.get("a")?.at(-1), 99);
});

it("keeps each figure by itself", () => {
  assert.deepEqual([...noted(new Map(), [row("a", 1, 37), row("b", 2)], "gpu_percent")], [["a", [37]]]);
});

it("draws the newest on the right and the limit at the top", () => {
  assert.equal(points([0, 512], 1024, 59, 16), "58.0,16.0 59.0,8.0");
  assert.equal(points([4096], 1024, 59, 16), "59.0,0.0", "never out of the field");
});
