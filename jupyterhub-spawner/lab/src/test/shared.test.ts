import assert from "node:assert/strict";
import { it } from "node:test";
import type { ISessionContext } from "@jupyterlab/apputils";
import { DisposableDelegate, ObservableDisposableDelegate } from "@lumino/disposable";
import { Signal } from "@lumino/signaling";
import { Shared } from "../shared.js";
import { type KernelPanel, Watchers } from "../watchers.js";

function view(): ObservableDisposableDelegate {
  return new ObservableDisposableDelegate(() => undefined);
}

it("is one for all views of a document, until the last is closed", () => {
  const shared = new Shared<object, ObservableDisposableDelegate, DisposableDelegate>();
  const [document, other] = [{}, {}];
  const [first, second, third] = [view(), view(), view()];
  let open: readonly ObservableDisposableDelegate[] = [];
  let ended = 0;
  const make = (views: readonly ObservableDisposableDelegate[]) => {
    open = views;
    return new DisposableDelegate(() => ended++);
  };
  const fails = () => assert.fail("there is one");
  const thing = shared.of(document, first, make);
  assert.equal(shared.of(document, first, fails), thing);
  assert.equal(shared.of(document, second, fails), thing);
  assert.deepEqual(open, [first, second]);
  assert.notEqual(
    shared.of(other, third, () => new DisposableDelegate(() => undefined)),
    thing,
  );
  first.dispose();
  assert.deepEqual([open, ended], [[second], 0]);
  assert.equal(shared.of(document, second, fails), thing);
  second.dispose();
  assert.deepEqual([open, ended], [[], 1]);
  const again = view();
  assert.notEqual(shared.of(document, again, make), thing);
  assert.deepEqual([open, ended], [[again], 1]);
});

/** As far as a watcher looks at a session without a kernel. */
function session(): ISessionContext {
  const signal = () => new Signal<unknown, unknown>({});
  return {
    session: null,
    kernelChanged: signal(),
    connectionStatusChanged: signal(),
    statusChanged: signal(),
    propertyChanged: signal(),
    specsManager: { specsChanged: signal() },
  } as unknown as ISessionContext;
}

it("watches the one connection of two views once", () => {
  const panel = (sessionContext: ISessionContext) =>
    Object.assign(view(), { sessionContext }) as unknown as KernelPanel;
  const watchers = new Watchers();
  const added: KernelPanel[] = [];
  watchers.added.connect((_, one) => added.push(one));
  const context = session();
  const [first, second, other] = [panel(context), panel(context), panel(session())];
  const watcher = watchers.of(first);
  assert.equal(watchers.of(second), watcher);
  assert.notEqual(watchers.of(other), watcher);
  assert.equal(watchers.of(first), watcher);
  assert.deepEqual(added, [first, second, other]);
  first.dispose();
  assert.equal(watcher.isDisposed, false, "the other view needs it");
  assert.equal(watchers.of(second), watcher);
  second.dispose();
  assert.equal(watcher.isDisposed, true);
});
