import assert from "node:assert/strict";
import { it, mock } from "node:test";
import type { ISessionContext } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { Signal } from "@lumino/signaling";
import { Announcer } from "../announcer.js";
import { Watcher } from "../watcher.js";

/** A connection to a kernel of ours, as far as a watcher looks at it. It throws as JupyterLab's. */
class Kernel {
  status = "idle";
  readonly name = "ours";
  readonly isDisposed = false;
  readonly anyMessage = new Signal<this, unknown>(this);
  readonly sent: string[] = [];

  sendShellMessage({ header }: { header: { msg_type: string } }): { dispose(): void } {
    if (this.status === "dead") {
      throw new Error("Kernel is dead");
    }
    this.sent.push(header.msg_type);
    return { dispose: () => undefined };
  }

  /** Publishes how it stands. */
  tells(state: string): void {
    const header = { msg_type: "status" };
    const msg = { header, parent_header: { msg_id: "m1" }, metadata: { gresshopper: { state } }, content: {} };
    this.anyMessage.emit({ msg, direction: "recv" });
  }
}

const trans = {
  __: (text: string, ...values: unknown[]) => text.replace(/%(\d)/g, (_, n) => String(values[Number(n) - 1])),
} as TranslationBundle;

function watcherOf(kernel: Kernel): Watcher {
  const signal = () => new Signal<unknown, unknown>({});
  return new Watcher({
    type: "notebook",
    path: "a.ipynb",
    session: { kernel },
    kernelChanged: signal(),
    connectionStatusChanged: signal(),
    statusChanged: signal(),
    propertyChanged: signal(),
    specsManager: { specsChanged: signal(), specs: { kernelspecs: { ours: { metadata: { gresshopper: {} } } } } },
  } as unknown as ISessionContext);
}

it("sends a dead kernel nothing, and leaves it", () => {
  const kernel = new Kernel();
  const watcher = watcherOf(kernel);
  assert.deepEqual(kernel.sent, ["comm_open"]);
  kernel.status = "dead";
  watcher.release();
  watcher.defaultNeed = { gpus: 1 };
  watcher.dispose();
  assert.deepEqual([watcher.isDisposed, watcher.kernel, kernel.sent], [true, null, ["comm_open"]]);
});

it("says nothing of a kernel that isn't in front any more", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const region = { textContent: "", setAttribute: () => undefined };
  const document = { createElement: () => region, body: { append: () => undefined } };
  Object.assign(globalThis, { window: globalThis, document });
  const [first, second] = [new Kernel(), new Kernel()];
  const [before, after] = [watcherOf(first), watcherOf(second)];
  const announcer = new Announcer(trans);
  const follow = (watcher: Watcher) => {
    announcer.watcher = watcher;
  };
  const said = () => {
    mock.timers.tick(1000);
    return region.textContent;
  };
  follow(before);
  first.tells("queued");
  follow(before);
  assert.equal(said(), "The cell waits for a GPU.");
  follow(after);
  assert.equal(region.textContent, "", "it was said of the first one");
  second.tells("revoked");
  follow(before);
  assert.equal(said(), "", "the second one is not in front any more");
  second.tells("moving");
  assert.equal(said(), "", "nor is it heard");
  mock.timers.reset();
});
