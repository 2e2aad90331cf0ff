import assert from "node:assert/strict";
import { describe, it } from "node:test";
import {
  cellOf,
  fresh,
  type Input,
  type KernelState,
  type Offer,
  type Output,
  offered,
  remaining,
  step,
  stillOffered,
  waitOf,
  waits,
} from "../kernel.js";
import { type Grant, ofMetadata, parse } from "../notice.js";

const GRANT: Grant = { node: "n3", gpus: [1], models: ["NVIDIA H200"], cores: "", lease: 7, waitedMs: 40_000 };

/** What holds of every state. */
function sanityCheck(state: KernelState): void {
  assert.ok(state.heard >= 0 && state.since >= 0);
  if (waits(state) && !state.announced) {
    assert.ok(state.cell, "a wait told by a status message has the cell that it is about");
  }
  assert.ok(state.requests.size <= 2000 && state.ran.size <= 2000);
}

class Run {
  state = fresh(0);
  now = 0;

  /** Gives the input at that second, and returns what was put out. */
  at(second: number, input: Input): Output[] {
    this.now = second * 1000;
    const { state, outputs } = step(this.state, input, this.now);
    this.state = state;
    sanityCheck(state);
    return outputs;
  }
}

function notice(wire: Record<string, unknown>, by: "status" | "comm" = "status", parent = "m1"): Input {
  const found = parse(wire);
  assert.ok(found);
  return { kind: "notice", notice: found, by, parent };
}

function names(outputs: Output[]): string[] {
  return outputs.map((output) => (output.kind === "changed" ? output.standing.state : output.cellId));
}

describe("by status messages alone", () => {
  it("goes from queued to granted to CPU", () => {
    const run = new Run();
    assert.deepEqual(run.at(0, { kind: "sent", msgId: "m1", cellId: "c1" }), []);
    assert.deepEqual(names(run.at(1, notice({ state: "queued", position: 2, eta_s: 30 }))), ["queued"]);
    assert.equal(cellOf(run.state), "c1");
    assert.equal(remaining(run.state, 11_000), 20);
    assert.deepEqual(
      run.at(12, notice({ state: "queued", position: 1, eta_s: 5 })),
      [],
      "a new place is no new standing",
    );
    assert.equal(run.state.since, 1000);
    assert.equal(remaining(run.state, 60_000), 0, "an estimate never goes below zero");
    assert.deepEqual(names(run.at(20, notice({ state: "granted", node: "n3", gpus: [1] }))), ["granted"]);
    const outputs = run.at(30, { kind: "reply", msgId: "m1", grant: GRANT, ranMs: 10_000 });
    assert.deepEqual(names(outputs), ["cpu", "c1"]);
    assert.deepEqual(run.state.ran.get("c1"), { grant: GRANT, waitedMs: 40_000, ranMs: 10_000 });
    assert.deepEqual(run.at(31, { kind: "idle", msgId: "m1" }), []);
  });

  it("ends a wait that another client sees answered by idle", () => {
    const run = new Run();
    run.at(1, notice({ state: "queued" }));
    assert.equal(cellOf(run.state), undefined, "the cell is of another client");
    assert.deepEqual(run.at(2, { kind: "idle", msgId: "other" }), []);
    assert.deepEqual(names(run.at(3, { kind: "idle", msgId: "m1" })), ["cpu"]);
  });

  it("forgets the wait of an interrupted cell without a lease", () => {
    const run = new Run();
    run.at(0, { kind: "sent", msgId: "m1", cellId: "c1" });
    run.at(1, notice({ state: "queued", need: { gpus: 2 } }));
    assert.deepEqual(names(run.at(2, { kind: "reply", msgId: "m1", grant: null, ranMs: null })), ["cpu"]);
    assert.equal(run.state.ran.size, 0);
    assert.equal(run.state.need, undefined);
  });

  it("forgets what a cell ran on when the cell is sent anew", () => {
    const run = new Run();
    for (const [msgId, cellId] of [
      ["m1", "c1"],
      ["m2", "c2"],
    ] as const) {
      run.at(0, { kind: "sent", msgId, cellId });
      run.at(1, { kind: "reply", msgId, grant: GRANT, ranMs: 1 });
    }
    assert.deepEqual(run.at(2, { kind: "sent", msgId: "m3", cellId: "c1" }), [{ kind: "sent", cellId: "c1" }]);
    assert.deepEqual([...run.state.ran.keys()], ["c2"]);
    assert.deepEqual(run.at(3, { kind: "reply", msgId: "m3", grant: null, ranMs: 1 }), [], "it ran on no lease");
    assert.deepEqual([...run.state.ran.keys()], ["c2"]);
    assert.deepEqual(run.at(4, { kind: "sent", msgId: "m4", cellId: "c1" }), [], "there is nothing to forget");
  });

  it("forgets all but what ran when the kernel restarts", () => {
    const run = new Run();
    run.at(0, { kind: "sent", msgId: "m1", cellId: "c1" });
    run.at(1, { kind: "reply", msgId: "m1", grant: GRANT, ranMs: 1 });
    run.at(2, notice({ state: "parked", because: "others wait" }, "status", "m2"));
    assert.deepEqual(names(run.at(3, { kind: "gone" })), ["cpu"]);
    assert.deepEqual([...run.state.ran.keys()], ["c1"]);
    assert.equal(run.state.requests.size, 0);
  });
});

