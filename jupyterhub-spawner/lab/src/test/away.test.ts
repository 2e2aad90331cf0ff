import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Away, type KeptCell, keptCell, type Message, type Output } from "../away.js";

const CODE = "loop()";
const REPLY = { status: "ok", execution_count: 7 };

function text(line: string): Message {
  return { type: "stream", content: { name: "stdout", text: line } };
}

function status(state: string): Message {
  return { type: "status", content: { execution_state: state } };
}

function display(type: string, shown: string): Message {
  return { type, content: { data: { "text/plain": shown }, transient: { display_id: "d" } } };
}

function kept(over: Partial<KeptCell> = {}): KeptCell {
  return { id: "m1", cellId: "c1", code: CODE, heard: 3, dropped: 0, outputs: [text("1")], reply: null, ...over };
}

/** What is put out, in words. */
function names(outputs: Output[]): string[] {
  return outputs.map((output) => {
    switch (output.kind) {
      case "take":
        return `take ${output.cell.id}`;
      case "show": {
        const { data, text: line } = output.message.content as { data?: object; text?: string };
        return `show ${output.id} ${output.message.type} ${line ?? JSON.stringify(data)}`;
      }
      case "ask":
        return "ask";
      default:
        return `${output.kind} ${output.id}`;
    }
  });
}

/** This page runs a cell to its end. */
function runs(away: Away, id: string): string[] {
  away.sent(id);
  const outputs = [
    ...away.heard(id, status("busy")),
    ...away.heard(id, text("1")),
    ...away.heard(id, status("idle")),
    ...away.replied(id),
  ];
  return names(outputs);
}

describe("a page that was never away", () => {
  it("tells that it has shown a cell, and leaves the cell alone", () => {
    const away = new Away();
    assert.deepEqual(runs(away, "m1"), ["seen m1"]);
    assert.deepEqual(names(away.kept(kept({ reply: REPLY }), CODE)), ["seen m1"], "its word was not heard yet");
    assert.deepEqual(away.ended("m1", REPLY), []);
  });

  it("changes nothing after a lost connection that cost nothing", () => {
    const away = new Away();
    away.sent("m1");
    away.heard("m1", status("busy"));
    away.heard("m1", text("1"));
    assert.deepEqual(away.kept(kept({ heard: 2 }), CODE), []);
    assert.deepEqual(away.heard("m1", text("2")), [], "JupyterLab shows it");
    away.replied("m1");
    assert.deepEqual(names(away.heard("m1", status("idle"))), ["seen m1"]);
  });

  it("takes its own cell over where the lost connection cost something", () => {
    const away = new Away();
    away.sent("m1");
    away.heard("m1", status("busy"));
    assert.deepEqual(names(away.kept(kept({ heard: 2 }), CODE)), ["take m1", "show m1 stream 1"]);
    assert.deepEqual(names(away.heard("m1", text("2"))), ["show m1 stream 2"]);
    assert.deepEqual(away.replied("m1"), [], "JupyterLab has no cell for it any more");
    assert.deepEqual(names(away.ended("m1", REPLY)), ["end m1", "seen m1"]);

    const silent = new Away();
    silent.sent("m1");
    for (const message of [status("busy"), text("1"), status("idle")]) {
      silent.heard("m1", message);
    }
    const outputs = names(silent.kept(kept({ reply: REPLY }), CODE));
    assert.deepEqual(outputs, ["take m1", "show m1 stream 1", "end m1", "seen m1"], "the reply alone was lost");
  });
});

