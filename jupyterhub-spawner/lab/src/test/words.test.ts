import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fresh, type KernelState, step } from "../kernel.js";
import { parse } from "../notice.js";
import {
  aboutText,
  badge,
  clock,
  droppedLine,
  fitted,
  gpuText,
  ranLine,
  span,
  type Translation,
  undisturbed,
  waitLine,
} from "../words.js";

/** As JupyterLab's bundle does it for a language without a translation. */
const trans: Translation = {
  __: (text, ...values) => text.replace(/%(\d)/g, (_, n) => String(values[Number(n) - 1])),
  _n: (one, many, n, ...values) => trans.__(n === 1 ? one : many, n, ...values),
};

function told(wire: Record<string, unknown>): KernelState {
  const notice = parse(wire);
  assert.ok(notice);
  return step(fresh(0), { kind: "notice", notice, by: "comm" }, 0).state;
}

describe("the badge", () => {
  const cases: [Record<string, unknown>, string][] = [
    [{ state: "cpu" }, "CPU"],
    [{ state: "cpu", away: "hopd is down" }, "CPU, no GPU service"],
    [{ state: "seat" }, "kernel waits for a node"],
    [{ state: "queued" }, "waits for a GPU"],
    [{ state: "queued", need: { gpus: 2 } }, "waits for 2 GPUs"],
    [{ state: "queued", position: 1 }, "next in the queue"],
    [{ state: "queued", position: 3, eta_s: 41 }, "place 3 in the queue, about 40 s"],
    [{ state: "parked", eta_s: 118 }, "parked for others, on in about 2 min"],
    [{ state: "granted", node: "n3", gpus: [1], models: ["NVIDIA H200"] }, "n3, GPU 1 (H200)"],
    [{ state: "granted", node: "n3", gpus: [0, 1], models: ["NVIDIA H200", "NVIDIA H200"] }, "n3, GPUs 0, 1 (H200)"],
    [{ state: "granted", node: "n3", gpus: [], cores: "4-7" }, "n3, cores 4-7"],
    [{ state: "lingering", node: "n3", gpus: [1], until: 3.2 }, "n3, GPU 1, kept 4 s more"],
    [{ state: "lingering", node: "n3", gpus: [1], until: 0 }, "n3, GPU 1, kept a moment"],
    [{ state: "lingering", node: "n3", gpus: [1] }, "n3, GPU 1, kept a moment"],
    [{ state: "revoked" }, "GPU taken away"],
    [{ state: "retry" }, "waits to run again"],
    [{ state: "moving", to: "n5" }, "moving to n5"],
  ];
  for (const [wire, text] of cases) {
    it(`says “${text}”`, () => assert.equal(badge(told(wire), 0, trans), text));
  }

  it("counts down between notices", () => {
    assert.equal(
      badge(told({ state: "queued", position: 1, eta_s: 8 }), 5000, trans),
      "next in the queue, about 3 s",
    );
    assert.equal(badge(told({ state: "queued", position: 1, eta_s: 8 }), 9000, trans), "next in the queue");
  });
});

it("says at the cell what it waits for, and why", () => {
  const wire = {
    state: "queued",
    need: { gpus: 1, gpu_type: "a100" },
    position: 1,
    eta_s: 70,
    reason: "all are in use",
  };
  const text = "Waits for 1 GPU (a100), next in the queue, about 1 min. All are in use.";
  assert.equal(waitLine(told(wire), 0, trans), text);
  assert.equal(waitLine(told({ state: "queued" }), 0, trans), "Waits for a GPU.");
  const parked = { state: "parked", because: "the cell ran for an hour and two others wait", eta_s: 600 };
  const said = "Parked in its middle, about 10 min. The cell ran for an hour and two others wait.";
  assert.equal(waitLine(told(parked), 0, trans), said);
});

it("says why a GPU was taken away", () => {
  const line = (wire: Record<string, unknown>) => waitLine(told({ state: "revoked", ...wire }), 0, trans);
  assert.equal(line({}), "The GPU was taken away.");
  assert.equal(line({ reason: "the lease was cancelled" }), "The GPU was taken away. The lease was cancelled.");
});

it("says why a cell doesn't run again yet", () => {
  const wire = { state: "retry", reason: "its former run may not have ended on the node that was lost" };
  const said = "The cell waits to run again. Its former run may not have ended on the node that was lost.";
  assert.equal(waitLine(told(wire), 0, trans), said);
});

