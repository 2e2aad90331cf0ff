import assert from "node:assert/strict";
import { test } from "node:test";
import { due, look, NOTHING_TOLD, type Output } from "../ending.js";

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

/** What is put out at each look at that end. */
function looks(...at: [endsS: number | null, nowS: number][]): Output[][] {
  let told = NOTHING_TOLD;
  return at.map(([endsS, nowS]) => {
    const next = look(told, endsS, nowS);
    told = next.told;
    assert.equal(told.endsS, endsS);
    return next.outputs;
  });
}

test("a notice stands until the next one", () => {
  const warn = { kind: "warn", endsS: END };
  assert.deepEqual(
    looks([END, END - 3600], [END, END - 1700], [END, END - 1640], [END, END - 290], [END, END - 230], [END, END]),
    [[], [warn], [], [{ kind: "dismiss" }, warn], [], []],
  );
});

test("a notice of an end that is another one now is taken away", () => {
  const told: [number, number] = [END, END - 1700];
  const warn = (endsS: number): Output => ({ kind: "warn", endsS });
  assert.deepEqual(looks(told, [END + 3600, END - 1640], [END + 3600, END - 1580]), [
    [warn(END)],
    [{ kind: "dismiss" }],
    [],
  ]);
  assert.deepEqual(looks(told, [null, END - 1640], [null, END - 1580]), [[warn(END)], [{ kind: "dismiss" }], []]);
  const later = END + 60;
  assert.deepEqual(looks(told, [later, END - 1640], [later, END - 1580]), [
    [warn(END)],
    [{ kind: "dismiss" }, warn(later)],
    [],
  ]);
  assert.deepEqual(looks([null, 1], [null, 2], [END, 3]), [[], [], []]);
});