describe("once announced", () => {
  it("hears the comm alone", () => {
    const run = new Run();
    run.at(0, { kind: "sent", msgId: "m1", cellId: "c1" });
    assert.deepEqual(run.at(0, notice({ state: "cpu" }, "comm")), []);
    assert.deepEqual(run.at(1, notice({ state: "queued" })), [], "the same comes by the comm");
    assert.deepEqual(names(run.at(1, notice({ state: "queued", cell: "m1" }, "comm"))), ["queued"]);
    assert.deepEqual(names(run.at(2, notice({ state: "granted", cell: "m1", ...wire(GRANT) }, "comm"))), ["granted"]);
    assert.deepEqual(
      names(run.at(3, { kind: "reply", msgId: "m1", grant: GRANT, ranMs: 5 })),
      ["c1"],
      "it lingers still",
    );
    assert.deepEqual(names(run.at(3, notice({ state: "lingering", until: 9, ...wire(GRANT) }, "comm"))), [
      "lingering",
    ]);
    assert.equal(remaining(run.state, 4000), 5);
    assert.deepEqual(names(run.at(9, notice({ state: "cpu" }, "comm"))), ["cpu"]);
  });

  it("finds the cell again after a reload", () => {
    const run = new Run();
    const told = notice({ state: "queued", cell: "m0", cell_id: "c9", since: 3, position: 1 }, "comm");
    assert.deepEqual(names(run.at(100, told)), ["queued"]);
    assert.equal(cellOf(run.state), "c9");
    assert.equal(run.state.since, 3000);
  });

  it("tells another GPU as a change", () => {
    const run = new Run();
    run.at(1, notice({ state: "granted", cell: "m1", ...wire(GRANT) }, "comm"));
    assert.deepEqual(run.at(2, notice({ state: "granted", cell: "m1", until: 60, ...wire(GRANT) }, "comm")), []);
    const elsewhere = notice({ state: "granted", cell: "m1", node: "n4", gpus: [1] }, "comm");
    assert.deepEqual(names(run.at(3, elsewhere)), ["granted"]);
  });

  it("counts down to the start of a seat, as to the end of each other wait", () => {
    const run = new Run();
    run.at(1, notice({ state: "seat" }, "comm"));
    assert.equal(remaining(run.state, 1000), undefined, "nobody knows");
    run.at(2, notice({ state: "seat", start: 300 }, "comm"));
    assert.deepEqual([remaining(run.state, 60_000), remaining(run.state, 301_000)], [240, 0]);
  });

  it("keeps why there is no scheduler until it answers", () => {
    const run = new Run();
    run.at(1, notice({ state: "cpu", away: "hopd is down" }, "comm"));
    assert.equal(run.state.away, "hopd is down");
    run.at(2, notice({ state: "cpu" }, "comm"));
    assert.equal(run.state.away, undefined);
  });
});

