import assert from "node:assert/strict";
import { test } from "node:test";
import { due } from "../ending.js";

const NONE = new Set<number>();
const END = 100_000;

test("a server without a limit, or whose end is far, is not told of", () => {
  assert.equal(due(null, END, NONE), null);
  assert.equal(due(END, END - 31 * 60, NONE), null);
  assert.equal(due(END, END + 1, NONE), null);
});

test("each warning comes once, at its time", () => {
  assert.equal(due(END, END - 30 * 60, NONE), 30);
  assert.equal(due(END, END - 20 * 60, new Set([30])), null);
  assert.equal(due(END, END - 5 * 60, new Set([30])), 5);
  assert.equal(due(END, END - 60, new Set([30, 5])), null);
});

test("who comes late hears the warning that is next", () => {
  assert.equal(due(END, END - 3 * 60, NONE), 5);
});