describe("a new page", () => {
  it("takes a cell that has ended, once", () => {
    const away = new Away();
    const outputs = names(away.kept(kept({ reply: REPLY }), CODE));
    assert.deepEqual(outputs, ["take m1", "show m1 stream 1", "end m1", "seen m1"]);
    assert.deepEqual(names(away.kept(kept({ reply: REPLY }), CODE)), ["seen m1"]);
    assert.deepEqual(names(away.heard("m1", text("late"))), ["show m1 stream late"], "a thread of the cell's");
  });

  it("goes on with a cell that runs", () => {
    const away = new Away();
    away.heard("m1", text("before the answer"));
    away.kept(kept(), CODE);
    assert.deepEqual(names(away.heard("m1", text("2"))), ["show m1 stream 2"]);
    assert.deepEqual(away.kept(kept({ heard: 4 }), CODE), [], "asked again, it lacks nothing");
    const again = kept({ heard: 9, outputs: [text("1"), text("2")] });
    assert.deepEqual(names(away.kept(again, CODE)), ["take m1", "show m1 stream 1", "show m1 stream 2"]);
    assert.deepEqual(away.heard("m1", status("idle")), [], "the front says when it has ended");
    assert.deepEqual(names(away.ended("m1", REPLY)), ["end m1", "seen m1"]);
    assert.deepEqual(away.ended("m1", REPLY), []);
  });

  it("leaves a cell that was changed or deleted, and other cells", () => {
    const away = new Away();
    assert.deepEqual(away.kept(kept(), "another()"), []);
    assert.deepEqual(away.kept(kept(), null), []);
    assert.deepEqual(away.heard("m1", text("2")), []);
    assert.deepEqual(names(away.ended("m1", REPLY)), ["seen m1"], "once the notebook is saved, nobody wants it");
    assert.deepEqual(names(away.kept(kept({ id: "m2", reply: REPLY }), "another()")), ["seen m2"]);
  });

  it("asks again for a cell whose answer it never got", () => {
    const away = new Away();
    assert.deepEqual(names(away.ended("m1", REPLY)), ["ask"]);
    away.kept(kept({ reply: REPLY }), CODE);
    assert.deepEqual(away.ended("m1", REPLY), []);
  });

  it("leaves a cell that is run again", () => {
    const away = new Away();
    away.kept(kept(), CODE);
    away.sent("m2");
    away.left("m1");
    assert.deepEqual(away.heard("m1", text("2")), []);
  });

  it("loses what runs with a kernel that restarts", () => {
    const away = new Away();
    away.kept(kept(), CODE);
    away.kept(kept({ id: "m2", reply: REPLY }), CODE);
    away.sent("m3");
    assert.deepEqual(names(away.gone()), ["lose m1"]);
    assert.deepEqual(away.heard("m1", text("2")), []);
  });
});

describe("a view that is closed", () => {
  it("leaves the cells that it ran to another view", () => {
    const away = new Away();
    away.sent("m1");
    away.sent("m2");
    away.kept(kept({ id: "m3", cellId: "c3" }), CODE);
    away.heard("m1", status("busy"));
    assert.deepEqual(names(away.closed(new Set(["m2", "m0"]))), ["ask"]);
    assert.deepEqual(away.heard("m1", text("1")), [], "it is in the answer");
    assert.deepEqual(away.replied("m1"), [], "nobody has shown it to its end");
    assert.deepEqual(names(away.kept(kept({ heard: 2 }), CODE)), ["take m1", "show m1 stream 1"]);
    assert.deepEqual(away.kept(kept({ id: "m2", heard: 0 }), CODE), [], "another view shows it");
    assert.deepEqual(away.kept(kept({ id: "m3", cellId: "c3" }), CODE), [], "taken by a view that is left");
    assert.deepEqual(names(away.heard("m3", text("2"))), ["show m3 stream 2"]);
  });
});

describe("displays", () => {
  it("are updated wherever they are", () => {
    const away = new Away();
    const first = kept({ outputs: [display("display_data", "1"), display("update_display_data", "2")] });
    const [one, two] = ['{"text/plain":"1"}', '{"text/plain":"2"}'];
    assert.deepEqual(names(away.kept(first, CODE)), [
      "take m1",
      `show m1 display_data ${one}`,
      `show m1 update_display_data ${two}`,
    ]);
    // A cell of this page's own updates it: JupyterLab knows no such display.
    away.sent("m2");
    assert.deepEqual(names(away.heard("m2", display("update_display_data", "1"))), [
      `show m1 update_display_data ${one}`,
    ]);
    // Another display of that name is shown, and updates the first.
    away.kept(kept({ id: "m3", cellId: "c3", outputs: [] }), CODE);
    assert.deepEqual(names(away.heard("m3", display("display_data", "2"))), [
      `show m1 update_display_data ${two}`,
      `show m3 display_data ${two}`,
    ]);
    away.left("m1");
    assert.deepEqual(names(away.heard("m2", display("update_display_data", "1"))), [
      `show m3 update_display_data ${one}`,
    ]);
  });
});

describe("a kept cell on the wire", () => {
  const wire = {
    id: "m1",
    cell_id: "c1",
    code: CODE,
    heard: 3,
    dropped: 0,
    outputs: [{ msg_type: "stream", content: { name: "stdout", text: "1" } }],
    reply: null,
  };

  it("is read", () => assert.deepEqual(keptCell(wire), kept()));

  it("may be of another release", () => {
    assert.equal(keptCell(undefined), null);
    assert.equal(keptCell({ ...wire, code: 1 }), null);
    const { outputs, dropped, reply } = keptCell({ id: "m1", cell_id: "c1", code: "", outputs: [{}, 3] }) as KeptCell;
    assert.deepEqual([outputs, dropped, reply], [[], 0, null]);
  });
});