describe("what is offered", () => {
  const queued = (cell: string) => notice({ state: "queued", cell }, "comm");

  it("to end a wait is no offer to end the cell, or another one's wait", () => {
    const run = new Run();
    assert.equal(offered(run.state), null);
    run.at(1, queued("m1"));
    const offer = offered(run.state) as Offer;
    assert.deepEqual(offer, { kind: "wait", cell: "m1" });
    run.at(2, notice({ state: "queued", cell: "m1", position: 1 }, "comm"));
    assert.ok(stillOffered(offer, run.state), "another place is the same wait");
    run.at(3, notice({ state: "granted", cell: "m1", ...wire(GRANT) }, "comm"));
    assert.ok(!stillOffered(offer, run.state), "the cell runs");
    run.at(4, notice({ state: "parked", cell: "m1" }, "comm"));
    assert.ok(stillOffered(offer, run.state), "the cell waits once more");
    run.at(5, queued("m2"));
    assert.ok(!stillOffered(offer, run.state), "another cell waits");
    run.at(6, { kind: "gone" });
    assert.ok(!stillOffered(offer, run.state), "the kernel is gone");
  });

  it("to release a lease is an offer for that lease alone", () => {
    const run = new Run();
    run.at(1, notice({ state: "lingering", ...wire(GRANT) }, "comm"));
    const offer = offered(run.state) as Offer;
    assert.deepEqual(offer, { kind: "lingering", lease: 7 });
    assert.ok(stillOffered(offer, run.state));
    run.at(2, notice({ state: "granted", cell: "m1", ...wire(GRANT) }, "comm"));
    assert.ok(!stillOffered(offer, run.state), "a cell took it over");
    run.at(3, notice({ state: "lingering", ...wire({ ...GRANT, lease: 8 }) }, "comm"));
    assert.ok(!stillOffered(offer, run.state), "another lease is kept");
  });

  it("has a reason that is told for one wait alone", () => {
    const run = new Run();
    assert.equal(waitOf(run.state), undefined);
    run.at(1, queued("m1"));
    const first = waitOf(run.state);
    assert.ok(first);
    run.at(2, notice({ state: "queued", cell: "m1", position: 1 }, "comm"));
    assert.equal(waitOf(run.state), first, "another place is the same wait");
    run.at(3, notice({ state: "granted", cell: "m1", ...wire(GRANT) }, "comm"));
    assert.equal(waitOf(run.state), undefined);
    const told: (string | undefined)[] = [first];
    for (const [second, input] of [
      [4, notice({ state: "parked", cell: "m1" }, "comm")],
      [5, queued("m1")],
      [6, queued("m2")],
    ] as const) {
      run.at(second, input);
      told.push(waitOf(run.state));
    }
    assert.equal(new Set(told).size, 4);
  });
});

describe("notices", () => {
  it("are nothing where the message is not ours", () => {
    for (const metadata of [
      undefined,
      null,
      "x",
      [],
      {},
      { gresshopper: 1 },
      { gresshopper: { state: "dancing" } },
    ]) {
      assert.equal(ofMetadata(metadata), null);
    }
  });

  it("leave out what has the wrong type", () => {
    const found = parse({
      state: "queued",
      position: "first",
      reason: 7,
      eta_s: Number.NaN,
      eta_range_s: [9, 3],
      need: [],
      cell: null,
      since: -1,
    });
    const wait = {
      position: undefined,
      reason: undefined,
      etaS: undefined,
      etaRangeS: undefined,
      because: undefined,
    };
    assert.deepEqual(found?.standing, { state: "queued", wait });
    assert.deepEqual([found?.need, found?.cell, found?.since], [undefined, undefined, undefined]);
  });
});

it("holds what must be true through any order of inputs", () => {
  let seed = 7;
  const random = (n: number) => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    return Math.floor((seed / 2 ** 31) * n);
  };
  const states = ["cpu", "seat", "queued", "parked", "granted", "lingering", "revoked", "moving", "retry"];
  for (let round = 0; round < 200; round++) {
    const run = new Run();
    for (let second = 0; second < 50; second++) {
      const msgId = `m${random(4)}`;
      const inputs: Input[] = [
        { kind: "sent", msgId, cellId: random(2) ? `c${random(3)}` : undefined },
        notice({ state: states[random(9)], eta_s: random(99) }, random(4) ? "status" : "comm", msgId),
        { kind: "reply", msgId, grant: random(2) ? GRANT : null, ranMs: random(2) ? 5 : null },
        { kind: "idle", msgId },
        { kind: "gone" },
      ];
      const before = run.state;
      const outputs = run.at(second, inputs[random(5)] as Input);
      const changes = outputs.filter((output) => output.kind === "changed").length;
      assert.ok(changes <= 1);
      assert.ok(changes === 1 || before.standing.state === run.state.standing.state, "each change of state is told");
    }
  }
});

function wire(grant: Grant): Record<string, unknown> {
  return { node: grant.node, gpus: grant.gpus, models: grant.models, lease: grant.lease };
}