it("says what a kernel without a node waits for", () => {
  const line = (wire: Record<string, unknown>) => waitLine(told({ state: "seat", ...wire }), 0, trans);
  assert.equal(line({}), "The kernel waits for a node.");
  const text = "The kernel waits for a node, expected in about 5 min. No node has room.";
  assert.equal(line({ reason: "no node has room", start: 300 }), text);
  assert.equal(line({ start: 0.5 }), "The kernel waits for a node.");
});

it("says the likely range of a wait, as long as that says more than the estimate", () => {
  const line = (range: [number, number], now = 0) =>
    waitLine(told({ state: "queued", need: { gpus: 1 }, eta_s: 40, eta_range_s: range }), now, trans);
  assert.equal(line([20, 92]), "Waits for 1 GPU, about 40 s, likely 20 s to 1 min 30 s.");
  assert.equal(line([20, 92], 25_000), "Waits for 1 GPU, about 15 s, likely at most 1 min.");
  assert.equal(line([39, 41]), "Waits for 1 GPU, about 40 s.");
  assert.equal(line([20, 92], 95_000), "Waits for 1 GPU.");
});

it("says how long a cell runs undisturbed", () => {
  const granted = (until?: number) => undisturbed(told({ state: "granted", node: "n3", until }).standing, 0, trans);
  assert.equal(granted(), undefined, "for ever");
  assert.equal(granted(1234), "21 min more, then it may be parked while others wait");
  assert.equal(granted(0.5), "no longer: it may be parked while others wait");
});

it("says what a cell ran on", () => {
  const grant = { node: "n3", gpus: [1], models: [], cores: "" };
  assert.equal(ranLine({ grant, waitedMs: 40_000, ranMs: 12_340 }, trans), "Ran 12 s, waited 40 s, on n3, GPU 1.");
  assert.equal(ranLine({ grant, waitedMs: 0, ranMs: null }, trans), "Waited 0 s, ran on n3, GPU 1.");
});

describe("lengths", () => {
  const spans: [number, string][] = [
    [-3, "0 s"],
    [0.26, "0.3 s"],
    [9, "9 s"],
    [59.6, "1 min"],
    [61, "1 min 1 s"],
    [3600, "1 h 0 min"],
    [86_399, "23 h 59 min"],
  ];
  for (const [seconds, text] of spans) {
    it(`${seconds} s is “${text}”`, () => assert.equal(span(seconds, trans), text));
  }
  const rough: [number, string][] = [
    [0.4, "a moment"],
    [7.2, "about 7 s"],
    [43, "about 45 s"],
    [100, "about 1 min 30 s"],
    [1234, "about 21 min"],
    [8000, "about 2 h 15 min"],
  ];
  for (const [seconds, text] of rough) {
    it(`roughly ${seconds} s is “${text}”`, () => assert.equal(aboutText(seconds, trans), text));
  }
});

it("says what the lent GPUs do, as far as they say it", () => {
  assert.equal(gpuText(37.4, 3277, 40960, trans), "GPU 37 %, 3.2 of 40.0 GiB");
  assert.equal(gpuText(0, null, null, trans), "GPU 0 %");
  assert.equal(gpuText(null, 512, null, trans), "GPU, 0.5 GiB");
});

it("says how many outputs were not kept", () => {
  assert.match(droppedLine(1, trans), /^gresshopper: the oldest output of this cell was too large/);
  assert.match(droppedLine(12, trans), /^gresshopper: the oldest 12 outputs of this cell were too many/);
});

it("says a time of today by the clock, and another one with its day", () => {
  const now = new Date(2026, 10, 29, 23, 40).getTime();
  const at = (day: number, hour: number) => clock(new Date(2026, 10, day, hour, 5).getTime() / 1000, now);
  assert.match(at(29, 23), /^\d+:05(\s\w+)?$/);
  assert.match(at(30, 0), /30.*\d+:05(\s\w+)?$/);
});

describe("a notice", () => {
  it("is whole where there is room", () => {
    for (const text of ["", "Done.", "x".repeat(140)]) {
      assert.equal(fitted(text), text);
    }
  });

  it("is never longer than what is shown", () => {
    assert.equal(fitted("x".repeat(141)), `${"x".repeat(139)}…`);
    const name = "a-long-name-".repeat(12);
    assert.equal(
      fitted(`A cell of ${name}`),
      `A cell of ${name}`.slice(0, 139).concat("…"),
      "a name may be one word",
    );
    for (let odd = 0; odd < 2; odd++) {
      const shown = fitted("x".repeat(odd) + "😀".repeat(90));
      assert.ok(shown.length <= 140);
      assert.ok(!/[\uD800-\uDBFF]…$/.test(shown), "half a character");
    }
  });
});
